// One unary gRPC call as a coroutine: the only bridge from gRPC's callback API to the loop.
//
// Loop thread only. The call itself runs on gRPC's threads, which do nothing but post the result back.
#pragma once

#include <grpcpp/client_context.h>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "base/task_scope.h"

namespace berth {

// `deadline` on gRPC's monotonic clock, so that a jump of the wall clock neither ends nor prolongs the call.
[[nodiscard]] gpr_timespec GrpcDeadline(TimePoint deadline);

// Calls `method` of a generated `stub->async()` interface and waits for the answer or `deadline`. Returns the
// response, or the call's status as FromGrpc gives it (DEADLINE_EXCEEDED at the deadline). A cancelled
// coroutine cancels the call and throws operation_aborted once gRPC has dropped it (about a millisecond). The
// request and response live until then, whatever becomes of the caller.
//
//   auto answer = co_await UnaryCall(stub->async(), &Stub::async_interface::Probe, request, deadline);
template <class Async, class Request, class Response>
Awaitable<absl::StatusOr<Response>> UnaryCall(Async* async,
                                              void (Async::*method)(grpc::ClientContext*, const Request*,
                                                                    Response*,
                                                                    std::function<void(grpc::Status)>),
                                              Request request, TimePoint deadline) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->context.set_deadline(GrpcDeadline(deadline));

  auto initiate = [async, method, call](auto handler) {
    using Handler = decltype(handler);
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) {
      slot.assign([call](asio::cancellation_type) { call->context.TryCancel(); });
    }
    auto work =
        asio::prefer(asio::get_associated_executor(handler), asio::execution::outstanding_work.tracked);
    // std::function must be copyable, the handler is not: it is shared, and moved out once, on the loop.
    auto shared = std::make_shared<Handler>(std::move(handler));
    // Everything is moved on to the loop: the last reference to a call may hold the last one to its channel,
    // and gRPC must not drop a channel on a thread of its own.
    auto on_done = [call, work, shared](grpc::Status status) mutable {
      asio::post(work,
                 [call = std::move(call), shared = std::move(shared), status = std::move(status)]() mutable {
                   Handler done = std::move(*shared);
                   shared.reset();
                   auto done_slot = asio::get_associated_cancellation_slot(done);
                   if (done_slot.is_connected()) done_slot.clear();
                   std::move(done)(std::move(status));
                 });
    };
    (async->*method)(&call->context, &call->request, &call->response, std::move(on_done));
  };
  const grpc::Status status =
      co_await asio::async_initiate<const asio::use_awaitable_t<>&, void(grpc::Status)>(std::move(initiate),
                                                                                        asio::use_awaitable);
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) {
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  if (!status.ok()) co_return FromGrpc(status);
  co_return std::move(call->response);
}

}  // namespace berth
