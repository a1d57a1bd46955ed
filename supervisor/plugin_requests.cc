#include "supervisor/plugin_requests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/status.h"

namespace berth {

Awaitable<absl::Status> PluginRequests::Start(TimePoint deadline) {
  if (plugin_.snapshot.alive && !plugin_.lifecycle.draining() &&
      plugin_.lifecycle.state() != PluginState::kDraining) {
    if (plugin_.lifecycle.state() != PluginState::kStarting) co_return absl::OkStatus();
    co_return co_await WaitServing(deadline);
  }
  if (!plugin_.snapshot.alive) {
    BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await plugin_.ReadConfig(std::nullopt, deadline));
    co_await plugin_.TakeConfig(std::move(file));
    plugin_.note.clear();
  }
  if (co_await plugin_.Handled(plugin_.Post(LifecycleEvent::Type::kStartRequested), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("start plugin {}: not begun in time", plugin_.id));
}

Awaitable<absl::Status> PluginRequests::Stop(bool force, TimePoint deadline) {
  if (const std::vector<std::string> holders = plugin_.report.Holders(); !force && !holders.empty()) {
    const std::string breaks = plugin_.WouldBreak();
    co_return absl::FailedPreconditionError(fmt::format(
        "stop plugin {}: {}; unpublish them first, drain it, or force it", plugin_.id,
        breaks.empty() ? fmt::format("volumes are in use through it by {}", fmt::join(holders, ", "))
                       : breaks));
  }
  const uint64_t ticket = plugin_.Post(LifecycleEvent::Type::kStopRequested, force);
  auto ended = [this, ticket] {
    return plugin_.gone() ||
           (plugin_.handled >= ticket && plugin_.lifecycle.state() != PluginState::kDraining);
  };
  if (!co_await plugin_.changed.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("stop plugin {}: not ended in time, and still being stopped: {}", plugin_.id,
                    plugin_.lifecycle.reason()));
  }
  if (plugin_.gone() || plugin_.lifecycle.state() == PluginState::kStopped) co_return absl::OkStatus();
  co_return absl::AbortedError(fmt::format("stop plugin {}: it was started again meanwhile", plugin_.id));
}

Awaitable<absl::Status> PluginRequests::Restart(bool force, TimePoint deadline) {
  if (const std::string breaks = plugin_.WouldBreak(); !force && !breaks.empty()) {
    co_return absl::FailedPreconditionError(
        fmt::format("restart plugin {}: {}; unpublish them first, or force it", plugin_.id, breaks));
  }
  // A file that is wrong must not cost a plugin that runs.
  BERTH_CO_ASSIGN_OR_RETURN(PluginConfig file, co_await plugin_.ReadConfig(std::nullopt, deadline));
  co_await plugin_.TakeConfig(std::move(file));
  if (co_await plugin_.Handled(plugin_.Post(LifecycleEvent::Type::kRestartRequested, force), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("restart plugin {}: not begun in time", plugin_.id));
}

Awaitable<absl::Status> PluginRequests::Drain(TimePoint deadline) {
  const PluginState state = plugin_.lifecycle.state();
  if (state == PluginState::kStopped || state == PluginState::kFailed) {
    const std::vector<std::string> holders = plugin_.report.Holders();
    if (holders.empty()) co_return absl::OkStatus();
    co_return absl::FailedPreconditionError(fmt::format(
        "drain plugin {}: it is {}, and volumes are in use through it by {}; start it, so that they "
        "can leave",
        plugin_.id, PluginStateName(state), fmt::join(holders, ", ")));
  }
  const uint64_t ticket = plugin_.Post(LifecycleEvent::Type::kDrainRequested);
  auto ended = [this, ticket] {
    return plugin_.gone() || (plugin_.handled >= ticket && !plugin_.lifecycle.draining());
  };
  if (!co_await plugin_.changed.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format("drain plugin {}: not done in time, and going on: {}",
                                                      plugin_.id, plugin_.lifecycle.reason()));
  }
  if (plugin_.gone() || plugin_.lifecycle.state() == PluginState::kStopped) co_return absl::OkStatus();
  if (plugin_.lifecycle.state() == PluginState::kFailed) {
    co_return absl::FailedPreconditionError(
        fmt::format("drain plugin {}: it has failed: {}", plugin_.id, plugin_.lifecycle.reason()));
  }
  co_return absl::AbortedError(fmt::format("drain plugin {}: it was started again meanwhile", plugin_.id));
}

Awaitable<absl::Status> PluginRequests::WaitServing(TimePoint deadline) {
  while (true) {
    const uint64_t seen = plugin_.context.reports.registry.version();
    switch (plugin_.lifecycle.state()) {
      case PluginState::kReady:
        if (plugin_.snapshot.registered) co_return absl::OkStatus();
        if (!plugin_.report.refused().empty()) co_return plugin_.report.NotServing("is refused");
        break;
      case PluginState::kStarting:
      case PluginState::kUnhealthy:
      case PluginState::kDraining:
        break;
      case PluginState::kStopped:
        co_return plugin_.report.NotServing("is stopped");
      case PluginState::kBackingOff:
        co_return plugin_.report.NotServing("has ended, and will be launched again");
      case PluginState::kFailed:
        co_return plugin_.report.NotServing("has failed");
    }
    if (plugin_.gone()) co_return plugin_.report.NotServing("is gone");
    if (!co_await plugin_.context.reports.registry.WaitChanged(seen, deadline)) {
      co_return plugin_.report.NotRegisteredInTime();
    }
  }
}

}  // namespace berth
