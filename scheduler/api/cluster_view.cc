#include "scheduler/api/cluster_view.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/status.h"

namespace berth::scheduler {
namespace {

using google::protobuf::util::TimeUtil;

constexpr int kMostNodesInAPage = 1000;

v1::ClusterNode::Connection ConnectionOf(const NodeView& node) {
  if (node.two_machines) return v1::ClusterNode::TWO_MACHINES;
  if (node.other_machine) return v1::ClusterNode::OTHER_MACHINE;
  return node.connected ? v1::ClusterNode::CONNECTED : v1::ClusterNode::AWAY;
}

v1::ClusterPluginInstance InstanceOf(const std::string& node, const v1::Plugin& plugin) {
  v1::ClusterPluginInstance instance;
  instance.set_node(node);
  instance.set_plugin_id(plugin.id());
  instance.set_version(plugin.fingerprint().vendor_version());
  instance.set_state(plugin.state());
  instance.set_ready(TakesWork(plugin));
  instance.set_reason(plugin.reason());
  instance.set_controller(HasController(plugin));
  instance.set_provides_node(ProvidesNode(plugin));
  instance.set_storage_node_id(plugin.fingerprint().node_id());
  instance.set_volumes_in_use(plugin.volumes_in_use());
  return instance;
}

// What the instances come to.
void Summarise(v1::ClusterPlugin* plugin) {
  std::set<std::string> versions;
  std::map<std::string, bool> nodes;  // whether one instance there takes work
  for (const v1::ClusterPluginInstance& instance : plugin->instances()) {
    if (!instance.version().empty()) versions.insert(instance.version());
    if (instance.controller()) {
      plugin->set_controllers(plugin->controllers() + 1);
      if (instance.ready()) plugin->set_controllers_ready(plugin->controllers_ready() + 1);
    }
    if (instance.provides_node()) nodes[instance.node()] |= instance.ready();
  }
  *plugin->mutable_versions() = {versions.begin(), versions.end()};
  plugin->set_nodes(static_cast<int>(nodes.size()));
  plugin->set_nodes_ready(
      static_cast<int>(std::ranges::count_if(nodes, [](const auto& node) { return node.second; })));
}

}  // namespace

v1::ClusterNode ToProto(const NodeView& node, const LeaseClock& leases, BootTime now) {
  v1::ClusterNode proto;
  proto.set_name(node.name);
  proto.set_instance_id(node.instance_id);
  proto.set_boot_id(node.boot_id);
  proto.set_version(node.version);
  proto.set_connection(ConnectionOf(node));
  if (node.since.has_value()) {
    const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(node.since->time_since_epoch());
    *proto.mutable_since() = TimeUtil::NanosecondsToTimestamp(since.count());
  }
  if (const BootTime end = leases.EndOf(node.name); end > now && !node.other_machine) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - now);
    *proto.mutable_lease() = TimeUtil::NanosecondsToDuration(left.count());
  }
  if (node.facts == nullptr) return proto;
  const v1::GetStatusResponse& status = node.facts->node().status();
  proto.set_synced(node.facts->synced());
  proto.set_health(status.health());
  proto.set_draining(status.has_drain());
  proto.set_problems(status.problems_size());
  proto.set_plugins(static_cast<int>(node.facts->plugins().size()));
  proto.set_plugins_ready(static_cast<int>(std::ranges::count_if(
      node.facts->plugins(), [](const auto& plugin) { return TakesWork(plugin.second); })));
  proto.set_volumes(static_cast<int>(node.facts->volumes().size()));
  proto.set_publications(static_cast<int>(node.facts->OwnPublications()));
  return proto;
}

absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request,
                                                const std::vector<NodeView>& nodes, const LeaseClock& leases,
                                                BootTime now) {
  if (request.page_size() < 0 || request.page_size() > kMostNodesInAPage) {
    return absl::InvalidArgumentError(
        fmt::format("page_size: {} must be 0 to {}", request.page_size(), kMostNodesInAPage));
  }
  const auto limit = static_cast<size_t>(request.page_size() == 0 ? kMostNodesInAPage : request.page_size());
  v1::ListNodesResponse answer;
  size_t count = 0;
  for (auto node = std::ranges::upper_bound(nodes, request.page_token(), {}, &NodeView::name);
       node != nodes.end(); ++node, ++count) {
    // All that have one name are on one page.
    if (count >= limit && node->name != answer.nodes(answer.nodes_size() - 1).name()) {
      answer.set_next_page_token(answer.nodes(answer.nodes_size() - 1).name());
      break;
    }
    *answer.add_nodes() = ToProto(*node, leases, now);
  }
  return answer;
}

absl::StatusOr<v1::GetNodeResponse> GetNode(const v1::GetNodeRequest& request,
                                            const std::vector<NodeView>& nodes, const LeaseClock& leases,
                                            BootTime now) {
  // The machine that is recorded comes first.
  const auto node = std::ranges::find(nodes, request.name(), &NodeView::name);
  if (node == nodes.end())
    return absl::NotFoundError(fmt::format("no node {} was ever connected", Printable(request.name(), 192)));
  v1::GetNodeResponse answer;
  *answer.mutable_node() = ToProto(*node, leases, now);
  if (node->facts == nullptr || !node->facts->synced()) return answer;
  *answer.mutable_state() = node->facts->node();
  for (const auto& [id, plugin] : node->facts->plugins()) *answer.add_plugins() = plugin;
  for (const auto& [key, volume] : node->facts->volumes()) *answer.add_volumes() = volume;
  return answer;
}

v1::ListClusterPluginsResponse ListPlugins(const v1::ListClusterPluginsRequest& request,
                                           const std::vector<NodeView>& nodes) {
  std::map<std::string, v1::ClusterPlugin> drivers;
  for (const NodeView& node : nodes) {
    if (node.facts == nullptr || node.other_machine) continue;
    for (const auto& [id, plugin] : node.facts->plugins()) {
      const std::string& driver = plugin.fingerprint().driver_name();
      if (!request.driver().empty() && driver != request.driver()) continue;
      v1::ClusterPlugin& proto = drivers[driver];
      proto.set_driver(driver);
      proto.set_needs_attach(proto.needs_attach() || plugin.fingerprint().needs_attach());
      *proto.add_instances() = InstanceOf(node.name, plugin);
    }
  }
  v1::ListClusterPluginsResponse answer;
  for (auto& [driver, proto] : drivers) {
    Summarise(&proto);
    *answer.add_plugins() = std::move(proto);
  }
  return answer;
}

}  // namespace berth::scheduler
