// Runs the plugins of a node: one process (tree) per plugin file, launched, watched, restarted, stopped in
// order, and taken back after berthd was away.
//
// Owned by main; loop thread only. The Supervisor knows processes and sockets. Whether a plugin is well and
// what it can do it is told (OnHealth, OnFacts) by whoever probes it; when to begin and end probing it
// tells through PluginObserver. Restart decisions are RestartPolicy's, states are PluginLifecycle's: both
// pure, beside this file.
//
// Nothing here fails as a whole for the sake of one plugin: a broken file is a FAILED plugin with a reason.
//
// Events, all with the plugin's id: plugin.launched, plugin.taken_back, plugin.not_taken_back (the recorded
// process is a stranger, or the record damaged), plugin.ready, plugin.registered, plugin.refused,
// plugin.unhealthy, plugin.stopping, plugin.exited, plugin.backing_off, plugin.stopped, plugin.failed.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/registry.h"

namespace berth {

// One run of one plugin, from its socket's appearance on.
struct Incarnation {
  std::string plugin_id;
  uint64_t number = 0;
  PluginKind kind = PluginKind::kMonolith;
  std::string socket_path;
  HealthConfig health;  // probe interval, timeout, failure threshold: from the plugin's file
};

// Whoever wants to talk to plugins. Called on the loop thread; must not block, nor call back into the
// Supervisor before returning (post instead).
class PluginObserver {
 public:
  virtual ~PluginObserver() = default;
  // The plugin's socket has appeared. Called at most once per incarnation.
  virtual void OnSocketAppeared(const Incarnation& incarnation) = 0;
  // The process has ended, or is about to be stopped: no more calls through it.
  virtual void OnIncarnationGone(const std::string& plugin_id, uint64_t number) = 0;
};

struct SupervisorOptions {
  // All three absolute.
  std::string config_dir;   // plugins.d/*.toml is read beneath it
  std::string state_dir;    // plugins/<id>/ is each plugin's BERTH_PLUGIN_DIR, logs/<id>.log its output
  std::string runtime_dir;  // plugins/<id>/csi.sock and run.toml, by which the next berthd takes it back
  std::string node_id;
  // Volumes held through a plugin: what StopPlugin refuses for, by name. Set by main (the mounter knows).
  std::function<std::vector<std::string>(const std::string& plugin_id)> held_by;
  // Whether an operation runs through the plugin now.
  std::function<bool(const std::string& plugin_id)> busy;
  // Where systemd's credentials of berthd lie. Empty: what $CREDENTIALS_DIRECTORY says, if it is set.
  std::string credentials_dir = {};
};

class Supervisor {
 public:
  Supervisor(asio::any_io_executor executor, SupervisorOptions options, PluginObserver& observer,
             EventLog& events);
  ~Supervisor();

  // Reads plugins.d, takes back what still runs, launches the rest. Returns once each plugin was begun (not
  // once it is ready). Broken files end up as FAILED plugins; the status is about plugins.d itself, which
  // may be missing: then there are no plugin files.
  //
  // What still runs is taken back as it is, also where its file was changed or broken meanwhile (its reason
  // says so; a restart applies the file). One whose file is gone is stopped, unless volumes are held through
  // it.
  [[nodiscard]] Awaitable<absl::Status> Start();

  // Ends berthd's part; the plugins run on (the next berthd takes them back). Observers are told nothing.
  // To be awaited before this is destroyed.
  [[nodiscard]] Awaitable<void> Shutdown();

  // All three: NOT_FOUND (the message names the plugins there are); DEADLINE_EXCEEDED at `deadline`, while
  // the work goes on. StartPlugin and RestartPlugin read the plugin's file afresh, answer once it is
  // registered, and FAILED_PRECONDITION with the reason as soon as it fails, backs off, is refused or its
  // file is wrong. StartPlugin of one that runs is OK at once.
  [[nodiscard]] Awaitable<absl::Status> StartPlugin(std::string id, TimePoint deadline);
  // Answers once the process is gone. FAILED_PRECONDITION while volumes are held through it (the message
  // names by whom), unless `force`. It stays stopped until it is started, or berthd is.
  [[nodiscard]] Awaitable<absl::Status> StopPlugin(std::string id, bool force, TimePoint deadline);
  // FAILED_PRECONDITION while an operation runs through it, unless `force`.
  [[nodiscard]] Awaitable<absl::Status> RestartPlugin(std::string id, bool force, TimePoint deadline);

  // What probing has found. Of an incarnation that is no longer the present one: ignored.
  void OnHealth(const std::string& plugin_id, uint64_t incarnation, const PluginHealth& health);
  // `facts` not OK: the plugin is refused (another name, or a node id while something is held): it stays
  // alive, is not registered, and the reason is shown.
  void OnFacts(const std::string& plugin_id, uint64_t incarnation, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class);

  [[nodiscard]] Registry& registry();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
