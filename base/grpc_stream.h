// A bidirectional gRPC stream as coroutines, on the calling side: the only bridge from gRPC's callback API
// for streams to the loop.
//
// Loop thread only. The stream itself runs on gRPC's threads, which do nothing but post to the loop. A wait
// is for a state, kept apart from the waiter (base/task_scope.h, Condition): a deadline or a cancellation
// ends a wait, and loses no message.
//
//   auto stream = ClientStream<Said, Heard>::Open(loop, channel, "/package.Service/Name");
//   co_await stream->Write(hello, deadline);        // one coroutine writes
//   auto answer = co_await stream->Read(deadline);  // another one may read at the same time
//   absl::Status status = co_await stream->Finish(deadline);
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/grpc_parsed.h"
#include "base/status.h"
#include "base/task_scope.h"

namespace berth {

// The destructor may run at any time at which no coroutine waits in the stream: it cancels what has not
// finished, and gRPC drops the rest a moment later, on the loop, which must run until then. The channel is
// kept until that moment.
template <class Request, class Response>
class ClientStream {
 public:
  // Begins the call at once; Read and Finish report its failure. `method`: "/package.Service/Name".
  [[nodiscard]] static std::unique_ptr<ClientStream> Open(asio::any_io_executor loop,
                                                          std::shared_ptr<grpc::Channel> channel,
                                                          const std::string& method) {
    auto call = std::make_shared<Call>(std::move(loop), std::move(channel));
    call->Start(call, method);
    // Not make_unique: the constructor is private.
    return std::unique_ptr<ClientStream>(new ClientStream(std::move(call)));
  }

  ~ClientStream() {
    if (call_->done) return;
    Cancel();
    call_->RemoveHoldOnce();
  }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // Waits until nothing that was written waits for gRPC any more: the next Write begins at once. False: not
  // by `deadline`, since the peer does not read. One coroutine at a time may wait to write, or write.
  [[nodiscard]] Awaitable<bool> WaitWritable(TimePoint deadline) {
    co_return co_await call_->changed.WaitUntil([this] { return !call_->writing; }, deadline);
  }

  // Returns once gRPC has taken the message, flow control included. UNAVAILABLE: the stream has ended, and
  // Finish says why. DEADLINE_EXCEEDED: gRPC has not taken it yet; it will still be sent, and the next Write
  // waits for it, unless already an earlier one was in its way (WaitWritable checks that before): then this
  // one is not begun.
  [[nodiscard]] Awaitable<absl::Status> Write(Request request, TimePoint deadline) {
    if (!co_await WaitWritable(deadline)) co_return TooLate("an earlier message was not taken in time");
    if (!call_->Writable()) co_return Ended();
    call_->outgoing = std::move(request);
    call_->writing = true;
    call_->StartWrite(&call_->outgoing);
    if (!co_await WaitWritable(deadline)) co_return TooLate("the message was not taken in time");
    if (call_->write_failed) co_return Ended();
    co_return absl::OkStatus();
  }

  // Says that nothing more will be written; what the peer still says can be read.
  [[nodiscard]] Awaitable<absl::Status> WritesDone(TimePoint deadline) {
    if (!co_await WaitWritable(deadline)) co_return TooLate("an earlier message was not taken in time");
    if (!call_->Writable()) co_return Ended();
    call_->writes_done = true;
    call_->writing = true;
    call_->StartWritesDone();
    if (!co_await WaitWritable(deadline)) co_return TooLate("the end of the stream was not taken in time");
    co_return absl::OkStatus();
  }

  // The peer's next message; unset after the last one, and Finish says why. DEADLINE_EXCEEDED: no message
  // came by `deadline`; the next Read goes on waiting for it. INTERNAL: what came is not the expected
  // message. One coroutine at a time reads.
  [[nodiscard]] Awaitable<absl::StatusOr<std::optional<Response>>> Read(TimePoint deadline) {
    call_->BeginRead();
    const bool came = co_await call_->changed.WaitUntil([this] { return !call_->reading; }, deadline);
    if (!came) co_return TooLate("no message came in time");
    co_return call_->TakeRead();
  }

  // Ends the call with CANCELLED, unless it has ended. What waits ends soon after.
  void Cancel() { call_->context.TryCancel(); }

