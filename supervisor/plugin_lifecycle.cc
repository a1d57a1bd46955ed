#include "supervisor/plugin_lifecycle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/duration_text.h"

namespace berth {
namespace {

constexpr size_t kHoldersShown = 5;

std::string InSeconds(Duration duration) {
  return FormatDuration(std::chrono::ceil<std::chrono::seconds>(duration));
}

std::string WaitsForVolumes(const std::vector<std::string>& holders) {
  const size_t shown = std::min(holders.size(), kHoldersShown);
  const std::vector<std::string> some(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(shown));
  return fmt::format("being drained: waits for {} to leave: {}{}",
                     holders.size() == 1 ? "1 volume" : fmt::format("{} volumes", holders.size()),
                     fmt::join(some, ", "),
                     shown < holders.size() ? fmt::format(" and {} more", holders.size() - shown) : "");
}

}  // namespace

PluginLifecycle::PluginLifecycle(LifecycleLimits limits)
    : limits_(limits), restart_(limits.restart), replace_(limits.replace) {}

void PluginLifecycle::SetLimits(LifecycleLimits limits) {
  if (limits.restart != limits_.restart) restart_ = RestartPolicy(limits.restart);
  if (limits.replace != limits_.replace) replace_ = ReplacePolicy(limits.replace);
  limits_ = limits;
}

std::vector<LifecycleAction> PluginLifecycle::Handle(const LifecycleEvent& event, TimePoint now) {
  using Type = LifecycleEvent::Type;
  Actions actions;
  switch (event.type) {
    case Type::kStartRequested:
      actions = OnStart(event, now);
      break;
    case Type::kStopRequested:
      actions = OnStop(event, now);
      break;
    case Type::kRestartRequested:
      actions = OnRestart(event, now);
      break;
    case Type::kSwapRequested:
      actions = OnSwap(event, now);
      break;
    case Type::kDrainRequested:
      actions = OnDrain(event, now);
      break;
    case Type::kHoldersChanged:
      actions = OnHolders(event, now);
      break;
    case Type::kIdle:
      if (In(Phase::kOperations)) actions = WaitIdle(event, now);
      break;
    case Type::kTakenBack:
      actions = OnTakenBack(event, now);
      break;
    case Type::kLaunched:
      if (state_ != PluginState::kStarting || alive_) break;
      alive_ = true;
      launched_at_ = now;
      reason_ = "waiting for its socket to answer";
      deadline_ = now + limits_.start_timeout;
      if (swap_ == Swap::kTrial) trial_until_ = *deadline_ + limits_.probe_timeout;
      break;
    case Type::kLaunchFailed:
      actions = OnLaunchFailed(event, now);
      break;
    case Type::kSocketAnswered:
      if (state_ != PluginState::kStarting || !alive_ || announced_) break;
      announced_ = true;
      deadline_.reset();
      reason_ = "its socket answers; it has not said yet that it is ready";
      actions = {LifecycleAction::kAnnounce};
      break;
    case Type::kProbeOk:
      actions = OnProbeOk(event, now);
      break;
    case Type::kProbeNotReady:
    case Type::kProbeFailed:
    case Type::kSocketLost:
      OnProbeBad(event, now);
      break;
    case Type::kAccepted:
      if (!Running() || !announced_) break;
      paused_ = false;
      if (swap_ == Swap::kTrial) {
        swap_ = Swap::kNone;
        trial_until_.reset();
        actions = {LifecycleAction::kAdopt};
        if (drain_wished_) {
          const Actions next = DrainVolumes(event, now);
          actions.insert(actions.end(), next.begin(), next.end());
        }
      }
      break;
    case Type::kRefused:
      if (!Running() || !announced_) break;
      if (swap_ == Swap::kTrial) {
        actions = RevertTrial(event.text, now);
      } else {
        paused_ = false;  // nothing that passes soon
      }
      break;
    case Type::kExited:
      actions = OnExited(event, now);
      break;
    case Type::kTimer:
      actions = OnTimer(event, now);
      break;
  }
  PlanReplacement();
  return actions;
}

bool PluginLifecycle::draining() const {
  return drain_wished_ ||
         (state_ == PluginState::kDraining && (goal_ == Goal::kStop || goal_ == Goal::kGiveUp));
}

std::optional<TimePoint> PluginLifecycle::wake_at() const {
  std::optional<TimePoint> at;
  for (const std::optional<TimePoint>& each : {deadline_, trial_until_, replace_at_}) {
    if (each.has_value() && (!at.has_value() || *each < *at)) at = each;
  }
  return at;
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
  deadline_.reset();
  if (state == PluginState::kStopped || state == PluginState::kFailed) drain_wished_ = false;
  if (state != PluginState::kDraining && state != PluginState::kStarting) paused_ = false;
}

PluginLifecycle::Actions PluginLifecycle::Retire() {
  if (!std::exchange(announced_, false)) return {};
  return {LifecycleAction::kRetire};
}

PluginLifecycle::Actions PluginLifecycle::Start(std::string reason) {
  restart_.Reset();
  replace_.Reset();
  restarts_ = 0;
  Enter(PluginState::kStarting, std::move(reason));
  return {LifecycleAction::kLaunch};
}

// --- Draining -------------------------------------------------------------------------------------------

PluginLifecycle::Actions PluginLifecycle::DrainVolumes(const LifecycleEvent& event, TimePoint now) {
  if (event.holders.empty()) return Quiesce(Goal::kStop, "drained, being stopped", event, now);
  if (!In(Phase::kVolumes)) {
    Enter(PluginState::kDraining, "");
    phase_ = Phase::kVolumes;
    goal_ = Goal::kStop;
    paused_ = false;
  }
  reason_ = WaitsForVolumes(event.holders);
  if (!ill_text_.empty()) reason_ += "; " + ill_text_;
  return {};
}

PluginLifecycle::Actions PluginLifecycle::Quiesce(Goal goal, std::string doing, const LifecycleEvent& event,
                                                  TimePoint now) {
  Enter(PluginState::kDraining, doing);
  phase_ = Phase::kOperations;
  goal_ = goal;
  doing_ = std::move(doing);
  paused_ = goal != Goal::kStop && goal != Goal::kGiveUp;
  return WaitIdle(event, now);
}

PluginLifecycle::Actions PluginLifecycle::WaitIdle(const LifecycleEvent& event, TimePoint now) {
  if (event.force || !announced_ || !event.busy_until.has_value() || *event.busy_until <= now) {
    return EndProcess(goal_, doing_, now);
  }
  deadline_ = event.busy_until;
  reason_ = *event.busy_until == TimePoint::max()
                ? fmt::format("{}: waits for operations in flight", doing_)
                : fmt::format("{}: waits for operations in flight, at most {}", doing_,
                              InSeconds(*event.busy_until - now));
  return {};
}

PluginLifecycle::Actions PluginLifecycle::EndProcess(Goal goal, std::string reason, TimePoint now) {
  if (goal == Goal::kReplace) replace_.OnReplaced(now);
  Enter(PluginState::kDraining, std::move(reason));
  phase_ = Phase::kProcess;
  goal_ = goal;
  trial_until_.reset();
  deadline_ = now + limits_.stop_timeout;
  Actions actions = Retire();
  actions.push_back(LifecycleAction::kTerminate);
  return actions;
}

void PluginLifecycle::Resume() {
  paused_ = false;
  Enter(ready_ ? PluginState::kReady : PluginState::kUnhealthy, ill_text_);
}

PluginLifecycle::Actions PluginLifecycle::OnStart(const LifecycleEvent& event, TimePoint now) {
  drain_wished_ = false;
  if (Running()) return {};
  if (state_ != PluginState::kDraining) return Start("being launched");
  // Of a swap either comes back: the new one or the old one.
  if (goal_ == Goal::kSwap || goal_ == Goal::kReturn) return {};
  if (phase_ == Phase::kProcess) return OnRestart(event, now);
  // What comes back anyway serves this request too.
  if (goal_ == Goal::kGiveUp) replace_.Reset();
  if (goal_ == Goal::kStop || goal_ == Goal::kGiveUp) Resume();
  return {};
}

PluginLifecycle::Actions PluginLifecycle::OnStop(const LifecycleEvent& event, TimePoint now) {
  Actions actions = Revert("it was stopped");
  if (alive_ && (Running() || !In(Phase::kProcess))) {
    const Actions next = Quiesce(Goal::kStop, "being stopped", event, now);
    actions.insert(actions.end(), next.begin(), next.end());
    return actions;
  }
  if (state_ == PluginState::kDraining) {
    goal_ = Goal::kStop;
    paused_ = false;
    return actions;
  }
  Enter(PluginState::kStopped, state_ == PluginState::kFailed
                                   ? "stopped by request; it had failed: " + reason_
                                   : "stopped by request");
  return actions;
}

PluginLifecycle::Actions PluginLifecycle::OnRestart(const LifecycleEvent& event, TimePoint now) {
  // Of a swap under way too: the old one comes back.
  Actions actions = Revert("a restart was asked for");
  if (alive_ && (Running() || !In(Phase::kProcess))) {
    const Actions next = Quiesce(Goal::kStart, "being restarted", event, now);
    actions.insert(actions.end(), next.begin(), next.end());
    return actions;
  }
  if (state_ == PluginState::kDraining) {
    goal_ = Goal::kStart;
    paused_ = true;
    return actions;
  }
  // A launch that is already asked for serves this request too.
  if (state_ == PluginState::kStarting) return actions;
  return Start("being launched");
}

PluginLifecycle::Actions PluginLifecycle::OnSwap(const LifecycleEvent& event, TimePoint now) {
  swap_failure_.clear();
  if (alive_ && (Running() || !In(Phase::kProcess))) {
    swap_ = Swap::kAsked;
    return Quiesce(Goal::kSwap, "being swapped", event, now);
  }
  if (state_ == PluginState::kDraining) {
    swap_ = Swap::kAsked;
    goal_ = Goal::kSwap;
    paused_ = true;
    return {};
  }
  // Nothing serves that could come back: the new one is the plugin, whatever becomes of it.
  if (state_ == PluginState::kStarting) return {LifecycleAction::kTry, LifecycleAction::kAdopt};
  Actions actions = {LifecycleAction::kTry, LifecycleAction::kAdopt};
  const Actions next = Start("being launched");
  actions.insert(actions.end(), next.begin(), next.end());
  return actions;
}

PluginLifecycle::Actions PluginLifecycle::OnDrain(const LifecycleEvent& event, TimePoint now) {
  if (state_ == PluginState::kStopped || state_ == PluginState::kFailed) return {};
  if (state_ == PluginState::kBackingOff && event.holders.empty()) {
    Enter(PluginState::kStopped, "drained");
    return {};
  }
  // One that is to end needs no drain; what is under way otherwise comes back first, and drains then.
  if (state_ == PluginState::kDraining && (goal_ == Goal::kStop || goal_ == Goal::kGiveUp)) return {};
  drain_wished_ = true;
  if (!alive_ || swap_ != Swap::kNone || state_ == PluginState::kDraining) return {};
  // Before it serves, no volume can leave: it is left to come up.
  if (state_ == PluginState::kStarting && !event.holders.empty()) return {};
  return DrainVolumes(event, now);
}

PluginLifecycle::Actions PluginLifecycle::OnHolders(const LifecycleEvent& event, TimePoint now) {
  if (!drain_wished_) return {};
  if (In(Phase::kVolumes)) return DrainVolumes(event, now);
  if (!event.holders.empty()) return {};
  if (state_ == PluginState::kBackingOff) Enter(PluginState::kStopped, "drained");
  if (Running() && alive_ && swap_ == Swap::kNone) return DrainVolumes(event, now);
  return {};
}

// --- The process ----------------------------------------------------------------------------------------

PluginLifecycle::Actions PluginLifecycle::OnTakenBack(const LifecycleEvent& event, TimePoint now) {
  if (state_ != PluginState::kStopped) return {};
  alive_ = true;
  launched_at_ = now - event.uptime;
  Enter(PluginState::kStarting, "taken back; waiting for its socket to answer");
  deadline_ = now + limits_.start_timeout;
  drain_wished_ = event.drain;
  if (drain_wished_ && event.holders.empty()) return DrainVolumes(event, now);
  return {};
}

PluginLifecycle::Actions PluginLifecycle::OnLaunchFailed(const LifecycleEvent& event, TimePoint now) {
  if (state_ != PluginState::kStarting || alive_) return {};
  if (swap_ == Swap::kTrial) {
    Actions actions = Revert(event.text);
    const Actions next = Start("the old one is launched again, as the new one was not: " + event.text);
    actions.insert(actions.end(), next.begin(), next.end());
    return actions;
  }
  if (event.final) {
    Enter(PluginState::kFailed, event.text);
    return {};
  }
  return Ended(EndCause::kLaunchFailed, event.text, event, now);
}

PluginLifecycle::Actions PluginLifecycle::OnProbeOk(const LifecycleEvent& event, TimePoint now) {
  if (!alive_ || !announced_) return {};
  ready_ = true;
  ill_since_.reset();
  const bool was_ill = !std::exchange(ill_text_, "").empty();
  if (In(Phase::kVolumes)) return was_ill ? DrainVolumes(event, now) : Actions{};
  if (In(Phase::kOperations) && (goal_ == Goal::kReplace || goal_ == Goal::kGiveUp)) Resume();
  if (!Running()) return {};
  if (drain_wished_ && swap_ == Swap::kNone) return DrainVolumes(event, now);
  if (state_ != PluginState::kReady) {
    const bool held = paused_;
    Enter(PluginState::kReady, "");
    paused_ = held;  // until what it is has been read
  }
  return {};
}

void PluginLifecycle::OnProbeBad(const LifecycleEvent& event, TimePoint now) {
  if (!alive_ || !announced_ || In(Phase::kProcess)) return;
  // Ready = false is no illness: it says itself that it is on its way.
  if (event.type == LifecycleEvent::Type::kProbeNotReady) {
    ill_since_.reset();
  } else if (!ill_since_.has_value()) {
    ill_since_ = now;
  }
  const bool lost = event.type == LifecycleEvent::Type::kSocketLost;
  const bool enough = lost || event.failures >= limits_.health_failures;
  if (ready_ && !enough) return;
  ready_ = false;
  ill_text_ = lost ? event.text : "Probe: " + event.text;
  switch (state_) {
    case PluginState::kReady:
      Enter(PluginState::kUnhealthy, ill_text_);
      break;
    case PluginState::kStarting:
    case PluginState::kUnhealthy:
      reason_ = ill_text_;
      break;
    case PluginState::kDraining:
      if (phase_ == Phase::kVolumes) reason_ = WaitsForVolumes(event.holders) + "; " + ill_text_;
      break;
    case PluginState::kStopped:
    case PluginState::kBackingOff:
    case PluginState::kFailed:
      break;
  }
}

void PluginLifecycle::PlanReplacement() {
  replace_at_.reset();
  if (!ill_since_.has_value() || !alive_ || !announced_ || swap_ != Swap::kNone) return;
  const bool ill = (Running() && state_ != PluginState::kReady) || (In(Phase::kVolumes) && !ready_);
  if (ill) replace_at_ = replace_.ReplaceAt(*ill_since_);
}

PluginLifecycle::Actions PluginLifecycle::OnExited(const LifecycleEvent& event, TimePoint now) {
  if (!alive_) return {};
  alive_ = false;
  ready_ = false;
  ill_since_.reset();
  trial_until_.reset();
  Actions actions = Retire();
  ill_text_.clear();
  const auto then = [&actions](const Actions& next) {
    actions.insert(actions.end(), next.begin(), next.end());
    return actions;
  };
  if (state_ != PluginState::kDraining || phase_ == Phase::kVolumes) {
    if (swap_ == Swap::kTrial) {
      then(Revert(event.text));
      return then(Start("the old one is launched again, as the new one ended: " + event.text));
    }
    if (drain_wished_ && event.holders.empty()) {
      Enter(PluginState::kStopped, fmt::format("drained; it ended by itself: {}", event.text));
      return actions;
    }
    if (!event.clean) return then(Ended(EndCause::kFailure, event.text, event, now));
    // Its program may have gone into the background, where it is not known.
    return then(Ended(EndCause::kClean,
                      event.text + "; a plugin has to stay in the foreground, and it ended by itself", event,
                      now));
  }
  switch (goal_) {
    case Goal::kStop:
      Enter(PluginState::kStopped, drain_wished_ ? "drained" : "stopped by request");
      return actions;
    case Goal::kStart:
      return then(Start("being launched"));
    case Goal::kReplace:
      ++restarts_;
      Enter(PluginState::kStarting, "being launched in place of one that was ill");
      return then({LifecycleAction::kLaunch});
    case Goal::kGiveUp:
      Enter(PluginState::kFailed, drain_cause_);
      return actions;
    case Goal::kSwap:
      swap_ = Swap::kTrial;
      then({LifecycleAction::kTry});
      return then(Start("being swapped: the new one is launched"));
    case Goal::kReturn:
      return then(Start("the old one is launched again, as the new one did not serve: " + swap_failure_));
    case Goal::kRestartPolicy:
      return then(Ended(EndCause::kFailure, drain_cause_, event, now));
  }
  return actions;
}

PluginLifecycle::Actions PluginLifecycle::Revert(std::string why) {
  if (swap_ == Swap::kNone) return {};
  swap_ = Swap::kNone;
  trial_until_.reset();
  swap_failure_ = std::move(why);
  return {LifecycleAction::kRevert};
}

PluginLifecycle::Actions PluginLifecycle::RevertTrial(std::string why, TimePoint now) {
  Actions actions = Revert(std::move(why));
  const Actions next = EndProcess(Goal::kReturn, "the new one does not serve: " + swap_failure_, now);
  paused_ = true;
  actions.insert(actions.end(), next.begin(), next.end());
  return actions;
}

PluginLifecycle::Actions PluginLifecycle::Ended(EndCause cause, const std::string& how,
                                                const LifecycleEvent& event, TimePoint now) {
  const Duration uptime = cause == EndCause::kLaunchFailed ? Duration{} : now - launched_at_;
  paused_ = false;
  const RestartDecision decision = restart_.OnEnd(cause, uptime, now, event.random);
  switch (decision.what) {
    case RestartDecision::What::kNow:
      ++restarts_;
      Enter(PluginState::kStarting, "being launched again after: " + how);
      return {LifecycleAction::kLaunch};
    case RestartDecision::What::kLater:
      Enter(PluginState::kBackingOff, how);
      deadline_ = now + decision.delay;
      return {};
    case RestartDecision::What::kGiveUp:
      Enter(PluginState::kFailed, fmt::format("not restarted, as {}; last: {}", decision.why, how));
      return {};
    case RestartDecision::What::kStayDown:
      Enter(PluginState::kStopped, how);
      return {};
  }
  return {};
}

PluginLifecycle::Actions PluginLifecycle::OnTimer(const LifecycleEvent& event, TimePoint now) {
  const auto passed = [now](const std::optional<TimePoint>& when) {
    return when.has_value() && *when <= now;
  };
  if (passed(trial_until_) && state_ != PluginState::kDraining) {
    return RevertTrial(fmt::format("it did not serve within {}{}{}",
                                   FormatDuration(limits_.start_timeout + limits_.probe_timeout),
                                   reason_.empty() ? "" : "; ", reason_),
                       now);
  }
  if (passed(replace_at_) && ill_since_.has_value()) {
    if (!event.keep.empty()) {
      ill_since_ = now;  // looked at again after the same time
      reason_ += (reason_.empty() ? "not replaced: " : "; not replaced: ") + event.keep;
      return {};
    }
    if (replace_.Exhausted(now)) {
      const int burst = replace_.limits().burst;
      drain_cause_ =
          fmt::format("not restarted, as it was unhealthy again after it was replaced {} within {}; last: {}",
                      burst == 1 ? "once" : fmt::format("{} times", burst),
                      FormatDuration(replace_.limits().window), ill_text_);
      return Quiesce(Goal::kGiveUp, "being " + drain_cause_, event, now);
    }
    std::string doing =
        fmt::format("being replaced, as it was ill for {}: {}", InSeconds(now - *ill_since_), ill_text_);
    return Quiesce(Goal::kReplace, std::move(doing), event, now);
  }
  if (!passed(deadline_)) return {};
  deadline_.reset();
  switch (state_) {
    case PluginState::kStarting: {
      std::string why =
          fmt::format("its socket did not answer within {}", FormatDuration(limits_.start_timeout));
      if (swap_ == Swap::kTrial) return RevertTrial(std::move(why), now);
      drain_cause_ = std::move(why);
      return EndProcess(Goal::kRestartPolicy, drain_cause_, now);
    }
    case PluginState::kBackingOff:
      ++restarts_;
      Enter(PluginState::kStarting, "being launched again");
      return {LifecycleAction::kLaunch};
    case PluginState::kDraining:
      if (phase_ == Phase::kOperations) return WaitIdle(event, now);
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
