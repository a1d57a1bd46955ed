// Runs the plugins of a node: one process (tree) per plugin file, launched, watched, restarted, stopped in
// order, and taken back after berthd was away.
//
// Owned by main; loop thread only. The Supervisor knows processes and sockets. A PluginObserver probes the
// plugins: the Supervisor says when to begin and end, and gets the results (OnHealth, OnFacts). Restart
// decisions are RestartPolicy's, states are PluginLifecycle's: both pure, in this folder.
//
// Nothing here fails as a whole for the sake of one plugin: a broken file is a FAILED plugin with a reason.
//
// Events, all with the plugin's id: plugin.launched, plugin.adopted, plugin.not_adopted (the recorded
// process is unknown, or the record damaged), plugin.ready, plugin.joined and plugin.left (the registry),
// plugin.refused, plugin.unhealthy, plugin.draining (and each change of what it waits for), plugin.stopping,
// plugin.exited, plugin.backing_off, plugin.stopped, plugin.failed, plugin.swapping, plugin.swapped,
// plugin.swap_failed, plugin.reconfigured (its file was changed and is taken over), plugin.file_broken,
// plugin.no_tree (berthd does not run it, and it cannot work with the tree of volumes), plugin.does_less (it
// was started again and has lost a capability, or says another topology, while volumes are in use through
// it).
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "csi/recent_secrets.h"
#include "supervisor/cgroups/plugin_cgroup.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/plugin_config.h"
#include "supervisor/registry.h"

namespace berth {

// One run of one plugin, from its socket's appearance on.
struct Instance {
  std::string plugin_id;
  uint64_t number = 0;
  PluginKind kind = PluginKind::kMonolith;
  std::string socket_path;
  HealthConfig health;       // probe interval, timeout, failure threshold: from the plugin's file
  std::string volumes_path;  // where the plugin sees <state_dir>/volumes; empty: there
};

// Implemented by the part that calls plugins. Called on the loop thread; must not block, nor call back into
// the Supervisor before returning (post instead).
class PluginObserver {
 public:
  virtual ~PluginObserver() = default;
  // The plugin's socket has appeared. Called at most once per instance.
  virtual void OnSocketAppeared(const Instance& instance) = 0;
  // The process has ended, or is about to be stopped: no more calls through it.
  virtual void OnInstanceGone(const std::string& plugin_id, uint64_t number) = 0;
  // The plugin's file was changed: it is to be probed otherwise from now on.
  virtual void OnHealthConfig(const std::string& /*plugin_id*/, uint64_t /*number*/,
                              const HealthConfig& /*health*/) {}
};

// Why the process of a plugin that berthd does not run cannot work with the tree of volumes at `volumes_path`
// (empty: where we see it), for people. Empty: it can, or its mounts cannot be read.
using TreeCheck = std::function<Awaitable<std::string>(pid_t process, std::string volumes_path)>;

struct SupervisorOptions {
  // All three absolute.
  std::string config_dir;   // plugins.d/*.toml is read beneath it
  std::string state_dir;    // plugins/<id>/ is each plugin's BERTH_PLUGIN_DIR, logs/<id>.log its output
  std::string runtime_dir;  // plugins/<id>/csi.sock and run.toml, by which the next berthd takes it back
  std::string node_id;
  // Volumes held through a plugin: what StopPlugin refuses for, by name. Set by main (the mounter knows).
  std::function<std::vector<std::string>(const std::string& plugin_id)> held_by;
  // UNAVAILABLE once berthd is being stopped: then no plugin is launched, replaced or swapped any more. Null:
  // always OK.
  std::function<absl::Status()> may_go_forward;
  // The latest deadline of the operations that are in flight through this instance; none: nullopt.
  std::function<std::optional<TimePoint>(const std::string& plugin_id, uint64_t instance)> busy_until;
  // InstanceContext::on_user (plugin_instance.h). Set by main (the tree of volumes is opened to these users).
  std::function<void(const std::string& socket_path, std::optional<uid_t> user)> on_user = {};
  // Set by main (the mounter knows). Unset: every plugin is taken to see the tree.
  TreeCheck check_tree = {};
  // What the CSI client and the launch know of secrets; outlives the Supervisor. Null: one of its own.
  RecentSecrets* secrets = nullptr;
  CgroupOptions cgroups = {};
  // Where systemd's credentials of berthd lie. Empty: what $CREDENTIALS_DIRECTORY says, if it is set.
  std::string credentials_dir = {};
};

struct SwapRequest {
  // Overrides command and arguments of the plugin's file, until the file is changed or a swap is asked for
  // without a command. Empty: what the file says now.
  std::string command;
  std::vector<std::string> arguments;
  bool accept_changes = false;  // capabilities may be fewer, topology another
  bool force = false;           // waits for no operation, nor for volumes of one that serves mounts itself
};

// Ids of plugins; with an error where one is broken or could not be done.
struct ReloadReport {
  std::vector<std::string> started;
  std::vector<std::string> stopped;
  std::vector<std::string> swapped;  // replaced by a new process
  std::vector<std::string> updated;  // what needs no new process
  std::vector<std::string> unchanged;
  std::vector<std::string> broken;   // "nfs: /etc/berth/plugins.d/nfs.toml:4: colour: unknown key"
  std::vector<std::string> pending;  // not done yet, and goes on
};

class Supervisor {
 public:
  Supervisor(asio::any_io_executor executor, SupervisorOptions options, PluginObserver& observer,
             EventLog& events);
  ~Supervisor();

