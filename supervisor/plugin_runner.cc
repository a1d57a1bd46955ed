#include "supervisor/plugin_runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/duration_text.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_output.h"
#include "supervisor/plugin_socket.h"

namespace berth {
namespace {

// How long a child of a berthd that died may take to notice that at the gate.
constexpr Duration kGateLeavesWithin = std::chrono::seconds(5);
constexpr Duration kGateLook = std::chrono::milliseconds(1);

LifecycleEvent EventOf(LifecycleEvent::Type type) {
  LifecycleEvent event;
  event.type = type;
  return event;
}

Duration Age(WallTime since) {
  return std::max(std::chrono::duration_cast<Duration>(WallClock::now() - since), Duration::zero());
}

}  // namespace

PluginRunner::PluginRunner(RunnerContext& context, PluginFile file)
    : context_(context),
      id_(file.id),
      config_file_(file.path),
      config_(std::move(file.config)),
      lifecycle_(Limits()),
      changed_(context.executor),
      random_(std::random_device{}()) {
  snapshot_.id = id_;
  snapshot_.config_file = config_file_;
  if (config_.ok()) snapshot_.kind = config_->kind;
  snapshot_.socket_path = PluginSocketPath(context_.places, id_);
  Publish();
}

PluginRunner::PluginRunner(RunnerContext& context, std::string id)
    : PluginRunner(context, PluginFile{"", std::move(id), absl::NotFoundError("its file is gone")}) {}

PluginRunner::~PluginRunner() = default;

LifecycleLimits PluginRunner::Limits() const {
  LifecycleLimits limits;
  if (config_.ok()) {
    limits.start_timeout = config_->start_timeout;
    limits.stop_timeout = config_->stop_timeout;
    limits.health_failures = config_->health.failures;
    limits.restart = config_->restart;
  } else if (process_) {
    limits.stop_timeout = record_.stop_timeout;
  }
  return limits;
}

// --- The run --------------------------------------------------------------------------------------------

Awaitable<void> PluginRunner::Run() {
  co_await Begin();
  begun_ = true;
  changed_.NotifyAll();
  while (true) {
    if (config_file_.empty() && !process_ && lifecycle_.state() != PluginState::kDraining) {
      gone_ = true;
      context_.registry.Remove(id_);
      changed_.NotifyAll();
      co_return;
    }
    auto has_message = [this] { return !inbox_.empty(); };
    const bool woken =
        co_await changed_.WaitUntil(std::move(has_message), lifecycle_.wake_at().value_or(TimePoint::max()));
    if (!woken) {
      co_await Handle(Message{.event = EventOf(LifecycleEvent::Type::kTimer), .exit = std::nullopt});
      continue;
    }
    Message message = std::move(inbox_.front());
    inbox_.pop_front();
    co_await Handle(std::move(message));
    ++handled_;
    changed_.NotifyAll();
  }
}

Awaitable<void> PluginRunner::Begin() {
  const absl::StatusOr<bool> taken = co_await TakeBack();
  if (taken.ok() && *taken) {
    LifecycleEvent event = EventOf(LifecycleEvent::Type::kTakenBack);
    event.uptime = Age(record_.started_at);
    Message message{.event = std::move(event), .exit = std::nullopt};
    co_await Handle(std::move(message));
    if (!config_file_.empty()) co_return;
    const std::vector<std::string> holders = Holders();
    if (holders.empty()) {
      Post(LifecycleEvent::Type::kStopRequested);
      co_return;
    }
    note_ =
        fmt::format("its file is gone; it runs until it is stopped, for volumes are held through it by {}",
                    fmt::join(holders, ", "));
    Publish();
    co_return;
  }
  if (taken.ok() && config_file_.empty()) co_return;
  if (taken.ok() && config_.ok() && !config_->enabled) {
    note_ = "disabled in its file (enabled = false)";
    Publish();
    co_return;
  }
  // Also where nothing can be launched: it fails then, and says why.
  Message message{.event = EventOf(LifecycleEvent::Type::kStartRequested), .exit = std::nullopt};
  co_await Handle(std::move(message));
}

Awaitable<void> PluginRunner::Handle(Message message) {
  if (message.exit.has_value()) {
    co_await EndIncarnation(*message.exit);
    message.event.text = snapshot_.last_exit;
    if (!snapshot_.last_output.empty()) {
      message.event.text += fmt::format(", its last line: {}", snapshot_.last_output.back());
    }
    message.event.clean = message.exit->known && message.exit->signal == 0 && message.exit->code == 0;
  }
  message.event.random = std::uniform_real_distribution<double>(0.0, 1.0)(random_);

  // What an action brings about is handled before the next message.
  std::optional<LifecycleEvent> event = std::move(message.event);
  while (event.has_value()) {
    const LifecycleEvent now = *std::exchange(event, std::nullopt);
    const PluginState before = lifecycle_.state();
    const std::vector<LifecycleAction> actions = lifecycle_.Handle(now, Clock::now());
    Announce(before);
    Publish();
    for (const LifecycleAction action : actions) {
      if (action != LifecycleAction::kLaunch) {
        co_await Perform(action);
        continue;
      }
      event = co_await Launch();
      event->random = now.random;
    }
    if (now.type == LifecycleEvent::Type::kSocketAnswered) RecordExecuted();
  }
}

Awaitable<void> PluginRunner::Perform(LifecycleAction action) {
  absl::Status status;
  switch (action) {
    case LifecycleAction::kLaunch:
    case LifecycleAction::kTry:
    case LifecycleAction::kAdopt:
    case LifecycleAction::kRevert:
      break;
    case LifecycleAction::kTerminate:
      if (process_) status = process_->Signal(SIGTERM);
      break;
    case LifecycleAction::kKill:
      if (process_) status = process_->SignalGroup(SIGKILL);
      // It may have left its group, or the kernel may be too old to signal one by descriptor.
      if (process_) status = process_->Signal(SIGKILL);
      break;
    case LifecycleAction::kAnnounce: {
      const Incarnation incarnation{.plugin_id = id_,
                                    .number = snapshot_.incarnation,
                                    .kind = snapshot_.kind,
                                    .socket_path = snapshot_.socket_path,
                                    .health = config_.ok() ? config_->health : HealthConfig()};
      context_.observer.OnSocketAppeared(incarnation);
      break;
    }
    case LifecycleAction::kRetire:
      snapshot_.registered = false;
      Publish();
      context_.observer.OnIncarnationGone(id_, snapshot_.incarnation);
      break;
  }
  // One that has ended meanwhile is about to be handled as such.
  if (!status.ok() && !absl::IsNotFound(status)) SPDLOG_ERROR("plugin {}: {}", id_, status.ToString());
  co_return;
}

Awaitable<LifecycleEvent> PluginRunner::Launch() {
  LifecycleEvent failed = EventOf(LifecycleEvent::Type::kLaunchFailed);
  failed.final = true;
  const absl::StatusOr<bool> taken = co_await TakeBack();
  if (!taken.ok()) {
    failed.text = std::string(taken.status().message());
    co_return failed;
  }
  if (*taken) co_return EventOf(LifecycleEvent::Type::kLaunched);
  if (!config_.ok()) {
    failed.text = std::string(config_.status().message());
    co_return failed;
  }
  const absl::Status launched = co_await LaunchProcess();
  if (launched.ok()) co_return EventOf(LifecycleEvent::Type::kLaunched);
  failed.text = std::string(launched.message());
  failed.final = false;
  co_return failed;
}

Awaitable<absl::Status> PluginRunner::RecordProcess(RunRecord* record, pid_t pid) {
  BERTH_CO_ASSIGN_OR_RETURN(record->process, IdentifyProcess(pid));
  co_return WriteRunRecord(RuntimeDir(), *record);
}

Awaitable<absl::Status> PluginRunner::LaunchProcess() {
  const PluginPlaces& places = context_.places;
  const std::string socket_path = PluginSocketPath(places, id_);
  const std::string output_path = PluginOutputPath(places.state_dir, id_);
  BERTH_CO_RETURN_IF_ERROR(PrepareSocket(socket_path));
  BERTH_CO_RETURN_IF_ERROR(MakeDirectories(PluginStateDir(places, id_), 0750));
  BERTH_CO_ASSIGN_OR_RETURN(const PluginOutput output, OpenPluginOutput(output_path));

  ProcessSpec spec;
  spec.executable = config_->command;
  BERTH_CO_ASSIGN_OR_RETURN(spec.arguments, PluginArguments(*config_, places));
  BERTH_CO_ASSIGN_OR_RETURN(spec.environment, PluginEnvironment(*config_, places));
  spec.stdout_fd = output.fd.get();
  spec.stderr_fd = output.fd.get();

  RunRecord record;
  record.plugin_id = id_;
  record.kind = config_->kind;
  record.socket_path = socket_path;
  record.config_file = config_file_;
  record.launch_fingerprint = LaunchFingerprint(*config_, places);
  record.started_at = WallClock::now();
  record.output_offset = output.offset;
  record.stop_timeout = config_->stop_timeout;
  spec.before_exec = [this, &record](pid_t pid) { return RecordProcess(&record, pid); };
  absl::StatusOr<std::unique_ptr<Process>> process =
      co_await Process::Launch(context_.executor, std::move(spec), Clock::now() + config_->start_timeout);
  if (!process.ok()) {
    DropRecord();
    co_return process.status();
  }
  snapshot_.kind = config_->kind;
  note_.clear();
  BeginIncarnation(*std::move(process), std::move(record));
  Tell("plugin.launched", fmt::format("launched {} as process {}", config_->command, process_->pid()));
  co_return absl::OkStatus();
}

void PluginRunner::BeginIncarnation(std::unique_ptr<Process> process, RunRecord record) {
  process_ = std::move(process);
  record_ = std::move(record);
  snapshot_.pid = process_->pid();
  snapshot_.started_at = record_.started_at;
  snapshot_.socket_path = record_.socket_path;
  snapshot_.health = PluginHealth{};
  ++snapshot_.incarnation;
  refused_.clear();
  tasks_ = std::make_unique<TaskScope>(context_.executor, "plugin " + id_);
  tasks_->Spawn("exit", WatchExit());
  tasks_->Spawn("socket", WatchSocket());
}

Awaitable<void> PluginRunner::WatchExit() {
  const ExitStatus exit = co_await process_->Wait();
  Post(Message{.event = EventOf(LifecycleEvent::Type::kExited), .exit = exit});
}

Awaitable<void> PluginRunner::WatchSocket() {
  const absl::Status answered = co_await WaitForSocket(record_.socket_path);
  if (answered.ok()) {
    Post(LifecycleEvent::Type::kSocketAnswered);
  } else {
    // The start timeout ends this incarnation; it is enough to say why.
    note_ = fmt::format("its socket cannot be waited for: {}", MessageOf(answered));
    SPDLOG_ERROR("plugin {}: {}", id_, note_);
    Publish();
  }
}

Awaitable<void> PluginRunner::EndIncarnation(ExitStatus exit) {
  snapshot_.alive = false;
  co_await tasks_->Join();
  tasks_.reset();
  process_.reset();
  note_.clear();
  snapshot_.pid = 0;
  snapshot_.last_exit = exit.Describe();
  snapshot_.last_exit_at = WallClock::now();
  snapshot_.last_output = LastOutput(PluginOutputPath(context_.places.state_dir, id_), record_.output_offset);
  DropRecord();
  Tell("plugin.exited",
       fmt::format("process {} ended after {}: {}{}", record_.process.pid,
                   FormatDuration(std::chrono::duration_cast<std::chrono::seconds>(Age(record_.started_at))),
                   snapshot_.last_exit,
                   snapshot_.last_output.empty() ? "" : ", its last line: " + snapshot_.last_output.back()));
}

Awaitable<void> PluginRunner::LetGo() {
  if (tasks_) co_await tasks_->Join();
  tasks_.reset();
  process_.reset();
}

// A wrapper script has become the program that serves the socket by now: what the next berthd compares.
void PluginRunner::RecordExecuted() {
  if (!process_) return;
  absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(process_->pid());
  if (!identity.ok() || identity->start_time != record_.process.start_time) return;
  if (record_.executed && record_.process == *identity) return;
  record_.process = *std::move(identity);
  record_.executed = true;
  const absl::Status written = WriteRunRecord(RuntimeDir(), record_);
  if (!written.ok()) SPDLOG_ERROR("plugin {}: {}", id_, written.ToString());
}

void PluginRunner::DropRecord() {
  const absl::Status removed = RemoveRunRecord(RuntimeDir());
  // Harmless but for the reader: the next berthd sees that its process is no more.
  if (!removed.ok()) SPDLOG_ERROR("plugin {}: {}", id_, removed.ToString());
}

// --- Taking back ----------------------------------------------------------------------------------------

Awaitable<absl::StatusOr<bool>> PluginRunner::TakeBack() {
  // The name of a broken file may be no directory's name, let alone a plugin's.
  if (!ValidPluginId(id_)) co_return false;
  absl::StatusOr<RunRecord> record = ReadRunRecord(RuntimeDir());
  if (absl::IsNotFound(record.status())) co_return false;
  if (absl::IsInvalidArgument(record.status())) {
    Tell("plugin.not_taken_back",
         fmt::format("its record is damaged, and dropped: {}", MessageOf(record.status())));
    DropRecord();
    co_return false;
  }
  if (!record.ok()) co_return record.status();
  const pid_t pid = record->process.pid;
  if (record->process.boot_id != BootId()) {
    SPDLOG_INFO("plugin {}: its record is of another boot", id_);
    DropRecord();
    co_return false;
  }

  const TimePoint deadline = Clock::now() + kGateLeavesWithin;
  while (true) {
    absl::StatusOr<std::unique_ptr<Process>> process = Process::Adopt(context_.executor, pid);
    if (absl::IsNotFound(process.status())) {
      co_await TellEndedMeanwhile(*std::move(record), nullptr);
      co_return false;
    }
    if (!process.ok()) co_return process.status();
    // From here on the descriptor pins the process, whoever it is: what is read now is read of it.
    const absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(pid);
    if (absl::IsNotFound(identity.status())) {
      co_await TellEndedMeanwhile(*std::move(record), *std::move(process));
      co_return false;
    }
    if (!identity.ok()) co_return identity.status();
    switch (MatchRecord(*record, *identity)) {
      case RecordMatch::kSame:
        break;
      case RecordMatch::kStranger:
        Tell("plugin.not_taken_back", fmt::format("process {} is another one now ({}), and left alone", pid,
                                                  Printable(identity->executable, 256)));
        DropRecord();
        co_return false;
      case RecordMatch::kInDoubt:
        co_return absl::FailedPreconditionError(
            fmt::format("process {} was launched by an earlier berthd as {}, but runs as {} now{}: it is not "
                        "taken back, and "
                        "no second one is launched beside it; end it, then start the plugin",
                        pid, Printable(record->process.executable, 256), Printable(identity->executable, 256),
                        record->process.cgroup == identity->cgroup ? "" : ", in another cgroup"));
      case RecordMatch::kAtTheGate:
        if (Clock::now() >= deadline) {
          co_return absl::FailedPreconditionError(fmt::format(
              "process {}, which an earlier berthd was about to make this plugin, does not end", pid));
        }
        co_await SleepUntil(Clock::now() + kGateLook);
        continue;
    }
    snapshot_.kind = record->kind;
    BeginIncarnation(*std::move(process), *std::move(record));
    lifecycle_.SetLimits(Limits());
    if (config_file_.empty()) {
      note_ = "its file is gone";
    } else if (!config_.ok()) {
      note_ = fmt::format("runs on as it was launched, but its file is wrong now: {}",
                          MessageOf(config_.status()));
    } else if (record_.launch_fingerprint != LaunchFingerprint(*config_, context_.places)) {
      note_ = "its file has changed since it was launched: a restart applies it";
    } else {
      note_.clear();
    }
    Tell("plugin.taken_back",
         fmt::format("process {} was running and is taken back{}{}", pid, note_.empty() ? "" : "; ", note_));
    co_return true;
  }
}

Awaitable<void> PluginRunner::TellEndedMeanwhile(RunRecord record, std::unique_ptr<Process> process) {
  ExitStatus exit;
  if (process) exit = co_await process->Wait();
  snapshot_.last_exit = exit.known ? exit.Describe() : "ended while berthd was away";
  snapshot_.last_output = LastOutput(PluginOutputPath(context_.places.state_dir, id_), record.output_offset);
  Tell("plugin.exited", fmt::format("process {} has ended while berthd was away{}{}", record.process.pid,
                                    snapshot_.last_output.empty() ? "" : ", its last line: ",
                                    snapshot_.last_output.empty() ? "" : snapshot_.last_output.back()));
  DropRecord();
}

// --- Requests -------------------------------------------------------------------------------------------

void PluginRunner::Post(Message message) {
  inbox_.push_back(std::move(message));
  ++posted_;
  changed_.NotifyAll();
}

uint64_t PluginRunner::Post(LifecycleEvent::Type type) {
  Post(Message{.event = EventOf(type), .exit = std::nullopt});
  return posted_;
}

Awaitable<bool> PluginRunner::Handled(uint64_t ticket, TimePoint deadline) {
  auto handled = [this, ticket] { return handled_ >= ticket || gone_; };
  co_return co_await changed_.WaitUntil(std::move(handled), deadline);
}

Awaitable<void> PluginRunner::WaitBegun() {
  auto begun = [this] { return begun_ || gone_; };
  [[maybe_unused]] const bool has_begun = co_await changed_.WaitUntil(std::move(begun), TimePoint::max());
}

std::vector<std::string> PluginRunner::Holders() const {
  return context_.held_by ? context_.held_by(id_) : std::vector<std::string>();
}

absl::Status PluginRunner::ReloadFile() {
  if (config_file_.empty()) {
    return absl::FailedPreconditionError(fmt::format("plugin {}: its file is gone", id_));
  }
  absl::StatusOr<PluginConfig> config = LoadPluginFile(config_file_, context_.places);
  if (!config.ok()) {
    return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, MessageOf(config.status())));
  }
  if (config->id != id_) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} gives the id \"{}\"; berthd must be restarted for another id", id_,
                    config_file_, config->id));
  }
  if (!config->enabled) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says enabled = false", id_, config_file_));
  }
  config_ = std::move(config);
  lifecycle_.SetLimits(Limits());
  return absl::OkStatus();
}

