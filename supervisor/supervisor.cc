#include "supervisor/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/external_plugin.h"
#include "supervisor/placed_files.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_runner.h"
#include "supervisor/reload.h"
#include "supervisor/run_record.h"

namespace berth {
namespace {

constexpr Duration kFilesReadWithin = std::chrono::seconds(30);
constexpr Duration kTriedWithin = std::chrono::seconds(10);
// A plugin that takes longer to be stopped or swapped goes on; the report says so.
constexpr Duration kReloadedWithin = std::chrono::minutes(10);

PluginPaths PathsOf(const SupervisorOptions& options) {
  PluginPaths paths{.runtime_dir = options.runtime_dir,
                    .state_dir = options.state_dir,
                    .node_id = options.node_id,
                    .credentials_dir = options.credentials_dir};
  if (paths.credentials_dir.empty()) {
    if (const char* given = std::getenv("CREDENTIALS_DIRECTORY")) paths.credentials_dir = given;
  }
  return paths;
}

}  // namespace

class Supervisor::Impl {
 public:
  Impl(const asio::any_io_executor& executor, SupervisorOptions options, PluginObserver& observer,
       EventLog& events)
      : config_dir_(options.config_dir),
        owners_path_(PluginFileOwnersPath(options.state_dir)),
        cgroup_options_(options.cgroups),
        registry_(executor),
        secrets_(options.secrets == nullptr ? own_secrets_ : *options.secrets),
        logs_(executor, PluginLogDir(options.state_dir), secrets_, LogOptions(events)),
        instances_{.executor = executor,
                   .paths = PathsOf(options),
                   .cgroups = nullptr,
                   .logs = logs_,
                   .secrets = secrets_,
                   .on_user = std::move(options.on_user)},
        reports_{.held_by = std::move(options.held_by), .events = events, .registry = registry_},
        context_{.instances = instances_,
                 .reports = reports_,
                 .observer = observer,
                 .busy_until = std::move(options.busy_until),
                 .may_go_forward = std::move(options.may_go_forward)},
        external_{.executor = executor,
                  .paths = instances_.paths,
                  .reports = reports_,
                  .observer = observer,
                  .check_tree = std::move(options.check_tree)},
        runs_(executor, "supervisor"),
        reloads_(executor, "supervisor") {}

  Awaitable<absl::Status> Start() {
    instances_.cgroups = co_await CgroupProvider::Detect(instances_.executor, cgroup_options_);
    SPDLOG_INFO("plugins live in: {}", instances_.cgroups->describe());
    const std::string dir = config_dir_ + "/plugins.d";
    BERTH_CO_ASSIGN_OR_RETURN(const std::vector<std::string> recorded,
                              ListRunRecords(instances_.paths.runtime_dir));
    absl::StatusOr<PluginFileOwners> owners = ReadPluginFileOwners(owners_path_);
    if (!owners.ok()) {
      SPDLOG_WARN("which file each plugin was made from is not known: {}", MessageOf(owners.status()));
      owners = PluginFileOwners();
    }
    file_owners_ = *std::move(owners);
    PluginFileOwners known = file_owners_;
    for (const std::string& id : recorded) AddRunning(id, &known);
    absl::StatusOr<std::vector<PluginFile>> files = LoadPluginDir(dir, instances_.paths, known);
    if (absl::IsNotFound(files.status())) {
      SPDLOG_WARN("{}; there are no plugin files", MessageOf(files.status()));
      files = std::vector<PluginFile>();
    }
    if (!files.ok()) co_return files.status();
    if (PluginFileOwners after = OwnersAfter(file_owners_, *files); after != file_owners_) {
      KeepOwners(after, WritePluginFileOwners(owners_path_, after));
    }
    for (PluginFile& file : *files) {
      const std::string id = file.id;
      const bool ours = std::find(recorded.begin(), recorded.end(), id) != recorded.end();
      owners_.emplace(id, MakeOwner(std::move(file), ours));
    }
    for (const std::string& id : recorded) {
      if (owners_.contains(id)) continue;
      PluginFile gone{"", id, absl::NotFoundError("its file is gone")};
      owners_.emplace(id, MakeOwner(std::move(gone), true));
    }
    for (const auto& [id, owner] : owners_) runs_.Spawn(id, owner->Run());
    for (const auto& [id, owner] : owners_) co_await owner->WaitBegun();
    co_return absl::OkStatus();
  }

  Awaitable<absl::StatusOr<ReloadReport>> Reload(TimePoint answer_by) {
    if (reload_) co_return absl::AbortedError("a reload is under way already");
    co_return co_await BeginReload("", nullptr, answer_by);
  }

