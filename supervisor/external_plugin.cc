#include "supervisor/external_plugin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/backoff.h"
#include "base/file.h"
#include "base/status.h"
#include "supervisor/placed_files.h"

namespace berth {
namespace {

// The longest pause between tries of a socket with an owner that does not listen (any more), or that cannot
// be connected to now.
constexpr Duration kLongestRetry = std::chrono::seconds(1);
// A server that closes at once what it has accepted is connected to again after growing pauses.
constexpr Duration kShortestHold = std::chrono::seconds(1);
constexpr Duration kFirstPause = std::chrono::milliseconds(20);

}  // namespace

ExternalPlugin::ExternalPlugin(ExternalContext& context, const PluginFile& file)
    : context_(context),
      id_(file.id),
      config_(*file.config),
      lifecycle_(config_.health.failures),
      report_(context.reports, id_),
      changed_(context.executor) {
  snapshot_.external = true;
  Publish();
}

ExternalPlugin::~ExternalPlugin() = default;

// --- The run --------------------------------------------------------------------------------------------

Awaitable<void> ExternalPlugin::Run() {
  if (!config_.enabled) {
    Feed({.type = ExternalEvent::Type::kDisabled, .text = "disabled in its file (enabled = false)"});
  } else if (WasDrained()) {
    Feed({.type = ExternalEvent::Type::kDisabled, .text = "was drained; start takes it into use again"});
  } else {
    Feed({.type = ExternalEvent::Type::kStartRequested});
  }
  begun_ = true;
  changed_.NotifyAll();
  while (true) {
    const bool watched = watch_ != nullptr;
    if (watched && (rewatch_ || !lifecycle_.watching())) {
      rewatch_ = false;
      co_await watch_->Join();
      watch_.reset();
      continue;
    }
    if (!watched && lifecycle_.watching()) {
      rewatch_ = false;
      watch_ = std::make_unique<TaskScope>(context_.executor, "plugin " + id_);
      watch_->Spawn("socket", Watch());
      continue;
    }
    if (leaving_ && !watched) {
      report_.Remove();
      changed_.NotifyAll();
      co_return;
    }
    auto work = [this] {
      return leaving_ || lifecycle_.watching() != (watch_ != nullptr) || (rewatch_ && watch_ != nullptr);
    };
    [[maybe_unused]] const bool is_work = co_await changed_.WaitUntil(std::move(work), TimePoint::max());
  }
}

Awaitable<void> ExternalPlugin::WaitBegun() {
  auto begun = [this] { return begun_; };
  [[maybe_unused]] const bool has_begun = co_await changed_.WaitUntil(std::move(begun), TimePoint::max());
}

Awaitable<void> ExternalPlugin::LetGo() {
  if (watch_) co_await watch_->Join();
  watch_.reset();
}

Awaitable<void> ExternalPlugin::Watch() {
  const auto waiting = [this](const std::string& why) {
    Feed({.type = ExternalEvent::Type::kWaiting, .text = why});
  };
  while (true) {
    absl::StatusOr<ServedSocket> found =
        co_await WaitForServer(config_.socket, {.longest_retry = kLongestRetry, .waiting = waiting});
    if (!found.ok()) {
      waiting(std::string(MessageOf(found.status())));
      co_await SleepUntil(Clock::now() + kLongestRetry);
      continue;
    }
    std::optional<ServedSocket> served = *std::move(found);
    while (served.has_value()) {
      server_ = {.connection = UniqueFd(), .pid = served->pid, .start_time = served->start_time};
      socket_path_.Keep(config_.socket, *served);
      const std::string no_tree = co_await CheckTree();
      Feed({.type = ExternalEvent::Type::kServed});
      if (!no_tree.empty()) {
        Feed({.type = ExternalEvent::Type::kTreeLooked, .text = no_tree});
        report_.Emit("plugin.no_tree", no_tree);
        watch_->Spawn("tree", AwaitTree(snapshot_.instance));
      }
      served = co_await Hold(*std::move(served));
      Feed({.type = ExternalEvent::Type::kGone,
            .text = fmt::format("process {}, which served {}, {}", server_.pid, config_.socket,
                                served.has_value() ? "was replaced by another" : "has gone")});
    }
  }
}

Awaitable<std::string> ExternalPlugin::CheckTree() {
  // A controller works without it. Where systemd listens for it, the process is not known.
  const bool known = server_.pid > 1 && config_.kind != PluginKind::kController;
  if (!known || !context_.check_tree) co_return std::string();
  co_return co_await context_.check_tree(server_.pid, config_.volumes_path);
}

Awaitable<void> ExternalPlugin::AwaitTree(uint64_t instance) {
  while (true) {
    co_await SleepUntil(Clock::now() + config_.health.interval);
    if (instance != snapshot_.instance || !lifecycle_.served()) co_return;
    const std::string no_tree = co_await CheckTree();
    if (instance != snapshot_.instance || !lifecycle_.served()) co_return;
    Feed({.type = ExternalEvent::Type::kTreeLooked, .text = no_tree});
    if (no_tree.empty()) co_return;
  }
}

Awaitable<std::optional<ServedSocket>> ExternalPlugin::Hold(ServedSocket served) {
  BackoffTimer backoff(kFirstPause, kLongestRetry);
  bool first = true;
  while (true) {
    const TimePoint since = Clock::now();
    if (served.connection.valid()) {
      co_await WaitForEnd(std::move(served.connection));
    } else {
      co_await SleepUntil(Clock::now() + kLongestRetry);
    }
    if (Clock::now() - since >= kShortestHold) {
      backoff.Reset();
    } else if (!std::exchange(first, false)) {
      co_await SleepUntil(Clock::now() + backoff.Next());
    }
    std::optional<ServedSocket> again = TryConnect(config_.socket);
    if (!again.has_value()) co_return std::nullopt;
    // A full queue does not show the listener.
    if (again->connection.valid() && !again->SameServer(server_)) co_return again;
    served = *std::move(again);
  }
}

void ExternalPlugin::Feed(const ExternalEvent& event) {
  const PluginState before = lifecycle_.state();
  for (const ExternalAction action : lifecycle_.Handle(event)) {
    switch (action) {
      case ExternalAction::kAnnounce:
        Announce();
        break;
      case ExternalAction::kRetire:
        Retire();
        break;
    }
  }
  ReportState(before);
  Publish();
  changed_.NotifyAll();
}

void ExternalPlugin::Announce() {
  report_.BeginInstance(snapshot_.instance + 1);
  snapshot_.pid = server_.pid;
  snapshot_.started_at = WallClock::now();
  Publish();
  report_.Emit("plugin.found", fmt::format("process {} serves {}", server_.pid, config_.socket));
  context_.observer.OnSocketAppeared({.plugin_id = id_,
                                      .number = snapshot_.instance,
                                      .kind = config_.kind,
                                      .socket_path = config_.socket,
                                      .health = config_.health,
                                      .volumes_path = config_.volumes_path});
}

void ExternalPlugin::Retire() {
  snapshot_.pid = 0;
  report_.Leave(lifecycle_.reason());
  Publish();
  context_.observer.OnInstanceGone(id_, snapshot_.instance);
}

// --- Requests -------------------------------------------------------------------------------------------

absl::Status ExternalPlugin::NotOurs(std::string_view what) const {
  return absl::FailedPreconditionError(
      fmt::format("{} plugin {}: it is external: its own service manager does that; berthd uses the socket "
                  "{}. Drain ends its use",
                  what, id_, config_.socket));
}

Awaitable<absl::Status> ExternalPlugin::Stop(bool /*force*/, TimePoint /*deadline*/) {
  co_return NotOurs("stop");
}

Awaitable<absl::Status> ExternalPlugin::Restart(bool /*force*/, TimePoint /*deadline*/) {
  co_return NotOurs("restart");
}

Awaitable<absl::Status> ExternalPlugin::Swap(SwapRequest /*request*/, TimePoint /*deadline*/) {
  co_return NotOurs("swap");
}

Awaitable<absl::Status> ExternalPlugin::Start(TimePoint deadline) {
  if (!config_.enabled) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {} says enabled = false", id_, config_.file));
  }
  if (!lifecycle_.watching() || lifecycle_.draining()) {
    RememberDrained(false);
    Feed({.type = ExternalEvent::Type::kStartRequested});
  }
  while (true) {
    const uint64_t seen = context_.reports.registry.version();
    if (snapshot_.registered && lifecycle_.state() == PluginState::kReady) co_return absl::OkStatus();
    const bool given_up = gone() || !lifecycle_.watching() || lifecycle_.draining();
    // Its first look at the socket may be still to come.
    const bool nobody_there = lifecycle_.absent();
    const bool no_tree = !lifecycle_.no_tree_because().empty();
    if (given_up || nobody_there || no_tree || !report_.refused().empty()) {
      co_return report_.NotServing(fmt::format("is {}", PluginStateName(snapshot_.state)));
    }
    if (!co_await context_.reports.registry.WaitChanged(seen, deadline)) {
      co_return report_.NotRegisteredInTime();
    }
  }
}