Awaitable<absl::Status> PluginRunner::Start(TimePoint deadline) {
  if (snapshot_.alive && lifecycle_.state() != PluginState::kDraining) {
    if (lifecycle_.state() != PluginState::kStarting) co_return absl::OkStatus();
    co_return co_await WaitServing(deadline);
  }
  BERTH_CO_RETURN_IF_ERROR(ReloadFile());
  note_.clear();
  if (co_await Handled(Post(LifecycleEvent::Type::kStartRequested), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("start plugin {}: not begun in time", id_));
}

Awaitable<absl::Status> PluginRunner::Stop(bool force, TimePoint deadline) {
  if (const std::vector<std::string> holders = Holders(); !force && !holders.empty()) {
    co_return absl::FailedPreconditionError(
        fmt::format("stop plugin {}: volumes are held through it by {}; unpublish them first, or force it",
                    id_, fmt::join(holders, ", ")));
  }
  const uint64_t ticket = Post(LifecycleEvent::Type::kStopRequested);
  auto ended = [this, ticket] {
    return gone_ || (handled_ >= ticket && lifecycle_.state() != PluginState::kDraining);
  };
  if (!co_await changed_.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format(
        "stop plugin {}: not ended in time, and still being stopped: {}", id_, lifecycle_.reason()));
  }
  if (gone_ || lifecycle_.state() == PluginState::kStopped) co_return absl::OkStatus();
  co_return absl::AbortedError(fmt::format("stop plugin {}: it was started again meanwhile", id_));
}

