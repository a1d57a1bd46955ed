#include "supervisor/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "base/status.h"
#include "supervisor/plugin_runner.h"

namespace berth {
namespace {

PluginPlaces PlacesOf(const SupervisorOptions& options) {
  PluginPlaces places{.runtime_dir = options.runtime_dir,
                      .state_dir = options.state_dir,
                      .node_id = options.node_id,
                      .credentials_dir = options.credentials_dir};
  if (places.credentials_dir.empty()) {
    if (const char* given = std::getenv("CREDENTIALS_DIRECTORY")) places.credentials_dir = given;
  }
  return places;
}

}  // namespace

class Supervisor::Impl {
 public:
  Impl(asio::any_io_executor executor, SupervisorOptions options, PluginObserver& observer, EventLog& events)
      : config_dir_(options.config_dir),
        registry_(executor),
        context_{.executor = executor,
                 .places = PlacesOf(options),
                 .held_by = std::move(options.held_by),
                 .busy_until = std::move(options.busy_until),
                 .observer = observer,
                 .events = events,
                 .registry = registry_},
        runs_(std::move(executor), "supervisor") {}

  Awaitable<absl::Status> Start() {
    const std::string dir = config_dir_ + "/plugins.d";
    absl::StatusOr<std::vector<PluginFile>> files = LoadPluginDir(dir, context_.places);
    if (absl::IsNotFound(files.status())) {
      SPDLOG_WARN("{}; there are no plugin files", MessageOf(files.status()));
      files = std::vector<PluginFile>();
    }
    if (!files.ok()) co_return files.status();
    BERTH_CO_ASSIGN_OR_RETURN(const std::vector<std::string> recorded,
                              ListRunRecords(context_.places.runtime_dir));
    for (PluginFile& file : *files) {
      const std::string id = file.id;
      runners_.emplace(id, std::make_unique<PluginRunner>(context_, std::move(file)));
    }
    for (const std::string& id : recorded) {
      if (!runners_.contains(id)) runners_.emplace(id, std::make_unique<PluginRunner>(context_, id));
    }
    for (const auto& [id, runner] : runners_) runs_.Spawn(id, runner->Run());
    for (const auto& [id, runner] : runners_) co_await runner->WaitBegun();
    co_return absl::OkStatus();
  }

  Awaitable<void> Shutdown() {
    co_await runs_.Join();
    for (const auto& [id, runner] : runners_) co_await runner->LetGo();
  }

  absl::StatusOr<PluginRunner*> Find(const std::string& id) const {
    if (PluginRunner* runner = Present(id)) return runner;
    std::vector<std::string_view> ids;
    for (const auto& [each, plugin] : registry_.plugins()) ids.push_back(each);
    return absl::NotFoundError(
        ids.empty() ? fmt::format("plugin {}: there are no plugins on this node", Printable(id, 128))
                    : fmt::format("plugin {}: no such plugin on this node; there are {}", Printable(id, 128),
                                  fmt::join(ids, ", ")));
  }

  // Null where there is none.
  PluginRunner* Present(const std::string& id) const {
    const auto runner = runners_.find(id);
    return runner == runners_.end() || runner->second->gone() ? nullptr : runner->second.get();
  }

  Registry& registry() { return registry_; }

 private:
  std::string config_dir_;
  Registry registry_;
  RunnerContext context_;
  std::map<std::string, std::unique_ptr<PluginRunner>> runners_;  // never shrinks: waiters hold on to them
  TaskScope runs_;
};

Supervisor::Supervisor(asio::any_io_executor executor, SupervisorOptions options, PluginObserver& observer,
                       EventLog& events)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options), observer, events)) {}

Supervisor::~Supervisor() = default;

Awaitable<absl::Status> Supervisor::Start() { return impl_->Start(); }

Awaitable<void> Supervisor::Shutdown() { return impl_->Shutdown(); }

Awaitable<absl::Status> Supervisor::StartPlugin(std::string id, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginRunner* const runner, impl_->Find(id));
  co_return co_await runner->Start(deadline);
}

Awaitable<absl::Status> Supervisor::StopPlugin(std::string id, bool force, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginRunner* const runner, impl_->Find(id));
  co_return co_await runner->Stop(force, deadline);
}

Awaitable<absl::Status> Supervisor::RestartPlugin(std::string id, bool force, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginRunner* const runner, impl_->Find(id));
  co_return co_await runner->Restart(force, deadline);
}

Awaitable<absl::Status> Supervisor::DrainPlugin(std::string id, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginRunner* const runner, impl_->Find(id));
  co_return co_await runner->Drain(deadline);
}

Awaitable<absl::Status> Supervisor::SwapPlugin(std::string id, SwapRequest request, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(PluginRunner* const runner, impl_->Find(id));
  co_return co_await runner->Swap(std::move(request), deadline);
}

Awaitable<absl::StatusOr<ReloadReport>> Supervisor::Reload() {
  co_return absl::UnimplementedError("reload: not built yet");
}

void Supervisor::OnHealth(const std::string& plugin_id, uint64_t incarnation, const PluginHealth& health) {
  if (PluginRunner* runner = impl_->Present(plugin_id)) runner->OnHealth(incarnation, health);
}

void Supervisor::OnFacts(const std::string& plugin_id, uint64_t incarnation,
                         absl::StatusOr<PluginFacts> facts, const std::string& computed_class) {
  if (PluginRunner* runner = impl_->Present(plugin_id)) {
    runner->OnFacts(incarnation, std::move(facts), computed_class);
  }
}

void Supervisor::OnIdle(const std::string& plugin_id, uint64_t incarnation) {
  if (PluginRunner* runner = impl_->Present(plugin_id)) runner->OnIdle(incarnation);
}

void Supervisor::OnHoldersChanged(const std::string& plugin_id) {
  if (PluginRunner* runner = impl_->Present(plugin_id)) runner->OnHoldersChanged();
}

std::string Supervisor::placement() const { return "none: not built yet"; }

std::vector<std::string> Supervisor::Problems() const { return {}; }

Registry& Supervisor::registry() { return impl_->registry(); }

}  // namespace berth
