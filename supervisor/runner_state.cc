#include "supervisor/runner_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/placed_files.h"
#include "supervisor/plugin_launch.h"

namespace berth {
namespace {

LifecycleLimits LimitsOf(const absl::StatusOr<PluginConfig>& config) {
  LifecycleLimits limits;
  if (!config.ok()) {
    // What cannot be launched again is not replaced.
    limits.replace.after = Duration::zero();
    return limits;
  }
  limits.start_timeout = config->start_timeout;
  limits.stop_timeout = config->stop_timeout;
  limits.probe_timeout = config->health.timeout;
  limits.health_failures = config->health.failures;
  limits.restart = config->restart;
  limits.replace = {.after = config->health.replace_after,
                    .burst = config->health.replace_burst,
                    .window = config->health.replace_window};
  return limits;
}

}  // namespace

RunnerState::RunnerState(RunnerContext& shared, PluginFile of)
    : context(shared),
      id(of.id),
      config_file(of.path),
      file(std::move(of.config)),
      config(file),
      lifecycle(LimitsOf(config)),
      report(context.reports, id),
      changed(context.instances.executor) {
  if (absl::IsAlreadyExists(file.status())) contested = file.status();
  snapshot.socket_path = PluginSocketPath(paths(), id);
  Publish();
}

LifecycleLimits RunnerState::Limits() const {
  LifecycleLimits limits = LimitsOf(config);
  if (!config.ok() && instance) limits.stop_timeout = instance->record().stop_timeout;
  return limits;
}

void RunnerState::Post(Message message) {
  inbox.push_back(std::move(message));
  ++posted;
  changed.NotifyAll();
}

uint64_t RunnerState::Post(LifecycleEvent::Type type, bool force) {
  LifecycleEvent event;
  event.type = type;
  event.force = force;
  Post(std::move(event));
  return posted;
}

Awaitable<bool> RunnerState::Handled(uint64_t ticket, TimePoint deadline) {
  auto done = [this, ticket] { return handled >= ticket || gone(); };
  co_return co_await changed.WaitUntil(std::move(done), deadline);
}

std::string RunnerState::WouldBreak() const {
  if (!instance || !instance->record().serves_mounts || instance->record().keep_children) return "";
  const std::vector<std::string> holders = report.Holders();
  if (holders.empty()) return "";
  return fmt::format(
      "it serves its mounts itself (serves_mounts = true), so with its processes these volumes break: {}",
      fmt::join(holders, ", "));
}

void RunnerState::KeepTokens() {
  if (!config.ok()) {
    if (instance) snapshot.tokens = instance->record().tokens;
    if (instance) snapshot.pod_info = instance->record().pod_info;
    return;
  }
  snapshot.tokens = config->tokens;
  snapshot.pod_info = config->pod_info;
  if (!instance) return;
  const RunRecord& known = instance->record();
  if (known.tokens == config->tokens && known.pod_info == config->pod_info) return;
  instance->Note([tokens = config->tokens, pod_info = config->pod_info](RunRecord& record) {
    record.tokens = tokens;
    record.pod_info = pod_info;
  });
}

void RunnerState::Publish() {
  snapshot.config_file = config_file;
  snapshot.placed = IsPlacedFile(paths(), config_file);
  KeepTokens();
  if (config.ok() && !instance) {
    snapshot.kind = config->kind;
    snapshot.serves_mounts = config->serves_mounts;
  }
  if (config.ok()) snapshot.start_timeout = config->start_timeout;
  snapshot.state = lifecycle.state();
  snapshot.alive = lifecycle.alive();
  snapshot.ready = lifecycle.ready();
  snapshot.paused = lifecycle.paused();
  snapshot.draining = lifecycle.draining();
  snapshot.restarts = lifecycle.restarts();
  snapshot.next_restart_at.reset();
  if (lifecycle.state() == PluginState::kBackingOff && lifecycle.wake_at().has_value()) {
    snapshot.next_restart_at = WallClock::now() + std::chrono::duration_cast<WallClock::duration>(
                                                      *lifecycle.wake_at() - Clock::now());
  }
  report.Publish(lifecycle.reason(), {note, instance ? instance->unenforced() : ""});
}

Awaitable<absl::StatusOr<PluginConfig>> RunnerState::ReadConfig(std::optional<SwapOverride> override,
                                                                TimePoint deadline) {
  if (config_file.empty()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: its file is gone", id));
  }
  if (!contested.ok()) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {}; then reload", id, MessageOf(contested)));
  }
  auto load = [path = config_file, where = paths()] { return LoadPluginFile(path, where); };
  absl::StatusOr<PluginConfig> read =
      co_await RunBlocking(fmt::format("read {}", config_file), std::move(load), deadline);
  if (absl::IsDeadlineExceeded(read.status())) co_return read.status();
  if (!read.ok()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id, MessageOf(read.status())));
  }
  if (read->id != id) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} gives the id \"{}\"; berthd must be restarted for another id", id,
                    config_file, read->id));
  }
  if (read->external()) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says that it is external now; reload applies it", id, config_file));
  }
  if (!read->enabled) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says enabled = false", id, config_file));
  }
  if (!override.has_value() && swaps.serving.has_value() && OverrideHolds(*swaps.serving, *read, paths())) {
    override = swaps.serving;
  }
  const absl::Status usable = co_await TryPluginLaunch(WithOverride(*read, override), paths(), deadline);
  if (absl::IsDeadlineExceeded(usable)) co_return Annotate(usable, fmt::format("plugin {}", id));
  if (!usable.ok()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id, MessageOf(usable)));
  }
  co_return read;
}

Awaitable<void> RunnerState::TakeConfig(PluginConfig taken) {
  // A swap under way takes its own.
  if (swap.has_value()) co_return;
  file = std::move(taken);
  if (swaps.serving.has_value() && !OverrideHolds(*swaps.serving, *file, paths())) {
    snapshot.swap =
        fmt::format("its file was changed, and counts again instead of {}", swaps.serving->command);
    const absl::Status kept = co_await KeepSwaps(SwapState());
    if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", id, kept.ToString());
    swaps = SwapState();
  }
  config = WithOverride(*file, swaps.serving);
  lifecycle.SetLimits(Limits());
  context.instances.logs.Configure(id, config->log);
}

Awaitable<absl::Status> RunnerState::KeepSwaps(SwapState state) {
  auto write = [path = SwapStatePath(paths().state_dir, id), state] { return WriteSwapState(path, state); };
  const absl::Status kept = co_await RunBlocking(fmt::format("write down the swap of plugin {}", id),
                                                 std::move(write), Clock::now() + kRunFilesWithin);
  if (kept.ok()) swaps = std::move(state);
  co_return kept;
}

}  // namespace berth
