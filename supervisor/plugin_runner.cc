#include "supervisor/plugin_runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/duration_text.h"
#include "base/status.h"
#include "supervisor/placed_files.h"

namespace berth {
namespace {

Duration Age(WallTime since) {
  return std::max(std::chrono::duration_cast<Duration>(WallClock::now() - since), Duration::zero());
}

// To the second, or to the millisecond below one.
std::string AgeText(WallTime since) {
  const Duration age = Age(since);
  if (age >= std::chrono::seconds(1)) {
    return FormatDuration(std::chrono::duration_cast<std::chrono::seconds>(age));
  }
  return FormatDuration(age);
}

}  // namespace

PluginRunner::PluginRunner(RunnerContext& context, PluginFile file)
    : plugin_(context, std::move(file)),
      record_(std::make_shared<RunRecordFile>(PluginRuntimeDir(plugin_.paths(), plugin_.id))) {}

PluginRunner::~PluginRunner() = default;

// --- The run --------------------------------------------------------------------------------------------

Awaitable<void> PluginRunner::Run() {
  co_await Begin();
  while (true) {
    if (plugin_.config_file.empty() && !plugin_.instance &&
        plugin_.lifecycle.state() != PluginState::kDraining) {
      plugin_.report.Remove();
      plugin_.context.instances.secrets.Forget(plugin_.id);
      plugin_.context.instances.logs.Close(plugin_.id);
      plugin_.changed.NotifyAll();
      co_return;
    }
    auto has_message = [this] { return !plugin_.inbox.empty(); };
    const TimePoint wake_at = plugin_.lifecycle.wake_at().value_or(TimePoint::max());
    if (!co_await plugin_.changed.WaitUntil(std::move(has_message), wake_at)) {
      co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kTimer});
      continue;
    }
    RunnerState::Message message = std::move(plugin_.inbox.front());
    plugin_.inbox.pop_front();
    co_await Receive(std::move(message));
    ++plugin_.handled;
    plugin_.changed.NotifyAll();
  }
}

Awaitable<void> PluginRunner::Begin() {
  const absl::StatusOr<bool> taken = co_await TakeBack();
  co_await swap_.Restore();
  if (taken.ok() && *taken) NoteFile();
  begun_ = true;
  plugin_.changed.NotifyAll();
  if (taken.ok() && *taken) {
    LifecycleEvent taken_back{.type = LifecycleEvent::Type::kTakenBack};
    taken_back.uptime = Age(plugin_.instance->record().started_at);
    taken_back.drain = plugin_.instance->record().draining;
    co_await Handle(std::move(taken_back));
    if (!plugin_.config_file.empty()) co_return;
    const std::vector<std::string> holders = plugin_.report.Holders();
    if (holders.empty()) {
      plugin_.Post(LifecycleEvent::Type::kStopRequested);
      co_return;
    }
    plugin_.note =
        fmt::format("its file is gone; it runs until its volumes have left: {}", fmt::join(holders, ", "));
    plugin_.Publish();
    co_return;
  }
  if (taken.ok() && plugin_.config_file.empty()) co_return;
  if (taken.ok() && plugin_.config.ok() && !plugin_.config->enabled) {
    plugin_.note = "disabled in its file (enabled = false)";
    plugin_.Publish();
    co_return;
  }
  if (wish_restored_ && plugin_.report.Holders().empty()) {
    plugin_.note = "it was being drained, and ended while berthd was away";
    plugin_.Publish();
    co_return;
  }
  // Also where nothing can be launched: it fails then, and says why.
  co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kStartRequested});
  if (wish_restored_) plugin_.Post(LifecycleEvent::Type::kDrainRequested);
}

void PluginRunner::Fill(LifecycleEvent& event) {
  using Type = LifecycleEvent::Type;
  if (plugin_.instance && plugin_.context.busy_until)
    event.busy_until = plugin_.context.busy_until(plugin_.id, plugin_.snapshot.instance);
  const bool drains = plugin_.lifecycle.drain_wished() || event.type == Type::kDrainRequested || event.drain;
  if (drains) event.holders = plugin_.report.Holders();
  if (event.type == Type::kTimer) {
    const absl::Status may_replace = plugin_.context.CheckNotShuttingDown();
    event.keep = may_replace.ok() ? plugin_.WouldBreak() : std::string(MessageOf(may_replace));
  }
  event.random = RandomShare();
}

