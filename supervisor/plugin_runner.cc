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

PluginRunner::PluginRunner(RunnerContext& context, PluginFile file)
    : context_(context),
      id_(file.id),
      config_file_(file.path),
      file_(std::move(file.config)),
      config_(file_),
      lifecycle_(LimitsOf(config_)),
      report_(context.reports, id_),
      record_(std::make_shared<RunRecordFile>(PluginRuntimeDir(paths(), id_))),
      changed_(context.instances.executor) {
  if (absl::IsAlreadyExists(file_.status())) contested_ = file_.status();
  snapshot_.socket_path = PluginSocketPath(paths(), id_);
  Publish();
}

PluginRunner::~PluginRunner() = default;

LifecycleLimits PluginRunner::Limits() const {
  LifecycleLimits limits = LimitsOf(config_);
  if (!config_.ok() && instance_) limits.stop_timeout = instance_->record().stop_timeout;
  return limits;
}

// --- The run --------------------------------------------------------------------------------------------

Awaitable<void> PluginRunner::Run() {
  co_await Begin();
  while (true) {
    if (config_file_.empty() && !instance_ && lifecycle_.state() != PluginState::kDraining) {
      report_.Remove();
      context_.instances.secrets.Forget(id_);
      context_.instances.logs.Close(id_);
      changed_.NotifyAll();
      co_return;
    }
    auto has_message = [this] { return !inbox_.empty(); };
    const TimePoint wake_at = lifecycle_.wake_at().value_or(TimePoint::max());
    if (!co_await changed_.WaitUntil(std::move(has_message), wake_at)) {
      co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kTimer});
      continue;
    }
    Message message = std::move(inbox_.front());
    inbox_.pop_front();
    co_await Receive(std::move(message));
    ++handled_;
    changed_.NotifyAll();
  }
}

Awaitable<void> PluginRunner::Begin() {
  const absl::StatusOr<bool> taken = co_await TakeBack();
  co_await RestoreSwap();
  if (taken.ok() && *taken) NoteFile();
  begun_ = true;
  changed_.NotifyAll();
  if (taken.ok() && *taken) {
    LifecycleEvent taken_back{.type = LifecycleEvent::Type::kTakenBack};
    taken_back.uptime = Age(instance_->record().started_at);
    taken_back.drain = instance_->record().draining;
    co_await Handle(std::move(taken_back));
    if (!config_file_.empty()) co_return;
    const std::vector<std::string> holders = report_.Holders();
    if (holders.empty()) {
      Post(LifecycleEvent::Type::kStopRequested);
      co_return;
    }
    note_ =
        fmt::format("its file is gone; it runs until its volumes have left: {}", fmt::join(holders, ", "));
    Publish();
    co_return;
  }
  if (taken.ok() && config_file_.empty()) co_return;
  if (taken.ok() && config_.ok() && !config_->enabled) {
    note_ = "disabled in its file (enabled = false)";
    Publish();
    co_return;
  }
  if (wish_restored_ && report_.Holders().empty()) {
    note_ = "it was being drained, and ended while berthd was away";
    Publish();
    co_return;
  }
  // Also where nothing can be launched: it fails then, and says why.
  co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kStartRequested});
  if (wish_restored_) Post(LifecycleEvent::Type::kDrainRequested);
}

void PluginRunner::Fill(LifecycleEvent& event) {
  using Type = LifecycleEvent::Type;
  if (instance_ && context_.busy_until) event.busy_until = context_.busy_until(id_, snapshot_.instance);
  const bool drains = lifecycle_.drain_wished() || event.type == Type::kDrainRequested || event.drain;
  if (drains) event.holders = report_.Holders();
  if (event.type == Type::kTimer) {
    const absl::Status may_replace = context_.CheckNotShuttingDown();
    event.keep = may_replace.ok() ? WouldBreak() : std::string(MessageOf(may_replace));
  }
  event.random = RandomShare();
}

