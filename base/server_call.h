// Server calls of gRPC's callback API as coroutines on the loop: a template each for unary methods, for
// methods that stream their answers, and for streams in both directions.
//
// gRPC's thread creates a reactor, which owns itself. The reactor posts gRPC's calls (cancelled, written,
// done) to the loop in their order; everything else happens on the loop. Its task runs in the service's
// CallScope and always ends in exactly one Finish; gRPC's OnDone, which comes after that, deletes it. A call
// that is cancelled (by its caller, or at the caller's deadline) cancels the handler and ends as CANCELLED; a
// scope that stops ends it as UNAVAILABLE. No exception leaves a reactor.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <spdlog/spdlog.h>

#include <boost/asio/error.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/call_scope.h"
#include "base/status.h"

namespace berth {

// The status as it is sent: one printable line, short enough for a header (clients take 8 KiB of them; a byte
// beyond ASCII takes three there, one that is not printable four).
[[nodiscard]] inline grpc::Status ToWire(const absl::Status& status) {
  constexpr size_t kMessageLimit = 1500;
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  return {static_cast<grpc::StatusCode>(status.code()),
          Printable({message.data(), message.size()}, kMessageLimit)};
}

namespace reactor_internal {

inline absl::StatusCode CodeOf(const absl::Status& status) { return status.code(); }
template <class T>
absl::StatusCode CodeOf(const absl::StatusOr<T>& result) {
  return result.status().code();
}

// `handler`'s result, or what its exception means: cancelled, or a bug of ours, which ends this call alone.
template <class Result>
Awaitable<Result> Guarded(const CallScope& scope, std::string_view method, Awaitable<Result> handler) {
  try {
    co_return co_await std::move(handler);
  } catch (const boost::system::system_error& error) {
    if (error.code() == asio::error::operation_aborted) co_return Result(absl::CancelledError("cancelled"));
    SPDLOG_ERROR("{}: {}", method, error.what());
  } catch (const std::exception& error) {
    SPDLOG_ERROR("{}: {}", method, error.what());
  }
  co_return Result(absl::InternalError(scope.program() + " failed in a way it should not: see its log"));
}

// Runs `handler` until it ends, until `gone` is set (`bell` rings then), or until the task is cancelled. The
// handler has ended when this returns. Never throws. Afterwards a cancellation throws in none of the caller's
// awaits.
template <class Result>
Awaitable<Result> RunHandler(const CallScope& scope, std::string_view method, Awaitable<Result> handler,
                             Condition& bell, const bool& gone) {
  using namespace asio::experimental::awaitable_operators;
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto before = co_await asio::this_coro::cancellation_state;
  if (before.cancelled() != asio::cancellation_type::none) {
    co_return Result(scope.Stopping());
  }
  auto outcome = co_await (Guarded(scope, method, std::move(handler)) ||
                           bell.WaitUntil([&gone] { return gone; }, TimePoint::max()));
  if (gone || outcome.index() != 0) {
    co_return Result(absl::CancelledError("the caller has gone; what was begun goes on"));
  }
  Result result = std::get<0>(std::move(outcome));
  // A handler that succeeded although it was cancelled keeps its answer.
  const auto after = co_await asio::this_coro::cancellation_state;
  if (CodeOf(result) == absl::StatusCode::kCancelled && after.cancelled() != asio::cancellation_type::none) {
    co_return Result(scope.Stopping());
  }
  co_return result;
}

// Waits for the write that a handler may have left behind: Finish must not overtake it. If the peer does not
// read, the call is cancelled, which ends the write.
inline Awaitable<void> AwaitWritten(const bool& writing, Condition& bell,
                                    grpc::CallbackServerContext* context) {
  constexpr auto kFlushTime = std::chrono::milliseconds(500);
  if (!writing) co_return;
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  const auto written = [&writing] { return !writing; };
  if (co_await bell.WaitUntil(written, Clock::now() + kFlushTime)) co_return;
  context->TryCancel();
  co_await bell.WaitUntil(written, TimePoint::max());
}

}  // namespace reactor_internal

template <class Request, class Response>
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  using Handler = std::function<Awaitable<absl::StatusOr<Response>>(Request)>;

  // On a gRPC thread. `method` lives for ever; `request` and `response` are gRPC's and live until Finish.
  static grpc::ServerUnaryReactor* Start(CallScope& scope, std::string_view method, const Request* request,
                                         Response* response, Handler handler) {
    auto* reactor = new UnaryReactor(scope, request, response, std::move(handler));
    asio::post(scope.executor(), [reactor, method] { reactor->Begin(method); });
    return reactor;
  }

