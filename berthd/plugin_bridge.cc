#include "berthd/plugin_bridge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace berth {

PluginBridge::PluginBridge(asio::any_io_executor executor, EventLog& events)
    : executor_(executor), events_(events), ending_(std::move(executor), "bridge") {}

PluginBridge::~PluginBridge() = default;

void PluginBridge::Connect(Supervisor* supervisor, Mounter* mounter) {
  supervisor_ = supervisor;
  mounter_ = mounter;
}

Awaitable<void> PluginBridge::Shutdown() {
  while (!connections_.empty()) {
    auto node = connections_.extract(connections_.begin());
    if (node.mapped().fingerprinter) co_await node.mapped().fingerprinter->Stop();
  }
  co_await ending_.WaitEmpty();
}

void PluginBridge::OnSocketAppeared(const Incarnation& incarnation) {
  OnIncarnationGone(incarnation.plugin_id, 0);  // Of the same plugin, only the newest counts.
  Connection& connection = connections_[incarnation.plugin_id];
  connection.incarnation = incarnation.number;
  connection.client = CsiClient::Connect(incarnation.socket_path);
  connection.health.since = WallClock::now();

  const std::string id = incarnation.plugin_id;
  const uint64_t number = incarnation.number;
  const PluginSnapshot* known = supervisor_->registry().Find(id);
  FingerprintOptions options{
      .plugin_id = id,
      .expect_node = incarnation.kind != PluginKind::kController,
      .expect_controller = incarnation.kind != PluginKind::kNode,
      .interval = incarnation.health.interval,
      .timeout = incarnation.health.timeout,
      .fingerprint_interval = incarnation.health.fingerprint_interval,
      .known = known != nullptr ? known->facts : std::nullopt,
  };
  FingerprintSink sink{
      .on_probe = [this, id, number](const ProbeResult& result) { OnProbe(id, number, result); },
      .on_facts =
          [this, id, number](absl::StatusOr<PluginFacts> facts, const std::string& computed_class) {
            supervisor_->OnFacts(id, number, std::move(facts), computed_class);
          },
      .holds_volumes = [this, id] { return !mounter_->HeldThrough(id).empty(); },
  };
  connection.fingerprinter = std::make_unique<Fingerprinter>(executor_, std::move(options), connection.client,
                                                             std::move(sink), events_);
}

void PluginBridge::OnIncarnationGone(const std::string& plugin_id, uint64_t number) {
  const auto it = connections_.find(plugin_id);
  if (it == connections_.end() || (number != 0 && it->second.incarnation != number)) return;
  auto node = connections_.extract(it);
  ending_.Spawn(plugin_id, End(std::move(node.mapped().fingerprinter)));
}

Awaitable<void> PluginBridge::End(std::unique_ptr<Fingerprinter> fingerprinter) {
  co_await fingerprinter->Stop();
}

void PluginBridge::OnProbe(const std::string& plugin_id, uint64_t incarnation, const ProbeResult& result) {
  const auto it = connections_.find(plugin_id);
  if (it == connections_.end() || it->second.incarnation != incarnation) return;
  PluginHealth& health = it->second.health;
  if (health.ok != result.ok || !health.last_probe_at) health.since = result.at;
  health.ok = result.ok;
  health.last_probe_at = result.at;
  health.latency = result.latency;
  health.error = result.error;
  health.consecutive_failures = result.ok ? 0 : health.consecutive_failures + 1;
  supervisor_->OnHealth(plugin_id, incarnation, health);
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
  const auto connection = connections_.find(plugin_id);
  if (!plugin->registered || !plugin->ready || !plugin->facts || connection == connections_.end()) {
    return absl::UnavailableError(fmt::format("plugin {} is {}{}{}", plugin_id,
                                              PluginStateName(plugin->state),
                                              plugin->reason.empty() ? "" : ": ", plugin->reason));
  }
  if (!plugin->facts->has_node_service) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {} has no node service: it is a controller only", plugin_id));
  }
  return Entry{.client = connection->second.client, .facts = *plugin->facts};
}

Awaitable<void> PluginBridge::WaitUsable(std::string plugin_id, TimePoint deadline) {
  Registry& registry = supervisor_->registry();
  while (Clock::now() < deadline) {
    const uint64_t seen = registry.version();
    if (!absl::IsUnavailable(Find(plugin_id).status())) co_return;
    if (!co_await registry.WaitChanged(seen, deadline)) co_return;
  }
}

std::shared_ptr<CsiClient> PluginBridge::ClientOf(const std::string& plugin_id) {
  const auto connection = connections_.find(plugin_id);
  return connection == connections_.end() ? nullptr : connection->second.client;
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

Awaitable<absl::StatusOr<ReloadReport>> PluginBridge::Reload(TimePoint /*deadline*/) {
  return supervisor_->Reload();
}

Awaitable<absl::StatusOr<LogBatch>> PluginBridge::ReadLog(std::string /*id*/, LogQuery /*query*/,
                                                          TimePoint /*deadline*/) {
  co_return absl::UnimplementedError("the logs of plugins cannot be read yet");
}

std::string PluginBridge::Placement() const { return supervisor_->placement(); }

std::vector<std::string> PluginBridge::Problems() const { return supervisor_->Problems(); }

}  // namespace berth
