#include "rpc/convert.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>

#include <algorithm>
#include <set>

#include "base/status.h"
#include "controller/controller_answer.h"
#include "csi/names.h"
#include "request/request_check.h"

namespace berth {
namespace {

constexpr size_t kOutputLines = 100;
constexpr int kHolderLimit = 200;
constexpr int kUsageLimit = 16;

// One that answers Probe, and is not registered, takes no work.
v1::PluginState StateOf(const PluginSnapshot& plugin) {
  switch (plugin.state) {
    case PluginState::kStopped:
      return v1::STOPPED;
    case PluginState::kStarting:
      return v1::STARTING;
    case PluginState::kReady:
      if (plugin.registered) return v1::READY;
      return plugin.reason.empty() ? v1::STARTING : v1::UNHEALTHY;
    case PluginState::kUnhealthy:
      return v1::UNHEALTHY;
    case PluginState::kBackingOff:
      return v1::BACKING_OFF;
    case PluginState::kDraining:
      return v1::DRAINING;
    case PluginState::kFailed:
      return v1::FAILED;
  }
  return v1::PLUGIN_STATE_UNKNOWN;
}

// What a CSI set of capabilities is called, added to `to`.
template <class Repeated>
void AddNames(const std::set<int>& numbers, std::string (*name)(int), Repeated* to) {
  for (std::string& text : Names(numbers, name)) to->Add(std::move(text));
}

// With a prefix, since the names of services stand in the same list.
std::string ExpansionName(int number) { return "VOLUME_EXPANSION_" + VolumeExpansionName(number); }

template <class Map>
void FillMap(const std::map<std::string, std::string>& from, Map* to) {
  for (const auto& [key, value] : from) (*to)[ToUtf8(key)] = ToUtf8(value);
}

void Fill(const PluginSnapshot& plugin, v1::Fingerprint* to) {
  const PluginFacts& facts = *plugin.facts;
  to->set_driver_name(ToUtf8(facts.name));
  to->set_vendor_version(ToUtf8(facts.vendor_version));
  FillMap(facts.manifest, to->mutable_manifest());
  AddNames(facts.plugin_services, PluginServiceName, to->mutable_plugin_capabilities());
  AddNames(facts.volume_expansion, ExpansionName, to->mutable_plugin_capabilities());
  AddNames(facts.controller_capabilities, ControllerCapabilityName, to->mutable_controller_capabilities());
  AddNames(facts.group_capabilities, GroupControllerCapabilityName,
           to->mutable_group_controller_capabilities());
  AddNames(facts.node_capabilities, NodeCapabilityName, to->mutable_node_capabilities());
  to->set_node_id(ToUtf8(facts.node_id));
  to->set_max_volumes(facts.max_volumes_per_node.value_or(0));
  FillMap(facts.topology, to->mutable_topology());
  to->set_computed_class(plugin.computed_class);
  if (plugin.facts_read_at) *to->mutable_read_at() = ToProto(*plugin.facts_read_at);
  to->set_needs_attach(facts.NeedsAttach());
}

void Fill(const PluginHealth& health, v1::Health* to) {
  to->set_ok(health.ok);
  if (health.last_probe_at) *to->mutable_last_probe_at() = ToProto(*health.last_probe_at);
  *to->mutable_latency() = ToProto(health.latency);
  to->set_error(Printable(health.error));
  to->set_consecutive_failures(health.consecutive_failures);
  if (health.since != WallTime{}) *to->mutable_since() = ToProto(health.since);
}

void Fill(const HealthStatus& status, v1::HealthStatus* to) {
  to->set_type(status.type);
  to->set_reason(status.reason);
  to->set_message(status.message);
  to->set_capability(status.capability);
}

}  // namespace

v1::VolumeCondition ToProto(const ConditionView& condition) {
  v1::VolumeCondition to;
  to.set_abnormal(condition.abnormal);
  to.set_message(condition.message);
  for (const HealthStatus& status : condition.statuses) Fill(status, to.add_statuses());
  return to;
}

std::string ToUtf8(const std::string& value) {
  return IsUtf8(value) ? value : Printable(value, RequestLimits::kVolumeId);
}

google::protobuf::Timestamp ToProto(WallTime time) {
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(nanos);
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(seconds.count());
  stamp.set_nanos(static_cast<int32_t>((nanos - seconds).count()));
  return stamp;
}

google::protobuf::Duration ToProto(Duration duration) {
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  google::protobuf::Duration to;
  to.set_seconds(nanos / 1'000'000'000);
  to.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return to;
}

v1::Plugin ToProto(const PluginSnapshot& plugin, int volumes) {
  v1::Plugin to;
  to.set_id(ToUtf8(plugin.id));
  to.set_kind(std::string(PluginKindName(plugin.kind)));
  to.set_state(StateOf(plugin));
  to.set_alive(plugin.alive);
  to.set_ready(plugin.ready);
  to.set_registered(plugin.registered);
  to.set_reason(Printable(plugin.reason));
  to.set_config_file(ToUtf8(plugin.config_file));
  to.set_placed(plugin.placed);
  to.set_pid(plugin.pid);
  to.set_socket_path(ToUtf8(plugin.socket_path));
  if (plugin.started_at) *to.mutable_started_at() = ToProto(*plugin.started_at);
  to.set_restarts(plugin.restarts);
  to.set_last_exit(Printable(plugin.last_exit));
  if (plugin.last_exit_at) *to.mutable_last_exit_at() = ToProto(*plugin.last_exit_at);
  if (plugin.next_restart_at) *to.mutable_next_restart_at() = ToProto(*plugin.next_restart_at);
  const size_t first =
      plugin.last_output.size() > kOutputLines ? plugin.last_output.size() - kOutputLines : 0;
  for (size_t i = first; i < plugin.last_output.size(); ++i) {
    to.add_last_output(Printable(plugin.last_output[i]));
  }
  to.set_instance(plugin.instance);
  Fill(plugin.health, to.mutable_health());
  for (const HealthStatus& status : plugin.health.storage) Fill(status, to.add_storage_health());
  if (plugin.facts) Fill(plugin, to.mutable_fingerprint());
  to.set_volumes_in_use(volumes);
  to.set_external(plugin.external);
  to.set_placement(Printable(plugin.placement));
  to.set_paused(plugin.paused);
  to.set_draining(plugin.draining);
  for (const std::string& holder : plugin.holders) {
    if (to.waiting_for_size() == kHolderLimit) {
      to.add_waiting_for(fmt::format("and {} more", plugin.holders.size() - size_t{kHolderLimit}));
      break;
    }
    to.add_waiting_for(Printable(holder));
  }
  to.set_serves_mounts(plugin.serves_mounts);
  to.set_file_error(Printable(plugin.file_error));
  to.set_command(Printable(plugin.command));
  to.set_swap(Printable(plugin.swap));
  return to;
}

std::vector<std::string> LinesOf(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

v1::ReloadResponse ToProto(const NodeReload& report) {
  v1::ReloadResponse to;
  const auto fill = [](const std::vector<std::string>& from, auto* list) {
    for (const std::string& text : from) list->Add(Printable(text));
  };
  fill(report.plugins.started, to.mutable_started());
  fill(report.plugins.stopped, to.mutable_stopped());
  fill(report.plugins.swapped, to.mutable_swapped());
  fill(report.plugins.updated, to.mutable_updated());
  fill(report.plugins.unchanged, to.mutable_unchanged());
  for (const auto* files : {&report.plugins.broken, &report.volumes.broken}) {
    for (const std::string& mistakes : *files) fill(LinesOf(mistakes), to.mutable_broken());
  }
  fill(report.plugins.pending, to.mutable_pending());
  fill(report.volumes.declared, to.mutable_volumes_declared());
  fill(report.volumes.withdrawn, to.mutable_volumes_withdrawn());
  fill(report.volumes.changed, to.mutable_volumes_changed());
  return to;
}

v1::ReadPluginLogResponse ToProto(const LogBatch& batch) {
  v1::ReadPluginLogResponse to;
  for (const LogLine& line : batch.lines) {
    v1::PluginLogLine& next = *to.add_lines();
    next.set_position(line.position);
    next.set_number(line.number);
    *next.mutable_time() = ToProto(line.time);
    next.set_text(ToUtf8(line.text));
    next.set_notice(line.notice);
  }
  to.set_missed_lines(batch.missed_lines);
  to.set_missed_bytes(batch.missed_bytes);
  to.mutable_next()->set_position(batch.next.position);
  if (batch.next.number) to.mutable_next()->set_number(*batch.next.number);
  return to;
}

v1::LogEntry ToProto(const LogEntry& entry) {
  v1::LogEntry to;
  *to.mutable_time() = ToProto(entry.time);
  to.set_level(std::string(LogLevelName(entry.level)));
  to.set_text(Printable(entry.text));
  to.set_source(Printable(entry.source));
  return to;
}

v1::Event ToProto(const Event& event) {
  v1::Event to;
  to.set_sequence(event.sequence);
  *to.mutable_time() = ToProto(event.time);
  to.set_type(ToUtf8(event.type));
  to.set_plugin_id(ToUtf8(event.plugin_id));
  to.set_volume_id(ToUtf8(event.volume_id));
  to.set_consumer(ToUtf8(event.consumer));
  to.set_message(Printable(event.message));
  return to;
}

absl::StatusOr<v1::CreateVolumeResponse> CheckedAnswer(std::string_view plugin_id,
                                                       const ::csi::v1::CreateVolumeRequest& request,
                                                       const ::csi::v1::CreateVolumeResponse& answer) {
  if (const absl::Status checked = CheckAnswer(request, answer); !checked.ok()) {
    return WrongAnswer(plugin_id, "CreateVolume", MessageOf(checked));
  }
  v1::CreateVolumeResponse response;
  response.set_volume_id(answer.volume().volume_id());
  response.set_capacity_bytes(answer.volume().capacity_bytes());
  *response.mutable_volume_context() = answer.volume().volume_context();
  return response;
}

absl::StatusOr<int64_t> CheckedAnswer(std::string_view plugin_id,
                                      const ::csi::v1::ControllerExpandVolumeRequest& request,
                                      const ::csi::v1::ControllerExpandVolumeResponse& answer) {
  if (const absl::Status checked = CheckAnswer(request, answer); !checked.ok()) {
    return WrongAnswer(plugin_id, "ControllerExpandVolume", MessageOf(checked));
  }
  return answer.capacity_bytes();
}

v1::GetVolumeStatsResponse Readable(const ::csi::v1::NodeGetVolumeStatsResponse& answer,
                                    std::set<std::string>* dropped) {
  using ::csi::v1::VolumeUsage;
  v1::GetVolumeStatsResponse response;
  for (const VolumeUsage& usage : answer.usage()) {
    if (response.usage_size() == kUsageLimit) {
      dropped->insert(fmt::format("more than {} usages", kUsageLimit));
      break;
    }
    if (usage.unit() != VolumeUsage::BYTES && usage.unit() != VolumeUsage::INODES) {
      dropped->insert("a usage in a unit that is neither BYTES nor INODES");
      continue;
    }
    const std::string unit = VolumeUsage::Unit_Name(usage.unit());
    if (usage.total() < 0 || usage.used() < 0 || usage.available() < 0) {
      dropped->insert(fmt::format("a negative number of {}", unit));
      continue;
    }
    v1::VolumeUsage& to = *response.add_usage();
    to.set_unit(unit);
    to.set_total(usage.total());
    to.set_used(usage.used());
    to.set_available(usage.available());
  }
  if (answer.has_volume_condition()) {
    *response.mutable_condition() = ToProto(ReadHealth(answer.volume_condition()));
  }
  return response;
}

}  // namespace berth