Awaitable<absl::Status> ExternalPlugin::Drain(TimePoint deadline) {
  if (lifecycle_.watching()) {
    RememberDrained(true);
    Feed({.type = ExternalEvent::Type::kDrainRequested, .holders = report_.Holders()});
  }
  while (lifecycle_.watching() && lifecycle_.draining()) {
    const uint64_t seen = context_.reports.registry.version();
    if (!co_await context_.reports.registry.WaitChanged(seen, deadline)) {
      co_return absl::DeadlineExceededError(
          fmt::format("drain plugin {}: it goes on; volumes are in use by {}", id_,
                      fmt::join(lifecycle_.holders(), ", ")));
    }
  }
  if (!lifecycle_.watching()) co_return absl::OkStatus();
  co_return absl::AbortedError(fmt::format("drain plugin {}: it was started again meanwhile", id_));
}

absl::StatusOr<Reconfigured> ExternalPlugin::Enable() {
  Feed({.type = ExternalEvent::Type::kStartRequested});
  return Reconfigured::kStarted;
}

absl::StatusOr<Reconfigured> ExternalPlugin::Disable(const std::string& why, bool for_good) {
  if (const std::vector<std::string> holders = report_.Holders(); !holders.empty() && lifecycle_.watching()) {
    snapshot_.file_error = fmt::format("{}, and it is used on, for volumes are in use through it by {}", why,
                                       fmt::join(holders, ", "));
    Publish();
    return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, snapshot_.file_error));
  }
  leaving_ = for_good;
  if (for_good) RememberDrained(false);
  Feed({.type = ExternalEvent::Type::kDisabled, .text = why});
  return Reconfigured::kStopped;
}

