#include "cli/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/time_util.h>

#include <chrono>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/plugin_view.h"
#include "cli/time_text.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

// "2 of 3": not all of them is worth a look.
Cell Of(int ready, int all) {
  if (all == 0) return {"-", Tone::kFaint};
  return {fmt::format("{} of {}", ready, all), ready == all ? Tone::kPlain : Tone::kCareful};
}

Cell ConnectionCell(const v1::ClusterNode& node) {
  const v1::ClusterNode::Connection connection = node.connection();
  if (connection == v1::ClusterNode::OTHER_MACHINE) return {"another machine", Tone::kBad};
  if (connection == v1::ClusterNode::TWO_MACHINES) return {"two machines", Tone::kBad};
  if (connection != v1::ClusterNode::CONNECTED) return {"away", Tone::kCareful};
  return node.synced() ? Cell("connected", Tone::kGood) : Cell("connecting", Tone::kCareful);
}

Cell HealthCell(const v1::ClusterNode& node) {
  if (node.draining()) return {"draining", Tone::kCareful};
  if (node.health() == v1::HEALTHY) return {"healthy", Tone::kGood};
  if (node.health() == v1::DEGRADED) return {"degraded", Tone::kCareful};
  if (node.health() == v1::FAILING) return {"failing", Tone::kBad};
  return {"", Tone::kFaint};
}

std::string Lease(const v1::ClusterNode& node) {
  if (!node.has_lease()) return "";
  const int64_t milliseconds = google::protobuf::util::TimeUtil::DurationToMilliseconds(node.lease());
  return FormatDuration(std::chrono::seconds((milliseconds + 999) / 1000));
}

std::string AccessModeName(v1::AccessMode mode) {
  return v1::AccessMode_IsValid(mode) ? v1::AccessMode_Name(mode) : fmt::to_string(+mode);
}

// "SINGLE_NODE_WRITER, MULTI_NODE_READER_ONLY ext4".
std::string AccessOf(const v1::VolumeSpec& spec) {
  std::vector<std::string> modes;
  for (const int mode : spec.access_modes()) {
    modes.push_back(AccessModeName(static_cast<v1::AccessMode>(mode)));
  }
  const std::string type = spec.access_type() == v1::BLOCK ? "block"
                           : spec.fs_type().empty()        ? "mount"
                                                           : spec.fs_type();
  return fmt::format("{} {}", fmt::join(modes, ", "), type);
}

std::string UseOf(const v1::ClusterClaim& claim) {
  return claim.name().empty() ? claim.consumer() : fmt::format("{} ({})", claim.consumer(), claim.name());
}

Cell ClaimStateCell(const v1::ClusterClaim& claim) {
  if (claim.phase() == v1::ClusterClaim::LEAVING) return {"leaving", Tone::kCareful};
  return claim.has_mount() ? Cell("mounted", Tone::kGood) : Cell("held", Tone::kCareful);
}

std::string Since(const v1::ClusterNode& node) {
  return node.has_since() ? FormatRelative(node.since(), system_clock::now()) : "";
}

}  // namespace

std::string ClusterLine(const std::string& cluster_id) {
  return fmt::format("cluster {}:\n", Printable(cluster_id, 128));
}

absl::StatusOr<ClusterVolumeName> ParseClusterVolume(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == text.size()) {
    return UsageError(fmt::format("'{}' is no volume of the scheduler's: it must be NAMESPACE/VOLUME",
                                  Printable(text, 200)),
                      "A volume that the storage's own id names: berthctl volume publish");
  }
  return ClusterVolumeName{.name_space = text.substr(0, slash), .id = text.substr(slash + 1)};
}

Table ClusterVolumeTable(const v1::ListClusterVolumesResponse& volumes) {
  Table table({"VOLUME", "DRIVER", "EXTERNAL ID", "ACCESS", "ATTACHES", "CLAIMS"});
  for (const v1::ClusterVolume& volume : volumes.volumes()) {
    const v1::VolumeSpec& spec = volume.spec();
    table.Add({fmt::format("{}/{}", spec.namespace_(), spec.id()), spec.driver(), spec.external_id(),
               AccessOf(spec), volume.needs_attach() ? "yes" : "no", fmt::to_string(volume.claims())});
  }
  return table;
}

Table ClusterVolumeDetails(const v1::ClusterVolume& volume) {
  const v1::VolumeSpec& spec = volume.spec();
  Table table;
  table.Add({"volume", fmt::format("{}/{}", spec.namespace_(), spec.id())});
  table.Add({"driver", spec.driver()});
  table.Add({"external id", spec.external_id()});
  table.Add({"access", AccessOf(spec)});
  if (!spec.mount_flags().empty())
    table.Add({"mount flags", fmt::format("{}", fmt::join(spec.mount_flags(), ","))});
  if (!spec.volume_mount_group().empty()) table.Add({"mount group", spec.volume_mount_group()});
  table.Add({"attaches", volume.needs_attach() ? "yes" : "no"});
  return table;
}

