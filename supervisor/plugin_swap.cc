#include "supervisor/plugin_swap.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/plugin_launch.h"

namespace berth {

Awaitable<absl::Status> PluginSwap::Request(SwapRequest request, TimePoint deadline) {
  std::optional<SwapOverride> override;
  if (!request.command.empty()) {
    override = SwapOverride{.command = std::move(request.command),
                            .arguments = std::move(request.arguments),
                            .file_fingerprint = ""};
  } else if (!request.arguments.empty()) {
    co_return absl::InvalidArgumentError(
        fmt::format("swap plugin {}: arguments without a command; its file has its arguments", plugin_.id));
  }
  BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await plugin_.ReadConfig(override, deadline));
  if (override.has_value()) override->file_fingerprint = LaunchFingerprint(file, plugin_.paths());
  const SwapChanges changes = request.accept_changes ? SwapChanges::kAccept : SwapChanges::kRefuse;
  co_return co_await To(std::move(file), std::move(override), changes, request.force, deadline);
}

Awaitable<absl::Status> PluginSwap::To(PluginConfig file, std::optional<SwapOverride> override,
                                       SwapChanges changes, bool force, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(
      Annotate(plugin_.context.CheckNotShuttingDown(), fmt::format("swap plugin {}", plugin_.id)));
  if (plugin_.swap.has_value()) {
    co_return absl::AbortedError(fmt::format("swap plugin {}: a swap is under way", plugin_.id));
  }
  if (const std::string breaks = plugin_.WouldBreak(); !force && !breaks.empty()) {
    co_return absl::FailedPreconditionError(
        fmt::format("swap plugin {}: {}; unpublish them first, or force it", plugin_.id, breaks));
  }
  const auto outcome = std::make_shared<SwapOutcome>();
  const PluginConfig next = WithOverride(file, override);
  plugin_.swap = SwapAttempt{
      .file = std::move(file), .override = override, .changes = changes, .force = force, .outcome = outcome};
  plugin_.snapshot.swap = fmt::format("being swapped to {}", next.command);
  plugin_.report.Emit("plugin.swapping", fmt::format("to {}", next.command));
  plugin_.Publish();
  // Durable before the old one is stopped, so that the next berthd knows what was being done.
  SwapState trying = plugin_.swaps;
  trying.trying = true;
  trying.next = override;
  if (const absl::Status kept = co_await plugin_.KeepSwaps(std::move(trying)); !kept.ok()) {
    plugin_.swap.reset();
    plugin_.snapshot.swap = "failed: " + std::string(kept.message());
    plugin_.Publish();
    co_return Annotate(kept, fmt::format("swap plugin {}", plugin_.id));
  }
  plugin_.Post(LifecycleEvent::Type::kSwapRequested, force);
  auto decided = [this, outcome] { return outcome->done || plugin_.gone(); };
  if (!co_await plugin_.changed.WaitUntil(std::move(decided), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format(
        "swap plugin {}: not done in time, and still under way: {}", plugin_.id, plugin_.snapshot.reason));
  }
  if (outcome->status.ok()) co_return co_await requests_.WaitServing(deadline);
  const absl::Status old = co_await requests_.WaitServing(deadline);
  co_return absl::FailedPreconditionError(fmt::format(
      "swap plugin {}: {}; {}", plugin_.id, MessageOf(outcome->status),
      old.ok() ? "the old one serves" : fmt::format("and the old one does not serve: {}", MessageOf(old))));
}

absl::Status PluginSwap::CheckTrial(const PluginFacts& now) const {
  if (!trying() || !plugin_.swap->before.has_value()) return absl::OkStatus();
  const SwapTerms terms{.holds_volumes = !plugin_.report.Holders().empty(), .changes = plugin_.swap->changes};
  return CompareForSwap(*plugin_.swap->before, now, terms);
}

void PluginSwap::NoteLosses(const PluginFacts& now) {
  if (trying() || !plugin_.snapshot.facts.has_value() || plugin_.report.Holders().empty()) return;
  const absl::Status same = CompareForSwap(*plugin_.snapshot.facts, now, {.holds_volumes = true});
  if (same.ok()) return;
  plugin_.note = fmt::format("it is not what it was, and volumes are in use through it: {}", MessageOf(same));
  plugin_.report.Emit("plugin.does_less", plugin_.note);
}

void PluginSwap::Try() {
  if (!plugin_.swap.has_value()) return;
  plugin_.swap->tried = true;
  plugin_.swap->old_config = plugin_.config;
  plugin_.swap->before = plugin_.snapshot.facts;
  plugin_.config = WithOverride(plugin_.swap->file, plugin_.swap->override);
  plugin_.lifecycle.SetLimits(plugin_.Limits());
}

