// berth.v1.Cluster: what people and programs ask the scheduler.
//
// The answers are made on the loop, from what the links know at that moment. Owned by Scheduler.
#pragma once

#include <absl/status/statusor.h>

#include <string_view>

#include "base/server_call.h"
#include "berth/v1/cluster.grpc.pb.h"
#include "scheduler/links/node_links.h"

namespace berth::scheduler {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  ClusterService(asio::any_io_executor executor, const NodeLinks& links);

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* ListNodes(Context* context, const v1::ListNodesRequest* request,
                     v1::ListNodesResponse* answer) override;
  Reactor* GetNode(Context* context, const v1::GetNodeRequest* request, v1::GetNodeResponse* answer) override;
  Reactor* ListPlugins(Context* context, const v1::ListClusterPluginsRequest* request,
                       v1::ListClusterPluginsResponse* answer) override;

  [[nodiscard]] CallScope& calls() { return calls_; }

 private:
  // What `make` returns for the request, with the cluster's name.
  template <class Request, class Response, class Make>
  Reactor* Answer(std::string_view method, const Request* request, Response* answer, Make make);

  const NodeLinks& links_;
  CallScope calls_;
};

}  // namespace berth::scheduler
