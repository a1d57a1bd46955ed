// berthd as a whole: makes the parts in order, and lets go of them in the reverse order.
//
// One per process; loop thread only. Decides nothing.
#pragma once

#include <absl/status/status.h>

#include <memory>

#include "base/event_log.h"
#include "base/log.h"
#include "base/task_scope.h"
#include "berthd/config.h"
#include "berthd/plugin_bridge.h"
#include "csi/recent_secrets.h"
#include "mounter/mounter.h"
#include "rpc/node_api.h"
#include "rpc/node_server.h"
#include "supervisor/supervisor.h"

namespace berth {

class Berthd {
 public:
  // `log`: what berthd logs, for those who follow it through the API.
  Berthd(asio::any_io_executor executor, BerthdConfig config, std::shared_ptr<LogFeed> log);
  ~Berthd();

  // Restores what was, then serves: once this returns OK, the state is restored and the socket answers. An
  // error says what cannot be done and why; call Stop all the same.
  [[nodiscard]] Awaitable<absl::Status> Start();

  // Ends berthd's part in order, within about half a minute. Plugins and mounts stay.
  [[nodiscard]] Awaitable<void> Stop();

 private:
  [[nodiscard]] Awaitable<absl::Status> RestoreState();
  [[nodiscard]] Awaitable<absl::Status> Serve();

  asio::any_io_executor executor_;
  BerthdConfig config_;
  std::shared_ptr<LogFeed> log_;
  WallTime started_at_ = WallClock::now();
  EventLog events_;
  RecentSecrets secrets_;
  PluginBridge bridge_;
  TaskScope background_;
  std::unique_ptr<Mounter> mounter_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<NodeApi> api_;
  std::unique_ptr<NodeServer> server_;
};

}  // namespace berth
