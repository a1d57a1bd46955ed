// Joins the parts of berthd that must not know each other: the supervisor's processes, the fingerprinter's
// probes, the mounter's and the API's need of clients. Decides nothing: it only carries from one to another.
//
// Owned by main; loop thread only. Of the instances of a plugin (plugin_connections.h), calls go through
// the one that the registry names; while that is held, those who want to call wait.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berthd/plugin_connections.h"
#include "controller/controller_directory.h"
#include "csi/client.h"
#include "csi/recent_secrets.h"
#include "mounter/mounter.h"
#include "rpc/plugin_control.h"
#include "supervisor/supervisor.h"

namespace berth {

class PluginBridge final : public PluginObserver,
                           public PluginDirectory,
                           public ControllerDirectory,
                           public PluginControl {
 public:
  // `secrets` outlives this.
  PluginBridge(asio::any_io_executor executor, EventLog& events, RecentSecrets& secrets);
  ~PluginBridge() override;

  // The parts to join. Both outlive this, and come after it: they are made with a reference to it.
  // `reload`: of all of berthd.
  void Connect(Supervisor* supervisor, Mounter* mounter,
               std::function<Awaitable<absl::StatusOr<NodeReload>>(TimePoint answer_by)> reload);
  // What Findings answers from now on.
  void SetSettingsFindings(std::vector<Finding> findings) { settings_findings_ = std::move(findings); }

  // Informs the mounter whenever a plugin wants other tokens, by a reload, a start, a restart or a swap,
  // until cancelled.
  [[nodiscard]] Awaitable<void> CarryTokensWanted();

  // Ends all probing.
  [[nodiscard]] Awaitable<void> Shutdown();

  // PluginObserver.
  void OnSocketAppeared(const Instance& instance) override;
  void OnInstanceGone(const std::string& plugin_id, uint64_t number) override;
  void OnHealthConfig(const std::string& plugin_id, uint64_t number, const HealthConfig& health) override;

  // PluginDirectory.
  [[nodiscard]] absl::StatusOr<Entry> Find(const std::string& plugin_id) override;
  [[nodiscard]] Awaitable<void> WaitUsable(std::string plugin_id, TimePoint deadline) override;
  [[nodiscard]] std::vector<WantedToken> TokensWanted(const std::string& plugin_id) const override;
  [[nodiscard]] Duration RestartAfterHungCall(const std::string& plugin_id) const override;
  [[nodiscard]] Awaitable<absl::Status> RestartHung(std::string plugin_id, TimePoint deadline) override;

  // ControllerDirectory, and the last of PluginControl too.
  [[nodiscard]] std::shared_ptr<CsiClient> ClientOf(const std::string& plugin_id) override;
  [[nodiscard]] Awaitable<void> WaitChange(TimePoint deadline) override;

  // PluginControl.
  [[nodiscard]] const std::map<std::string, PluginSnapshot>& plugins() const override;
  [[nodiscard]] Awaitable<absl::Status> StartPlugin(std::string id, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> StopPlugin(std::string id, bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> RestartPlugin(std::string id, bool force,
                                                      TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> DrainPlugin(std::string id, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> SwapPlugin(std::string id, SwapRequest request,
                                                   TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> PlacePlugin(std::string id, std::string content,
                                                    TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> RemovePlacedPlugin(std::string id, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::StatusOr<NodeReload>> Reload(TimePoint answer_by) override;
  [[nodiscard]] Awaitable<absl::StatusOr<LogBatch>> ReadLog(std::string id, LogQuery query,
                                                            TimePoint deadline) override;
  [[nodiscard]] std::string Placement() const override;
  [[nodiscard]] std::vector<Finding> Findings() const override { return settings_findings_; }

  // The operations in flight through an instance: the latest of their deadlines.
  [[nodiscard]] std::optional<TimePoint> BusyUntil(const std::string& plugin_id, uint64_t instance) const;

 private:
  [[nodiscard]] ConnectionSink Sink();

  Supervisor* supervisor_ = nullptr;
  Mounter* mounter_ = nullptr;
  std::function<Awaitable<absl::StatusOr<NodeReload>>(TimePoint answer_by)> reload_;
  std::vector<Finding> settings_findings_;
  PluginConnections connections_;
  std::set<std::string> restarting_;  // that hung, by RestartHung
};

}  // namespace berth