Awaitable<void> PluginRunner::Receive(RunnerState::Message message) {
  if (auto* request = std::get_if<LifecycleEvent>(&message)) {
    co_await Handle(std::move(*request));
    co_return;
  }
  // What was seen of a process that has gone since means nothing.
  const auto is_current = [this](uint64_t instance) { return instance == plugin_.snapshot.instance; };
  if (const auto* answered = std::get_if<RunnerState::SocketAnswered>(&message)) {
    if (!is_current(answered->instance)) co_return;
    co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kSocketAnswered});
  } else if (const auto* exited = std::get_if<RunnerState::Exited>(&message)) {
    if (!is_current(exited->instance)) co_return;
    co_await Handle(co_await EndInstance(exited->exit));
  } else if (auto* probed = std::get_if<RunnerState::Probed>(&message)) {
    if (!is_current(probed->instance) || !plugin_.announced) co_return;
    co_await Handle(TakeHealth(std::move(probed->health)));
  } else if (auto* read = std::get_if<RunnerState::FactsRead>(&message)) {
    if (!is_current(read->instance) || !plugin_.announced) co_return;
    co_await Handle(TakeFacts(std::move(*read)));
  }
}

Awaitable<void> PluginRunner::Handle(LifecycleEvent event) {
  // What an action brings about is handled before the next message.
  std::optional<LifecycleEvent> next = std::move(event);
  while (next.has_value()) {
    LifecycleEvent now = *std::exchange(next, std::nullopt);
    Fill(now);
    const PluginState before = plugin_.lifecycle.state();
    const std::string reason_before = plugin_.lifecycle.reason();
    const std::vector<LifecycleAction> actions = plugin_.lifecycle.Handle(now, Clock::now());
    plugin_.snapshot.holders = plugin_.lifecycle.draining() ? now.holders : std::vector<std::string>();
    Announce(before, reason_before);
    plugin_.Publish();
    for (const LifecycleAction action : actions) {
      if (action != LifecycleAction::kLaunch) {
        co_await Perform(action);
        continue;
      }
      next = co_await Launch();
    }
  }
  KeepWish();
  plugin_.Publish();
}

Awaitable<void> PluginRunner::Perform(LifecycleAction action) {
  switch (action) {
    case LifecycleAction::kLaunch:
      break;
    case LifecycleAction::kTerminate:
      if (plugin_.instance) plugin_.instance->Terminate();
      break;
    case LifecycleAction::kKill:
      if (plugin_.instance) plugin_.instance->Kill();
      break;
    case LifecycleAction::kAnnounce:
      plugin_.announced = true;
      plugin_.context.observer.OnSocketAppeared(
          {.plugin_id = plugin_.id,
           .number = plugin_.snapshot.instance,
           .kind = plugin_.snapshot.kind,
           .socket_path = plugin_.snapshot.socket_path,
           .health = plugin_.config.ok() ? plugin_.config->health : HealthConfig(),
           .volumes_path = plugin_.instance->record().volumes_path});
      // After it, for the first Probe does not wait for a disk.
      plugin_.instance->Announced();
      break;
    case LifecycleAction::kRetire:
      Retire(plugin_.lifecycle.reason());
      break;
    case LifecycleAction::kTry:
      swap_.Try();
      break;
    case LifecycleAction::kAdopt:
      co_await swap_.Adopt();
      break;
    case LifecycleAction::kRevert:
      co_await swap_.Revert(plugin_.lifecycle.swap_failure());
      break;
  }
}

void PluginRunner::Retire(const std::string& why) {
  plugin_.report.Leave(why);
  plugin_.Publish();
  if (!std::exchange(plugin_.announced, false)) return;
  plugin_.context.observer.OnInstanceGone(plugin_.id, plugin_.snapshot.instance);
}

