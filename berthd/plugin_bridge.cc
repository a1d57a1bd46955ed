#include "berthd/plugin_bridge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

namespace berth {

PluginBridge::PluginBridge(asio::any_io_executor executor, EventLog& events, RecentSecrets& secrets)
    : connections_(std::move(executor), events, secrets, Sink()) {}

PluginBridge::~PluginBridge() = default;

ConnectionSink PluginBridge::Sink() {
  return {
      .on_health = [this](const std::string& id, uint64_t number,
                          const PluginHealth& health) { supervisor_->OnHealth(id, number, health); },
      .on_facts =
          [this](const std::string& id, uint64_t number, absl::StatusOr<PluginFacts> facts,
                 const std::string& computed_class) {
            supervisor_->OnFacts(id, number, std::move(facts), computed_class);
          },
      .on_idle = [this](const std::string& id, uint64_t number) { supervisor_->OnIdle(id, number); },
      .holds_volumes = [this](const std::string& id) { return !mounter_->HeldThrough(id).empty(); },
  };
}

void PluginBridge::Connect(Supervisor* supervisor, Mounter* mounter,
                           std::function<Awaitable<absl::StatusOr<NodeReload>>(TimePoint answer_by)> reload) {
  supervisor_ = supervisor;
  mounter_ = mounter;
  reload_ = std::move(reload);
}

Awaitable<void> PluginBridge::CarryTokensWanted() {
  Registry& registry = supervisor_->registry();
  uint64_t told = 0;
  while (true) {
    [[maybe_unused]] const bool changed = co_await registry.WaitTokensChanged(told, TimePoint::max());
    told = registry.tokens_version();
    mounter_->OnTokensWantedChanged();
  }
}

Awaitable<void> PluginBridge::Shutdown() { return connections_.Shutdown(); }

void PluginBridge::OnSocketAppeared(const Instance& instance) {
  const PluginSnapshot* known = supervisor_->registry().Find(instance.plugin_id);
  connections_.Open(instance, known != nullptr ? known->facts : std::nullopt);
}

void PluginBridge::OnHealthConfig(const std::string& plugin_id, uint64_t number, const HealthConfig& health) {
  const PluginSnapshot* known = supervisor_->registry().Find(plugin_id);
  connections_.ProbeOtherwise(plugin_id, number, health, known != nullptr ? known->facts : std::nullopt);
}

void PluginBridge::OnInstanceGone(const std::string& plugin_id, uint64_t number) {
  connections_.Close(plugin_id, number);
}

std::optional<TimePoint> PluginBridge::BusyUntil(const std::string& plugin_id, uint64_t instance) const {
  const auto* connection = connections_.Find(plugin_id, instance);
  return connection == nullptr ? std::nullopt : connection->client->busy_until();
}

absl::StatusOr<PluginDirectory::Entry> PluginBridge::Find(const std::string& plugin_id) {
  const Registry& registry = supervisor_->registry();
  const PluginSnapshot* plugin = registry.Find(plugin_id);
  if (plugin == nullptr) {
    std::vector<std::string> ids;
    for (const auto& [id, unused] : registry.plugins()) ids.push_back(id);
    return absl::NotFoundError(
        fmt::format("plugin {}: no such plugin on this node; there {}", plugin_id,
                    ids.empty() ? "is none" : fmt::format("are {}", fmt::join(ids, ", "))));
  }
  const auto* connection = connections_.Find(plugin_id, plugin->instance);
  const bool answers = plugin->ready && !plugin->paused && plugin->facts && connection != nullptr;
  if (!answers || (!plugin->registered && connection->only_lets_go.empty())) {
    return absl::UnavailableError(fmt::format("plugin {} is {}{}{}", plugin_id,
                                              PluginStateName(plugin->state),
                                              plugin->reason.empty() ? "" : ": ", plugin->reason));
  }
  if (!plugin->facts->has_node_service) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {} has no node service: it is a controller only", plugin_id));
  }
  std::string refuses_new;
  if (plugin->draining) {
    refuses_new = fmt::format("plugin {} is being drained: it takes nothing new", plugin_id);
  } else if (!plugin->registered) {
    refuses_new = fmt::format("plugin {} takes nothing new: {}", plugin_id, connection->only_lets_go);
  }
  return Entry{.client = connection->client,
               .facts = *plugin->facts,
               .refuses_new = std::move(refuses_new),
               .volumes_path = connection->instance.volumes_path,
               .pod_info = plugin->pod_info,
               .pid = plugin->pid};
}

