#include "scheduler/api/cluster_service.h"

#include <utility>

#include "base/status.h"
#include "scheduler/api/cluster_view.h"

namespace berth::scheduler {
namespace {

constexpr Duration kLongestCall = std::chrono::hours(24);
constexpr size_t kMostCalls = 4096;

}  // namespace

ClusterService::ClusterService(asio::any_io_executor executor, const NodeLinks& links, Volumes& volumes)
    : links_(links),
      volumes_(volumes),
      calls_(std::move(executor), "cluster", "berth-scheduler", kMostCalls) {}

template <class Request, class Response, class Make>
ClusterService::Reactor* ClusterService::AnswerLater(std::string_view method, const Request* request,
                                                     Response* answer, Make make) {
  return UnaryReactor<Request, Response>::Start(
      calls_, method, request, answer, [this, make](Request asked) -> Awaitable<absl::StatusOr<Response>> {
        absl::StatusOr<Response> made = co_await make(std::move(asked));
        if (made.ok()) made->set_cluster_id(links_.cluster_id());
        co_return made;
      });
}

template <class Request, class Response, class Make>
ClusterService::Reactor* ClusterService::Answer(std::string_view method, const Request* request,
                                                Response* answer, Make make) {
  const auto at_once = [make](Request asked) -> Awaitable<absl::StatusOr<Response>> {
    co_return make(asked);
  };
  return AnswerLater(method, request, answer, at_once);
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

ClusterService::Reactor* ClusterService::ForgetNode(Context* context, const v1::ForgetNodeRequest* request,
                                                    v1::ForgetNodeResponse* answer) {
  const TimePoint deadline = DeadlineOf(context->raw_deadline(), kLongestCall);
  return AnswerLater("ForgetNode", request, answer, [this, deadline](v1::ForgetNodeRequest asked) {
    return volumes_.ForgetNode(asked.name(), deadline);
  });
}

ClusterService::Reactor* ClusterService::RegisterVolume(Context* context,
                                                        const v1::RegisterVolumeRequest* request,
                                                        v1::RegisterVolumeResponse* answer) {
  const TimePoint deadline = DeadlineOf(context->raw_deadline(), kLongestCall);
  return AnswerLater("RegisterVolume", request, answer, [this, deadline](v1::RegisterVolumeRequest asked) {
    return volumes_.Register(std::move(*asked.mutable_volume()), deadline);
  });
}

ClusterService::Reactor* ClusterService::DeregisterVolume(Context* context,
                                                          const v1::DeregisterVolumeRequest* request,
                                                          v1::DeregisterVolumeResponse* answer) {
  const TimePoint deadline = DeadlineOf(context->raw_deadline(), kLongestCall);
  return AnswerLater("DeregisterVolume", request, answer,
                     [this, deadline](v1::DeregisterVolumeRequest asked) {
                       return volumes_.Deregister(std::move(asked), deadline);
                     });
}

ClusterService::Reactor* ClusterService::ListVolumes(Context* /*context*/,
                                                     const v1::ListClusterVolumesRequest* request,
                                                     v1::ListClusterVolumesResponse* answer) {
  return Answer("ListVolumes", request, answer,
                [this](const v1::ListClusterVolumesRequest& asked) { return volumes_.List(asked); });
}

ClusterService::Reactor* ClusterService::GetVolume(Context* /*context*/,
                                                   const v1::GetClusterVolumeRequest* request,
                                                   v1::GetClusterVolumeResponse* answer) {
  return Answer("GetVolume", request, answer,
                [this](const v1::GetClusterVolumeRequest& asked) { return volumes_.Get(asked); });
}

ClusterService::Reactor* ClusterService::ClaimVolume(Context* context,
                                                     const v1::ClaimClusterVolumeRequest* request,
                                                     v1::ClaimClusterVolumeResponse* answer) {
  const TimePoint deadline = DeadlineOf(context->raw_deadline(), kLongestCall);
  return AnswerLater("ClaimVolume", request, answer, [this, deadline](v1::ClaimClusterVolumeRequest asked) {
    return volumes_.Claim(std::move(asked), deadline);
  });
}

ClusterService::Reactor* ClusterService::ReleaseClaim(Context* context,
                                                      const v1::ReleaseClusterClaimRequest* request,
                                                      v1::ReleaseClusterClaimResponse* answer) {
  const TimePoint deadline = DeadlineOf(context->raw_deadline(), kLongestCall);
  return AnswerLater("ReleaseClaim", request, answer, [this, deadline](v1::ReleaseClusterClaimRequest asked) {
    return volumes_.Release(std::move(asked), deadline);
  });
}

ClusterService::Reactor* ClusterService::ListClaims(Context* /*context*/,
                                                    const v1::ListClusterClaimsRequest* request,
                                                    v1::ListClusterClaimsResponse* answer) {
  return Answer("ListClaims", request, answer,
                [this](const v1::ListClusterClaimsRequest& asked) { return volumes_.ListClaims(asked); });
}

}  // namespace berth::scheduler
