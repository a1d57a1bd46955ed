// One plugin's file was changed, has broken, or is gone: what becomes of the process that runs.
//
// Owned by the PluginRunner; loop thread only. A file that is wrong costs no plugin that runs.
#pragma once

#include <absl/status/statusor.h>

#include "base/task_scope.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/plugin_requests.h"
#include "supervisor/plugin_swap.h"
#include "supervisor/runner_state.h"

namespace berth {

class PluginReconfigure {
 public:
  PluginReconfigure(RunnerState& plugin, PluginRequests& requests, PluginSwap& swap)
      : plugin_(plugin), requests_(requests), swap_(swap) {}

  // PluginOwner::Reconfigure.
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Take(PluginFile file, TimePoint deadline);

 private:
  absl::Status FileBroken(const absl::Status& error);
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> FileGone(TimePoint deadline);
  // A changed file of a plugin that does not run, and of one that runs.
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> TakeStopped(PluginConfig config, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> TakeRunning(PluginConfig config, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Disable(PluginConfig file, TimePoint deadline);

  RunnerState& plugin_;
  PluginRequests& requests_;
  PluginSwap& swap_;
};

}  // namespace berth