Awaitable<absl::StatusOr<Reconfigured>> ExternalPlugin::Reconfigure(PluginFile file, TimePoint /*deadline*/) {
  if (file.path.empty()) co_return Disable("its file is gone", true);
  if (!file.config.ok()) {
    snapshot_.file_error = std::string(MessageOf(file.config.status()));
    Publish();
    report_.Emit("plugin.file_broken", snapshot_.file_error);
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", id_, snapshot_.file_error));
  }
  const bool had_error = !std::exchange(snapshot_.file_error, "").empty();
  const PluginConfig before = std::exchange(config_, *std::move(file.config));
  PluginConfig as_before = config_;
  as_before.file = before.file;
  if (as_before == before) {
    if (had_error) Publish();
    co_return had_error ? Reconfigured::kUpdated : Reconfigured::kUnchanged;
  }
  report_.Emit("plugin.reconfigured", "its file was changed, and is taken over");
  lifecycle_.SetHealthFailures(config_.health.failures);
  if (!config_.enabled) {
    auto disabled = Disable("disabled in its file (enabled = false)", false);
    // It is asked again at the next reload.
    if (!disabled.ok()) config_.enabled = true;
    co_return disabled;
  }
  if (!before.enabled && !WasDrained()) co_return Enable();
  if (config_.socket != before.socket) {
    Feed({.type = ExternalEvent::Type::kGone, .text = "its socket lies elsewhere now"});
    rewatch_ = true;
    changed_.NotifyAll();
  } else if (lifecycle_.served()) {
    // What is asked of it, how often, and where it sees the volumes: of the next connection.
    Feed({.type = ExternalEvent::Type::kServed});
  }
  Publish();
  co_return Reconfigured::kUpdated;
}

