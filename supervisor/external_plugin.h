// A plugin that berthd does not run (a container, another service does): its socket is watched, and its
// server is probed, fingerprinted and used as any other plugin is. It comes and goes at any time.
//
// Owned by the Supervisor, as PluginRunner is; loop thread only. One connection is held open, so that the end
// of its server is seen at once. A server that only closes idle connections is the same one, as SO_PEERCRED
// shows. Foreign things are not touched: no socket is made or removed, no process signalled.
//
//   <runtime_dir>/plugins/<id>/drained    a file: it was drained, and is not used until it is started
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/task_scope.h"
#include "supervisor/external_lifecycle.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/plugin_report.h"
#include "supervisor/served_socket.h"
#include "supervisor/supervisor.h"

namespace berth {

// What all of them share; outlives them.
struct ExternalContext {
  asio::any_io_executor executor;
  PluginPaths paths;
  ReportContext& reports;
  PluginObserver& observer;
  TreeCheck check_tree = {};
};

class ExternalPlugin final : public PluginOwner {
 public:
  // `file.config` is good, and says socket.
  ExternalPlugin(ExternalContext& context, const PluginFile& file);
  ~ExternalPlugin() override;
  ExternalPlugin(const ExternalPlugin&) = delete;
  ExternalPlugin& operator=(const ExternalPlugin&) = delete;

  [[nodiscard]] Awaitable<void> Run() override;
  [[nodiscard]] Awaitable<void> WaitBegun() override;
  [[nodiscard]] Awaitable<void> LetGo() override;

  // Ends a drain. OK once it is registered; FAILED_PRECONDITION if its socket is not served.
  [[nodiscard]] Awaitable<absl::Status> Start(TimePoint deadline) override;
  // These three: FAILED_PRECONDITION, berthd does not run it.
  [[nodiscard]] Awaitable<absl::Status> Stop(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Restart(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Swap(SwapRequest request, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Drain(TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file,
                                                                    TimePoint deadline) override;

  void OnHealth(uint64_t instance, const PluginHealth& health) override;
  void OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class) override;
  void OnIdle(uint64_t instance) override;
  void OnHoldersChanged() override;

  [[nodiscard]] bool gone() const override { return report_.removed(); }

 private:
  Awaitable<void> Watch();
  // Why what serves it cannot work with the tree of volumes; empty: it can, or that is not known.
  Awaitable<std::string> CheckTree();
  // Looks again at intervals, until it can.
  Awaitable<void> AwaitTree(uint64_t instance);
  // Until the server at the other end of `served` has gone for good: the next one where another has taken its
  // place meanwhile.
  Awaitable<std::optional<ServedSocket>> Hold(ServedSocket served);

  void Feed(const ExternalEvent& event);
  void Announce();
  void Retire();
  // Begins, or ends, to use it.
  [[nodiscard]] absl::StatusOr<Reconfigured> Enable();
  [[nodiscard]] absl::StatusOr<Reconfigured> Disable(const std::string& why, bool for_good);
  [[nodiscard]] absl::Status NotOurs(std::string_view what) const;
  // Whether it was drained before, also by an earlier berthd; and from now on.
  [[nodiscard]] bool WasDrained() const;
  void RememberDrained(bool drained) const;

  void ReportState(PluginState before) const;
  void Publish();

  ExternalContext& context_;
  const std::string id_;
  PluginConfig config_;
  ExternalLifecycle lifecycle_;
  PluginReport report_;
  PluginSnapshot& snapshot_ = report_.snapshot();
  ServedSocket server_;  // without the connection: who it is
  SocketPath socket_path_;
  std::unique_ptr<TaskScope> watch_;
  bool rewatch_ = false;  // its socket lies elsewhere now
  bool begun_ = false;
  bool leaving_ = false;  // its file is gone
  Condition changed_;
};

}  // namespace berth
