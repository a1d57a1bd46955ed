// The connections to plugins: one client for each instance with a socket, and the Fingerprinter that probes
// over it.
//
// Owned by PluginBridge; loop thread only. A connection is closed when the instance is gone; a call in flight
// needs nothing of it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "csi/recent_secrets.h"
#include "fingerprint/fingerprint.h"
#include "supervisor/supervisor.h"

namespace berth {

// Gets what is found. Called on the loop.
struct ConnectionSink {
  std::function<void(const std::string& plugin_id, uint64_t instance, const PluginHealth&)> on_health;
  std::function<void(const std::string& plugin_id, uint64_t instance, absl::StatusOr<PluginFacts>,
                     const std::string& computed_class)>
      on_facts;
  // The last operation through it has ended.
  std::function<void(const std::string& plugin_id, uint64_t instance)> on_idle;
  // Whether volumes are held through the plugin.
  std::function<bool(const std::string& plugin_id)> holds_volumes;
};

class PluginConnections {
 public:
  PluginConnections(asio::any_io_executor executor, EventLog& events, RecentSecrets& secrets,
                    ConnectionSink sink);
  ~PluginConnections();

  // `known`: what an earlier instance was, if there was one.
  void Open(const Instance& instance, std::optional<PluginFacts> known);
  // With another schedule from now on; what it is is read again.
  void ProbeOtherwise(const std::string& plugin_id, uint64_t number, const HealthConfig& health,
                      std::optional<PluginFacts> known);
  void Close(const std::string& plugin_id, uint64_t number);
  // Closes all, and waits until nothing probes any more.
  [[nodiscard]] Awaitable<void> Shutdown();

  struct Connection {
    Instance instance;
    std::shared_ptr<CsiClient> client;
    std::unique_ptr<Fingerprinter> fingerprinter;
    PluginHealth health;
    // Not empty: it is refused, for this reason, until no volume is in use through it.
    std::string only_lets_go;
    std::string driver_name;  // as it was read last
  };
  // Null if it does not exist.
  [[nodiscard]] const Connection* Find(const std::string& plugin_id, uint64_t number) const;

 private:
  using Key = std::pair<std::string, uint64_t>;  // plugin, instance

  [[nodiscard]] std::unique_ptr<Fingerprinter> Probe(const Key& key, const Connection& connection,
                                                     std::optional<PluginFacts> known);
  // A plugin has refused a volume because of a limit: what it and the others of its driver are is read again.
  void OnExhausted(const Key& key);
  void OnProbe(const Key& key, const ProbeResult& result);
  static Awaitable<void> End(std::unique_ptr<Fingerprinter> fingerprinter);

  asio::any_io_executor executor_;
  EventLog& events_;
  RecentSecrets& secrets_;
  ConnectionSink sink_;
  std::map<Key, Connection> connections_;
  bool shut_down_ = false;
  TaskScope ending_;  // Fingerprinters on their way out
};

}  // namespace berth