Awaitable<LifecycleEvent> PluginRunner::Launch() {
  LifecycleEvent failed = LifecycleEvent{.type = LifecycleEvent::Type::kLaunchFailed};
  failed.final = true;
  if (!record_read_) {
    const absl::StatusOr<bool> taken = co_await TakeBack();
    if (!taken.ok()) {
      failed.text = std::string(taken.status().message());
      co_return failed;
    }
    if (*taken) {
      NoteFile();
      co_return LifecycleEvent{.type = LifecycleEvent::Type::kLaunched};
    }
  }
  if (!plugin_.config.ok()) {
    failed.text = std::string(plugin_.config.status().message());
    co_return failed;
  }
  if (const absl::Status forward = plugin_.context.CheckNotShuttingDown(); !forward.ok()) {
    failed.text = fmt::format("not launched: {}", MessageOf(forward));
    co_return failed;
  }
  InstanceLaunch launch{
      .config = *plugin_.config, .generation = ++generation_, .draining = plugin_.lifecycle.drain_wished()};
  const TimePoint deadline = Clock::now() + plugin_.config->start_timeout;
  absl::StatusOr<std::unique_ptr<PluginInstance>> instance =
      co_await PluginInstance::Launch(plugin_.context.instances, record_, std::move(launch), deadline);
  if (!instance.ok()) {
    failed.text = std::string(instance.status().message());
    failed.final = false;
    co_return failed;
  }
  plugin_.note.clear();
  plugin_.snapshot.file_error.clear();
  BeginInstance(*std::move(instance));
  plugin_.report.Emit("plugin.launched", fmt::format("launched {} as process {}", plugin_.config->command,
                                                     plugin_.instance->pid()));
  co_return LifecycleEvent{.type = LifecycleEvent::Type::kLaunched};
}

void PluginRunner::BeginInstance(std::unique_ptr<PluginInstance> instance) {
  const uint64_t number = ++instances_;
  plugin_.report.BeginInstance(number);
  plugin_.instance = std::move(instance);
  const RunRecord& record = plugin_.instance->record();
  generation_ = std::max(generation_, record.generation);
  plugin_.snapshot.kind = record.kind;
  plugin_.snapshot.pid = plugin_.instance->pid();
  plugin_.snapshot.started_at = record.started_at;
  plugin_.snapshot.socket_path = record.socket_path;
  plugin_.snapshot.serves_mounts = record.serves_mounts;
  plugin_.snapshot.command = record.command;
  plugin_.snapshot.placement = plugin_.instance->placement();
  foreign_ = false;
  InstanceSinks sinks;
  sinks.on_exit = [this, number](const ExitStatus& exit) {
    plugin_.Post(RunnerState::Exited{.instance = number, .exit = exit});
  };
  sinks.on_socket = [this, number](const absl::Status& answered) {
    if (answered.ok()) {
      plugin_.Post(RunnerState::SocketAnswered{.instance = number});
      if (std::exchange(foreign_, false)) plugin_.note.clear();
      return;
    }
    // The start timeout ends this instance; it is enough to say why.
    plugin_.note = fmt::format("its socket cannot be waited for: {}", MessageOf(answered));
    SPDLOG_ERROR("plugin {}: {}", plugin_.id, plugin_.note);
    plugin_.Publish();
  };
  sinks.on_foreign_socket = [this](const std::string& why) {
    plugin_.note = why;
    foreign_ = true;
    plugin_.report.Emit("plugin.foreign_socket", why);
    plugin_.Publish();
  };
  plugin_.instance->Watch(std::move(sinks));
}

Awaitable<LifecycleEvent> PluginRunner::EndInstance(ExitStatus exit) {
  plugin_.snapshot.alive = false;
  Retire(fmt::format("its process has ended: {}", exit.Describe()));
  TreeOccasion occasion = TreeOccasion::kMainEnded;
  if (plugin_.lifecycle.state() == PluginState::kDraining) {
    occasion = plugin_.lifecycle.paused() ? TreeOccasion::kReplaced : TreeOccasion::kStopped;
  }
  const InstanceEnd end = co_await plugin_.instance->End(exit, occasion);
  const WallTime started = plugin_.instance->record().started_at;
  const pid_t pid = std::exchange(plugin_.snapshot.pid, 0);
  plugin_.instance.reset();
  plugin_.note.clear();
  plugin_.snapshot.last_exit = end.how;
  plugin_.snapshot.last_exit_at = WallClock::now();
  plugin_.snapshot.last_output = end.last_output;
  plugin_.report.Emit("plugin.exited",
                      fmt::format("process {} ended after {}: {}", pid, AgeText(started), end.Describe()));
  LifecycleEvent exited{.type = LifecycleEvent::Type::kExited};
  exited.text = swap_.trying() ? end.DescribeAtLength() : end.Describe();
  exited.clean = end.clean();
  co_return exited;
}

Awaitable<void> PluginRunner::WaitBegun() {
  auto begun = [this] { return begun_ || plugin_.gone(); };
  [[maybe_unused]] const bool has_begun =
      co_await plugin_.changed.WaitUntil(std::move(begun), TimePoint::max());
}

