// What people and schedulers may do to plugins: start, stop, restart, drain, swap, place, read their logs.
//
// Main implements it over the Supervisor, so that the API can be tested without a process. Loop thread only.
// It outlives the NodeApi.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "declared/declared_directory.h"
#include "mounter/volume_types.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/registry.h"
#include "supervisor/supervisor.h"

namespace berth {

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
  // Of all files, also of declared volumes. Answers by `answer_by` with what is done by then; a reload that
  // has begun goes on to its end, also if its caller is cancelled. ABORTED: another one runs.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<NodeReload>> Reload(TimePoint answer_by) = 0;
  // Waits until what is known of some plugin has changed, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitChange(TimePoint deadline) = 0;

  // A batch of what the plugin wrote, as PluginLogs reads it, of any plugin that has a log.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<LogBatch>> ReadLog(std::string id, LogQuery query,
                                                                    TimePoint deadline) = 0;

  // Where this node puts the processes of plugins.
  [[nodiscard]] virtual std::string Placement() const = 0;
  // What is wrong with berthd's own settings, or takes a restart of berthd.
  [[nodiscard]] virtual std::vector<Finding> Findings() const = 0;
};

}  // namespace berth
