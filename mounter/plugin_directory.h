// How the mounter reaches plugins. Implemented by main over the registry; it outlives the Mounter. Loop
// thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "csi/plugin_facts.h"
#include "mounter/consumer_tokens.h"

namespace berth {

class PluginDirectory {
 public:
  struct Entry {
    std::shared_ptr<CsiClient> client;
    PluginFacts facts;
    // Not empty: it is being drained, or comes as another node. Nothing new is staged or published through
    // it, with this for the reason; what has begun goes on, and what takes volumes away.
    std::string refuses_new = {};
    // Where the plugin sees the tree of volumes; empty: where we do.
    std::string volumes_path = {};
    // It reads Kubernetes' keys about the consumer, as its file says.
    bool pod_info = false;
    // Who serves its socket; 0: unknown.
    int64_t pid = 0;
  };
  virtual ~PluginDirectory() = default;
  // The plugin, if it is registered and serves Node now. NOT_FOUND: no such plugin (the message names those
  // there are). UNAVAILABLE: not now (the message says its state and reason). FAILED_PRECONDITION: it has no
  // node service.
  [[nodiscard]] virtual absl::StatusOr<Entry> Find(const std::string& plugin_id) = 0;
  // Waits until Find(plugin_id) could give something else than UNAVAILABLE, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitUsable(std::string plugin_id, TimePoint deadline) = 0;
  // The tokens that it wants with each NodePublishVolume, whether it can be called now or not. Empty: none,
  // or there is no such plugin.
  [[nodiscard]] virtual std::vector<WantedToken> TokensWanted(const std::string& plugin_id) const = 0;
  // For how long a reverse call may hang in the plugin itself before RestartHung; zero: for ever.
  [[nodiscard]] virtual Duration RestartAfterHungCall(const std::string& plugin_id) const = 0;
  // Restarts a plugin that hangs in a call, which has been cancelled; its other calls are waited for. OK once
  // the new process runs; joins a restart that is under way. Errors: why it is not restarted;
  // DEADLINE_EXCEEDED: it goes on.
  [[nodiscard]] virtual Awaitable<absl::Status> RestartHung(std::string plugin_id, TimePoint deadline) = 0;
};

}  // namespace berth