  Awaitable<absl::Status> Place(std::string id, std::string content, TimePoint deadline) {
    const PluginPaths& paths = instances_.paths;
    BERTH_CO_ASSIGN_OR_RETURN(const PluginConfig config, CheckPlacedFile(paths, id, content));
    BERTH_CO_RETURN_IF_ERROR(
        co_await TryPluginLaunch(config, paths, std::min(deadline, Clock::now() + kTriedWithin)));
    auto write = [dir = config_dir_ + "/plugins.d", paths, id, content = std::move(content)] {
      return WritePlacedFile(dir, paths, id, content);
    };
    BERTH_CO_ASSIGN_OR_RETURN(const ReloadReport report,
                              co_await ChangePlaced(id, std::move(write), deadline));
    if (!report.broken.empty()) co_return absl::FailedPreconditionError(report.broken.front());
    co_return absl::OkStatus();
  }

  Awaitable<absl::Status> RemovePlaced(std::string id, TimePoint deadline) {
    const PluginSnapshot* known = Present(id) == nullptr ? nullptr : registry_.Find(id);
    if (known != nullptr && !known->placed && !known->config_file.empty()) {
      co_return absl::FailedPreconditionError(
          fmt::format("plugin {} is defined by {}, which a person wrote: a scheduler does not remove it", id,
                      known->config_file));
    }
    auto remove = [paths = instances_.paths, id] { return RemovePlacedFile(paths, id).status(); };
    // What the report has is about the plugin, which may run until its volumes have left. The file is
    // removed.
    co_return (co_await ChangePlaced(std::move(id), std::move(remove), deadline)).status();
  }

  // Carries out `change`, which may be empty and blocks, and then applies the files; all of them, or the one
  // of plugin `only`.
  Awaitable<absl::StatusOr<ReloadReport>> BeginReload(std::string only, std::function<absl::Status()> change,
                                                      TimePoint answer_by) {
    BERTH_CO_RETURN_IF_ERROR(context_.CheckNotShuttingDown());
    const auto reload = std::make_shared<ReloadRun>(instances_.executor);
    reload->only = std::move(only);
    reload->change = std::move(change);
    reload_ = reload;
    // In a task of its own, so that it goes on where its caller is cancelled.
    reloads_.Spawn("reload", RunReload(reload));
    auto done = [reload] { return reload->result.has_value(); };
    if (co_await reload->done.WaitUntil(std::move(done), answer_by) && !reload->result->ok()) {
      co_return *reload->result;
    }
    if (!reload->begun) {
      co_return absl::DeadlineExceededError("the files have not been read in time; the reload goes on");
    }
    co_return *reload->report;
  }

  Awaitable<void> Shutdown() {
    co_await reloads_.Join();
    co_await runs_.Join();
    for (const auto& [id, owner] : owners_) co_await owner->LetGo();
    for (const auto& owner : gone_) co_await owner->LetGo();
    co_await logs_.Shutdown();
  }

  absl::StatusOr<PluginOwner*> Find(const std::string& id) const {
    if (PluginOwner* owner = Present(id)) return owner;
    std::vector<std::string_view> ids;
    for (const auto& [each, plugin] : registry_.plugins()) ids.push_back(each);
    return absl::NotFoundError(
        ids.empty() ? fmt::format("plugin {}: there are no plugins on this node", Printable(id, 128))
                    : fmt::format("plugin {}: no such plugin on this node; there are {}", Printable(id, 128),
                                  fmt::join(ids, ", ")));
  }

  // For what starts, replaces or swaps a plugin.
  absl::StatusOr<PluginOwner*> FindToBegin(const std::string& id) const {
    BERTH_RETURN_IF_ERROR(context_.CheckNotShuttingDown());
    return Find(id);
  }

  // Null if it does not exist.
  PluginOwner* Present(const std::string& id) const {
    const auto owner = owners_.find(id);
    return owner == owners_.end() || owner->second->gone() ? nullptr : owner->second.get();
  }

  [[nodiscard]] std::string placement() const {
    return instances_.cgroups ? instances_.cgroups->describe() : "not known yet";
  }
  Registry& registry() { return registry_; }
  PluginLogs& logs() { return logs_; }

 private:
  struct ReloadRun {
    explicit ReloadRun(asio::any_io_executor executor) : done(std::move(executor)) {}
    std::shared_ptr<ReloadReport> report = std::make_shared<ReloadReport>();  // grows
    std::string only;                                                         // empty: all plugins
    std::function<absl::Status()> change;                                     // comes first
    bool begun = false;                                                       // the files have been read
    std::optional<absl::Status> result;
    Condition done;
  };