Awaitable<absl::Status> PluginRunner::Restart(bool force, TimePoint deadline) {
  if (!force && context_.busy_until && context_.busy_until(id_, snapshot_.incarnation).has_value()) {
    const std::vector<std::string> holders = Holders();
    co_return absl::FailedPreconditionError(
        fmt::format("restart plugin {}: an operation runs through it now{}{}; wait for its end, or force it",
                    id_, holders.empty() ? "" : "; volumes are held by ", fmt::join(holders, ", ")));
  }
  // A file that is wrong must not cost a plugin that runs.
  BERTH_CO_RETURN_IF_ERROR(ReloadFile());
  if (co_await Handled(Post(LifecycleEvent::Type::kRestartRequested), deadline)) {
    co_return co_await WaitServing(deadline);
  }
  co_return absl::DeadlineExceededError(fmt::format("restart plugin {}: not begun in time", id_));
}

Awaitable<absl::Status> PluginRunner::Drain(TimePoint /*deadline*/) {
  co_return absl::UnimplementedError("drain: not built yet");
}

Awaitable<absl::Status> PluginRunner::Swap(SwapRequest /*request*/, TimePoint /*deadline*/) {
  co_return absl::UnimplementedError("swap: not built yet");
}

Awaitable<absl::StatusOr<Reconfigured>> PluginRunner::Reconfigure(PluginFile /*file*/,
                                                                  TimePoint /*deadline*/) {
  co_return absl::UnimplementedError("reconfigure: not built yet");
}