Awaitable<void> PluginRunner::Receive(Message message) {
  if (auto* request = std::get_if<LifecycleEvent>(&message)) {
    co_await Handle(std::move(*request));
    co_return;
  }
  // What was seen of a process that has gone since means nothing.
  const auto is_current = [this](uint64_t instance) { return instance == snapshot_.instance; };
  if (const auto* answered = std::get_if<SocketAnswered>(&message)) {
    if (!is_current(answered->instance)) co_return;
    co_await Handle(LifecycleEvent{.type = LifecycleEvent::Type::kSocketAnswered});
  } else if (const auto* exited = std::get_if<Exited>(&message)) {
    if (!is_current(exited->instance)) co_return;
    co_await Handle(co_await EndInstance(exited->exit));
  } else if (auto* probed = std::get_if<Probed>(&message)) {
    if (!is_current(probed->instance) || !announced_) co_return;
    co_await Handle(TakeHealth(std::move(probed->health)));
  } else if (auto* read = std::get_if<FactsRead>(&message)) {
    if (!is_current(read->instance) || !announced_) co_return;
    co_await Handle(TakeFacts(std::move(*read)));
  }
}

Awaitable<void> PluginRunner::Handle(LifecycleEvent event) {
  // What an action brings about is handled before the next message.
  std::optional<LifecycleEvent> next = std::move(event);
  while (next.has_value()) {
    LifecycleEvent now = *std::exchange(next, std::nullopt);
    Fill(now);
    const PluginState before = lifecycle_.state();
    const std::string reason_before = lifecycle_.reason();
    const std::vector<LifecycleAction> actions = lifecycle_.Handle(now, Clock::now());
    snapshot_.holders = lifecycle_.draining() ? now.holders : std::vector<std::string>();
    Announce(before, reason_before);
    Publish();
    for (const LifecycleAction action : actions) {
      if (action != LifecycleAction::kLaunch) {
        co_await Perform(action);
        continue;
      }
      next = co_await Launch();
    }
  }
  KeepWish();
  Publish();
}

Awaitable<void> PluginRunner::Perform(LifecycleAction action) {
  switch (action) {
    case LifecycleAction::kLaunch:
      break;
    case LifecycleAction::kTerminate:
      if (instance_) instance_->Terminate();
      break;
    case LifecycleAction::kKill:
      if (instance_) instance_->Kill();
      break;
    case LifecycleAction::kAnnounce:
      announced_ = true;
      context_.observer.OnSocketAppeared({.plugin_id = id_,
                                          .number = snapshot_.instance,
                                          .kind = snapshot_.kind,
                                          .socket_path = snapshot_.socket_path,
                                          .health = config_.ok() ? config_->health : HealthConfig(),
                                          .volumes_path = instance_->record().volumes_path});
      // After it, for the first Probe does not wait for a disk.
      instance_->Announced();
      break;
    case LifecycleAction::kRetire:
      Retire(lifecycle_.reason());
      break;
    case LifecycleAction::kTry:
      TrySwap();
      break;
    case LifecycleAction::kAdopt:
      co_await AdoptSwap();
      break;
    case LifecycleAction::kRevert:
      co_await RevertSwap(lifecycle_.swap_failure());
      break;
  }
}

void PluginRunner::Retire(const std::string& why) {
  report_.Leave(why);
  Publish();
  if (!std::exchange(announced_, false)) return;
  context_.observer.OnInstanceGone(id_, snapshot_.instance);
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
  if (!config_.ok()) {
    failed.text = std::string(config_.status().message());
    co_return failed;
  }
  if (const absl::Status forward = context_.CheckNotShuttingDown(); !forward.ok()) {
    failed.text = fmt::format("not launched: {}", MessageOf(forward));
    co_return failed;
  }
  InstanceLaunch launch{
      .config = *config_, .generation = ++generation_, .draining = lifecycle_.drain_wished()};
  const TimePoint deadline = Clock::now() + config_->start_timeout;
  absl::StatusOr<std::unique_ptr<PluginInstance>> instance =
      co_await PluginInstance::Launch(context_.instances, record_, std::move(launch), deadline);
  if (!instance.ok()) {
    failed.text = std::string(instance.status().message());
    failed.final = false;
    co_return failed;
  }
  note_.clear();
  snapshot_.file_error.clear();
  BeginInstance(*std::move(instance));
  report_.Emit("plugin.launched",
               fmt::format("launched {} as process {}", config_->command, instance_->pid()));
  co_return LifecycleEvent{.type = LifecycleEvent::Type::kLaunched};
}

