// One stream to a scheduler, and how one is come by: what a session needs of the transport, so that it can be
// tested without one. Loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"

namespace berth {

// How a stream ended.
struct LinkEnd {
  absl::Status why;
  bool said = false;  // by the scheduler itself, over a connection that stood
};

class LinkStream {
 public:
  virtual ~LinkStream() = default;

  // Returns once the transport has taken the message, flow control included. Any error: the stream is dead.
  // DEADLINE_EXCEEDED: it was not taken in time. One at a time.
  [[nodiscard]] virtual Awaitable<absl::Status> Send(v1::NodeMessage message, TimePoint deadline) = 0;
  // The next message, whenever it comes. Any error: the stream has ended, and Close says why. One at a time.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<v1::SchedulerMessage>> Receive() = 0;
  // OK as long as the peer would be accepted if it came now; else why not (a certificate that has expired or
  // was revoked).
  [[nodiscard]] virtual Awaitable<absl::Status> Recheck() = 0;
  // The name under which the scheduler was accepted.
  [[nodiscard]] virtual std::string peer() const = 0;
  // Ends it, if it has not ended, and returns how: the scheduler's status, what broke it, or OK if it ended
  // in order. Nothing of it runs any more when this returns. Bounded. Before the destructor, and when no
  // coroutine sends or receives any more.
  [[nodiscard]] virtual Awaitable<LinkEnd> Close() = 0;
};

class LinkDialer {
 public:
  virtual ~LinkDialer() = default;
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::unique_ptr<LinkStream>>> Dial(std::string address,
                                                                                    TimePoint deadline) = 0;
};

}  // namespace berth
