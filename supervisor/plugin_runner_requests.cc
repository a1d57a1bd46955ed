// What people ask of a plugin, and a file that was changed.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_runner.h"

namespace berth {

void PluginRunner::Post(Message message) {
  inbox_.push_back(std::move(message));
  ++posted_;
  changed_.NotifyAll();
}

uint64_t PluginRunner::Post(LifecycleEvent::Type type, bool force) {
  LifecycleEvent event;
  event.type = type;
  event.force = force;
  Post(std::move(event));
  return posted_;
}

Awaitable<bool> PluginRunner::Handled(uint64_t ticket, TimePoint deadline) {
  auto handled = [this, ticket] { return handled_ >= ticket || gone(); };
  co_return co_await changed_.WaitUntil(std::move(handled), deadline);
}

Awaitable<void> PluginRunner::WaitBegun() {
  auto begun = [this] { return begun_ || gone(); };
  [[maybe_unused]] const bool has_begun = co_await changed_.WaitUntil(std::move(begun), TimePoint::max());
}

std::string PluginRunner::WouldBreak() const {
  if (!instance_ || !instance_->record().serves_mounts || instance_->record().keep_children) return "";
  const std::vector<std::string> holders = report_.Holders();
  if (holders.empty()) return "";
  return fmt::format(
      "it serves its mounts itself (serves_mounts = true), so with its processes these volumes break: {}",
      fmt::join(holders, ", "));
}

void PluginRunner::OnIdle(uint64_t instance) {
  if (instance != snapshot_.instance || lifecycle_.state() != PluginState::kDraining) return;
  Post(LifecycleEvent::Type::kIdle);
}

void PluginRunner::OnHoldersChanged() {
  if (lifecycle_.drain_wished()) Post(LifecycleEvent::Type::kHoldersChanged);
  // It ran on for the sake of its volumes alone.
  if (config_file_.empty() && instance_ && report_.Holders().empty())
    Post(LifecycleEvent::Type::kStopRequested);
}

Awaitable<absl::StatusOr<PluginConfig>> PluginRunner::ReadConfig(std::optional<SwapOverride> override,
                                                                 TimePoint deadline) {
  if (config_file_.empty()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: its file is gone", id_));
  }
  if (!contested_.ok()) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {}; then reload", id_, MessageOf(contested_)));
  }
  auto load = [path = config_file_, where = paths()] { return LoadPluginFile(path, where); };
  absl::StatusOr<PluginConfig> config =
      co_await RunBlocking(fmt::format("read {}", config_file_), std::move(load), deadline);
  if (absl::IsDeadlineExceeded(config.status())) co_return config.status();
  if (!config.ok()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, MessageOf(config.status())));
  }
  if (config->id != id_) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} gives the id \"{}\"; berthd must be restarted for another id", id_,
                    config_file_, config->id));
  }
  if (config->external()) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says that it is external now; reload applies it", id_, config_file_));
  }
  if (!config->enabled) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says enabled = false", id_, config_file_));
  }
  if (!override.has_value() && swaps_.serving.has_value() &&
      OverrideHolds(*swaps_.serving, *config, paths())) {
    override = swaps_.serving;
  }
  const absl::Status usable = co_await TryPluginLaunch(WithOverride(*config, override), paths(), deadline);
  if (absl::IsDeadlineExceeded(usable)) co_return Annotate(usable, fmt::format("plugin {}", id_));
  if (!usable.ok()) {
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, MessageOf(usable)));
  }
  co_return config;
}

Awaitable<void> PluginRunner::TakeConfig(PluginConfig file) {
  // A swap under way takes its own.
  if (swap_.has_value()) co_return;
  file_ = std::move(file);
  if (swaps_.serving.has_value() && !OverrideHolds(*swaps_.serving, *file_, paths())) {
    snapshot_.swap =
        fmt::format("its file was changed, and counts again instead of {}", swaps_.serving->command);
    const absl::Status kept = co_await KeepSwaps(SwapState());
    if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", id_, kept.ToString());
    swaps_ = SwapState();
  }
  config_ = WithOverride(*file_, swaps_.serving);
  lifecycle_.SetLimits(Limits());
  context_.instances.logs.Configure(id_, config_->log);
}

Awaitable<absl::Status> PluginRunner::Start(TimePoint deadline) {
  if (snapshot_.alive && !lifecycle_.draining() && lifecycle_.state() != PluginState::kDraining) {
    if (lifecycle_.state() != PluginState::kStarting) co_return absl::OkStatus();
    co_return co_await WaitServing(deadline);
  }
  if (!snapshot_.alive) {
    BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await ReadConfig(std::nullopt, deadline));
    co_await TakeConfig(std::move(file));
    note_.clear();
  }
  if (co_await Handled(Post(LifecycleEvent::Type::kStartRequested), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("start plugin {}: not begun in time", id_));
}

