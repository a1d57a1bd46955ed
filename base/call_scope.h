// The calls of one gRPC service while they run, as coroutines on the loop, and how they end when the program
// does.
//
// A CallScope belongs to a service. Reactors (server_call.h) are made on gRPC's threads and do nothing there
// but post; they enter the scope on the loop thread.
#pragma once

#include <absl/status/status.h>
#include <grpc/support/time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// Any thread. The deadline of a call as gRPC has it, on our clock: at most `longest` from now, less the time
// that the answer needs, a fortieth and at most 3 seconds.
[[nodiscard]] TimePoint DeadlineOf(gpr_timespec deadline, Duration longest);

class CallScope {
 public:
  // `program`: its name, for the message to callers while it stops. `most`: how many calls may run at once.
  CallScope(asio::any_io_executor executor, std::string name, std::string program, size_t most = SIZE_MAX);

  [[nodiscard]] const asio::any_io_executor& executor() const { return executor_; }
  [[nodiscard]] const std::string& program() const { return program_; }
  // UNAVAILABLE: "PROGRAM is stopping".
  [[nodiscard]] absl::Status Stopping() const { return absl::UnavailableError(program_ + " is stopping"); }

  // Loop thread. OK, or UNAVAILABLE: it stops. RESOURCE_EXHAUSTED: too many run.
  [[nodiscard]] absl::Status Admit() const;
  void Spawn(std::string_view method, Awaitable<void> task);

  // Refuses new calls from now on, with Stopping().
  void StopAdmitting() { stopping_ = true; }
  // The same, and waits for those that run: they may end until `grace`; then they are cancelled and answered
  // with UNAVAILABLE. Returns once none runs.
  [[nodiscard]] Awaitable<void> Stop(TimePoint grace);

  // A reactor exists until gRPC calls its OnDone: a little longer than its task runs.
  void ReactorMade() { ++reactors_; }  // any thread
  void ReactorGone();                  // loop thread
  // Waits until no reactor is left, or `deadline`; says whether none is. Only after gRPC's own Shutdown.
  [[nodiscard]] Awaitable<bool> WaitReactorsGone(TimePoint deadline);

 private:
  asio::any_io_executor executor_;
  std::string name_;
  std::string program_;
  size_t most_;
  bool stopping_ = false;
  std::atomic<size_t> reactors_{0};
  Condition changed_;
  TaskScope tasks_;
};

}  // namespace berth