  // Waits for the end of the call and returns its status. Messages that were not read are dropped; a peer
  // that has not ended it by `deadline` is cancelled (CANCELLED). No coroutine reads or writes any more, and
  // nothing else is called after it, but the destructor.
  [[nodiscard]] Awaitable<absl::Status> Finish(TimePoint deadline) {
    // While there are messages to be read gRPC does not say how the call has ended.
    while (!call_->read_ended) {
      const auto dropped = co_await Read(deadline);
      if (dropped.status().code() != absl::StatusCode::kDeadlineExceeded) continue;
      Cancel();
      deadline = TimePoint::max();  // the end comes for certain now
    }
    co_await WaitWritable(TimePoint::max());  // as it does to a write to a peer that does not read
    call_->RemoveHoldOnce();
    co_await call_->changed.WaitUntil([this] { return call_->done.has_value(); }, TimePoint::max());
    co_return FromGrpc(*call_->done);
  }

 private:
  // Lives until gRPC has dropped it (OnDone), whatever becomes of the stream.
  struct Call final : grpc::ClientBidiReactor<Request, Parsed<Response>> {
    Call(asio::any_io_executor loop, std::shared_ptr<grpc::Channel> over)
        : channel(std::move(over)),
          changed(loop),
          work(asio::prefer(std::move(loop), asio::execution::outstanding_work.tracked)) {}

    void Start(std::shared_ptr<Call> owner, const std::string& method) {
      self = std::move(owner);
      grpc::TemplatedGenericStub<Request, Parsed<Response>> stub(channel);
      stub.PrepareBidiStreamingCall(&context, method, {}, this);
      // While it is held gRPC does not end it between two operations, after which none could be begun.
      this->AddHold();
      this->StartCall();
    }

    void RemoveHoldOnce() {
      if (std::exchange(held, false)) this->RemoveHold();
    }

    [[nodiscard]] bool Writable() const { return !write_failed && !writes_done && held; }

    void BeginRead() {
      if (reading || read_has || read_ended) return;
      reading = true;
      incoming = {};
      this->StartRead(&incoming);
    }
    absl::StatusOr<std::optional<Response>> TakeRead() {
      if (!std::exchange(read_has, false)) return std::optional<Response>();
      if (incoming.ok) return std::optional<Response>(std::move(incoming.message));
      return absl::InternalError(
          absl::StrCat("what came is not a readable ", Response::descriptor()->full_name()));
    }

    // gRPC's threads from here on. What is posted runs in the order in which it happened, OnDone's last.
    void OnReadDone(bool ok) override {
      asio::post(work, [this, ok] {
        reading = false;
        read_has = ok;
        read_ended = !ok;
        changed.NotifyAll();
      });
    }
    void OnWriteDone(bool ok) override {
      asio::post(work, [this, ok] { WriteEnded(ok); });
    }
    void OnWritesDoneDone(bool ok) override {
      asio::post(work, [this, ok] { WriteEnded(ok); });
    }
    void WriteEnded(bool ok) {
      writing = false;
      write_failed = write_failed || !ok;
      changed.NotifyAll();
    }
    void OnDone(const grpc::Status& status) override {
      // Everything is moved on to the loop: the last reference to the call holds its channel, too.
      asio::post(work, [owner = std::move(self), status] {
        owner->done = status;
        owner->changed.NotifyAll();
      });
    }

    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    Request outgoing;
    Parsed<Response> incoming;
    bool held = true;
    bool reading = false;   // gRPC has `incoming`
    bool read_has = false;  // `incoming` has been read, and not taken
    bool read_ended = false;
    bool writing = false;  // gRPC has `outgoing`
    bool write_failed = false;
    bool writes_done = false;
    std::optional<grpc::Status> done;
    Condition changed;
    asio::any_io_executor work;
    std::shared_ptr<Call> self;  // until gRPC is done with it
  };

  explicit ClientStream(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  static absl::Status TooLate(absl::string_view what) { return absl::DeadlineExceededError(what); }
  static absl::Status Ended() { return absl::UnavailableError("the stream has ended"); }

  std::shared_ptr<Call> call_;
};

}  // namespace berth