  // Reads plugins.d, takes back what still runs, launches the rest. Returns once each plugin was begun (not
  // once it is ready). Broken files end up as FAILED plugins; the status is about plugins.d itself, which may
  // be missing: then there are no plugin files.
  //
  // What still runs is taken back as it is, also if its file was changed or broken meanwhile (its reason says
  // so; a restart applies the file). One without a file is stopped, unless volumes are in use through it.
  [[nodiscard]] Awaitable<absl::Status> Start();

  // Ends berthd's part; the plugins run on (the next berthd takes them back). Observers are not called. To be
  // awaited before this is destroyed.
  [[nodiscard]] Awaitable<void> Shutdown();

  // All that name a plugin: NOT_FOUND (the message names the plugins there are); DEADLINE_EXCEEDED at
  // `deadline`, while the work goes on. StartPlugin, RestartPlugin and SwapPlugin read the plugin's file
  // afresh.

  // Answers once it is registered, and FAILED_PRECONDITION with the reason as soon as it fails, backs off, is
  // refused or its file is wrong. If it runs: OK at once; if it drains: that ends.
  [[nodiscard]] Awaitable<absl::Status> StartPlugin(std::string id, TimePoint deadline);
  // Waits for the operations in flight (none may begin), ends the process, and answers once it is gone.
  // FAILED_PRECONDITION while volumes are in use through it (the message names the consumers). `force` waits
  // for no operation and ignores volumes. It stays stopped until it is started, or berthd is.
  [[nodiscard]] Awaitable<absl::Status> StopPlugin(std::string id, bool force, TimePoint deadline);
  // The same with a new process at the end; callers queue meanwhile. Volumes may be held, unless the plugin
  // serves its mounts itself and its children are not kept: FAILED_PRECONDITION then, unless `force`.
  [[nodiscard]] Awaitable<absl::Status> RestartPlugin(std::string id, bool force, TimePoint deadline);
  // Refuses new work, waits until every volume has left, then stops. Answers once it is stopped; a second
  // call joins the first. The wish outlives berthd. ABORTED: it was started again meanwhile.
  // FAILED_PRECONDITION: it does not run, and volumes are held.
  [[nodiscard]] Awaitable<absl::Status> DrainPlugin(std::string id, TimePoint deadline);
  // Replaces the process by another command, or by what the file says now: swap_plan.h. OK once the new one
  // serves. FAILED_PRECONDITION: it does not, why, and that the old one serves again.
  [[nodiscard]] Awaitable<absl::Status> SwapPlugin(std::string id, SwapRequest request, TimePoint deadline);

  // Reads plugins.d again and touches only what changed (reload.h). The status is about plugins.d itself,
  // which must be there; what a single plugin's file does not allow is in the report. Answers by `answer_by`
  // with what is done by then; the rest goes on, also where the caller is cancelled. ABORTED: a reload is
  // under way. DEADLINE_EXCEEDED: the files have not been read by then.
  [[nodiscard]] Awaitable<absl::StatusOr<ReloadReport>> Reload(TimePoint answer_by);

  // Writes the plugin's file in the place of what a scheduler placed before (placed_files.h), durably, and
  // starts or changes the plugin, as Reload does for this file alone. OK: the plugin is what the file says,
  // or is being started. INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION (it cannot be launched):
  // nothing is changed. DEADLINE_EXCEEDED: it goes on.
  [[nodiscard]] Awaitable<absl::Status> PlacePlugin(std::string id, std::string content, TimePoint deadline);
  // Removes such a file, durably, and stops its plugin; if volumes are in use, it runs until they have left.
  // OK if there is no such plugin. FAILED_PRECONDITION: a person wrote its file.
  [[nodiscard]] Awaitable<absl::Status> RemovePlacedPlugin(std::string id, TimePoint deadline);

  // What probing has found. Of an instance that is no longer the present one: ignored.
  void OnHealth(const std::string& plugin_id, uint64_t instance, const PluginHealth& health);
  // `facts` not OK: the plugin is refused (another name, or a node id while something is held): it stays
  // alive, is not registered, and the reason is shown.
  void OnFacts(const std::string& plugin_id, uint64_t instance, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class);

  // The last operation in flight through this instance has ended.
  void OnIdle(const std::string& plugin_id, uint64_t instance);
  // `held_by` would say something else now.
  void OnHoldersChanged(const std::string& plugin_id);

  [[nodiscard]] Registry& registry();
  [[nodiscard]] PluginLogs& logs();
  // Where this node puts plugins' processes: "systemd scopes", "cgroups beneath …", "none: …".
  [[nodiscard]] std::string placement() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
