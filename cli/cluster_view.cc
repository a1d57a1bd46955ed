#include "cli/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/time_util.h>

#include <chrono>

#include "base/status.h"
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

std::string Since(const v1::ClusterNode& node) {
  return node.has_since() ? FormatRelative(node.since(), system_clock::now()) : "";
}

}  // namespace

std::string ClusterLine(const std::string& cluster_id) {
  return fmt::format("cluster {}:\n", Printable(cluster_id, 128));
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
