// berth.v1.Node on gRPC's callback API: checks the right of each call, bridges it to NodeApi on the loop, and
// logs every change.
//
// One instance serves one of the node's sockets, and so has one right (access.h). Made and stopped on the
// loop thread; gRPC's threads only make reactors.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/call_scope.h"
#include "berth/v1/node.grpc.pb.h"
#include "rpc/access.h"
#include "rpc/node_api.h"
#include "rpc/user_limits.h"

namespace berth {

struct ServiceLimits {
  UserLimits calls{.total = 256, .per_user = 64};   // unary ones
  UserLimits watches{.total = 64, .per_user = 16};  // streams of events and logs
  UserLimits claims{.total = 64, .per_user = 16};   // that wait for the scheduler
  // A call takes no longer than this, whatever deadline its caller gives or leaves out; a claim may take
  // longer, since it waits for others.
  Duration longest_call = std::chrono::minutes(10);
  Duration longest_claim = std::chrono::hours(24);
};

class NodeService final : public v1::Node::CallbackService {
 public:
  // Who is behind gRPC's name of a connection ("fd:N"), on which a call runs. Called on the loop thread.
  using PeerLookup = std::function<std::optional<PeerCredentials>(const std::string& peer)>;
  // A call was refused: `why` names the right and the method, and shows nothing of the request. Called on the
  // loop thread, for each such call: the callee bounds what it logs.
  using OnRefused = std::function<void(const PeerCredentials& peer, const absl::Status& why)>;

  // `directory` holds the sockets, for messages.
  NodeService(asio::any_io_executor executor, NodeApi& api, Right right, std::string directory,
              PeerLookup peers, OnRefused refused, ServiceLimits limits);

  // Answers new calls with UNAVAILABLE.
  void StopAdmitting();
  // The same, and ends watches at once; calls that run may end until `grace`.
  [[nodiscard]] Awaitable<void> Stop(TimePoint grace);
  // After the gRPC server's Shutdown: waits until its last reactor is gone; says whether it is.
  [[nodiscard]] Awaitable<bool> WaitGone(TimePoint deadline);

  // The methods, in node.proto's order.
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  template <class Response>
  using Writer = grpc::ServerWriteReactor<Response>;
#define BERTH_METHOD(part, name, response, right) \
  Reactor* name(Context* context, const v1::name##Request* request, v1::response* answer) override;
#define BERTH_STREAM(part, name, right) \
  Writer<v1::name##Response>* name(Context* context, const v1::name##Request* request) override;
#include "rpc/node_methods.inc"
#undef BERTH_METHOD
#undef BERTH_STREAM
  Reactor* Examine(Context* context, const v1::ExamineRequest* request, v1::ExamineResponse* answer) override;

 private:
  template <class Request, class Response>
  using Handler = Awaitable<absl::StatusOr<Response>> (*)(NodeApi&, Request, CallInfo);

  template <class Request, class Response>
  using StreamHandler = Awaitable<absl::Status> (*)(NodeApi&, Request, CallInfo, StreamWriter<Response>&);

  // The calls of one kind, and how many of them users have.
  struct Calls {
    Calls(asio::any_io_executor executor, const std::string& name, UserLimits limits, Duration longest);
    UserCounter users;  // outlives what it has given to calls
    CallScope scope;
    Duration longest;  // of one call, whatever deadline its caller has set
  };

  template <class Request, class Response>
  Reactor* Serve(Right right, std::string_view method, Handler<Request, Response> handler, Context* context,
                 const Request* request, Response* response);
  template <class Request, class Response>
  Awaitable<absl::StatusOr<Response>> Handle(Calls& calls, Right right, Handler<Request, Response> handler,
                                             std::string connection, Request request, CallInfo call);
  // Fills `call` with the caller on `connection`, and counts it in `calls`. Errors: the right is missing; a
  // limit.
  [[nodiscard]] absl::StatusOr<UserCounter::Use> Admit(Calls& calls, Right right,
                                                       const std::string& connection, CallInfo& call) const;
  template <class Request, class Response>
  Awaitable<absl::Status> HandleStream(Calls& calls, Right right, StreamHandler<Request, Response> handler,
                                       std::string connection, Request request, CallInfo call,
                                       StreamWriter<Response>& out);
  template <class Request, class Response>
  Writer<Response>* Stream(Right right, std::string_view method, StreamHandler<Request, Response> handler,
                           Context* context, const Request* request);

  // PERMISSION_DENIED names the right that `method` needs and the socket that gives it.
  [[nodiscard]] absl::Status CheckRight(Right right, std::string_view method) const;

  NodeApi& api_;
  Right right_;
  std::string directory_;
  PeerLookup peers_;
  OnRefused refused_;
  Calls calls_;
  Calls claims_;
  Calls watches_;
};

}  // namespace berth
