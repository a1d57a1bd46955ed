// berth.v1.Node as the commands call it: one call, one deadline, and failures in words for people.
//
// Made by Session::Connect. Calls may be made from several threads.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/status.h"
#include "berth/v1/node.grpc.pb.h"
#include "cli/connection.h"

namespace berth::cli {

// What a command needs where the socket for changes is closed to its user.
enum class Need { kRead, kClaim };

class NodeClient {
 public:
  using Stub = ::berth::v1::Node::Stub;

  // Connects to `socket`. If it is empty: to berthd.sock in `directory`, or, without permission for that, to
  // the socket for `need`. UnreachableError: no server. PERMISSION_DENIED: the hint names the groups that may
  // connect. `timeout` is for each call.
  [[nodiscard]] static absl::StatusOr<NodeClient> Connect(const std::string& socket,
                                                          const std::string& directory, Need need,
                                                          std::chrono::milliseconds timeout);

  // Calls `method`. If the error is not from the node, its message begins with `doing` ("publish vol-1 for
  // job-1").
  template <class Request, class Response>
  [[nodiscard]] absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                           const Request&, Response*),
                                              const Request& request, std::string_view doing) {
    return Call(method, request, doing, timeout_);
  }
  // The same with a time of its own.
  template <class Request, class Response>
  [[nodiscard]] absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                           const Request&, Response*),
                                              const Request& request, std::string_view doing,
                                              std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return Failure(status, doing);
    return response;
  }

  // Every page of a list as one answer.
  template <class Request, class Response>
  [[nodiscard]] absl::StatusOr<Response> CallForAllPages(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                                      const Request&,
                                                                                      Response*),
                                                         Request request, std::string_view doing) {
    Response all;
    std::set<std::string> seen;
    while (true) {
      BERTH_ASSIGN_OR_RETURN(Response page, Call(method, request, doing));
      const std::string next = page.next_page_token();
      page.clear_next_page_token();
      all.MergeFrom(page);
      if (next.empty()) return all;
      // Else it would never end.
      if (!seen.insert(next).second) {
        return absl::InternalError(std::string(doing) + ": the node gave the same page twice");
      }
      request.set_page_token(next);
    }
  }

  // Calls `method` and reads its answers until they end, without a deadline if `endless`. Each goes to
  // `on_answer`.
  template <class Request, class Response>
  [[nodiscard]] absl::Status Read(
      std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(grpc::ClientContext*, const Request&),
      const Request& request, std::string_view doing, bool endless,
      const std::function<void(const Response&)>& on_answer) {
    const auto timeout = endless ? std::nullopt : std::optional(timeout_);
    return ReadWithin(method, request, doing, timeout, on_answer);
  }
  // The same with a time of its own; unset: without a deadline.
  template <class Request, class Response>
  [[nodiscard]] absl::Status ReadWithin(
      std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(grpc::ClientContext*, const Request&),
      const Request& request, std::string_view doing, std::optional<std::chrono::milliseconds> timeout,
      const std::function<void(const Response&)>& on_answer) {
    grpc::ClientContext context;
    if (timeout) context.set_deadline(std::chrono::system_clock::now() + *timeout);
    const auto reader = (stub_.get()->*method)(&context, request);
    Response response;
    while (reader->Read(&response)) on_answer(response);
    const grpc::Status status = reader->Finish();
    return status.ok() ? absl::OkStatus() : Failure(status, doing);
  }

  // The volume as it is, where the node says so within a second.
  [[nodiscard]] std::optional<::berth::v1::Volume> PeekVolume(const std::string& plugin_id,
                                                              const std::string& volume_id);

  // What the volume's running step is called and how long it has run ("NodeStageVolume 12s"), or nothing
  // where none runs or the node does not say within a second.
  [[nodiscard]] std::string RunningStep(const std::string& plugin_id, const std::string& volume_id);

  // The plugin as it is, where the node says so within a second.
  [[nodiscard]] std::optional<::berth::v1::Plugin> PeekPlugin(const std::string& id);

 private:
  NodeClient(std::shared_ptr<Connection> connection, std::chrono::milliseconds timeout);

  [[nodiscard]] absl::Status Failure(const grpc::Status& status, std::string_view doing) const;

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Stub> stub_;
  std::chrono::milliseconds timeout_;
};

}  // namespace berth::cli
