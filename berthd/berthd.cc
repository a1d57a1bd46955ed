#include "berthd/berthd.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/blocking.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status.h"
#include "berthd/event_numbers.h"
#include "berthd/version.h"
#include "mounter/mount_helper.h"

namespace berth {
namespace {

constexpr size_t kEventsKept = 10'000;
constexpr auto kCallsEndWithin = std::chrono::seconds(5);
constexpr auto kStepsEndWithin = std::chrono::seconds(15);
constexpr auto kSettingsReadWithin = std::chrono::seconds(30);

// The socket that systemd listens on for us, if it does.
absl::StatusOr<UniqueFd> InheritedSocket() {
  const int count = sd_listen_fds(1);
  if (count < 0) return ErrnoStatus(-count, "sockets from systemd");
  if (count > 1) {
    return absl::InvalidArgumentError(
        fmt::format("systemd hands over {} sockets; berthd has use for one", count));
  }
  return count == 0 ? UniqueFd() : UniqueFd(SD_LISTEN_FDS_START);
}

}  // namespace

Berthd::Berthd(asio::any_io_executor executor, BerthdOptions options, BerthdConfig config,
               std::shared_ptr<LogFeed> log)
    : executor_(executor),
      options_(std::move(options)),
      config_(std::move(config)),
      log_(std::move(log)),
      events_(executor, kEventsKept),
      bridge_(executor, events_, secrets_),
      background_(executor, "berthd") {}

Berthd::~Berthd() = default;

Awaitable<absl::Status> Berthd::Start() {
  BERTH_CO_RETURN_IF_ERROR(co_await RestoreState());
  co_return co_await Serve();
}

Awaitable<absl::Status> Berthd::RestoreState() {
  BERTH_CO_RETURN_IF_ERROR(MakeDirectories(config_.state_dir, 0711));
  BERTH_CO_RETURN_IF_ERROR(MakeDirectories(config_.runtime_dir, 0755));

  MounterOptions mounter_options{.state_dir = config_.state_dir};
  mounter_options.on_holders_changed = [this](const std::string& id) {
    if (supervisor_) supervisor_->OnHoldersChanged(id);
  };
  BERTH_CO_ASSIGN_OR_RETURN(mounter_options.helper_path,
                            FindMountHelper(BERTH_LIBEXEC_DIR "/berth-mount-helper"));
  BERTH_CO_ASSIGN_OR_RETURN(mounter_, Mounter::Open(executor_, std::move(mounter_options), bridge_, events_));
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t reserved_end, co_await ReserveEventNumbers(*mounter_, events_));
  background_.Spawn("event numbers", KeepEventNumbersReserved(*mounter_, events_, reserved_end));

  SupervisorOptions supervisor_options{
      .config_dir = config_.config_dir,
      .state_dir = config_.state_dir,
      .runtime_dir = config_.runtime_dir,
      .node_id = config_.node_id,
      .held_by = [this](const std::string& id) { return mounter_->HeldThrough(id); },
      .busy_until = [this](const std::string& id,
                           uint64_t incarnation) { return bridge_.BusyUntil(id, incarnation); },
      .secrets = &secrets_,
  };
  supervisor_ = std::make_unique<Supervisor>(executor_, std::move(supervisor_options), bridge_, events_);
  bridge_.Connect(supervisor_.get(), mounter_.get(), [this] { return Reload(); });

  BERTH_CO_RETURN_IF_ERROR(co_await supervisor_->Start());
  co_return co_await mounter_->Recover();
}

Awaitable<absl::Status> Berthd::Serve() {
  BERTH_CO_ASSIGN_OR_RETURN(AccessPolicy policy, AccessPolicy::Make(config_.access, getuid(), SystemNames()));
  BERTH_CO_ASSIGN_OR_RETURN(UniqueFd inherited, InheritedSocket());
  NodeInfo info{
      .node_id = config_.node_id,
      .version = kBerthVersion,
      .started_at = started_at_,
      .config_dir = config_.config_dir,
      .state_dir = config_.state_dir,
      .runtime_dir = config_.runtime_dir,
  };
  api_ = std::make_unique<NodeApi>(std::move(info), bridge_, bridge_, *mounter_, events_, log_);
  NodeServerOptions options{.socket_path = config_.runtime_dir + "/berthd.sock",
                            .listening = std::move(inherited)};
  BERTH_CO_ASSIGN_OR_RETURN(server_,
                            NodeServer::Start(executor_, std::move(options), std::move(policy), *api_));
  co_return absl::OkStatus();
}

Awaitable<absl::StatusOr<ReloadReport>> Berthd::Reload() {
  std::vector<std::string> problems = co_await ReloadSettings();
  bridge_.SetSettingsProblems(problems);
  BERTH_CO_ASSIGN_OR_RETURN(ReloadReport report, co_await supervisor_->Reload());
  for (std::string& problem : problems) report.broken.push_back("berthd: " + std::move(problem));
  co_return report;
}

Awaitable<std::vector<std::string>> Berthd::ReloadSettings() {
  struct Settings {
    BerthdConfig config;
    AccessPolicy policy;
  };
  auto read = [options = options_]() -> absl::StatusOr<Settings> {
    BERTH_ASSIGN_OR_RETURN(BerthdConfig config, LoadBerthdConfig(options));
    BERTH_ASSIGN_OR_RETURN(AccessPolicy policy, AccessPolicy::Make(config.access, getuid(), SystemNames()));
    return Settings{.config = std::move(config), .policy = std::move(policy)};
  };
  absl::StatusOr<Settings> settings =
      co_await RunBlocking("read berthd.toml", std::move(read), Clock::now() + kSettingsReadWithin);
  absl::Status status = settings.status();
  // The last that can fail, so that it is all or nothing.
  if (status.ok()) status = SetLogLevel(settings->config.log_level, log_);
  if (!status.ok()) co_return std::vector<std::string>{std::string(MessageOf(status))};
  server_->SetPolicy(std::move(settings->policy));
  co_return NeedsRestart(config_, settings->config);
}

Awaitable<void> Berthd::Stop() {
  if (server_) co_await server_->Shutdown(Clock::now() + kCallsEndWithin);
  co_await background_.Join();
  co_await bridge_.Shutdown();
  if (supervisor_) co_await supervisor_->Shutdown();
  if (mounter_) co_await mounter_->Shutdown(Clock::now() + kStepsEndWithin);
  server_.reset();
  api_.reset();
}

}  // namespace berth
