// Swaps: hold, stop the old one, launch the new one on trial. PluginLifecycle decides each step.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_runner.h"

namespace berth {

Awaitable<absl::Status> PluginRunner::Swap(SwapRequest request, TimePoint deadline) {
  std::optional<SwapOverride> override;
  if (!request.command.empty()) {
    override = SwapOverride{.command = std::move(request.command),
                            .arguments = std::move(request.arguments),
                            .file_fingerprint = ""};
  } else if (!request.arguments.empty()) {
    co_return absl::InvalidArgumentError(
        fmt::format("swap plugin {}: arguments without a command; its file has its arguments", id_));
  }
  BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await ReadConfig(override, deadline));
  if (override.has_value()) override->file_fingerprint = LaunchFingerprint(file, paths());
  const SwapChanges changes = request.accept_changes ? SwapChanges::kAccept : SwapChanges::kRefuse;
  co_return co_await SwapTo(std::move(file), std::move(override), changes, request.force, deadline);
}

Awaitable<absl::Status> PluginRunner::SwapTo(PluginConfig file, std::optional<SwapOverride> override,
                                             SwapChanges changes, bool force, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(Annotate(context_.CheckNotShuttingDown(), fmt::format("swap plugin {}", id_)));
  if (swap_.has_value()) {
    co_return absl::AbortedError(fmt::format("swap plugin {}: a swap is under way", id_));
  }
  if (const std::string breaks = WouldBreak(); !force && !breaks.empty()) {
    co_return absl::FailedPreconditionError(
        fmt::format("swap plugin {}: {}; unpublish them first, or force it", id_, breaks));
  }
  const auto outcome = std::make_shared<SwapOutcome>();
  const PluginConfig next = WithOverride(file, override);
  swap_ = SwapAttempt{
      .file = std::move(file), .override = override, .changes = changes, .force = force, .outcome = outcome};
  snapshot_.swap = fmt::format("being swapped to {}", next.command);
  report_.Emit("plugin.swapping", fmt::format("to {}", next.command));
  Publish();
  // Durable before the old one is stopped, so that the next berthd knows what was being done.
  SwapState trying = swaps_;
  trying.trying = true;
  trying.next = override;
  if (const absl::Status kept = co_await KeepSwaps(std::move(trying)); !kept.ok()) {
    swap_.reset();
    snapshot_.swap = "failed: " + std::string(kept.message());
    Publish();
    co_return Annotate(kept, fmt::format("swap plugin {}", id_));
  }
  Post(LifecycleEvent::Type::kSwapRequested, force);
  auto decided = [this, outcome] { return outcome->done || gone(); };
  if (!co_await changed_.WaitUntil(std::move(decided), deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("swap plugin {}: not done in time, and still under way: {}", id_, snapshot_.reason));
  }
  if (outcome->status.ok()) co_return co_await WaitServing(deadline);
  const absl::Status old = co_await WaitServing(deadline);
  co_return absl::FailedPreconditionError(fmt::format(
      "swap plugin {}: {}; {}", id_, MessageOf(outcome->status),
      old.ok() ? "the old one serves" : fmt::format("and the old one does not serve: {}", MessageOf(old))));
}

absl::Status PluginRunner::CompareInSwap(const PluginFacts& before, const PluginFacts& now) const {
  return CompareForSwap(before, now,
                        {.holds_volumes = !report_.Holders().empty(), .changes = swap_->changes});
}

void PluginRunner::NoteLosses(const PluginFacts& now) {
  const bool swapping = swap_.has_value() && swap_->tried;
  if (swapping || !snapshot_.facts.has_value() || report_.Holders().empty()) return;
  const absl::Status same = CompareForSwap(*snapshot_.facts, now, {.holds_volumes = true});
  if (same.ok()) return;
  note_ = fmt::format("it is not what it was, and volumes are in use through it: {}", MessageOf(same));
  report_.Emit("plugin.does_less", note_);
}

void PluginRunner::TrySwap() {
  if (!swap_.has_value()) return;
  swap_->tried = true;
  swap_->old_config = config_;
  swap_->before = snapshot_.facts;
  config_ = WithOverride(swap_->file, swap_->override);
  lifecycle_.SetLimits(Limits());
}

Awaitable<void> PluginRunner::AdoptSwap() {
  if (!swap_.has_value()) co_return;
  SwapAttempt swap = *std::exchange(swap_, std::nullopt);
  file_ = std::move(swap.file);
  SwapState state{.serving = std::move(swap.override)};
  snapshot_.swap = fmt::format("swapped to {}{}", config_->command,
                               snapshot_.registered && snapshot_.facts.has_value()
                                   ? ", version " + Printable(snapshot_.facts->vendor_version, 128)
                                   : "");
  const absl::Status kept = co_await KeepSwaps(std::move(state));
  if (!kept.ok()) {
    snapshot_.swap += fmt::format("; not remembered: {}", MessageOf(kept));
    SPDLOG_ERROR("plugin {}: {}", id_, kept.ToString());
  }
  report_.Emit("plugin.swapped", snapshot_.swap);
  swap.outcome->done = true;
  changed_.NotifyAll();
}

Awaitable<void> PluginRunner::RevertSwap(std::string why) {
  if (!swap_.has_value()) co_return;
  SwapAttempt swap = *std::exchange(swap_, std::nullopt);
  if (swap.tried) {
    config_ = std::move(swap.old_config);
    lifecycle_.SetLimits(Limits());
  }
  snapshot_.swap = fmt::format("not swapped to {}: {}",
                               swap.override.has_value() ? swap.override->command : swap.file.command, why);
  SwapState state{.serving = swaps_.serving};
  const absl::Status kept = co_await KeepSwaps(std::move(state));
  if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", id_, kept.ToString());
  report_.Emit("plugin.swap_failed", snapshot_.swap);
  swap.outcome->status = absl::FailedPreconditionError(why);
  swap.outcome->done = true;
  changed_.NotifyAll();
}

Awaitable<absl::Status> PluginRunner::KeepSwaps(SwapState state) {
  auto write = [path = SwapStatePath(paths().state_dir, id_), state] { return WriteSwapState(path, state); };
  const absl::Status kept = co_await RunBlocking(fmt::format("write down the swap of plugin {}", id_),
                                                 std::move(write), Clock::now() + kRunFilesWithin);
  if (kept.ok()) swaps_ = std::move(state);
  co_return kept;
}

}  // namespace berth