 private:
  UnaryReactor(CallScope& scope, const Request* request, Response* response, Handler handler)
      : scope_(scope),
        request_(request),
        response_(response),
        handler_(std::move(handler)),
        bell_(scope.executor()) {
    scope_.ReactorMade();
  }
  ~UnaryReactor() override = default;

  void OnCancel() override {
    asio::post(scope_.executor(), [this] {
      gone_ = true;
      bell_.NotifyAll();
    });
  }
  void OnDone() override {
    asio::post(scope_.executor(), [this] {
      CallScope& scope = scope_;
      delete this;
      scope.ReactorGone();
    });
  }

  void Begin(std::string_view method) {
    if (const absl::Status status = scope_.Admit(); !status.ok()) {
      Finish(ToWire(status));
      return;
    }
    scope_.Spawn(method, Run(method));
  }

  Awaitable<void> Run(std::string_view method) {
    auto result = co_await reactor_internal::RunHandler(scope_, method, handler_(*request_), bell_, gone_);
    const absl::Status status = result.status();
    if (status.ok()) *response_ = *std::move(result);
    Finish(ToWire(status));
  }

  CallScope& scope_;
  const Request* request_;
  Response* response_;
  Handler handler_;
  bool gone_ = false;
  Condition bell_;
};

// Sends the messages of a streaming handler, one at a time.
template <class Response>
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // Returns once gRPC has taken the message (flow control included); false: the caller has gone.
  [[nodiscard]] virtual Awaitable<bool> Send(Response message) = 0;
};

template <class Request, class Response>
class StreamReactor final : public grpc::ServerWriteReactor<Response>, private StreamWriter<Response> {
 public:
  // The writer is the handler's until it returns.
  using Handler = std::function<Awaitable<absl::Status>(Request, StreamWriter<Response>&)>;

  static grpc::ServerWriteReactor<Response>* Start(CallScope& scope, std::string_view method,
                                                   grpc::CallbackServerContext* context,
                                                   const Request* request, Handler handler) {
    auto* reactor = new StreamReactor(scope, context, request, std::move(handler));
    asio::post(scope.executor(), [reactor, method] { reactor->Begin(method); });
    return reactor;
  }

 private:
  StreamReactor(CallScope& scope, grpc::CallbackServerContext* context, const Request* request,
                Handler handler)
      : scope_(scope),
        context_(context),
        request_(request),
        handler_(std::move(handler)),
        bell_(scope.executor()) {
    scope_.ReactorMade();
  }
  ~StreamReactor() override = default;

  void OnCancel() override {
    asio::post(scope_.executor(), [this] {
      gone_ = true;
      bell_.NotifyAll();
    });
  }
  void OnWriteDone(bool ok) override {
    asio::post(scope_.executor(), [this, ok] {
      writing_ = false;
      written_ = ok;
      bell_.NotifyAll();
    });
  }
  void OnDone() override {
    asio::post(scope_.executor(), [this] {
      CallScope& scope = scope_;
      delete this;
      scope.ReactorGone();
    });
  }

  void Begin(std::string_view method) {
    if (const absl::Status status = scope_.Admit(); !status.ok()) {
      this->Finish(ToWire(status));
      return;
    }
    scope_.Spawn(method, Run(method));
  }

  Awaitable<bool> Send(Response message) override {
    message_ = std::move(message);
    writing_ = true;
    this->StartWrite(&message_);
    co_await bell_.WaitUntil([this] { return !writing_; }, TimePoint::max());
    co_return written_;
  }

  Awaitable<void> Run(std::string_view method) {
    const absl::Status status =
        co_await reactor_internal::RunHandler(scope_, method, handler_(*request_, *this), bell_, gone_);
    co_await reactor_internal::AwaitWritten(writing_, bell_, context_);
    this->Finish(ToWire(status));
  }

  CallScope& scope_;
  grpc::CallbackServerContext* context_;
  const Request* request_;
  Handler handler_;
  Response message_;
  bool writing_ = false;
  bool written_ = false;
  bool gone_ = false;
  Condition bell_;
};

// The server's side of a stream in both directions. A deadline ends the wait for a message, and the message
// is not lost. One coroutine may read while another one writes.
template <class Request, class Response>
class DuplexStream {
 public:
  virtual ~DuplexStream() = default;

  // The peer's next message. Unset: the stream has ended. DEADLINE_EXCEEDED: there was none by
  // `deadline`; the next Read goes on waiting for it.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::optional<Request>>> Read(TimePoint deadline) = 0;

