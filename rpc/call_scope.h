// The calls of one gRPC service while they run, as coroutines on the loop: how many users may have at once,
// and how they end when berthd does.
//
// A CallScope belongs to a service. Reactors (reactor.h) are made on gRPC's threads and do nothing there but
// post; they enter the scope on the loop thread.
#pragma once

#include <absl/status/status.h>
#include <grpc/support/time.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/mounter.h"
#include "rpc/access.h"
#include "rpc/user_limits.h"

namespace berth {

// What a handler gets besides the request.
struct CallInfo {
  std::string_view method;  // "PublishVolume"; lives for ever
  bool may_change = false;  // its caller: so he sees what may be secret, such as mount flags
  // A little before the caller's deadline, so that it still hears what came of it; at most the scope's
  // longest wait from now.
  TimePoint deadline;
  // Whose call it is, as the kernel says; unset where the connection has ended meanwhile.
  std::optional<PeerCredentials> peer = {};
  // Who asks, and so whose word counts for what is published.
  Origin origin = Origin::kCaller;
};

class CallScope {
 public:
  // `longest`: how long one may take at most, whatever its caller's deadline says.
  CallScope(asio::any_io_executor executor, std::string name, UserLimits limits, Duration longest);

  [[nodiscard]] const asio::any_io_executor& executor() const { return executor_; }

  // Any thread. The deadline of a call as gRPC has it, on our clock, within `longest`, less what it takes to
  // answer: a fortieth, 3 seconds at most.
  [[nodiscard]] TimePoint DeadlineOf(gpr_timespec deadline) const;

  // Loop thread. OK, or UNAVAILABLE: it stops.
  [[nodiscard]] absl::Status Admit() const;
  // Counts a call of that user while the result lives. RESOURCE_EXHAUSTED: a limit.
  [[nodiscard]] absl::StatusOr<UserCounter::Use> Count(uid_t uid) { return counter_.Take(uid); }
  void Spawn(std::string_view method, Awaitable<void> task);

  // Admits nothing any more: whoever calls from now on hears that berthd is stopping.
  void StopAdmitting() { stopping_ = true; }
  // The same, and waits for those that run: they may end until `grace`; then they are cancelled and answered
  // with UNAVAILABLE. Returns once none runs.
  [[nodiscard]] Awaitable<void> Stop(TimePoint grace);

  // A reactor lives from its making on a gRPC thread until gRPC has let go of it (OnDone), which is a little
  // longer than its task runs.
  void ReactorMade() { ++reactors_; }  // any thread
  void ReactorGone();                  // loop thread
  // Waits until no reactor is left, or `deadline`; says whether none is. Only after gRPC's own Shutdown.
  [[nodiscard]] Awaitable<bool> WaitReactorsGone(TimePoint deadline);

 private:
  asio::any_io_executor executor_;
  std::string name_;
  UserCounter counter_;
  Duration longest_;
  bool stopping_ = false;
  std::atomic<size_t> reactors_{0};
  Condition changed_;
  TaskScope tasks_;
};

}  // namespace berth