void PluginRunner::OnIdle(uint64_t /*incarnation*/) {}

void PluginRunner::OnHoldersChanged() {}

Awaitable<absl::Status> PluginRunner::WaitServing(TimePoint deadline) {
  while (true) {
    const uint64_t seen = context_.registry.version();
    const auto failed = [this](std::string_view how) {
      return absl::FailedPreconditionError(
          fmt::format("plugin {} {}{}{}", id_, how, snapshot_.reason.empty() ? "" : ": ", snapshot_.reason));
    };
    switch (lifecycle_.state()) {
      case PluginState::kReady:
        if (snapshot_.registered) co_return absl::OkStatus();
        if (!refused_.empty()) co_return failed("is refused");
        break;
      case PluginState::kStarting:
      case PluginState::kUnhealthy:
      case PluginState::kDraining:
        break;
      case PluginState::kStopped:
        co_return failed("is stopped");
      case PluginState::kBackingOff:
        co_return failed("has ended, and will be launched again");
      case PluginState::kFailed:
        co_return failed("has failed");
    }
    if (gone_) co_return failed("is gone");
    if (!co_await context_.registry.WaitChanged(seen, deadline)) {
      co_return absl::DeadlineExceededError(fmt::format(
          "plugin {} is not registered in time; it is {}{}{}", id_, PluginStateName(snapshot_.state),
          snapshot_.reason.empty() ? "" : ": ", snapshot_.reason));
    }
  }
}