  // Returns once gRPC has taken the message, flow control included. UNAVAILABLE: the peer has gone.
  // DEADLINE_EXCEEDED: the peer does not read; nothing more can be written.
  [[nodiscard]] virtual Awaitable<absl::Status> Write(Response message, TimePoint deadline) = 0;
};

template <class Request, class Response>
class DuplexReactor final : public grpc::ServerBidiReactor<Request, Response>,
                            private DuplexStream<Request, Response> {
 public:
  // The handler uses the stream until it returns. When the peer has gone, Read says so; the handler is not
  // cancelled.
  using Handler = std::function<Awaitable<absl::Status>(DuplexStream<Request, Response>&)>;

  static grpc::ServerBidiReactor<Request, Response>* Start(CallScope& scope, std::string_view method,
                                                           grpc::CallbackServerContext* context,
                                                           Handler handler) {
    auto* reactor = new DuplexReactor(scope, context, std::move(handler));
    asio::post(scope.executor(), [reactor, method] { reactor->Begin(method); });
    return reactor;
  }

 private:
  DuplexReactor(CallScope& scope, grpc::CallbackServerContext* context, Handler handler)
      : scope_(scope), context_(context), handler_(std::move(handler)), bell_(scope.executor()) {
    scope_.ReactorMade();
  }
  ~DuplexReactor() override = default;

  void OnCancel() override {
    Post([this] { gone_ = true; });
  }
  void OnReadDone(bool ok) override {
    Post([this, ok] {
      reading_ = false;
      read_has_ = ok;
      read_ended_ = !ok;
    });
  }
  void OnWriteDone(bool ok) override {
    Post([this, ok] {
      writing_ = false;
      write_failed_ = write_failed_ || !ok;
    });
  }
  void OnDone() override {
    asio::post(scope_.executor(), [this] {
      CallScope& scope = scope_;
      delete this;
      scope.ReactorGone();
    });
  }
  template <class Happened>
  void Post(Happened happened) {
    asio::post(scope_.executor(), [this, happened] {
      happened();
      bell_.NotifyAll();
    });
  }

  void Begin(std::string_view method) {
    if (const absl::Status status = scope_.Admit(); !status.ok()) {
      this->Finish(ToWire(status));
      return;
    }
    scope_.Spawn(method, Run(method));
  }

  Awaitable<absl::StatusOr<std::optional<Request>>> Read(TimePoint deadline) override {
    if (!reading_ && !read_has_ && !read_ended_ && !gone_) {
      reading_ = true;
      incoming_.Clear();
      this->StartRead(&incoming_);
    }
    if (!co_await bell_.WaitUntil([this] { return !reading_ || gone_; }, deadline))
      co_return absl::DeadlineExceededError("no message came in time");
    if (reading_ || !std::exchange(read_has_, false)) co_return std::optional<Request>();
    co_return std::optional<Request>(std::move(incoming_));
  }

  Awaitable<absl::Status> Write(Response message, TimePoint deadline) override {
    const auto ended = [this] { return gone_ || write_failed_; };
    if (writing_) co_return absl::DeadlineExceededError("an earlier message was not taken in time");
    if (ended()) co_return absl::UnavailableError("the stream has ended");
    outgoing_ = std::move(message);
    writing_ = true;
    this->StartWrite(&outgoing_);
    if (!co_await bell_.WaitUntil([&] { return !writing_ || gone_; }, deadline))
      co_return absl::DeadlineExceededError("the message was not taken in time");
    co_return ended() ? absl::UnavailableError("the stream has ended") : absl::OkStatus();
  }

  Awaitable<void> Run(std::string_view method) {
    const bool never = false;
    const absl::Status status =
        co_await reactor_internal::RunHandler(scope_, method, handler_(*this), bell_, never);
    // A read that is under way ends with the call.
    co_await reactor_internal::AwaitWritten(writing_, bell_, context_);
    this->Finish(ToWire(status));
  }

  CallScope& scope_;
  grpc::CallbackServerContext* context_;
  Handler handler_;
  Request incoming_;
  Response outgoing_;
  bool reading_ = false;   // gRPC has incoming_
  bool read_has_ = false;  // incoming_ has been read, and not taken
  bool read_ended_ = false;
  bool writing_ = false;  // gRPC has outgoing_
  bool write_failed_ = false;
  bool gone_ = false;  // the peer, or the call was cancelled
  Condition bell_;
};

}  // namespace berth
