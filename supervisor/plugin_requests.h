// What people ask of one plugin's process: start, stop, restart, drain. Each posts to the plugin's task and
// waits for what comes of it; supervisor.h has meaning and answers.
//
// Owned by the PluginRunner; loop thread only. A deadline ends the wait, not the work.
#pragma once

#include <absl/status/status.h>

#include "base/task_scope.h"
#include "supervisor/runner_state.h"

namespace berth {

class PluginRequests {
 public:
  explicit PluginRequests(RunnerState& plugin) : plugin_(plugin) {}

  [[nodiscard]] Awaitable<absl::Status> Start(TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Stop(bool force, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Restart(bool force, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Drain(TimePoint deadline);
  // OK once it is ready and registered. FAILED_PRECONDITION: it will not be, as its state is now.
  // DEADLINE_EXCEEDED.
  [[nodiscard]] Awaitable<absl::Status> WaitServing(TimePoint deadline);

 private:
  RunnerState& plugin_;
};

}  // namespace berth