// --- What probing has found -----------------------------------------------------------------------------

void PluginRunner::OnHealth(uint64_t incarnation, const PluginHealth& health) {
  if (incarnation != snapshot_.incarnation || !snapshot_.alive) return;
  snapshot_.health = health;
  LifecycleEvent event =
      EventOf(health.ok ? LifecycleEvent::Type::kProbeOk : LifecycleEvent::Type::kProbeFailed);
  event.text = health.error;
  event.failures = health.consecutive_failures;
  const PluginState before = lifecycle_.state();
  // What a Probe says asks for no action; the caller may be in the middle of one of the observer's.
  [[maybe_unused]] const std::vector<LifecycleAction> none = lifecycle_.Handle(event, Clock::now());
  Announce(before);
  Publish();
}

void PluginRunner::OnFacts(uint64_t incarnation, absl::StatusOr<PluginFacts> facts,
                           const std::string& computed_class) {
  if (incarnation != snapshot_.incarnation || !snapshot_.alive ||
      lifecycle_.state() == PluginState::kDraining) {
    return;
  }
  if (facts.ok()) {
    const bool is_new = !std::exchange(snapshot_.registered, true);
    snapshot_.facts = *std::move(facts);
    snapshot_.computed_class = computed_class;
    snapshot_.facts_read_at = WallClock::now();
    refused_.clear();
    if (is_new) {
      Tell("plugin.registered", fmt::format("is {} {}", Printable(snapshot_.facts->name, 128),
                                            Printable(snapshot_.facts->vendor_version, 128)));
    }
  } else {
    snapshot_.registered = false;
    std::string why(facts.status().message());
    if (why != refused_) Tell("plugin.refused", why);
    refused_ = std::move(why);
  }
  Publish();
}

