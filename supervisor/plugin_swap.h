// One plugin's swaps (swap_plan.h): the old process is stopped, the new one launched on trial.
// PluginLifecycle decides each step; the plugin's task calls Try, Adopt and Revert for it.
//
// Owned by the PluginRunner; loop thread only.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>

#include "base/task_scope.h"
#include "supervisor/plugin_requests.h"
#include "supervisor/runner_state.h"

namespace berth {

class PluginSwap {
 public:
  PluginSwap(RunnerState& plugin, PluginRequests& requests) : plugin_(plugin), requests_(requests) {}

  // Supervisor::Swap.
  [[nodiscard]] Awaitable<absl::Status> Request(SwapRequest request, TimePoint deadline);
  // To `file` with `override` over it. OK: the new one serves. FAILED_PRECONDITION: why not, and whether the
  // old one serves. ABORTED: another swap is under way. DEADLINE_EXCEEDED: it goes on.
  [[nodiscard]] Awaitable<absl::Status> To(PluginConfig file, std::optional<SwapOverride> override,
                                           SwapChanges changes, bool force, TimePoint deadline);

  // At a start of berthd: what a swap has put over the file, and how one ended that was under way.
  [[nodiscard]] Awaitable<void> Restore();

  // The old one has ended: the next launch is the new one's.
  void Try();
  [[nodiscard]] Awaitable<void> Adopt();
  [[nodiscard]] Awaitable<void> Revert(std::string why);

  // Whether a process is on trial.
  [[nodiscard]] bool trying() const { return plugin_.swap.has_value() && plugin_.swap->tried; }
  // Whether the one on trial, which says `now` of itself, may serve in the place of the old one. OK where
  // none is on trial.
  [[nodiscard]] absl::Status CheckTrial(const PluginFacts& now) const;
  // A process that was started, rather than swapped, serves whatever it can do, since nothing else would.
  // Reports what it cannot do any more while volumes are held through it.
  void NoteLosses(const PluginFacts& now);

 private:
  RunnerState& plugin_;
  PluginRequests& requests_;
};

}  // namespace berth
