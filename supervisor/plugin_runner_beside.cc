// Swaps beside: the new process is launched into the other slot while the old one serves, is probed, read and
// compared there, and then is the plugin, in one step of the loop. Calls in flight through the old one end,
// or pass their deadlines; then it is stopped. A new one that does not come up, or differs, is ended, and the
// old one never noticed.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "supervisor/duration_text.h"
#include "supervisor/plugin_runner.h"

namespace berth {
bool PluginRunner::CanSwapBeside() const {
  const PluginState state = lifecycle_.state();
  const bool serves = state == PluginState::kReady || state == PluginState::kUnhealthy;
  return serves && instance_ && announced_ && !lifecycle_.draining();
}

Awaitable<void> PluginRunner::BeginBeside(bool force) {
  if (!swap_.has_value()) co_return;
  if (!CanSwapBeside()) {
    // It has ended meanwhile, or is about to.
    Post(LifecycleEvent::Type::kSwapRequested, force);
    co_return;
  }
  if (const absl::Status forward = context_.MayGoForward(); !forward.ok()) {
    co_await FailAside(fmt::format("not launched: {}", MessageOf(forward)));
    co_return;
  }
  const PluginConfig next = WithOverride(swap_->file, swap_->override);
  const RunSlot slot = FreeSlot();
  InstanceLaunch launch{
      .config = next, .slot = slot, .generation = ++generation_, .candidate = true, .draining = false};
  const TimePoint deadline = Clock::now() + next.start_timeout;
  absl::StatusOr<std::unique_ptr<PluginInstance>> instance =
      co_await PluginInstance::Launch(context_.instances, RecordFile(slot), std::move(launch), deadline);
  // The old one is the plugin until the new one serves, though the launch has told the log otherwise.
  context_.instances.logs.SetPid(id_, instance_->pid());
  if (!instance.ok()) {
    co_await FailAside(std::string(instance.status().message()));
    co_return;
  }
  const uint64_t number = ++incarnations_;
  Aside aside;
  aside.instance = *std::move(instance);
  aside.number = number;
  aside.config = next;
  aside.until = Clock::now() + next.start_timeout + next.health.timeout;
  aside_ = std::move(aside);
  Tell("plugin.launched", fmt::format("launched {} as process {}, beside process {}", next.command,
                                      aside_->instance->pid(), instance_->pid()));
  InstanceSinks sinks;
  sinks.on_exit = [this, number](const ExitStatus& exit) {
    Message message{.event = LifecycleEvent{.type = LifecycleEvent::Type::kExited}, .incarnation = number};
    message.exit = exit;
    Post(std::move(message));
  };
  sinks.on_socket = [this, number](const absl::Status& answered) {
    Message message{.event = LifecycleEvent{.type = LifecycleEvent::Type::kSocketAnswered},
                    .incarnation = number};
    if (!answered.ok()) {
      message.event.type = LifecycleEvent::Type::kRefused;
      message.event.text = fmt::format("its socket cannot be waited for: {}", MessageOf(answered));
    }
    Post(std::move(message));
  };
  sinks.on_foreign_socket = [this, number](const std::string& why) {
    Message message{.event = LifecycleEvent{.type = LifecycleEvent::Type::kRefused}, .incarnation = number};
    message.event.text = why;
    Post(std::move(message));
  };
  aside_->instance->Watch(std::move(sinks));
}

Awaitable<void> PluginRunner::HandleAside(Message message) {
  using Type = LifecycleEvent::Type;
  if (message.exit.has_value()) {
    co_await DropAside(*message.exit);
    co_return;
  }
  if (aside_->phase == Aside::Phase::kCalls && message.event.type == Type::kIdle) EndAsideOnceIdle(false);
  if (aside_->phase != Aside::Phase::kTrial) co_return;
  if (message.health.has_value()) {
    aside_->health = *std::move(message.health);
  } else if (message.facts.has_value()) {
    absl::Status verdict = message.facts->facts.status();
    if (verdict.ok() && snapshot_.facts.has_value()) {
      verdict = CompareInSwap(*snapshot_.facts, *message.facts->facts);
    }
    if (!verdict.ok()) {
      co_await FailAside(std::string(verdict.message()));
      co_return;
    }
    aside_->facts = *std::move(message.facts->facts);
    aside_->computed_class = std::move(message.facts->computed_class);
  } else if (message.event.type == Type::kRefused) {
    co_await FailAside(std::move(message.event.text));
    co_return;
  } else if (message.event.type == Type::kSocketAnswered && !std::exchange(aside_->announced, true)) {
    context_.observer.OnSocketAppeared(
        IncarnationOf(*aside_->instance, aside_->number, aside_->config.health));
    aside_->instance->Announced();
  }
  if (aside_->health.ok && aside_->facts.has_value()) co_await AdoptAside();
}

Awaitable<void> PluginRunner::YieldAside(LifecycleEvent::Type request, bool force) {
  using Type = LifecycleEvent::Type;
  if (!aside_) co_return;
  if (aside_->phase == Aside::Phase::kCalls && request == Type::kStopRequested) EndAsideOnceIdle(force);
  if (aside_->phase != Aside::Phase::kTrial) co_return;
  if (request == Type::kStopRequested) co_await FailAside("the plugin was stopped");
  if (request == Type::kRestartRequested) co_await FailAside("a restart was asked for");
  if (request == Type::kDrainRequested) co_await FailAside("a drain was asked for");
}

Awaitable<void> PluginRunner::OnAsideTimer() {
  switch (aside_->phase) {
    case Aside::Phase::kTrial: {
      const Duration within = aside_->config.start_timeout + aside_->config.health.timeout;
      const std::string probe = aside_->health.error.empty() ? "" : "; Probe: " + aside_->health.error;
      co_await FailAside(fmt::format("{} within {}{}",
                                     aside_->announced ? "it did not serve" : "its socket did not answer",
                                     FormatDuration(within), probe));
      break;
    }
    case Aside::Phase::kCalls:
      EndAsideOnceIdle(false);
      break;
    case Aside::Phase::kEnding:
      aside_->instance->Kill();
      aside_->phase = Aside::Phase::kKilled;
      aside_->until = TimePoint::max();
      break;
    case Aside::Phase::kKilled:
      aside_->until = TimePoint::max();
      break;
  }
}

Awaitable<void> PluginRunner::AdoptAside() {
  if (lifecycle_.state() == PluginState::kDraining) {
    co_await FailAside(fmt::format("the plugin was to end meanwhile: {}", lifecycle_.reason()));
    co_return;
  }
  // Durable before it serves: a berthd that dies now leaves two that say they serve, and the newer one
  // counts.
  const absl::Status recorded =
      co_await aside_->instance->Record([](RunRecord& record) { record.candidate = false; });
  if (!recorded.ok()) {
    co_await FailAside(std::string(recorded.message()));
    co_return;
  }
  Aside now = *std::exchange(aside_, std::nullopt);
  now.instance->HoldSecrets();
  if (instance_) {
    Aside old;
    old.instance = std::move(instance_);
    old.number = snapshot_.incarnation;
    old.phase = Aside::Phase::kCalls;
    old.announced = announced_;
    aside_ = std::move(old);
  }
  config_ = std::move(now.config);
  lifecycle_.SetLimits(Limits());
  ShowIncarnation(std::move(now.instance), now.number);
  announced_ = true;
  snapshot_.health = std::move(now.health);
  snapshot_.facts = std::move(now.facts);
  snapshot_.computed_class = std::move(now.computed_class);
  snapshot_.facts_read_at = WallClock::now();
  const bool joins = !std::exchange(snapshot_.registered, true);
  note_.clear();
  snapshot_.file_error.clear();
  context_.instances.logs.Configure(id_, config_->log);
  context_.instances.logs.SetPid(id_, instance_->pid());
  // From here on new calls go through the new one.
  co_await Handle(Message{.event = LifecycleEvent{.type = LifecycleEvent::Type::kSwappedBeside}});
  if (joins) TellJoined();
  const bool force = swap_.has_value() && swap_->force;
  co_await AdoptSwap();
  if (aside_) EndAsideOnceIdle(force);
  Publish();
}

Awaitable<void> PluginRunner::FailAside(std::string why) {
  if (aside_ && aside_->phase == Aside::Phase::kTrial) EndAside();
  if (config_.ok()) context_.instances.logs.Configure(id_, config_->log);
  co_await RevertSwap(std::move(why));
  Publish();
}

void PluginRunner::EndAsideOnceIdle(bool force) {
  std::optional<TimePoint> busy_until;
  if (aside_->announced && context_.busy_until) busy_until = context_.busy_until(id_, aside_->number);
  if (!force && busy_until.has_value() && *busy_until > Clock::now()) {
    aside_->until = *busy_until;
    return;
  }
  EndAside();
}

void PluginRunner::EndAside() {
  if (std::exchange(aside_->announced, false)) context_.observer.OnIncarnationGone(id_, aside_->number);
  aside_->phase = Aside::Phase::kEnding;
  aside_->until = Clock::now() + aside_->instance->record().stop_timeout;
  aside_->instance->Terminate();
}

Awaitable<void> PluginRunner::DropAside(ExitStatus exit) {
  const bool on_trial = aside_->phase == Aside::Phase::kTrial;
  if (std::exchange(aside_->announced, false)) context_.observer.OnIncarnationGone(id_, aside_->number);
  const pid_t pid = aside_->instance->pid();
  const InstanceEnd end =
      co_await aside_->instance->End(exit, on_trial ? TreeOccasion::kMainEnded : TreeOccasion::kReplaced);
  aside_.reset();
  context_.instances.logs.SetPid(id_, instance_ ? instance_->pid() : 0);
  Tell("plugin.exited",
       fmt::format("process {}, which does not serve, ended: {}", pid, on_trial ? end.Describe() : end.how));
  if (on_trial) co_await FailAside(fmt::format("it ended: {}", end.DescribeAtLength()));
  changed_.NotifyAll();
}

}  // namespace berth