Table ClaimTable(const google::protobuf::RepeatedPtrField<v1::ClusterClaim>& claims) {
  Table table({"VOLUME", "CONSUMER", "NODE", "STATE", "ACCESS", "WAITS FOR"});
  for (const v1::ClusterClaim& claim : claims) {
    table.Add({fmt::format("{}/{}", claim.namespace_(), claim.volume()), UseOf(claim), claim.node(),
               ClaimStateCell(claim),
               fmt::format("{}{}", AccessModeName(claim.access_mode()), claim.writes() ? "" : ", reads"),
               claim.waits_for()});
  }
  return table;
}

Table ClaimDetails(const v1::ClusterClaim& claim) {
  Table table;
  table.Add({"volume", fmt::format("{}/{}", claim.namespace_(), claim.volume())});
  table.Add({"consumer", UseOf(claim)});
  table.Add({"node", claim.node()});
  table.Add({"state", ClaimStateCell(claim)});
  if (!claim.cause().empty()) table.Add({"leaves because", claim.cause()});
  table.Add({"access", fmt::format("{}, {}", AccessModeName(claim.access_mode()),
                                   claim.writes() ? "writes" : "reads")});
  table.Add({"driver", claim.driver()});
  table.Add({"external id", claim.external_id()});
  if (claim.has_mount()) table.Add({"path on the node", claim.mount().source_path()});
  if (!claim.step().empty())
    table.Add({"step", fmt::format("{}, operation {}", claim.step(), claim.operation_id())});
  if (!claim.waits_for().empty()) table.Add({"waits for", claim.waits_for()});
  if (claim.tries() > 0) table.Add({"failed tries", fmt::to_string(claim.tries())});
  if (!claim.last_error().empty()) table.Add({"last error", claim.last_error()});
  if (claim.has_next_try()) table.Add({"next try", "in " + FormatDuration(claim.next_try())});
  return table;
}

Table NodeTable(const v1::ListNodesResponse& nodes) {
  Table table({"NODE", "CONNECTION", "SINCE", "LEASE", "HEALTH", "PLUGINS READY", "VOLUMES", "PUBLICATIONS",
               "BERTHD"});
  for (const v1::ClusterNode& node : nodes.nodes()) {
    const bool here = node.connection() == v1::ClusterNode::CONNECTED;
    const auto count = [here](int number) { return here ? fmt::to_string(number) : std::string(); };
    table.Add({node.name(), ConnectionCell(node), Since(node), Lease(node), HealthCell(node),
               here ? Of(node.plugins_ready(), node.plugins()) : Cell(""), count(node.volumes()),
               count(node.publications()), node.version()});
  }
  return table;
}

Table NodeDetails(const v1::ClusterNode& node) {
  Table table;
  table.Add({"node", node.name()});
  const Cell connection = ConnectionCell(node);
  const std::string since = Since(node);
  table.Add({"connection",
             Cell(since.empty() ? connection.text : connection.text + ", since " + since, connection.tone)});
  if (node.connection() == v1::ClusterNode::AWAY)
    table.Add({" ", "that it is away says nothing about its volumes"});
  table.Add({"lease", node.has_lease() ? "ends within " + Lease(node) : "none"});
  table.Add({"instance id", node.instance_id()});
  table.Add({"boot id", node.boot_id()});
  if (!node.version().empty()) table.Add({"berthd", node.version()});
  if (!node.synced()) return table;
  table.Add({"health", HealthCell(node)});
  table.Add({"plugins", Of(node.plugins_ready(), node.plugins())});
  table.Add({"volumes", fmt::format("{}, published {} time{} for the cluster", node.volumes(),
                                    node.publications(), node.publications() == 1 ? "" : "s")});
  return table;
}

Table DriverTable(const v1::ListClusterPluginsResponse& plugins) {
  Table table({"DRIVER", "VERSION", "CONTROLLERS READY", "NODES READY", "ATTACHES"});
  for (const v1::ClusterPlugin& plugin : plugins.plugins()) {
    table.Add({plugin.driver().empty() ? Cell("not known yet", Tone::kFaint) : Cell(plugin.driver()),
               fmt::format("{}", fmt::join(plugin.versions(), ", ")),
               Of(plugin.controllers_ready(), plugin.controllers()), Of(plugin.nodes_ready(), plugin.nodes()),
               plugin.needs_attach() ? "yes" : "no"});
  }
  return table;
}

Table InstanceTable(const v1::ClusterPlugin& plugin) {
  Table table({"NODE", "PLUGIN", "STATE", "VERSION", "CONTROLLER", "STORAGE'S NODE ID", "VOLUMES", "REASON"});
  for (const v1::ClusterPluginInstance& each : plugin.instances()) {
    table.Add({each.node(), each.plugin_id(),
               Cell(PluginStateName(each.state()), each.ready() ? Tone::kGood : Tone::kCareful),
               each.version(), each.controller() ? "yes" : "no", each.storage_node_id(),
               fmt::to_string(each.volumes_in_use()), each.ready() ? "" : each.reason()});
  }
  return table;
}

}  // namespace berth::cli