// --- What is told ---------------------------------------------------------------------------------------

void PluginRunner::Announce(PluginState before) {
  if (lifecycle_.state() == before) return;
  switch (lifecycle_.state()) {
    case PluginState::kStarting:
      break;
    case PluginState::kReady:
      Tell("plugin.ready",
           before == PluginState::kUnhealthy ? "answers Probe as ready again" : "answers Probe as ready");
      break;
    case PluginState::kUnhealthy:
      Tell("plugin.unhealthy", lifecycle_.reason());
      break;
    case PluginState::kBackingOff: {
      const Duration delay = *lifecycle_.wake_at() - Clock::now();
      Tell("plugin.backing_off",
           fmt::format("{}; launched again in {}", lifecycle_.reason(),
                       FormatDuration(std::chrono::ceil<std::chrono::milliseconds>(delay))));
      break;
    }
    case PluginState::kDraining:
      Tell("plugin.stopping", lifecycle_.reason());
      break;
    case PluginState::kStopped:
      Tell("plugin.stopped", lifecycle_.reason());
      break;
    case PluginState::kFailed:
      Tell("plugin.failed", lifecycle_.reason());
      break;
  }
}

void PluginRunner::Publish() {
  snapshot_.state = lifecycle_.state();
  snapshot_.alive = lifecycle_.alive();
  snapshot_.ready = lifecycle_.state() == PluginState::kReady;
  snapshot_.restarts = lifecycle_.restarts();
  std::vector<std::string_view> parts;
  for (const std::string_view part :
       {std::string_view(lifecycle_.reason()), std::string_view(refused_), std::string_view(note_)}) {
    if (!part.empty()) parts.push_back(part);
  }
  snapshot_.reason = fmt::format("{}", fmt::join(parts, "; "));
  snapshot_.next_restart_at.reset();
  if (lifecycle_.state() == PluginState::kBackingOff && lifecycle_.wake_at().has_value()) {
    snapshot_.next_restart_at = WallClock::now() + std::chrono::duration_cast<WallClock::duration>(
                                                       *lifecycle_.wake_at() - Clock::now());
  }
  if (!gone_) context_.registry.Put(snapshot_);
}

void PluginRunner::Tell(std::string_view type, std::string message) {
  Event event;
  event.type = type;
  event.plugin_id = id_;
  event.message = std::move(message);
  context_.events.Append(std::move(event));
}

}  // namespace berth
