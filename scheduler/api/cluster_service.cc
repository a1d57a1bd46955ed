#include "scheduler/api/cluster_service.h"

#include <utility>

#include "base/status.h"
#include "scheduler/api/cluster_view.h"

namespace berth::scheduler {

ClusterService::ClusterService(asio::any_io_executor executor, const NodeLinks& links)
    : links_(links), calls_(std::move(executor), "cluster", "berth-scheduler") {}

template <class Request, class Response, class Make>
ClusterService::Reactor* ClusterService::Answer(std::string_view method, const Request* request,
                                                Response* answer, Make make) {
  return UnaryReactor<Request, Response>::Start(
      calls_, method, request, answer, [this, make](Request asked) -> Awaitable<absl::StatusOr<Response>> {
        absl::StatusOr<Response> made = make(asked);
        if (made.ok()) made->set_cluster_id(links_.cluster_id());
        co_return made;
      });
}

ClusterService::Reactor* ClusterService::ListNodes(Context* /*context*/, const v1::ListNodesRequest* request,
                                                   v1::ListNodesResponse* answer) {
  return Answer("ListNodes", request, answer, [this](const v1::ListNodesRequest& asked) {
    return scheduler::ListNodes(asked, links_.List(), links_.leases(), BootClock::now());
  });
}

ClusterService::Reactor* ClusterService::GetNode(Context* /*context*/, const v1::GetNodeRequest* request,
                                                 v1::GetNodeResponse* answer) {
  return Answer("GetNode", request, answer, [this](const v1::GetNodeRequest& asked) {
    return scheduler::GetNode(asked, links_.List(), links_.leases(), BootClock::now());
  });
}

ClusterService::Reactor* ClusterService::ListPlugins(Context* /*context*/,
                                                     const v1::ListClusterPluginsRequest* request,
                                                     v1::ListClusterPluginsResponse* answer) {
  return Answer("ListPlugins", request, answer, [this](const v1::ListClusterPluginsRequest& asked) {
    return scheduler::ListPlugins(asked, links_.List());
  });
}

}  // namespace berth::scheduler