void PluginRunner::BeginInstance(std::unique_ptr<PluginInstance> instance) {
  const uint64_t number = ++instances_;
  report_.BeginInstance(number);
  instance_ = std::move(instance);
  const RunRecord& record = instance_->record();
  generation_ = std::max(generation_, record.generation);
  snapshot_.kind = record.kind;
  snapshot_.pid = instance_->pid();
  snapshot_.started_at = record.started_at;
  snapshot_.socket_path = record.socket_path;
  snapshot_.serves_mounts = record.serves_mounts;
  snapshot_.command = record.command;
  snapshot_.placement = instance_->placement();
  foreign_ = false;
  InstanceSinks sinks;
  sinks.on_exit = [this, number](const ExitStatus& exit) { Post(Exited{.instance = number, .exit = exit}); };
  sinks.on_socket = [this, number](const absl::Status& answered) {
    if (answered.ok()) {
      Post(SocketAnswered{.instance = number});
      if (std::exchange(foreign_, false)) note_.clear();
      return;
    }
    // The start timeout ends this instance; it is enough to say why.
    note_ = fmt::format("its socket cannot be waited for: {}", MessageOf(answered));
    SPDLOG_ERROR("plugin {}: {}", id_, note_);
    Publish();
  };
  sinks.on_foreign_socket = [this](const std::string& why) {
    note_ = why;
    foreign_ = true;
    report_.Emit("plugin.foreign_socket", why);
    Publish();
  };
  instance_->Watch(std::move(sinks));
}

Awaitable<LifecycleEvent> PluginRunner::EndInstance(ExitStatus exit) {
  snapshot_.alive = false;
  Retire(fmt::format("its process has ended: {}", exit.Describe()));
  TreeOccasion occasion = TreeOccasion::kMainEnded;
  if (lifecycle_.state() == PluginState::kDraining) {
    occasion = lifecycle_.paused() ? TreeOccasion::kReplaced : TreeOccasion::kStopped;
  }
  const InstanceEnd end = co_await instance_->End(exit, occasion);
  const WallTime started = instance_->record().started_at;
  const pid_t pid = std::exchange(snapshot_.pid, 0);
  instance_.reset();
  note_.clear();
  snapshot_.last_exit = end.how;
  snapshot_.last_exit_at = WallClock::now();
  snapshot_.last_output = end.last_output;
  report_.Emit("plugin.exited",
               fmt::format("process {} ended after {}: {}", pid, AgeText(started), end.Describe()));
  LifecycleEvent exited{.type = LifecycleEvent::Type::kExited};
  exited.text = swap_.has_value() && swap_->tried ? end.DescribeAtLength() : end.Describe();
  exited.clean = end.clean();
  co_return exited;
}

Awaitable<void> PluginRunner::LetGo() {
  if (instance_) co_await instance_->LetGo();
  instance_.reset();
}

void PluginRunner::KeepWish() {
  if (!instance_ || instance_->record().draining == lifecycle_.drain_wished()) return;
  instance_->Note([wished = lifecycle_.drain_wished()](RunRecord& record) { record.draining = wished; });
}

void PluginRunner::KeepTokens() {
  if (!config_.ok()) {
    if (instance_) snapshot_.tokens = instance_->record().tokens;
    if (instance_) snapshot_.pod_info = instance_->record().pod_info;
    return;
  }
  snapshot_.tokens = config_->tokens;
  snapshot_.pod_info = config_->pod_info;
  if (!instance_) return;
  const RunRecord& known = instance_->record();
  if (known.tokens == config_->tokens && known.pod_info == config_->pod_info) return;
  instance_->Note([tokens = config_->tokens, pod_info = config_->pod_info](RunRecord& record) {
    record.tokens = tokens;
    record.pod_info = pod_info;
  });
}

// --- What probing has found -----------------------------------------------------------------------------

void PluginRunner::OnHealth(uint64_t instance, const PluginHealth& health) {
  Post(Probed{.instance = instance, .health = health});
}

