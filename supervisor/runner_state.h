// What the parts of one PluginRunner share: the plugin's file and what is launched, its lifecycle, what is
// said of it, its process, and the messages to the one task that launches, signals and ends processes.
//
//   plugin_runner.h       that task: takes messages one by one, and carries out what PluginLifecycle decides
//   plugin_requests.h     start, stop, restart, drain
//   plugin_reconfigure.h  its file was changed, or is gone
//   plugin_swap.h         another command in the place of the running one
//
// Owned by the PluginRunner, and outlives the other parts; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_instance.h"
#include "supervisor/plugin_lifecycle.h"
#include "supervisor/plugin_report.h"
#include "supervisor/supervisor.h"
#include "supervisor/swap_plan.h"

namespace berth {

// What all runners share; outlives them.
struct RunnerContext {
  InstanceContext& instances;
  ReportContext& reports;
  PluginObserver& observer;
  std::function<std::optional<TimePoint>(const std::string& plugin_id, uint64_t instance)> busy_until;
  std::function<absl::Status()> may_go_forward;  // SupervisorOptions

  [[nodiscard]] absl::Status CheckNotShuttingDown() const {
    return may_go_forward ? may_go_forward() : absl::OkStatus();
  }
};

// A swap from its request to its outcome.
struct SwapOutcome {
  bool done = false;
  absl::Status status;
};

struct SwapAttempt {
  PluginConfig file;
  std::optional<SwapOverride> override;
  SwapChanges changes = SwapChanges::kRefuse;
  bool force = false;
  bool tried = false;
  absl::StatusOr<PluginConfig> old_config = absl::UnknownError("");
  std::optional<PluginFacts> before;
  std::shared_ptr<SwapOutcome> outcome;
};

struct RunnerState {
  RunnerState(RunnerContext& shared, PluginFile of);
  RunnerState(const RunnerState&) = delete;
  RunnerState& operator=(const RunnerState&) = delete;

  // What is posted: a request, or what was seen of the instance with this number.
  struct SocketAnswered {
    uint64_t instance;
  };
  struct Exited {
    uint64_t instance;
    ExitStatus exit;
  };
  struct Probed {
    uint64_t instance;
    PluginHealth health;
  };
  struct FactsRead {
    uint64_t instance;
    absl::StatusOr<PluginFacts> facts;
    std::string computed_class;
  };
  using Message = std::variant<LifecycleEvent, SocketAnswered, Exited, Probed, FactsRead>;

  void Post(Message message);
  // Returns the ticket for Handled.
  uint64_t Post(LifecycleEvent::Type type, bool force = false);
  // Waits until the message with this ticket was taken, or the plugin is gone. False at `deadline`.
  [[nodiscard]] Awaitable<bool> Handled(uint64_t ticket, TimePoint deadline);
  [[nodiscard]] bool gone() const { return report.removed(); }

  // The plugin's file as it is now, checked as far as can be without a launch. `override`: what a swap puts
  // over it; unset: what the last one did. FAILED_PRECONDITION: it cannot be launched, and why.
  // DEADLINE_EXCEEDED.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginConfig>> ReadConfig(std::optional<SwapOverride> override,
                                                                   TimePoint deadline);
  // From now on this is the plugin's file. Nothing while it is being swapped.
  [[nodiscard]] Awaitable<void> TakeConfig(PluginConfig taken);
  // Durable before it is `swaps`.
  [[nodiscard]] Awaitable<absl::Status> KeepSwaps(SwapState state);

  // What would break if its process went now, in words; empty: nothing.
  [[nodiscard]] std::string WouldBreak() const;
  // Shows the state of all this.
  void Publish();
  [[nodiscard]] LifecycleLimits Limits() const;
  [[nodiscard]] const PluginPaths& paths() const { return context.instances.paths; }

  RunnerContext& context;
  const std::string id;
  std::string config_file;  // empty: its file is gone
  absl::Status contested;   // why the file may not be used, though it is good: another one claims its id
  // The file as it was read last, and what is launched: that with what a swap put over it.
  absl::StatusOr<PluginConfig> file;
  absl::StatusOr<PluginConfig> config;
  SwapState swaps;  // as on disk
  std::optional<SwapAttempt> swap;
  PluginLifecycle lifecycle;
  PluginReport report;
  PluginSnapshot& snapshot = report.snapshot();
  std::string note;  // shown after the reason: what is odd about this instance

  std::unique_ptr<PluginInstance> instance;
  bool announced = false;  // to the observer

  std::deque<Message> inbox;
  uint64_t posted = 0;
  uint64_t handled = 0;
  Condition changed;  // any of it

 private:
  // What it is to be given when it publishes: shown, and written down for a berthd that finds its file broken
  // or gone, since without its tokens nothing may be published through it.
  void KeepTokens();
};

}  // namespace berth
