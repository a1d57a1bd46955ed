#include "bench/simulated_node.h"

#include <fmt/format.h>

#include <array>

namespace berth {
namespace {

using berth::v1::Fingerprint;
using berth::v1::GetStatusResponse;
using berth::v1::NodeMessage;
using berth::v1::NodeState;
using berth::v1::Plugin;
using berth::v1::Publication;
using berth::v1::Volume;

constexpr int64_t kSomeTime = 1'760'000'000;  // a second of the wall clock
constexpr std::array<const char*, kSimulatedPlugins> kPlugins = {"block-storage", "shared-files"};

// As long as a UUID, and another one for each node and purpose.
std::string SomeUuid(int node, int what) {
  return fmt::format("{:08x}-4b1d-4c3e-9a57-{:012x}", static_cast<unsigned>(node) * 2'654'435'761U, what);
}

// The key of a volume's directory: of the length of a SHA-256.
std::string SomeHash(int node, int volume) {
  return fmt::format("{:032x}{:032x}", node * 1'000'003, volume * 7919 + 1);
}

void FillNode(int number, NodeState* node) {
  GetStatusResponse* status = node->mutable_status();
  status->set_node_id(SimulatedName(number));
  status->set_version("0.1.0");
  status->set_boot_id(SomeUuid(number, 1));
  status->mutable_started_at()->set_seconds(kSomeTime);
  status->set_pid(812);
  status->set_config_dir("/etc/berth");
  status->set_state_dir("/var/lib/berth");
  status->set_runtime_dir("/run/berth");
  status->set_plugins(kSimulatedPlugins);
  status->set_plugins_ready(kSimulatedPlugins);
  status->set_volumes(kSimulatedVolumes);
  status->set_publications(8);
  status->set_last_event_sequence(4711);
  status->set_placement("systemd scopes");
  node->set_lease(berth::v1::LEASE_VALID);
  node->set_lease_epoch(1);
}

void FillFingerprint(int number, int index, Fingerprint* facts) {
  facts->set_driver_name(fmt::format("{}.csi.example.com", kPlugins.at(index)));
  facts->set_vendor_version("v1.27.3-0-g5a2c1f8");
  for (const char* name : {"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}) {
    facts->add_plugin_capabilities(name);
  }
  for (const char* name : {"CREATE_DELETE_VOLUME", "EXPAND_VOLUME", "LIST_VOLUMES",
                           "PUBLISH_UNPUBLISH_VOLUME", "SINGLE_NODE_MULTI_WRITER"}) {
    facts->add_controller_capabilities(name);
  }
  for (const char* name :
       {"EXPAND_VOLUME", "GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER", "STAGE_UNSTAGE_VOLUME"}) {
    facts->add_node_capabilities(name);
  }
  facts->set_node_id(fmt::format("i-{}", SomeUuid(number, 2)));
  facts->set_max_volumes(25);
  (*facts->mutable_topology())["topology.csi.example.com/region"] = "eu-west-1";
  (*facts->mutable_topology())["topology.csi.example.com/zone"] = fmt::format("eu-west-1{}", number % 3);
  facts->set_computed_class(SomeHash(number % 3, index));
  facts->mutable_read_at()->set_seconds(kSomeTime + 2);
  facts->set_needs_attach(index == 0);
}

void FillPlugin(int number, int index, Plugin* plugin) {
  const std::string id = kPlugins.at(index);
  plugin->set_id(id);
  plugin->set_kind("node");
  plugin->set_state(berth::v1::READY);
  plugin->set_alive(true);
  plugin->set_ready(true);
  plugin->set_registered(true);
  plugin->set_config_file(fmt::format("/etc/berth/plugins.d/{}.toml", id));
  plugin->set_pid(900 + index);
  plugin->set_socket_path(fmt::format("/run/berth/plugins/{}/csi.sock", id));
  plugin->mutable_started_at()->set_seconds(kSomeTime + 1);
  plugin->set_incarnation(1);
  plugin->mutable_health()->set_ok(true);
  plugin->mutable_health()->mutable_since()->set_seconds(kSomeTime + 2);
  FillFingerprint(number, index, plugin->mutable_fingerprint());
  plugin->set_volumes(kSimulatedVolumes / kSimulatedPlugins);
  plugin->set_placement(fmt::format("scope berth-plugin-{}.scope", id));
  plugin->set_command(
      fmt::format("/usr/libexec/{0}/csi-{0}-plugin --endpoint=${{endpoint}} --mode=node", id));
}

void FillPublication(int number, int index, const std::string& directory, Publication* publication) {
  publication->set_consumer(fmt::format("production/web-frontend-{}", SomeUuid(number, index)));
  publication->set_name("data");
  publication->set_target_path(fmt::format("{}/publish/{:032x}", directory, index));
  publication->set_state(berth::v1::PUBLISHED);
  publication->mutable_published_at()->set_seconds(kSomeTime + 60 + index);
  publication->set_origin(berth::v1::SCHEDULER);
  publication->mutable_life()->set_cgroup(
      fmt::format("/sys/fs/cgroup/system.slice/web-frontend-{}.service", index));
}

void FillVolume(int number, int index, Volume* volume) {
  constexpr int kOnlyStaged = 2;  // of all of them
  const std::string directory = "/var/lib/berth/volumes/" + SomeHash(number, index);
  volume->set_plugin_id(kPlugins.at(static_cast<size_t>(index) % kPlugins.size()));
  volume->set_volume_id(fmt::format("vol-{}", SomeUuid(number, 100 + index)));
  volume->mutable_capability()->set_access_mode(berth::v1::SINGLE_NODE_MULTI_WRITER);
  volume->mutable_capability()->set_fs_type("ext4");
  volume->mutable_capability()->add_mount_flags("(hidden)");
  volume->set_staging_path(directory + "/staging");
  if (index < kOnlyStaged) {
    volume->set_state(berth::v1::STAGED);
    return;
  }
  volume->set_state(berth::v1::PUBLISHED);
  FillPublication(number, index, directory, volume->add_publications());
}

}  // namespace

std::string SimulatedName(int number) { return fmt::format("node-{:05}", number); }

NodeMessage SimulatedHello(int number) {
  NodeMessage message;
  berth::v1::Hello* hello = message.mutable_hello();
  hello->mutable_protocol()->set_major(1);
  hello->set_node_id(SimulatedName(number));
  hello->set_instance_id(SomeUuid(number, 0));
  hello->set_boot_id(SomeUuid(number, 1));
  hello->set_run_id(SomeUuid(number, 3));
  hello->set_version("0.1.0");
  for (const char* feature : {"logs", "asks.claim", "asks.token"}) hello->add_features(feature);
  return message;
}

NodeMessage SimulatedState(int number) {
  NodeMessage message;
  berth::v1::State* state = message.mutable_state();
  FillNode(number, state->add_objects()->mutable_node());
  for (int i = 0; i < kSimulatedPlugins; ++i) {
    FillPlugin(number, i, state->add_objects()->mutable_plugin());
  }
  for (int i = 0; i < kSimulatedVolumes; ++i) {
    FillVolume(number, i, state->add_objects()->mutable_volume());
  }
  state->set_full(true);
  state->set_synced(true);
  state->set_revision(1);
  return message;
}

NodeMessage SimulatedHeartbeat(uint64_t heartbeat) {
  NodeMessage message;
  message.mutable_heartbeat()->set_number(heartbeat);
  return message;
}

}  // namespace berth
