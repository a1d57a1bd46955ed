#include "supervisor/plugin_lifecycle.h"

#include <fmt/format.h>

#include <utility>

#include "supervisor/duration_text.h"

namespace berth {

PluginLifecycle::PluginLifecycle(LifecycleLimits limits) : limits_(limits), policy_(limits.restart) {}

void PluginLifecycle::SetLimits(LifecycleLimits limits) {
  limits_ = limits;
  policy_ = RestartPolicy(limits.restart);
}

std::vector<LifecycleAction> PluginLifecycle::Handle(const LifecycleEvent& event, TimePoint now) {
  using Type = LifecycleEvent::Type;
  switch (event.type) {
    case Type::kStartRequested:
      if (Running()) return {};
      if (state_ == PluginState::kDraining) return OnRestart(now);
      return Start();
    case Type::kStopRequested:
      return OnStop(now);
    case Type::kRestartRequested:
      return OnRestart(now);
    case Type::kTakenBack:
      if (state_ != PluginState::kStopped) return {};
      alive_ = true;
      launched_at_ = now - event.uptime;
      Enter(PluginState::kStarting, "taken back; waiting for its socket to answer");
      wake_at_ = now + limits_.start_timeout;
      return {};
    case Type::kLaunched:
      if (state_ != PluginState::kStarting || alive_) return {};
      alive_ = true;
      launched_at_ = now;
      reason_ = "waiting for its socket to answer";
      wake_at_ = now + limits_.start_timeout;
      return {};
    case Type::kLaunchFailed:
      if (state_ != PluginState::kStarting || alive_) return {};
      if (event.final) {
        Enter(PluginState::kFailed, event.text);
        return {};
      }
      return Ended(EndCause::kLaunchFailed, event.text, event, now);
    case Type::kSocketAnswered:
      if (state_ != PluginState::kStarting || !alive_ || announced_) return {};
      announced_ = true;
      wake_at_.reset();
      reason_ = "its socket answers; it has not said yet that it is ready";
      return {LifecycleAction::kAnnounce};
    case Type::kProbeOk:
      if (Running() && announced_ && state_ != PluginState::kReady) Enter(PluginState::kReady, "");
      return {};
    case Type::kProbeFailed:
      OnProbeFailed(event);
      return {};
    case Type::kExited:
      return OnExited(event, now);
    case Type::kTimer:
      return OnTimer(now);
  }
  return {};
}

bool PluginLifecycle::Running() const {
  switch (state_) {
    case PluginState::kStarting:
    case PluginState::kReady:
    case PluginState::kUnhealthy:
      return true;
    case PluginState::kStopped:
    case PluginState::kBackingOff:
    case PluginState::kDraining:
    case PluginState::kFailed:
      return false;
  }
  return false;
}

void PluginLifecycle::Enter(PluginState state, std::string reason) {
  state_ = state;
  reason_ = std::move(reason);
  wake_at_.reset();
}

PluginLifecycle::Actions PluginLifecycle::Retire() {
  if (!std::exchange(announced_, false)) return {};
  return {LifecycleAction::kRetire};
}

PluginLifecycle::Actions PluginLifecycle::Start() {
  policy_.Reset();
  restarts_ = 0;
  Enter(PluginState::kStarting, "being launched");
  return {LifecycleAction::kLaunch};
}

PluginLifecycle::Actions PluginLifecycle::Drain(AfterDrain after, std::string reason, TimePoint now) {
  Enter(PluginState::kDraining, std::move(reason));
  after_drain_ = after;
  wake_at_ = now + limits_.stop_timeout;
  Actions actions = Retire();
  actions.push_back(LifecycleAction::kTerminate);
  return actions;
}

PluginLifecycle::Actions PluginLifecycle::OnStop(TimePoint now) {
  if (Running() && alive_) return Drain(AfterDrain::kStop, "being stopped", now);
  if (state_ == PluginState::kDraining) {
    after_drain_ = AfterDrain::kStop;
    return {};
  }
  Enter(PluginState::kStopped, state_ == PluginState::kFailed
                                   ? "stopped by request; it had failed: " + reason_
                                   : "stopped by request");
  return {};
}

PluginLifecycle::Actions PluginLifecycle::OnRestart(TimePoint now) {
  if (Running() && alive_) return Drain(AfterDrain::kStart, "being restarted", now);
  if (state_ == PluginState::kDraining) {
    after_drain_ = AfterDrain::kStart;
    return {};
  }
  // A launch that is already asked for serves this request too.
  if (state_ == PluginState::kStarting) return {};
  return Start();
}

void PluginLifecycle::OnProbeFailed(const LifecycleEvent& event) {
  if (!Running() || !announced_) return;
  if (state_ == PluginState::kReady) {
    if (event.failures >= limits_.health_failures) Enter(PluginState::kUnhealthy, "Probe: " + event.text);
    return;
  }
  reason_ = "Probe: " + event.text;
}

PluginLifecycle::Actions PluginLifecycle::OnExited(const LifecycleEvent& event, TimePoint now) {
  if (!alive_) return {};
  alive_ = false;
  if (state_ != PluginState::kDraining) {
    Actions actions = Retire();
    const Actions next = Ended(event.clean ? EndCause::kClean : EndCause::kFailure, event.text, event, now);
    actions.insert(actions.end(), next.begin(), next.end());
    return actions;
  }
  switch (after_drain_) {
    case AfterDrain::kStop:
      Enter(PluginState::kStopped, "stopped by request");
      return {};
    case AfterDrain::kStart:
      return Start();
    case AfterDrain::kRestartPolicy:
      return Ended(EndCause::kFailure, drain_cause_, event, now);
  }
  return {};
}

PluginLifecycle::Actions PluginLifecycle::Ended(EndCause cause, const std::string& how,
                                                const LifecycleEvent& event, TimePoint now) {
  const Duration uptime = cause == EndCause::kLaunchFailed ? Duration{} : now - launched_at_;
  const RestartDecision decision = policy_.OnEnd(cause, uptime, now, event.random);
  switch (decision.what) {
    case RestartDecision::What::kNow:
      ++restarts_;
      Enter(PluginState::kStarting, "being launched again after: " + how);
      return {LifecycleAction::kLaunch};
    case RestartDecision::What::kLater:
      Enter(PluginState::kBackingOff, how);
      wake_at_ = now + decision.delay;
      return {};
    case RestartDecision::What::kGiveUp:
      Enter(PluginState::kFailed, fmt::format("given up, as {}; last: {}", decision.why, how));
      return {};
    case RestartDecision::What::kStayDown:
      Enter(PluginState::kStopped, how);
      return {};
  }
  return {};
}

PluginLifecycle::Actions PluginLifecycle::OnTimer(TimePoint now) {
  if (!wake_at_.has_value() || now < *wake_at_) return {};
  wake_at_.reset();
  switch (state_) {
    case PluginState::kStarting:
      drain_cause_ =
          fmt::format("its socket did not answer within {}", FormatDuration(limits_.start_timeout));
      return Drain(AfterDrain::kRestartPolicy, drain_cause_, now);
    case PluginState::kBackingOff:
      ++restarts_;
      Enter(PluginState::kStarting, "being launched again");
      return {LifecycleAction::kLaunch};
    case PluginState::kDraining:
      reason_ =
          fmt::format("did not end within {} of SIGTERM; killed, and waiting for the kernel to let it go",
                      FormatDuration(limits_.stop_timeout));
      return {LifecycleAction::kKill};
    case PluginState::kStopped:
    case PluginState::kReady:
    case PluginState::kUnhealthy:
    case PluginState::kFailed:
      return {};
  }
  return {};
}

}  // namespace berth