Awaitable<void> PluginRunner::LetGo() {
  if (plugin_.instance) co_await plugin_.instance->LetGo();
  plugin_.instance.reset();
}

void PluginRunner::KeepWish() {
  if (!plugin_.instance || plugin_.instance->record().draining == plugin_.lifecycle.drain_wished()) return;
  plugin_.instance->Note(
      [wished = plugin_.lifecycle.drain_wished()](RunRecord& record) { record.draining = wished; });
}

// --- What probing has found -----------------------------------------------------------------------------

void PluginRunner::OnHealth(uint64_t instance, const PluginHealth& health) {
  plugin_.Post(RunnerState::Probed{.instance = instance, .health = health});
}

void PluginRunner::OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
                           const std::string& computed_class) {
  plugin_.Post(RunnerState::FactsRead{
      .instance = instance, .facts = std::move(facts), .computed_class = computed_class});
}

void PluginRunner::OnIdle(uint64_t instance) {
  if (instance != plugin_.snapshot.instance || plugin_.lifecycle.state() != PluginState::kDraining) return;
  plugin_.Post(LifecycleEvent::Type::kIdle);
}

void PluginRunner::OnHoldersChanged() {
  if (plugin_.lifecycle.drain_wished()) plugin_.Post(LifecycleEvent::Type::kHoldersChanged);
  // It ran on for the sake of its volumes alone.
  if (plugin_.config_file.empty() && plugin_.instance && plugin_.report.Holders().empty())
    plugin_.Post(LifecycleEvent::Type::kStopRequested);
}

LifecycleEvent PluginRunner::TakeHealth(PluginHealth health) {
  using Type = LifecycleEvent::Type;
  LifecycleEvent event;
  event.type = health.ok ? Type::kProbeOk : (health.answered ? Type::kProbeNotReady : Type::kProbeFailed);
  event.text = health.error;
  event.failures = health.consecutive_failures;
  plugin_.snapshot.health = std::move(health);
  const std::string lost =
      plugin_.snapshot.health.ok && plugin_.instance ? plugin_.instance->SocketTrouble() : "";
  if (!lost.empty()) event = {.type = Type::kSocketLost, .text = lost};
  return event;
}

LifecycleEvent PluginRunner::TakeFacts(RunnerState::FactsRead read) {
  absl::Status verdict = read.facts.status();
  if (verdict.ok()) verdict = swap_.CheckTrial(*read.facts);
  if (!verdict.ok()) {
    plugin_.report.Refuse(std::string(verdict.message()));
    return LifecycleEvent{.type = LifecycleEvent::Type::kRefused, .text = plugin_.report.refused()};
  }
  if (!plugin_.snapshot.registered) swap_.NoteLosses(*read.facts);
  plugin_.report.Accept(*std::move(read.facts), std::move(read.computed_class));
  return LifecycleEvent{.type = LifecycleEvent::Type::kAccepted};
}

// --- Reports --------------------------------------------------------------------------------------------

void PluginRunner::Announce(PluginState before, const std::string& reason_before) {
  const PluginState now = plugin_.lifecycle.state();
  if (now == before && (now != PluginState::kDraining || plugin_.lifecycle.reason() == reason_before)) return;
  switch (now) {
    case PluginState::kStarting:
      break;
    case PluginState::kReady:
      plugin_.report.Emit("plugin.ready", before == PluginState::kStarting ? "answers Probe as ready"
                                                                           : "answers Probe as ready again");
      break;
    case PluginState::kUnhealthy:
      plugin_.report.Emit("plugin.unhealthy", plugin_.lifecycle.reason());
      break;
    case PluginState::kBackingOff: {
      const Duration delay = plugin_.lifecycle.wake_at().value_or(Clock::now()) - Clock::now();
      plugin_.report.Emit("plugin.backing_off",
                          fmt::format("{}; launched again in {}", plugin_.lifecycle.reason(),
                                      FormatDuration(std::chrono::ceil<std::chrono::milliseconds>(delay))));
      break;
    }
    case PluginState::kDraining:
      plugin_.report.Emit(plugin_.lifecycle.waits_for_volumes() ? "plugin.draining" : "plugin.stopping",
                          plugin_.lifecycle.reason());
      break;
    case PluginState::kStopped:
      plugin_.report.Emit("plugin.stopped", plugin_.lifecycle.reason());
      break;
    case PluginState::kFailed:
      plugin_.report.Emit("plugin.failed", plugin_.lifecycle.reason());
      break;
  }
}

}  // namespace berth