void ExternalPlugin::OnHoldersChanged() {
  if (!lifecycle_.draining()) return;
  Feed({.type = ExternalEvent::Type::kHoldersChanged, .holders = report_.Holders()});
}

bool ExternalPlugin::WasDrained() const {
  return access((PluginRuntimeDir(context_.paths, id_) + "/drained").c_str(), F_OK) == 0;
}

void ExternalPlugin::RememberDrained(bool drained) const {
  const std::string directory = PluginRuntimeDir(context_.paths, id_);
  const std::string path = directory + "/drained";
  absl::Status status;
  if (drained) {
    status = MakeDirectories(directory, 0700);
    if (status.ok()) status = WriteFileAtomic(path, "", 0600);
  } else if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    status = ErrnoStatus(errno, fmt::format("remove {}", path));
  }
  // The next berthd might use it again or not: this one does as requested.
  if (!status.ok()) SPDLOG_ERROR("plugin {}: {}", id_, status.ToString());
}

// --- What probing has found -----------------------------------------------------------------------------

void ExternalPlugin::OnHealth(uint64_t instance, const PluginHealth& health) {
  if (instance != snapshot_.instance || !lifecycle_.served()) return;
  snapshot_.health = health;
  ExternalEvent event;
  event.type = health.ok         ? ExternalEvent::Type::kProbeOk
               : health.answered ? ExternalEvent::Type::kProbeNotReady
                                 : ExternalEvent::Type::kProbeFailed;
  event.text = health.error;
  event.failures = health.consecutive_failures;
  const std::string lost = health.ok ? socket_path_.Trouble() : "";
  if (!lost.empty() && socket_path_.Replaced()) {
    Feed({.type = ExternalEvent::Type::kGone, .text = lost});
    rewatch_ = true;
    changed_.NotifyAll();
    return;
  }
  if (!lost.empty()) event = {.type = ExternalEvent::Type::kSocketLost, .text = lost};
  Feed(event);
}

void ExternalPlugin::OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
                             const std::string& computed_class) {
  if (instance != snapshot_.instance || !lifecycle_.served()) return;
  if (facts.ok()) {
    report_.Accept(*std::move(facts), computed_class);
  } else {
    report_.Refuse(std::string(MessageOf(facts.status())));
  }
  Publish();
}

void ExternalPlugin::OnIdle(uint64_t /*instance*/) {}  // Nothing here waits for that.

// --- Reports --------------------------------------------------------------------------------------------

void ExternalPlugin::ReportState(PluginState before) const {
  if (lifecycle_.state() == before) return;
  switch (lifecycle_.state()) {
    case PluginState::kReady:
      report_.Emit("plugin.ready", before == PluginState::kUnhealthy ? "answers Probe as ready again"
                                                                     : "answers Probe as ready");
      break;
    case PluginState::kUnhealthy:
      report_.Emit("plugin.unhealthy", lifecycle_.reason());
      break;
    case PluginState::kDraining:
      report_.Emit("plugin.draining", lifecycle_.reason());
      break;
    case PluginState::kStopped:
      report_.Emit("plugin.stopped", lifecycle_.reason());
      break;
    case PluginState::kStarting:
      if (!lifecycle_.served() && before != PluginState::kStopped)
        report_.Emit("plugin.lost", lifecycle_.reason());
      break;
    case PluginState::kBackingOff:
    case PluginState::kFailed:
      break;
  }
}

void ExternalPlugin::Publish() {
  snapshot_.kind = config_.kind;
  snapshot_.config_file = config_.file;
  snapshot_.placed = IsPlacedFile(context_.paths, config_.file);
  snapshot_.tokens = config_.tokens;
  snapshot_.pod_info = config_.pod_info;
  snapshot_.socket_path = config_.socket;
  snapshot_.start_timeout = config_.start_timeout;
  snapshot_.state = lifecycle_.state();
  snapshot_.alive = lifecycle_.served();
  snapshot_.ready = lifecycle_.ready();
  snapshot_.draining = lifecycle_.draining();
  snapshot_.holders = lifecycle_.holders();
  report_.Publish(lifecycle_.reason(), {snapshot_.file_error});
}

}  // namespace berth
