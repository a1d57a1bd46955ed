// berth.v1.Cluster: what people and programs ask the scheduler.
//
// The answers are made on the loop, from what the links know at that moment. Owned by Scheduler.
#pragma once

#include <absl/status/statusor.h>

#include <string_view>

#include "base/server_call.h"
#include "berth/v1/cluster.grpc.pb.h"
#include "scheduler/drive/volumes.h"
#include "scheduler/links/node_links.h"

namespace berth::scheduler {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  // `links` and `volumes` outlive it.
  ClusterService(asio::any_io_executor executor, const NodeLinks& links, Volumes& volumes);

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* ListNodes(Context* context, const v1::ListNodesRequest* request,
                     v1::ListNodesResponse* answer) override;
  Reactor* GetNode(Context* context, const v1::GetNodeRequest* request, v1::GetNodeResponse* answer) override;
  Reactor* ForgetNode(Context* context, const v1::ForgetNodeRequest* request,
                      v1::ForgetNodeResponse* answer) override;
  Reactor* ListPlugins(Context* context, const v1::ListClusterPluginsRequest* request,
                       v1::ListClusterPluginsResponse* answer) override;
  Reactor* RegisterVolume(Context* context, const v1::RegisterVolumeRequest* request,
                          v1::RegisterVolumeResponse* answer) override;
  Reactor* DeregisterVolume(Context* context, const v1::DeregisterVolumeRequest* request,
                            v1::DeregisterVolumeResponse* answer) override;
  Reactor* ListVolumes(Context* context, const v1::ListClusterVolumesRequest* request,
                       v1::ListClusterVolumesResponse* answer) override;
  Reactor* GetVolume(Context* context, const v1::GetClusterVolumeRequest* request,
                     v1::GetClusterVolumeResponse* answer) override;
  Reactor* ClaimVolume(Context* context, const v1::ClaimClusterVolumeRequest* request,
                       v1::ClaimClusterVolumeResponse* answer) override;
  Reactor* ReleaseClaim(Context* context, const v1::ReleaseClusterClaimRequest* request,
                        v1::ReleaseClusterClaimResponse* answer) override;
  Reactor* ListClaims(Context* context, const v1::ListClusterClaimsRequest* request,
                      v1::ListClusterClaimsResponse* answer) override;

  [[nodiscard]] CallScope& calls() { return calls_; }

 private:
  // What `make` returns for the request, with the cluster's name.
  template <class Request, class Response, class Make>
  Reactor* Answer(std::string_view method, const Request* request, Response* answer, Make make);
  // The same, of a `make` that waits.
  template <class Request, class Response, class Make>
  Reactor* AnswerLater(std::string_view method, const Request* request, Response* answer, Make make);

  const NodeLinks& links_;
  Volumes& volumes_;
  CallScope calls_;
};

}  // namespace berth::scheduler
