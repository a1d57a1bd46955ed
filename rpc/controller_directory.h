// How the node's API reaches plugins: their clients, and the levers that a person may pull.
//
// Two narrow interfaces of this folder's own, so that the API can be tested without a process; main
// implements them over the Supervisor and whoever holds the clients. Loop thread only. What is asked here
// must outlive the NodeApi.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "rpc/declared_directory.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/registry.h"
#include "supervisor/supervisor.h"

namespace berth {

// The CSI clients, for calls of the Controller service (those of the Node service are the Mounter's).
class ControllerDirectory {
 public:
  virtual ~ControllerDirectory() = default;

  // The client of the plugin's present instance; null where its socket is not there. Which plugin to ask
  // is plugin_choice.h's to say.
  [[nodiscard]] virtual std::shared_ptr<CsiClient> ClientOf(const std::string& plugin_id) = 0;

  // Waits until what is known of some plugin has changed, or `deadline`. Who may not begin a call now, but
  // soon (PluginSnapshot::held), waits here and looks again, so that no call fails while a plugin is
  // restarted or swapped.
  [[nodiscard]] virtual Awaitable<void> WaitChange(TimePoint deadline) = 0;
};

// What a reload of all of berthd's files did.
struct NodeReload {
  ReloadReport plugins;
  DeclaredReload volumes;
};

// The plugins as they are now, and their levers. The errors are those that berth.v1.Node documents; at the
// deadline the caller's wait ends (DEADLINE_EXCEEDED), not the work.
class PluginControl {
 public:
  virtual ~PluginControl() = default;

  // By id; the reference is good until the next co_await.
  [[nodiscard]] virtual const std::map<std::string, PluginSnapshot>& plugins() const = 0;

  [[nodiscard]] virtual Awaitable<absl::Status> StartPlugin(std::string id, TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> StopPlugin(std::string id, bool force,
                                                           TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> RestartPlugin(std::string id, bool force,
                                                              TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> DrainPlugin(std::string id, TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> SwapPlugin(std::string id, SwapRequest request,
                                                           TimePoint deadline) = 0;
  // The file of a plugin that a scheduler places, and its removal: supervisor/supervisor.h.
  [[nodiscard]] virtual Awaitable<absl::Status> PlacePlugin(std::string id, std::string content,
                                                            TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> RemovePlacedPlugin(std::string id, TimePoint deadline) = 0;
  // Of all files, those of declared volumes too. Answers by `answer_by` with what is done by then; a reload
  // that has begun goes on to its end, also where its caller is cancelled. ABORTED: one runs already.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<NodeReload>> Reload(TimePoint answer_by) = 0;
  // Waits until what is known of some plugin has changed, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitChange(TimePoint deadline) = 0;

  // A batch of what the plugin wrote, as PluginLogs reads it, of any plugin that has a log.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<LogBatch>> ReadLog(std::string id, LogQuery query,
                                                                    TimePoint deadline) = 0;

  // Where plugins live on this node.
  [[nodiscard]] virtual std::string Placement() const = 0;
  // What is wrong with berthd's own settings, or takes a restart of berthd.
  [[nodiscard]] virtual std::vector<Finding> Findings() const = 0;
};

}  // namespace berth