Awaitable<void> PluginBridge::WaitUsable(std::string plugin_id, TimePoint deadline) {
  Registry& registry = supervisor_->registry();
  while (Clock::now() < deadline) {
    const uint64_t seen = registry.version();
    if (!absl::IsUnavailable(Find(plugin_id).status())) co_return;
    if (!co_await registry.WaitChanged(seen, deadline)) co_return;
  }
}

std::vector<WantedToken> PluginBridge::TokensWanted(const std::string& plugin_id) const {
  const PluginSnapshot* plugin = supervisor_->registry().Find(plugin_id);
  return plugin == nullptr ? std::vector<WantedToken>() : plugin->tokens;
}

Duration PluginBridge::RestartAfterHungCall(const std::string& plugin_id) const {
  const PluginSnapshot* plugin = supervisor_->registry().Find(plugin_id);
  if (plugin == nullptr) return Duration::zero();
  const auto* connection = connections_.Find(plugin_id, plugin->instance);
  return connection == nullptr ? Duration::zero() : connection->instance.health.restart_after_hung_call;
}

Awaitable<absl::Status> PluginBridge::RestartHung(std::string plugin_id, TimePoint deadline) {
  if (!restarting_.insert(plugin_id).second) {
    co_await WaitUsable(plugin_id, deadline);
    co_return absl::OkStatus();
  }
  struct Restarting {
    std::set<std::string>* all;
    std::string id;
    ~Restarting() { all->erase(id); }
  } const restarting{&restarting_, plugin_id};
  co_return co_await supervisor_->RestartPlugin(plugin_id, /*force=*/false, deadline);
}

std::shared_ptr<CsiClient> PluginBridge::ClientOf(const std::string& plugin_id) {
  const PluginSnapshot* plugin = supervisor_->registry().Find(plugin_id);
  if (plugin == nullptr) return nullptr;
  const auto* connection = connections_.Find(plugin_id, plugin->instance);
  return connection == nullptr ? nullptr : connection->client;
}

Awaitable<void> PluginBridge::WaitChange(TimePoint deadline) {
  Registry& registry = supervisor_->registry();
  [[maybe_unused]] const bool changed = co_await registry.WaitChanged(registry.version(), deadline);
}

const std::map<std::string, PluginSnapshot>& PluginBridge::plugins() const {
  return supervisor_->registry().plugins();
}

Awaitable<absl::Status> PluginBridge::StartPlugin(std::string id, TimePoint deadline) {
  return supervisor_->StartPlugin(std::move(id), deadline);
}

Awaitable<absl::Status> PluginBridge::StopPlugin(std::string id, bool force, TimePoint deadline) {
  return supervisor_->StopPlugin(std::move(id), force, deadline);
}

Awaitable<absl::Status> PluginBridge::RestartPlugin(std::string id, bool force, TimePoint deadline) {
  return supervisor_->RestartPlugin(std::move(id), force, deadline);
}

Awaitable<absl::Status> PluginBridge::DrainPlugin(std::string id, TimePoint deadline) {
  return supervisor_->DrainPlugin(std::move(id), deadline);
}

Awaitable<absl::Status> PluginBridge::SwapPlugin(std::string id, SwapRequest request, TimePoint deadline) {
  return supervisor_->SwapPlugin(std::move(id), std::move(request), deadline);
}

Awaitable<absl::Status> PluginBridge::PlacePlugin(std::string id, std::string content, TimePoint deadline) {
  return supervisor_->PlacePlugin(std::move(id), std::move(content), deadline);
}

Awaitable<absl::Status> PluginBridge::RemovePlacedPlugin(std::string id, TimePoint deadline) {
  return supervisor_->RemovePlacedPlugin(std::move(id), deadline);
}

Awaitable<absl::StatusOr<NodeReload>> PluginBridge::Reload(TimePoint answer_by) { return reload_(answer_by); }

Awaitable<absl::StatusOr<LogBatch>> PluginBridge::ReadLog(std::string id, LogQuery query,
                                                          TimePoint deadline) {
  return supervisor_->logs().Read(std::move(id), query, deadline);
}

std::string PluginBridge::Placement() const { return supervisor_->placement(); }

}  // namespace berth