  Awaitable<void> RunReload(std::shared_ptr<ReloadRun> reload) {
    absl::Status result = co_await DoReload(reload);
    reload_.reset();
    reload->result = std::move(result);
    reload->done.NotifyAll();
  }

  Awaitable<absl::StatusOr<ReloadReport>> ChangePlaced(std::string id, std::function<absl::Status()> change,
                                                       TimePoint deadline) {
    while (const std::shared_ptr<ReloadRun> other = reload_) {
      auto done = [other] { return other->result.has_value(); };
      if (!co_await other->done.WaitUntil(std::move(done), deadline)) {
        co_return absl::UnavailableError("not begun: a reload of plugins.d is under way");
      }
    }
    BERTH_CO_ASSIGN_OR_RETURN(const ReloadReport report,
                              co_await BeginReload(id, std::move(change), deadline));
    if (!report.pending.empty()) {
      co_return absl::DeadlineExceededError(
          fmt::format("plugin {}: the file is changed, and is still being applied", id));
    }
    co_return report;
  }

  Awaitable<absl::Status> DoReload(std::shared_ptr<ReloadRun> reload) {
    const std::string dir = config_dir_ + "/plugins.d";
    if (reload->change) {
      BERTH_CO_RETURN_IF_ERROR(co_await RunBlocking(fmt::format("change the file of {}", reload->only),
                                                    reload->change, Clock::now() + kFilesReadWithin));
    }
    PluginFileOwners known = file_owners_;
    for (const auto& [id, plugin] : registry_.plugins()) {
      if (Present(id) != nullptr && !plugin.config_file.empty()) known[id] = plugin.config_file;
    }
    auto read = [dir, paths = instances_.paths, known] { return LoadPluginDir(dir, paths, known); };
    // A directory that has vanished is a mistake, rather than the wish to stop everything.
    BERTH_CO_ASSIGN_OR_RETURN(
        std::vector<PluginFile> files,
        co_await RunBlocking(fmt::format("read {}", dir), std::move(read), Clock::now() + kFilesReadWithin));
    const bool all = reload->only.empty();
    if (!all) std::erase_if(files, [&](const PluginFile& file) { return file.id != reload->only; });
    if (PluginFileOwners after = OwnersAfter(file_owners_, files); after != file_owners_) {
      auto write = [path = owners_path_, after] { return WritePluginFileOwners(path, after); };
      KeepOwners(after, co_await RunBlocking(fmt::format("write {}", owners_path_), std::move(write),
                                             Clock::now() + kFilesReadWithin));
    }
    std::map<std::string, ReloadOwner> owners;
    for (const auto& [id, plugin] : registry_.plugins()) {
      if (Present(id) == nullptr || (!all && id != reload->only)) continue;
      owners[id] = {.config_file = plugin.config_file, .external = plugin.external};
    }
    ReloadTarget target{.registry = registry_,
                        .find = [this](const std::string& id) { return Present(id); },
                        .begin = [this](PluginFile file) -> PluginOwner& { return Begin(std::move(file)); },
                        .check =
                            [paths = instances_.paths](const PluginConfig& config) {
                              return TryPluginLaunch(config, paths, Clock::now() + kTriedWithin);
                            }};
    reload->begun = true;
    co_await CarryOutReload(PlanReload(std::move(files), owners), std::move(target), reloads_,
                            Clock::now() + kReloadedWithin, reload->report);
    co_return absl::OkStatus();
  }

  // The plugin that runs was made from the file in its record, as long as that is there.
  void AddRunning(const std::string& id, PluginFileOwners* owners) const {
    const absl::StatusOr<RunRecord> record = ReadRunRecord(PluginRuntimeDir(instances_.paths, id));
    if (!record.ok() || record->process.boot_id != BootId()) return;
    if (access(record->config_file.c_str(), F_OK) == 0) (*owners)[id] = record->config_file;
  }

  // Also where it could not be written: it counts as long as this berthd runs.
  void KeepOwners(PluginFileOwners owners, const absl::Status& written) {
    file_owners_ = std::move(owners);
    if (!written.ok()) {
      SPDLOG_WARN("which file each plugin was made from is not recorded: {}", MessageOf(written));
    }
  }

  PluginOwner& Begin(PluginFile file) {
    const std::string id = file.id;
    // Who waited for one of that id that is gone holds on to it.
    if (const auto old = owners_.find(id); old != owners_.end()) {
      gone_.push_back(std::move(old->second));
      owners_.erase(old);
    }
    PluginOwner& owner = *owners_.emplace(id, MakeOwner(std::move(file), false)).first->second;
    runs_.Spawn(id, owner.Run());
    return owner;
  }

