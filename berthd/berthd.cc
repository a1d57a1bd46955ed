#include "berthd/berthd.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/blocking.h"
#include "base/duration_text.h"
#include "base/file.h"
#include "base/lock_file.h"
#include "base/process.h"
#include "base/status.h"
#include "base/systemd_bus.h"
#include "berthd/mount_order.h"
#include "berthd/version.h"
#include "mounter/volume_paths.h"
#include "mounts/host_view.h"
#include "mounts/mount_helper.h"
#include "mounts/tree_view.h"
#include "rpc/convert.h"

namespace berth {
namespace {

constexpr size_t kEventsKept = 10'000;
constexpr auto kCallsEndWithin = std::chrono::seconds(5);
constexpr auto kSystemdAnswersWithin = std::chrono::seconds(5);
constexpr auto kStepsEndWithin = std::chrono::seconds(15);
constexpr auto kEventsWrittenWithin = std::chrono::seconds(2);
// For each part that ends when the time for a shutdown of the machine is over already.
constexpr auto kLastMoments = std::chrono::seconds(1);
// What berthd may take at a shutdown besides the time for the volumes.
constexpr auto kStopsWithin = std::chrono::seconds(60);
constexpr auto kUnitsOrderedWithin = std::chrono::seconds(30);
constexpr const char* kStopping =
    "berthd is stopping, and begins nothing new; repeat the request once it is back";
constexpr auto kSettingsReadWithin = std::chrono::seconds(30);
constexpr auto kMountsCheckedWithin = std::chrono::seconds(30);
constexpr auto kMountsReadWithin = std::chrono::seconds(10);
constexpr auto kVolumesReadWithin = std::chrono::seconds(30);

// The sockets that systemd listens on for us, if it does.
absl::StatusOr<std::vector<ListenSocket>> InheritedSockets() {
  const int count = sd_listen_fds(1);
  if (count < 0) return ErrnoStatus(-count, "sockets from systemd");
  std::vector<ListenSocket> sockets;
  for (int i = 0; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::Adopt(UniqueFd(SD_LISTEN_FDS_START + i)));
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

}  // namespace

Berthd::Berthd(asio::any_io_executor executor, BerthdOptions options, BerthdConfig config,
               std::shared_ptr<LogFeed> log)
    : executor_(executor),
      options_(std::move(options)),
      config_(std::move(config)),
      log_(std::move(log)),
      events_(executor, kEventsKept),
      tokens_(
          [this](v1::TokenAsk ask, TimePoint deadline) { return AskForTokens(std::move(ask), deadline); }),
      bridge_(executor, events_, secrets_),
      background_(executor, "berthd") {}

Berthd::~Berthd() = default;

Awaitable<absl::Status> Berthd::Start() {
  BERTH_CO_RETURN_IF_ERROR(co_await RestoreState());
  co_return co_await Serve();
}

absl::Status Berthd::TakeDirectories() {
  BERTH_RETURN_IF_ERROR(MakeDirectories(config_.state_dir, 0711));
  BERTH_RETURN_IF_ERROR(MakeDirectories(config_.runtime_dir, 0755));
  absl::StatusOr<UniqueFd> lock = TakeLockFile(config_.runtime_dir + "/berthd.lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return Annotate(lock.status(), fmt::format("another berthd uses {}", config_.runtime_dir));
  }
  if (!lock.ok()) return lock.status();
  runtime_lock_ = *std::move(lock);
  return absl::OkStatus();
}

MounterOptions Berthd::MakeMounterOptions() {
  MounterOptions mounter_options{
      .state_dir = config_.state_dir,
      .rpc_timeout = config_.volumes.rpc_timeout,
      .calls_per_plugin = static_cast<size_t>(config_.volumes.calls_per_plugin),
      .health_interval = config_.volumes.health_interval,
      .tokens = &tokens_,
  };
  mounter_options.on_holders_changed = [this](const std::string& id) {
    if (supervisor_) supervisor_->OnHoldersChanged(id);
    if (drainer_) drainer_->OnHoldersChanged();
  };
  mounter_options.on_volume_changed = [this](const std::string& plugin_id, const std::string& volume_id,
                                             bool here) {
    if (scheduler_) scheduler_->OnVolumeChanged(plugin_id, volume_id, here);
  };
  mounter_options.on_tree_mounted = [this] {
    const absl::Status opened = tree_access_ ? tree_access_->Apply() : absl::OkStatus();
    if (!opened.ok()) SPDLOG_ERROR("the tree of volumes is closed to other users: {}", MessageOf(opened));
  };
  mounter_options.on_consumer_ended = [this](const std::string& consumer, const std::string& cause,
                                             Origin origin) {
    if (scheduler_) scheduler_->OnConsumerEnded(consumer, cause, origin);
  };
  return mounter_options;
}

SupervisorOptions Berthd::MakeSupervisorOptions() {
  return {
      .config_dir = config_.config_dir,
      .state_dir = config_.state_dir,
      .runtime_dir = config_.runtime_dir,
      .node_id = config_.node_id,
      .held_by = [this](const std::string& id) { return mounter_->HeldThrough(id); },
      .may_go_forward = [this] { return mounter_->CheckNotShuttingDown(); },
      .busy_until = [this](const std::string& id,
                           uint64_t instance) { return bridge_.BusyUntil(id, instance); },
      .on_user = [this](const std::string& socket, std::optional<uid_t> user) { OnPluginUser(socket, user); },
      .check_tree = [this](pid_t process, std::string path) { return CheckTree(process, std::move(path)); },
      .secrets = &secrets_,
  };
}

Awaitable<absl::Status> Berthd::RestoreState() {
  BERTH_CO_RETURN_IF_ERROR(TakeDirectories());
  BERTH_CO_RETURN_IF_ERROR(co_await CheckMounts());
  // Before the tree is mounted, so that systemd makes its unit with it.
  const absl::Status ordered =
      co_await OrderMountUnits(config_.state_dir, Clock::now() + kUnitsOrderedWithin);
  if (!ordered.ok()) {
    SPDLOG_WARN("systemd may unmount volumes before it stops berthd: {}", MessageOf(ordered));
  }

  MounterOptions mounter_options = MakeMounterOptions();
  BERTH_CO_ASSIGN_OR_RETURN(mounter_options.helper_path,
                            FindMountHelper(BERTH_LIBEXEC_DIR "/berth-mount-helper"));
  BERTH_CO_ASSIGN_OR_RETURN(mounter_, Mounter::Open(executor_, std::move(mounter_options), bridge_, events_));
  OpenTree();
  history_ = std::make_unique<EventHistory>(config_.state_dir, config_.runtime_dir, events_);
  co_await history_->Begin();
  background_.Spawn("history of events", history_->Write());

  supervisor_ = std::make_unique<Supervisor>(executor_, MakeSupervisorOptions(), bridge_, events_);
  bridge_.Connect(supervisor_.get(), mounter_.get(),
                  [this](TimePoint answer_by) { return Reload(answer_by); });

  BERTH_CO_RETURN_IF_ERROR(co_await supervisor_->Start());
  background_.Spawn("tokens wanted", bridge_.CarryTokensWanted());
  scheduler_ = std::make_unique<SchedulerLink>(executor_, config_, *mounter_, events_);
  BERTH_CO_RETURN_IF_ERROR(co_await mounter_->Recover());
  BERTH_CO_RETURN_IF_ERROR(scheduler_->Restore());

  drainer_ =
      std::make_unique<NodeDrainer>(executor_, config_.state_dir + "/node-drain.json", *mounter_, events_);
  co_await drainer_->Restore();

  access_ = std::make_unique<ControllerAccess>(executor_, bridge_, *mounter_);
  DeclaredOptions declared_options{
      .config_dir = config_.config_dir, .state_dir = config_.state_dir, .runtime_dir = config_.runtime_dir};
  declared_ = std::make_unique<DeclaredVolumes>(executor_, std::move(declared_options), *mounter_, bridge_,
                                                *access_, events_);
  // If it cannot read something, Problems reports it; the other volumes are served nevertheless.
  if (const absl::Status begun = co_await declared_->Start(); !begun.ok()) {
    SPDLOG_ERROR("declared volumes: {}", MessageOf(begun));
  }
  co_return absl::OkStatus();
}

void Berthd::OpenTree() {
  tree_access_.emplace(VolumePaths::TreeIn(config_.state_dir));
  const absl::Status opened = tree_access_->SetNamed(config_.volumes.traverse);
  if (opened.ok()) return;
  SPDLOG_ERROR("volumes.traverse: {}", MessageOf(opened));
  bridge_.SetSettingsFindings(
      {{.code = "settings.broken", .text = fmt::format("volumes.traverse: {}", MessageOf(opened))}});
}

void Berthd::OnPluginUser(const std::string& socket, std::optional<uid_t> user) {
  const absl::Status set = tree_access_->SetPlugin(socket, user);
  // Its calls say so where it matters: it may have the capability to pass.
  if (!set.ok()) SPDLOG_ERROR("the plugin at {} may not pass through the tree: {}", socket, MessageOf(set));
}

Awaitable<std::string> Berthd::CheckTree(pid_t process, std::string volumes_path) {
  auto look = [state_dir = config_.state_dir, process, volumes_path]() -> absl::StatusOr<std::string> {
    // The kernel shows mounts by their true paths.
    std::error_code error;
    const std::string true_path = std::filesystem::canonical(state_dir, error).string();
    if (error) return ErrnoStatus(error.value(), fmt::format("resolve {}", state_dir));
    return LookForTree(VolumePaths::TreeIn(true_path), process, volumes_path);
  };
  auto why = co_await RunBlocking(fmt::format("read the mounts of process {}", process), std::move(look),
                                  Clock::now() + kMountsReadWithin);
  if (why.ok()) co_return *std::move(why);
  // Then it is not known.
  SPDLOG_DEBUG("{}", MessageOf(why.status()));
  co_return std::string();
}

Awaitable<absl::Status> Berthd::CheckMounts() {
  const absl::Status seen = co_await RunBlocking(
      "check that the host sees our mounts",
      [directory = config_.state_dir] { return CheckSeenByHost(directory); },
      Clock::now() + kMountsCheckedWithin);
  if (seen.ok()) co_return absl::OkStatus();
  if (!config_.allow_private_mounts) {
    const absl::Status refused(
        seen.code(), fmt::format("{}; --allow-private-mounts starts berthd nevertheless", MessageOf(seen)));
    // The unit has a mount namespace of its own: as long as it says so.
    co_return absl::IsFailedPrecondition(seen) ? AsConfigurationError(refused) : refused;
  }
  SPDLOG_WARN("{}", MessageOf(seen));
  // It was asked for, so it is no problem.
  notes_.push_back({.severity = Finding::Severity::kInfo,
                    .code = "node.private_mounts",
                    .text = std::string(MessageOf(seen))});
  co_return absl::OkStatus();
}

Awaitable<absl::Status> Berthd::Serve() {
  NodeInfo info{
      .node_id = config_.node_id,
      .version = kBerthVersion,
      .started_at = started_at_,
      .config_dir = config_.config_dir,
      .state_dir = config_.state_dir,
      .runtime_dir = config_.runtime_dir,
      .notes = notes_,
  };
  controller_calls_ = std::make_unique<ControllerCalls>(executor_, *access_, *mounter_);
  const NodeParts parts{
      .control = bridge_,
      .access = *access_,
      .controller_calls = *controller_calls_,
      .mounter = *mounter_,
      .declared = *declared_,
      .drainer = *drainer_,
      .scheduler = *scheduler_,
      .events = events_,
  };
  api_ = std::make_unique<NodeApi>(std::move(info), parts, log_);
  api_->volumes.SetRuntimes(config_.runtimes);
  absl::StatusOr<std::vector<ListenSocket>> inherited = InheritedSockets();
  absl::Status served = inherited.status();
  if (served.ok()) {
    auto servers = co_await NodeServers::Start(executor_, config_.runtime_dir, config_.sockets,
                                               *std::move(inherited), *api_);
    served = servers.status();
    if (served.ok()) servers_ = *std::move(servers);
  }
  if (absl::IsInvalidArgument(served)) co_return AsConfigurationError(served);
  BERTH_CO_RETURN_IF_ERROR(served);
  scheduler_->Start(*api_, bridge_, bridge_, *controller_calls_, *drainer_);
  co_return absl::OkStatus();
}

struct Berthd::ReloadRun {
  explicit ReloadRun(asio::any_io_executor executor) : done(std::move(executor)) {}
  std::optional<absl::StatusOr<NodeReload>> result;
  Condition done;
};

Awaitable<absl::StatusOr<NodeReload>> Berthd::Reload(TimePoint answer_by) {
  BERTH_CO_RETURN_IF_ERROR(Annotate(mounter_->CheckNotShuttingDown(), "reload"));
  // In a task of its own: a caller that leaves after the plugins still gets its volumes read.
  const auto run = std::make_shared<ReloadRun>(executor_);
  background_.Spawn("reload", RunReload(run, answer_by));
  auto done = [run] { return run->result.has_value(); };
  if (!co_await run->done.WaitUntil(std::move(done), TimePoint::max()))
    co_return absl::AbortedError("reload");
  co_return *std::move(run->result);
}

Awaitable<void> Berthd::RunReload(std::shared_ptr<ReloadRun> run, TimePoint answer_by) {
  absl::StatusOr<NodeReload> result = co_await ReloadFiles(answer_by);
  run->result = std::move(result);
  run->done.NotifyAll();
}

Awaitable<absl::StatusOr<NodeReload>> Berthd::ReloadFiles(TimePoint answer_by) {
  const std::vector<Finding> problems = co_await ReloadSettings();
  bridge_.SetSettingsFindings(problems);
  NodeReload report;
  BERTH_CO_ASSIGN_OR_RETURN(report.plugins, co_await supervisor_->Reload(answer_by));
  for (const Finding& problem : problems) report.plugins.broken.push_back("berthd: " + problem.text);
  // After the plugins: a volume may be declared together with its plugin.
  auto volumes = co_await declared_->Reload(Clock::now() + kVolumesReadWithin);
  if (volumes.ok()) {
    report.volumes = *std::move(volumes);
  } else {
    report.volumes.broken.push_back(fmt::format("volumes.d: {}", MessageOf(volumes.status())));
  }
  if (scheduler_) scheduler_->OnNodeChanged();
  co_return report;
}

Awaitable<std::vector<Finding>> Berthd::ReloadSettings() {
  auto read = [options = options_] { return LoadBerthdConfig(options); };
  absl::StatusOr<BerthdConfig> settings =
      co_await RunBlocking("read berthd.toml", std::move(read), Clock::now() + kSettingsReadWithin);
  absl::Status status = settings.status();
  // The last that can fail, so that it is all or nothing.
  if (status.ok()) status = SetLogLevel(settings->log_level, log_);
  std::vector<Finding> findings;
  const auto add = [&findings](const char* code, const std::string& text, const char* advice) {
    findings.push_back({.code = code, .text = text, .advice = advice});
  };
  if (!status.ok()) {
    for (const std::string& mistake : LinesOf(MessageOf(status))) {
      add("settings.broken", mistake, "correct berthd.toml, then: berthctl reload");
    }
    co_return findings;
  }
  api_->volumes.SetRuntimes(settings->runtimes);
  config_.volumes.shutdown_timeout = settings->volumes.shutdown_timeout;
  for (const std::string& line : NeedsRestart(config_, *settings)) {
    add("settings.restart", line, "systemctl restart berthd");
  }
  config_.volumes.traverse = std::move(settings->volumes.traverse);
  const absl::Status opened = tree_access_->SetNamed(config_.volumes.traverse);
  if (!opened.ok()) add("settings.broken", fmt::format("volumes.traverse: {}", MessageOf(opened)), "");
  for (const std::string& problem : co_await servers_->Apply(settings->sockets)) {
    add("settings.broken", problem, "correct what it names, then: berthctl reload");
  }
  co_return findings;
}

Awaitable<absl::StatusOr<v1::TokenAnswer>> Berthd::AskForTokens(v1::TokenAsk ask, TimePoint deadline) {
  if (!scheduler_) co_return absl::UnavailableError("berthd is starting");
  co_return co_await scheduler_->Tokens(std::move(ask), deadline);
}

Awaitable<void> Berthd::ReleaseDeclared(TimePoint deadline) {
  if (declared_->List().empty()) co_return;
  SPDLOG_INFO("the machine is being shut down: releasing the declared volumes");
  // The unit's TimeoutStopSec= suits the default.
  const auto within =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now() + kStopsWithin);
  sd_notify(0, fmt::format("EXTEND_TIMEOUT_USEC={}", within.count()).c_str());
  const size_t left = co_await declared_->ReleaseAll(deadline);
  if (left == 0) {
    SPDLOG_INFO("the declared volumes have been released");
  } else {
    SPDLOG_WARN("{} declared volumes have not been released within {}; berthd ends nevertheless", left,
                FormatDuration(config_.volumes.shutdown_timeout));
  }
}

Awaitable<void> Berthd::Stop() {
  const TimePoint volumes_left_by = Clock::now() + config_.volumes.shutdown_timeout;
  if (mounter_) mounter_->BeginShutdown(kStopping);
  const bool shutdown =
      servers_ && co_await MachineIsStopping(std::min(Clock::now() + kSystemdAnswersWithin, volumes_left_by));
  const auto within = [&](Duration most) {
    const TimePoint now = Clock::now();
    return shutdown ? std::min(now + most, std::max(volumes_left_by, now + kLastMoments)) : now + most;
  };
  // While the API still serves, so that people see what is left.
  if (shutdown) co_await ReleaseDeclared(volumes_left_by);
  if (servers_) co_await servers_->Shutdown(within(kCallsEndWithin));
  if (scheduler_) co_await scheduler_->Shutdown(within(kCallsEndWithin), shutdown);
  if (controller_calls_) co_await controller_calls_->Shutdown();
  if (declared_) co_await declared_->Shutdown();
  if (drainer_) co_await drainer_->Shutdown();
  co_await background_.Join();
  co_await bridge_.Shutdown();
  if (supervisor_) co_await supervisor_->Shutdown();
  if (mounter_) co_await mounter_->Shutdown(within(kStepsEndWithin));
  if (history_) co_await history_->End(within(kEventsWrittenWithin));
  servers_.reset();
  scheduler_.reset();
  api_.reset();
  drainer_.reset();
  declared_.reset();
}

}  // namespace berth
