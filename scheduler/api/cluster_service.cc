#include "scheduler/api/cluster_service.h"

#include <utility>

#include "base/status.h"
#include "scheduler/api/cluster_view.h"

namespace berth::scheduler {
namespace {

constexpr Duration kLongestCall = std::chrono::minutes(10);

}  // namespace

ClusterService::ClusterService(asio::any_io_executor executor, const NodeLinks& links)
    : links_(links), calls_(std::move(executor), "cluster", "berth-scheduler", kLongestCall) {}

ClusterService::Reactor* ClusterService::ListNodes(Context* /*context*/, const v1::ListNodesRequest* request,
                                                   v1::ListNodesResponse* answer) {
  return UnaryReactor<v1::ListNodesRequest, v1::ListNodesResponse>::Start(
      calls_, "ListNodes", request, answer,
      [this](v1::ListNodesRequest asked) -> Awaitable<absl::StatusOr<v1::ListNodesResponse>> {
        auto nodes = scheduler::ListNodes(asked, links_.List(), links_.leases(), BootClock::now());
        if (nodes.ok()) nodes->set_cluster_id(links_.cluster_id());
        co_return nodes;
      });
}

ClusterService::Reactor* ClusterService::GetNode(Context* /*context*/, const v1::GetNodeRequest* request,
                                                 v1::GetNodeResponse* answer) {
  return UnaryReactor<v1::GetNodeRequest, v1::GetNodeResponse>::Start(
      calls_, "GetNode", request, answer,
      [this](v1::GetNodeRequest asked) -> Awaitable<absl::StatusOr<v1::GetNodeResponse>> {
        auto node = scheduler::GetNode(asked, links_.List(), links_.leases(), BootClock::now());
        if (node.ok()) node->set_cluster_id(links_.cluster_id());
        co_return node;
      });
}

ClusterService::Reactor* ClusterService::ListPlugins(Context* /*context*/,
                                                     const v1::ListClusterPluginsRequest* request,
                                                     v1::ListClusterPluginsResponse* answer) {
  return UnaryReactor<v1::ListClusterPluginsRequest, v1::ListClusterPluginsResponse>::Start(
      calls_, "ListPlugins", request, answer,
      [this](
          v1::ListClusterPluginsRequest asked) -> Awaitable<absl::StatusOr<v1::ListClusterPluginsResponse>> {
        v1::ListClusterPluginsResponse plugins = scheduler::ListPlugins(asked, links_.List());
        plugins.set_cluster_id(links_.cluster_id());
        co_return plugins;
      });
}

}  // namespace berth::scheduler