  // `ours`: a process that an earlier berthd launched for it may still run.
  std::unique_ptr<PluginOwner> MakeOwner(PluginFile file, bool ours) {
    if (file.config.ok() && file.config->external()) {
      if (!ours) return std::make_unique<ExternalPlugin>(external_, file);
      file.config = absl::FailedPreconditionError(
          fmt::format("{}: socket: the process that berthd launched for this plugin has to be stopped first; "
                      "then reload",
                      file.path));
    }
    return std::make_unique<PluginRunner>(context_, std::move(file));
  }

  static PluginLogsOptions LogOptions(EventLog& events) {
    PluginLogsOptions options;
    options.on_loss = [&events](const LogLoss& loss) {
      Event event;
      event.type = "plugin.log_lost";
      event.plugin_id = loss.plugin_id;
      event.message = loss.text;
      events.Append(std::move(event));
    };
    return options;
  }

  std::string config_dir_;
  std::string owners_path_;
  PluginFileOwners file_owners_;  // as recorded in owners_path_
  CgroupOptions cgroup_options_;
  Registry registry_;
  RecentSecrets own_secrets_;
  RecentSecrets& secrets_;
  PluginLogs logs_;
  InstanceContext instances_;
  ReportContext reports_;
  RunnerContext context_;
  ExternalContext external_;
  std::map<std::string, std::unique_ptr<PluginOwner>> owners_;  // never shrinks: waiters hold on to them
  std::vector<std::unique_ptr<PluginOwner>> gone_;              // others have their ids now
  std::shared_ptr<ReloadRun> reload_;                           // that is under way
  TaskScope runs_;
  TaskScope reloads_;
};

Supervisor::Supervisor(asio::any_io_executor executor, SupervisorOptions options, PluginObserver& observer,
                       EventLog& events)
    : impl_(std::make_unique<Impl>(executor, std::move(options), observer, events)) {}

Supervisor::~Supervisor() = default;

Awaitable<absl::Status> Supervisor::Start() { return impl_->Start(); }

Awaitable<void> Supervisor::Shutdown() { return impl_->Shutdown(); }

Awaitable<absl::Status> Supervisor::StartPlugin(std::string id, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginOwner* const owner, impl_->FindToBegin(id));
  co_return co_await owner->Start(deadline);
}

Awaitable<absl::Status> Supervisor::StopPlugin(std::string id, bool force, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginOwner* const owner, impl_->Find(id));
  co_return co_await owner->Stop(force, deadline);
}

Awaitable<absl::Status> Supervisor::RestartPlugin(std::string id, bool force, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginOwner* const owner, impl_->FindToBegin(id));
  co_return co_await owner->Restart(force, deadline);
}

Awaitable<absl::Status> Supervisor::DrainPlugin(std::string id, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginOwner* const owner, impl_->Find(id));
  co_return co_await owner->Drain(deadline);
}

Awaitable<absl::Status> Supervisor::SwapPlugin(std::string id, SwapRequest request, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginOwner* const owner, impl_->FindToBegin(id));
  co_return co_await owner->Swap(std::move(request), deadline);
}

Awaitable<absl::StatusOr<ReloadReport>> Supervisor::Reload(TimePoint answer_by) {
  return impl_->Reload(answer_by);
}

Awaitable<absl::Status> Supervisor::PlacePlugin(std::string id, std::string content, TimePoint deadline) {
  return impl_->Place(std::move(id), std::move(content), deadline);
}

Awaitable<absl::Status> Supervisor::RemovePlacedPlugin(std::string id, TimePoint deadline) {
  return impl_->RemovePlaced(std::move(id), deadline);
}

void Supervisor::OnHealth(const std::string& plugin_id, uint64_t instance, const PluginHealth& health) {
  if (PluginOwner* owner = impl_->Present(plugin_id)) owner->OnHealth(instance, health);
}

void Supervisor::OnFacts(const std::string& plugin_id, uint64_t instance, absl::StatusOr<PluginFacts> facts,
                         const std::string& computed_class) {
  if (PluginOwner* owner = impl_->Present(plugin_id)) {
    owner->OnFacts(instance, std::move(facts), computed_class);
  }
}

void Supervisor::OnIdle(const std::string& plugin_id, uint64_t instance) {
  if (PluginOwner* owner = impl_->Present(plugin_id)) owner->OnIdle(instance);
}

void Supervisor::OnHoldersChanged(const std::string& plugin_id) {
  if (PluginOwner* owner = impl_->Present(plugin_id)) owner->OnHoldersChanged();
}

PluginLogs& Supervisor::logs() { return impl_->logs(); }

std::string Supervisor::placement() const { return impl_->placement(); }

Registry& Supervisor::registry() { return impl_->registry(); }

}  // namespace berth