Awaitable<absl::Status> PluginRunner::Stop(bool force, TimePoint deadline) {
  if (const std::vector<std::string> holders = report_.Holders(); !force && !holders.empty()) {
    const std::string breaks = WouldBreak();
    co_return absl::FailedPreconditionError(fmt::format(
        "stop plugin {}: {}; unpublish them first, drain it, or force it", id_,
        breaks.empty() ? fmt::format("volumes are in use through it by {}", fmt::join(holders, ", "))
                       : breaks));
  }
  const uint64_t ticket = Post(LifecycleEvent::Type::kStopRequested, force);
  auto ended = [this, ticket] {
    return gone() || (handled_ >= ticket && lifecycle_.state() != PluginState::kDraining);
  };
  if (!co_await changed_.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format(
        "stop plugin {}: not ended in time, and still being stopped: {}", id_, lifecycle_.reason()));
  }
  if (gone() || lifecycle_.state() == PluginState::kStopped) co_return absl::OkStatus();
  co_return absl::AbortedError(fmt::format("stop plugin {}: it was started again meanwhile", id_));
}

Awaitable<absl::Status> PluginRunner::Restart(bool force, TimePoint deadline) {
  if (const std::string breaks = WouldBreak(); !force && !breaks.empty()) {
    co_return absl::FailedPreconditionError(
        fmt::format("restart plugin {}: {}; unpublish them first, or force it", id_, breaks));
  }
  // A file that is wrong must not cost a plugin that runs.
  BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await ReadConfig(std::nullopt, deadline));
  co_await TakeConfig(std::move(file));
  if (co_await Handled(Post(LifecycleEvent::Type::kRestartRequested, force), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("restart plugin {}: not begun in time", id_));
}

Awaitable<absl::Status> PluginRunner::Drain(TimePoint deadline) {
  const PluginState state = lifecycle_.state();
  if (state == PluginState::kStopped || state == PluginState::kFailed) {
    const std::vector<std::string> holders = report_.Holders();
    if (holders.empty()) co_return absl::OkStatus();
    co_return absl::FailedPreconditionError(fmt::format(
        "drain plugin {}: it is {}, and volumes are in use through it by {}; start it, so that they "
        "can leave",
        id_, PluginStateName(state), fmt::join(holders, ", ")));
  }
  const uint64_t ticket = Post(LifecycleEvent::Type::kDrainRequested);
  auto ended = [this, ticket] { return gone() || (handled_ >= ticket && !lifecycle_.draining()); };
  if (!co_await changed_.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("drain plugin {}: not done in time, and going on: {}", id_, lifecycle_.reason()));
  }
  if (gone() || lifecycle_.state() == PluginState::kStopped) co_return absl::OkStatus();
  if (lifecycle_.state() == PluginState::kFailed) {
    co_return absl::FailedPreconditionError(
        fmt::format("drain plugin {}: it has failed: {}", id_, lifecycle_.reason()));
  }
  co_return absl::AbortedError(fmt::format("drain plugin {}: it was started again meanwhile", id_));
}

Awaitable<absl::Status> PluginRunner::WaitServing(TimePoint deadline) {
  while (true) {
    const uint64_t seen = context_.reports.registry.version();
    switch (lifecycle_.state()) {
      case PluginState::kReady:
        if (snapshot_.registered) co_return absl::OkStatus();
        if (!report_.refused().empty()) co_return report_.NotServing("is refused");
        break;
      case PluginState::kStarting:
      case PluginState::kUnhealthy:
      case PluginState::kDraining:
        break;
      case PluginState::kStopped:
        co_return report_.NotServing("is stopped");
      case PluginState::kBackingOff:
        co_return report_.NotServing("has ended, and will be launched again");
      case PluginState::kFailed:
        co_return report_.NotServing("has failed");
    }
    if (gone()) co_return report_.NotServing("is gone");
    if (!co_await context_.reports.registry.WaitChanged(seen, deadline)) {
      co_return report_.NotRegisteredInTime();
    }
  }
}

// --- A file that was changed ----------------------------------------------------------------------------

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::Reconfigure(PluginFile file, TimePoint deadline) {
  if (file.path.empty()) co_return co_await FileGone(deadline);
  config_file_ = file.path;
  contested_ = absl::IsAlreadyExists(file.config.status()) ? file.config.status() : absl::OkStatus();
  if (!file.config.ok()) co_return FileBroken(file.config.status());
  PluginConfig config = *std::move(file.config);
  if (!config.enabled) co_return co_await Disable(std::move(config), deadline);
  if (!instance_) co_return co_await ReconfigureStopped(std::move(config), deadline);
  co_return co_await ReconfigureRunning(std::move(config), deadline);
}