Awaitable<void> PluginSwap::Adopt() {
  if (!plugin_.swap.has_value()) co_return;
  SwapAttempt swap = *std::exchange(plugin_.swap, std::nullopt);
  plugin_.file = std::move(swap.file);
  SwapState state{.serving = std::move(swap.override)};
  plugin_.snapshot.swap =
      fmt::format("swapped to {}{}", plugin_.config->command,
                  plugin_.snapshot.registered && plugin_.snapshot.facts.has_value()
                      ? ", version " + Printable(plugin_.snapshot.facts->vendor_version, 128)
                      : "");
  const absl::Status kept = co_await plugin_.KeepSwaps(std::move(state));
  if (!kept.ok()) {
    plugin_.snapshot.swap += fmt::format("; not remembered: {}", MessageOf(kept));
    SPDLOG_ERROR("plugin {}: {}", plugin_.id, kept.ToString());
  }
  plugin_.report.Emit("plugin.swapped", plugin_.snapshot.swap);
  swap.outcome->done = true;
  plugin_.changed.NotifyAll();
}

Awaitable<void> PluginSwap::Revert(std::string why) {
  if (!plugin_.swap.has_value()) co_return;
  SwapAttempt swap = *std::exchange(plugin_.swap, std::nullopt);
  if (swap.tried) {
    plugin_.config = std::move(swap.old_config);
    plugin_.lifecycle.SetLimits(plugin_.Limits());
  }
  plugin_.snapshot.swap = fmt::format(
      "not swapped to {}: {}", swap.override.has_value() ? swap.override->command : swap.file.command, why);
  SwapState state{.serving = plugin_.swaps.serving};
  const absl::Status kept = co_await plugin_.KeepSwaps(std::move(state));
  if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", plugin_.id, kept.ToString());
  plugin_.report.Emit("plugin.swap_failed", plugin_.snapshot.swap);
  swap.outcome->status = absl::FailedPreconditionError(why);
  swap.outcome->done = true;
  plugin_.changed.NotifyAll();
}

Awaitable<void> PluginSwap::Restore() {
  if (!ValidPluginId(plugin_.id)) co_return;
  auto read = [path = SwapStatePath(plugin_.paths().state_dir, plugin_.id)] { return ReadSwapState(path); };
  absl::StatusOr<SwapState> state = co_await RunBlocking(
      fmt::format("read the swap of plugin {}", plugin_.id), std::move(read), Clock::now() + kRunFilesWithin);
  if (!state.ok()) {
    plugin_.snapshot.swap =
        fmt::format("what it was swapped to cannot be read, its file counts: {}", MessageOf(state.status()));
    SPDLOG_ERROR("plugin {}: {}", plugin_.id, plugin_.snapshot.swap);
    co_return;
  }
  plugin_.swaps = *std::move(state);
  if (!plugin_.file.ok()) co_return;
  SwapState now = plugin_.swaps;
  if (now.trying) {
    const PluginConfig next = WithOverride(*plugin_.file, now.next);
    const bool runs = plugin_.instance && plugin_.instance->record().launch_fingerprint ==
                                              LaunchFingerprint(next, plugin_.paths());
    if (runs) now.serving = now.next;
    now.trying = false;
    now.next.reset();
    plugin_.snapshot.swap =
        runs ? "berthd was restarted in the middle of the swap: the new one runs, uncompared"
             : "not done: berthd was restarted in the middle of the swap";
    plugin_.report.Emit(runs ? "plugin.swapped" : "plugin.swap_failed", plugin_.snapshot.swap);
  }
  if (now.serving.has_value() && !OverrideHolds(*now.serving, *plugin_.file, plugin_.paths())) {
    plugin_.snapshot.swap =
        fmt::format("its file was changed, and counts again instead of {}", now.serving->command);
    now.serving.reset();
  }
  if (now.serving.has_value() && plugin_.snapshot.swap.empty()) {
    plugin_.snapshot.swap = fmt::format("runs {} instead of its file's command", now.serving->command);
  }
  plugin_.config = WithOverride(*plugin_.file, now.serving);
  plugin_.lifecycle.SetLimits(plugin_.Limits());
  if (now == plugin_.swaps) co_return;
  const absl::Status kept = co_await plugin_.KeepSwaps(std::move(now));
  if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", plugin_.id, kept.ToString());
}

}  // namespace berth
