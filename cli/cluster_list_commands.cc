// node list|show, and plugin list|show of a cluster: what its scheduler knows.
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "base/status.h"
#include "cli/cluster_view.h"
#include "cli/failure.h"
#include "cli/plugin_view.h"
#include "cli/session.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

absl::Status ListNodes(Session& session, const NoOptions& /*options*/) {
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListNodesResponse all,
      cluster.CallForAllPages(&ClusterClient::Stub::ListNodes, v1::ListNodesRequest(), "list the nodes"));
  if (session.output.json()) {
    session.output.Json(all);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(all.cluster_id()));
  if (all.nodes().empty()) {
    session.output.Note(
        "no node was ever connected: name the scheduler in [scheduler] of a node's berthd.toml");
    return absl::OkStatus();
  }
  session.output.Show(NodeTable(all));
  return absl::OkStatus();
}

struct NameOptions {
  std::string name;
};

absl::Status ShowNode(Session& session, const NameOptions& options) {
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  v1::GetNodeRequest request;
  request.set_name(options.name);
  BERTH_ASSIGN_OR_RETURN(const v1::GetNodeResponse answer,
                         cluster.Call(&ClusterClient::Stub::GetNode, request,
                                      fmt::format("show node {}", Printable(options.name, 100))));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  session.output.Show(NodeDetails(answer.node()));
  for (const std::string& problem : answer.state().status().problems())
    session.output.Text(fmt::format("problem: {}\n", Printable(problem, 512)));
  v1::ListPluginsResponse plugins;
  *plugins.mutable_plugins() = answer.plugins();
  if (!plugins.plugins().empty()) {
    session.output.Text("\n");
    session.output.Show(PluginTable(plugins));
  }
  v1::ListVolumesResponse volumes;
  *volumes.mutable_volumes() = answer.volumes();
  if (!volumes.volumes().empty()) {
    session.output.Text("\n");
    session.output.Show(VolumeTable(volumes, std::chrono::system_clock::now()));
  }
  return absl::OkStatus();
}

absl::Status ForgetNode(Session& session, const NameOptions& options) {
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  v1::ForgetNodeRequest request;
  request.set_name(options.name);
  BERTH_ASSIGN_OR_RETURN(const v1::ForgetNodeResponse answer,
                         cluster.Call(&ClusterClient::Stub::ForgetNode, request,
                                      fmt::format("forget node {}", Printable(options.name, 100))));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  if (!answer.was_known()) session.output.Note("no machine was recorded under that name");
  return absl::OkStatus();
}

void DeclareNodeName(CLI::App& command, NameOptions& options) {
  command.add_option("name", options.name, "The node's name: node_id of its berthd.toml")
      ->required()
      ->option_text("NODE");
}

absl::StatusOr<v1::ListClusterPluginsResponse> AskForPlugins(Session& session, const std::string& driver) {
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  v1::ListClusterPluginsRequest request;
  request.set_driver(driver);
  return cluster.Call(&ClusterClient::Stub::ListPlugins, request, "list the plugins");
}

}  // namespace

absl::Status ListClusterPlugins(Session& session) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListClusterPluginsResponse answer, AskForPlugins(session, ""));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  if (answer.plugins().empty()) {
    session.output.Note("no plugins: no node that is connected has one");
    return absl::OkStatus();
  }
  session.output.Show(DriverTable(answer));
  return absl::OkStatus();
}

absl::Status ShowClusterPlugin(Session& session, const std::string& driver) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListClusterPluginsResponse answer, AskForPlugins(session, driver));
  if (answer.plugins().empty()) {
    return WithHint(absl::NotFoundError(
                        fmt::format("no node that is connected runs the driver {}", Printable(driver, 128))),
                    "A cluster's plugins are named by their drivers: berthctl plugin list");
  }
  if (session.output.json()) {
    session.output.Json(answer.plugins(0));
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  session.output.Show(DriverTable(answer));
  session.output.Text("\n");
  session.output.Show(InstanceTable(answer.plugins(0)));
  return absl::OkStatus();
}

void AddClusterLists(CLI::App& app, Command& chosen) {
  CLI::App* group = AddGroup(app, "node", "Nodes of a cluster (--cluster): list, show, forget");
  AddCommand<NoOptions>(*group, "list", "Every machine that is, or was, connected to the scheduler", chosen,
                        DeclareNothing, ListNodes);
  AddCommand<NameOptions>(*group, "show", "One node, its plugins and volumes, as it says itself", chosen,
                          DeclareNodeName, ShowNode);
  AddCommand<NameOptions>(*group, "forget", "Whichever machine connects under this name next is the node",
                          chosen, DeclareNodeName, ForgetNode);
}

}  // namespace berth::cli