absl::Status PluginRunner::FileBroken(const absl::Status& error) {
  const std::string text(error.message());
  if (std::exchange(snapshot_.file_error, text) != text) report_.Emit("plugin.file_broken", text);
  if (!instance_) {
    // Nothing runs that it could cost: it is a broken plugin like any other.
    file_ = error;
    config_ = error;
    note_ = text;
  }
  Publish();
  return error;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::ReconfigureStopped(PluginConfig config,
                                                                         TimePoint deadline) {
  snapshot_.file_error.clear();
  const bool was_off = !file_.ok() || !file_->enabled || lifecycle_.state() == PluginState::kFailed ||
                       lifecycle_.state() == PluginState::kBackingOff;
  if (file_.ok() && *file_ == config) co_return Reconfigured::kUnchanged;
  co_await TakeConfig(std::move(config));
  note_.clear();
  Publish();
  if (!was_off) co_return Reconfigured::kUpdated;  // a person has stopped it
  const absl::Status started = co_await Start(deadline);
  if (!started.ok()) co_return started;
  co_return Reconfigured::kStarted;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::ReconfigureRunning(PluginConfig config,
                                                                         TimePoint deadline) {
  const bool same = file_.ok() && *file_ == config;
  // What a swap put over the file holds for as long as the file stays the same.
  std::optional<SwapOverride> override = swaps_.serving;
  if (override.has_value() && !OverrideHolds(*override, config, paths())) override.reset();
  const PluginConfig next = WithOverride(config, override);
  if (instance_->record().launch_fingerprint != LaunchFingerprint(next, paths())) {
    const absl::Status swapped = co_await SwapTo(std::move(config), std::move(override),
                                                 SwapChanges::kAcceptWhileUnused, false, deadline);
    if (!swapped.ok()) {
      snapshot_.file_error = fmt::format("its file was changed, and is not applied: {}", MessageOf(swapped));
      Publish();
      co_return swapped;
    }
    snapshot_.file_error.clear();
    Publish();
    co_return Reconfigured::kSwapped;
  }
  snapshot_.file_error.clear();
  if (same) {
    Publish();
    co_return Reconfigured::kUnchanged;
  }
  const bool probed_otherwise = !config_.ok() || config_->health != next.health;
  co_await TakeConfig(std::move(config));
  note_.clear();
  if (probed_otherwise && announced_) {
    context_.observer.OnHealthConfig(id_, snapshot_.instance, config_->health);
  }
  report_.Emit("plugin.reconfigured", fmt::format("{} is taken over; it needs no new process", config_file_));
  Publish();
  // The stop timeout is written down for the next berthd.
  if (instance_) {
    instance_->Note(
        [stop_timeout = config_->stop_timeout](RunRecord& record) { record.stop_timeout = stop_timeout; });
  }
  co_return Reconfigured::kUpdated;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::FileGone(TimePoint deadline) {
  config_file_.clear();
  const absl::Status gone = absl::NotFoundError("its file is gone");
  file_ = gone;
  const std::vector<std::string> holders = report_.Holders();
  if (instance_ && !holders.empty()) {
    note_ =
        fmt::format("its file is gone; it runs until its volumes have left: {}", fmt::join(holders, ", "));
    snapshot_.file_error = "its file is gone";
    Publish();
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, note_));
  }
  // Not launched again, whatever becomes of it.
  config_ = gone;
  const absl::Status stopped = co_await Stop(false, deadline);
  if (!stopped.ok()) co_return stopped;
  co_return Reconfigured::kStopped;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::Disable(PluginConfig file, TimePoint deadline) {
  const bool was = file_.ok() && *file_ == file;
  const std::vector<std::string> holders = report_.Holders();
  if (instance_ && !holders.empty()) {
    snapshot_.file_error = fmt::format(
        "its file says enabled = false, but volumes are in use through it by {}", fmt::join(holders, ", "));
    Publish();
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, snapshot_.file_error));
  }
  const bool stops = instance_ != nullptr || lifecycle_.state() == PluginState::kBackingOff;
  if (stops) BERTH_CO_RETURN_IF_ERROR(co_await Stop(false, deadline));
  co_await TakeConfig(std::move(file));
  snapshot_.file_error.clear();
  note_ = "disabled in its file (enabled = false)";
  Publish();
  if (stops) co_return Reconfigured::kStopped;
  co_return was ? Reconfigured::kUnchanged : Reconfigured::kUpdated;
}

}  // namespace berth
