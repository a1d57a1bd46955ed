// berthd as a whole: makes the parts in order, and destroys them in the reverse order.
//
// One per process; loop thread only. Decides nothing.
#pragma once

#include <absl/status/status.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/log.h"
#include "base/task_scope.h"
#include "berthd/config.h"
#include "berthd/event_history.h"
#include "berthd/plugin_bridge.h"
#include "berthd/scheduler_link.h"
#include "berthd/scheduler_tokens.h"
#include "controller/controller_access.h"
#include "csi/recent_secrets.h"
#include "declared/declared_volumes.h"
#include "mounter/mounter.h"
#include "mounts/tree_access.h"
#include "rpc/node_api.h"
#include "rpc/node_servers.h"
#include "supervisor/supervisor.h"

namespace berth {

class Berthd {
 public:
  // `options`: what the command line gave, which a reload must respect. `log`: what berthd logs, for those
  // who follow it through the API.
  Berthd(asio::any_io_executor executor, BerthdOptions options, BerthdConfig config,
         std::shared_ptr<LogFeed> log);
  ~Berthd();

  // Restores the state, then serves: once this returns OK, the state is restored and the socket answers. An
  // error says what cannot be done and why; call Stop also then.
  [[nodiscard]] Awaitable<absl::Status> Start();

  // Reads berthd.toml, plugins.d and volumes.d again, and touches only what changed. Log level and the groups
  // of the sockets are applied; what takes a restart of berthd, and what is wrong, is in the report and a
  // problem of the node until it is corrected. A berthd.toml that is wrong changes nothing. Answers by
  // `answer_by`: a plugin that is still being swapped or stopped then is pending in the report. All of it
  // goes on where the caller is cancelled. ABORTED: a reload is under way.
  [[nodiscard]] Awaitable<absl::StatusOr<NodeReload>> Reload(TimePoint answer_by);

  // Ends berthd's part in order, within about half a minute. Nothing goes forward from its beginning on
  // (Mounter::BeginShutdown). Plugins and mounts stay; but where the machine is being shut down, declared
  // volumes are released first, and all of it takes no longer than volumes.shutdown_timeout and a few
  // seconds: what has not left by then is reported, and left.
  [[nodiscard]] Awaitable<void> Stop();

 private:
  [[nodiscard]] Awaitable<absl::Status> RestoreState();
  // Makes the directories. FAILED_PRECONDITION: another berthd uses them.
  [[nodiscard]] absl::Status TakeDirectories();
  [[nodiscard]] MounterOptions MakeMounterOptions();
  [[nodiscard]] SupervisorOptions MakeSupervisorOptions();
  [[nodiscard]] Awaitable<absl::Status> Serve();
  // Releases the declared volumes; what has not left by `deadline` is reported.
  [[nodiscard]] Awaitable<void> ReleaseDeclared(TimePoint deadline);
  // Opens the tree of volumes for the users that berthd.toml names. A failure is a problem until a reload.
  void OpenTree();
  // SupervisorOptions::on_user.
  void OnPluginUser(const std::string& socket, std::optional<uid_t> user);
  // Whether the host sees what is mounted here.
  [[nodiscard]] Awaitable<absl::Status> CheckMounts();
  // TreeCheck (supervisor/supervisor.h).
  [[nodiscard]] Awaitable<std::string> CheckTree(pid_t process, std::string volumes_path);
  [[nodiscard]] Awaitable<absl::StatusOr<v1::TokenAnswer>> AskForTokens(v1::TokenAsk ask, TimePoint deadline);
  struct ReloadRun;
  [[nodiscard]] Awaitable<void> RunReload(std::shared_ptr<ReloadRun> run, TimePoint answer_by);
  [[nodiscard]] Awaitable<absl::StatusOr<NodeReload>> ReloadFiles(TimePoint answer_by);
  // What is wrong with berthd.toml, or takes a restart.
  [[nodiscard]] Awaitable<std::vector<Finding>> ReloadSettings();

  asio::any_io_executor executor_;
  BerthdOptions options_;
  BerthdConfig config_;
  UniqueFd runtime_lock_;  // as long as this process uses runtime_dir
  std::shared_ptr<LogFeed> log_;
  std::vector<Finding> notes_;  // of the start
  WallTime started_at_ = WallClock::now();
  EventLog events_;
  RecentSecrets secrets_;
  SchedulerTokens tokens_;
  PluginBridge bridge_;
  TaskScope background_;
  std::unique_ptr<Mounter> mounter_;
  std::optional<TreeAccess> tree_access_;
  std::unique_ptr<EventHistory> history_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<ControllerAccess> access_;
  std::unique_ptr<DeclaredVolumes> declared_;
  std::unique_ptr<NodeDrainer> drainer_;
  std::unique_ptr<SchedulerLink> scheduler_;
  std::unique_ptr<ControllerCalls> controller_calls_;
  std::unique_ptr<NodeApi> api_;
  std::unique_ptr<NodeServers> servers_;
};

}  // namespace berth