void PluginRunner::OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
                           const std::string& computed_class) {
  Post(FactsRead{.instance = instance, .facts = std::move(facts), .computed_class = computed_class});
}

LifecycleEvent PluginRunner::TakeHealth(PluginHealth health) {
  using Type = LifecycleEvent::Type;
  LifecycleEvent event;
  event.type = health.ok ? Type::kProbeOk : (health.answered ? Type::kProbeNotReady : Type::kProbeFailed);
  event.text = health.error;
  event.failures = health.consecutive_failures;
  snapshot_.health = std::move(health);
  const std::string lost = snapshot_.health.ok && instance_ ? instance_->SocketTrouble() : "";
  if (!lost.empty()) event = {.type = Type::kSocketLost, .text = lost};
  return event;
}

LifecycleEvent PluginRunner::TakeFacts(FactsRead read) {
  absl::Status verdict = read.facts.status();
  if (verdict.ok() && swap_.has_value() && swap_->tried && swap_->before.has_value()) {
    verdict = CompareInSwap(*swap_->before, *read.facts);
  }
  if (!verdict.ok()) {
    report_.Refuse(std::string(verdict.message()));
    return LifecycleEvent{.type = LifecycleEvent::Type::kRefused, .text = report_.refused()};
  }
  if (!snapshot_.registered) NoteLosses(*read.facts);
  report_.Accept(*std::move(read.facts), std::move(read.computed_class));
  return LifecycleEvent{.type = LifecycleEvent::Type::kAccepted};
}

// --- Reports --------------------------------------------------------------------------------------------

void PluginRunner::Announce(PluginState before, const std::string& reason_before) {
  const PluginState now = lifecycle_.state();
  if (now == before && (now != PluginState::kDraining || lifecycle_.reason() == reason_before)) return;
  switch (now) {
    case PluginState::kStarting:
      break;
    case PluginState::kReady:
      report_.Emit("plugin.ready", before == PluginState::kStarting ? "answers Probe as ready"
                                                                    : "answers Probe as ready again");
      break;
    case PluginState::kUnhealthy:
      report_.Emit("plugin.unhealthy", lifecycle_.reason());
      break;
    case PluginState::kBackingOff: {
      const Duration delay = lifecycle_.wake_at().value_or(Clock::now()) - Clock::now();
      report_.Emit("plugin.backing_off",
                   fmt::format("{}; launched again in {}", lifecycle_.reason(),
                               FormatDuration(std::chrono::ceil<std::chrono::milliseconds>(delay))));
      break;
    }
    case PluginState::kDraining:
      report_.Emit(lifecycle_.waits_for_volumes() ? "plugin.draining" : "plugin.stopping",
                   lifecycle_.reason());
      break;
    case PluginState::kStopped:
      report_.Emit("plugin.stopped", lifecycle_.reason());
      break;
    case PluginState::kFailed:
      report_.Emit("plugin.failed", lifecycle_.reason());
      break;
  }
}

void PluginRunner::Publish() {
  snapshot_.config_file = config_file_;
  snapshot_.placed = IsPlacedFile(paths(), config_file_);
  KeepTokens();
  if (config_.ok() && !instance_) {
    snapshot_.kind = config_->kind;
    snapshot_.serves_mounts = config_->serves_mounts;
  }
  if (config_.ok()) snapshot_.start_timeout = config_->start_timeout;
  snapshot_.state = lifecycle_.state();
  snapshot_.alive = lifecycle_.alive();
  snapshot_.ready = lifecycle_.ready();
  snapshot_.paused = lifecycle_.paused();
  snapshot_.draining = lifecycle_.draining();
  snapshot_.restarts = lifecycle_.restarts();
  snapshot_.next_restart_at.reset();
  if (lifecycle_.state() == PluginState::kBackingOff && lifecycle_.wake_at().has_value()) {
    snapshot_.next_restart_at = WallClock::now() + std::chrono::duration_cast<WallClock::duration>(
                                                       *lifecycle_.wake_at() - Clock::now());
  }
  report_.Publish(lifecycle_.reason(), {note_, instance_ ? instance_->unenforced() : ""});
}

}  // namespace berth
