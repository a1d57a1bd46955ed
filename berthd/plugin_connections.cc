#include "berthd/plugin_connections.h"

#include "base/status.h"
#include "fingerprint/facts.h"

namespace berth {

PluginConnections::PluginConnections(asio::any_io_executor executor, EventLog& events, RecentSecrets& secrets,
                                     ConnectionSink sink)
    : executor_(executor),
      events_(events),
      secrets_(secrets),
      sink_(std::move(sink)),
      ending_(std::move(executor), "connections") {}

PluginConnections::~PluginConnections() = default;

void PluginConnections::Open(const Instance& instance, std::optional<PluginFacts> known) {
  const Key key(instance.plugin_id, instance.number);
  if (shut_down_ || connections_.contains(key)) return;
  CsiClientOptions client_options{
      .secrets = &secrets_,
      .plugin_id = instance.plugin_id,
      .on_idle = [this, key] { sink_.on_idle(key.first, key.second); },
      .on_exhausted = [this, key] { OnExhausted(key); },
  };
  Connection& connection = connections_[key];
  connection.instance = instance;
  connection.client = CsiClient::Connect(instance.socket_path, std::move(client_options));
  connection.health.since = WallClock::now();
  connection.fingerprinter = Probe(key, connection, std::move(known));
}

std::unique_ptr<Fingerprinter> PluginConnections::Probe(const Key& key, const Connection& connection,
                                                        std::optional<PluginFacts> known) {
  const Instance& instance = connection.instance;
  FingerprintOptions options{
      .plugin_id = instance.plugin_id,
      .expect_node = instance.kind != PluginKind::kController,
      .expect_controller = instance.kind != PluginKind::kNode,
      .interval = instance.health.interval,
      .timeout = instance.health.timeout,
      .fingerprint_interval = instance.health.fingerprint_interval,
      .known = std::move(known),
  };
  FingerprintSink sink{
      .on_probe = [this, key](const ProbeResult& result) { OnProbe(key, result); },
      .on_facts =
          [this, key](absl::StatusOr<PluginFacts> facts, const std::string& computed_class) {
            if (const auto found = connections_.find(key); found != connections_.end()) {
              if (facts.ok()) found->second.driver_name = facts->name;
              found->second.only_lets_go = MayLetGo(facts.status()) ? MessageOf(facts.status()) : "";
            }
            sink_.on_facts(key.first, key.second, std::move(facts), computed_class);
          },
      .holds_volumes = [this, key] { return sink_.holds_volumes(key.first); },
  };
  return std::make_unique<Fingerprinter>(executor_, std::move(options), connection.client, std::move(sink),
                                         events_);
}

void PluginConnections::OnExhausted(const Key& key) {
  const auto refusing = connections_.find(key);
  if (refusing == connections_.end()) return;
  for (auto& [other, connection] : connections_) {
    // The limit is the node plugin's, and the refusal may be the controller's.
    if (other != key && connection.driver_name != refusing->second.driver_name) continue;
    if (connection.fingerprinter) connection.fingerprinter->ReadAgain();
  }
}

void PluginConnections::ProbeOtherwise(const std::string& plugin_id, uint64_t number,
                                       const HealthConfig& health, std::optional<PluginFacts> known) {
  const Key key(plugin_id, number);
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.instance.health = health;
  ending_.Spawn(plugin_id, End(std::move(connection.fingerprinter)));
  connection.fingerprinter = Probe(key, connection, std::move(known));
}

void PluginConnections::Close(const std::string& plugin_id, uint64_t number) {
  auto node = connections_.extract(Key(plugin_id, number));
  if (!node.empty()) ending_.Spawn(plugin_id, End(std::move(node.mapped().fingerprinter)));
}

Awaitable<void> PluginConnections::Shutdown() {
  shut_down_ = true;
  while (!connections_.empty()) {
    const Key key = connections_.begin()->first;
    Close(key.first, key.second);
  }
  co_await ending_.WaitEmpty();
}

Awaitable<void> PluginConnections::End(std::unique_ptr<Fingerprinter> fingerprinter) {
  co_await fingerprinter->Stop();
}

const PluginConnections::Connection* PluginConnections::Find(const std::string& plugin_id,
                                                             uint64_t number) const {
  const auto connection = connections_.find(Key(plugin_id, number));
  return connection == connections_.end() ? nullptr : &connection->second;
}

void PluginConnections::OnProbe(const Key& key, const ProbeResult& result) {
  const auto connection = connections_.find(key);
  if (connection == connections_.end()) return;
  PluginHealth& health = connection->second.health;
  if (health.ok != result.ok || !health.last_probe_at) health.since = result.at;
  health.ok = result.ok;
  health.last_probe_at = result.at;
  health.latency = result.latency;
  health.error = result.error;
  health.answered = result.answered;
  health.storage = result.storage;
  health.consecutive_failures = result.ok ? 0 : health.consecutive_failures + 1;
  // By value: the callee may close this connection.
  const PluginHealth found = health;
  sink_.on_health(key.first, key.second, found);
}

}  // namespace berth
