// The registry: what is known of every plugin of this node, live and watchable.
//
// Owned by the Supervisor, which alone writes it; read by everybody on the loop thread. A snapshot is a
// plain value. Three facts are kept apart: alive (its process runs), ready (it answers Probe as ready),
// registered (what it is has been read, and it takes work). Each plugin joins when it becomes registered and
// leaves when it ceases to be: events plugin.joined and plugin.left, always in pairs, the latter with why.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/task_scope.h"
#include "csi/health.h"
#include "csi/plugin_facts.h"
#include "csi/wanted_token.h"

namespace berth {

enum class PluginState { kStopped, kStarting, kReady, kUnhealthy, kBackingOff, kDraining, kFailed };
[[nodiscard]] std::string_view PluginStateName(PluginState state);

enum class PluginKind { kNode, kController, kMonolith };
[[nodiscard]] std::string_view PluginKindName(PluginKind kind);

// Of the last Probe of the present instance.
struct PluginHealth {
  bool ok = false;
  std::optional<WallTime> last_probe_at;
  Duration latency{};
  std::string error;
  bool answered = true;  // with `ok` false: it was answered, with ready = false, which is no illness
  int consecutive_failures = 0;
  WallTime since;
  std::vector<HealthStatus> storage;  // what is wrong with its storage, as it says

  bool operator==(const PluginHealth&) const = default;
};

struct PluginSnapshot {
  std::string id;
  PluginKind kind = PluginKind::kMonolith;
  PluginState state = PluginState::kStopped;
  TimePoint since;  // of the state
  // How long it may take to become ready.
  Duration start_timeout = std::chrono::seconds(30);
  bool alive = false;
  bool ready = false;
  bool registered = false;
  std::string reason;
  std::string config_file;
  bool placed = false;  // by a scheduler: the file
  pid_t pid = 0;
  std::string socket_path;
  std::optional<WallTime> started_at;
  int restarts = 0;
  std::string last_exit;
  std::optional<WallTime> last_exit_at;
  std::optional<WallTime> next_restart_at;
  std::vector<std::string> last_output;
  uint64_t instance = 0;
  PluginHealth health;
  // Of the present instance, or the last one that was read; unset until read once.
  std::optional<PluginFacts> facts;
  std::string computed_class;
  std::optional<WallTime> facts_read_at;
  // What its file wants it to be given when it publishes; of the last file that could be read, also by an
  // earlier berthd that ran it.
  std::vector<WantedToken> tokens;
  bool pod_info = false;  // as `tokens`: it is to be given Kubernetes' keys about the consumer

  // No new call may begin now, and that passes soon (it is being restarted, replaced or swapped): callers
  // queue rather than fail. Calls in flight go on.
  bool paused = false;
  // It is to be stopped: new work is refused with `reason`; what takes volumes away goes on until they are
  // gone.
  bool draining = false;
  std::vector<std::string> holders;  // of volumes, while draining: what it waits for
  bool external = false;             // berthd does not run it
  bool serves_mounts = false;        // volumes vanish with its processes
  std::string placement;             // where its processes live: "scope berth-plugin-nfs.scope", "none: …"
  std::string file_error;            // its file is wrong, or was changed, and it runs on as it was launched
  std::string command;               // as launched, with arguments unexpanded; a swap may have changed it
  std::string swap;                  // what the last swap does or did, for people
};

class Registry {
 public:
  explicit Registry(asio::any_io_executor executor);

  [[nodiscard]] const std::map<std::string, PluginSnapshot>& plugins() const { return plugins_; }
  [[nodiscard]] const PluginSnapshot* Find(const std::string& id) const;

  // Grows with every change of any plugin.
  [[nodiscard]] uint64_t version() const { return version_; }
  // Waits until version() is above `seen`, or `deadline`; says whether it is.
  [[nodiscard]] Awaitable<bool> WaitChanged(uint64_t seen, TimePoint deadline);

  // The same of the tokens that plugins want alone.
  [[nodiscard]] uint64_t tokens_version() const { return tokens_version_; }
  [[nodiscard]] Awaitable<bool> WaitTokensChanged(uint64_t seen, TimePoint deadline);

  // For the Supervisor. `since` is the registry's to fill in.
  void Put(PluginSnapshot snapshot);
  void Remove(const std::string& id);

 private:
  std::map<std::string, PluginSnapshot> plugins_;
  uint64_t version_ = 1;
  uint64_t tokens_version_ = 1;
  Condition changed_;
};

}  // namespace berth
