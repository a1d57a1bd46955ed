// berth.v1.Cluster as the commands call it, as NodeClient does for a node. Made by Session::ConnectCluster.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "berth/v1/cluster.grpc.pb.h"

namespace berth::cli {

class ClusterClient {
 public:
  using Stub = ::berth::v1::Cluster::Stub;

  // `address`: "unix:/path" or "127.0.0.1:PORT". Does not wait: the first call reports that no server
  // answers. UsageError: it is no address. `timeout` is for each call.
  [[nodiscard]] static absl::StatusOr<ClusterClient> Connect(const std::string& address,
                                                             std::chrono::milliseconds timeout);

  // If the error is not the scheduler's, its message begins with `doing` ("list the nodes").
  template <class Request, class Response>
  [[nodiscard]] absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                           const Request&, Response*),
                                              const Request& request, std::string_view doing) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout_);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return Failure(status, doing);
    return response;
  }

  // All pages as one answer, in order.
  template <class Request, class Response>
  [[nodiscard]] absl::StatusOr<Response> CallForAllPages(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                                      const Request&,
                                                                                      Response*),
                                                         Request request, std::string_view doing) {
    Response all;
    do {
      absl::StatusOr<Response> page = Call(method, request, doing);
      if (!page.ok()) return page.status();
      const std::string next = page->next_page_token();
      if (!next.empty() && next <= request.page_token())
        return absl::InternalError(std::string(doing) + ": the scheduler gave the same page twice");
      request.set_page_token(next);
      // Each page names the cluster.
      all.clear_cluster_id();
      all.MergeFrom(*page);
    } while (!request.page_token().empty());
    all.clear_next_page_token();
    return all;
  }

 private:
  ClusterClient(std::string address, std::chrono::milliseconds timeout);
  [[nodiscard]] absl::Status Failure(const grpc::Status& status, std::string_view doing) const;

  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Stub> stub_;
  std::chrono::milliseconds timeout_;
};

}  // namespace berth::cli
