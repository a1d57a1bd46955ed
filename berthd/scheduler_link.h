// berthd's link to a central scheduler: the uplink and its parts, made in order and destroyed in the reverse
// order.
//
//   link.db ──▶ LeaseKeeper ──▶ Uplink ──▶ SchedulerDialer
//
// If berthd.toml names no scheduler none of it exists, and callers get that as an error.
//
// Owned by main; loop thread only. What it is given outlives it. Decides nothing.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berthd/config.h"
#include "controller/controller_calls.h"
#include "controller/controller_directory.h"
#include "mounter/mounter.h"
#include "rpc/node_api.h"
#include "rpc/node_drainer.h"
#include "rpc/plugin_control.h"
#include "rpc/scheduler_directory.h"
#include "rpc/uplink/lease_keeper.h"
#include "rpc/uplink/link_store.h"
#include "rpc/uplink/scheduler_dialer.h"
#include "rpc/uplink/uplink.h"

namespace berth {

class SchedulerLink final : public SchedulerDirectory {
 public:
  SchedulerLink(asio::any_io_executor executor, const BerthdConfig& config, Mounter& mounter,
                EventLog& events);
  ~SchedulerLink() override;

  // Takes up what was kept, the lease above all: once the mounter has recovered, before anybody can ask for
  // anything. Nothing is dialled yet. Blocks; at start. Errors: LinkStore::Open's.
  [[nodiscard]] absl::Status Restore();
  // Begins to dial. `drainer` has the node's drain.
  void Start(NodeApi& api, PluginControl& plugins, ControllerDirectory& controllers, ControllerCalls& calls,
             NodeDrainer& drainer);
  // Before the mounter's own, and before the destructor.
  // Says goodbye to the scheduler; `machine_stops`: the machine is being shut down.
  [[nodiscard]] Awaitable<void> Shutdown(TimePoint deadline, bool machine_stops);

  // The node's own state may be different now: its runtimes, its problems.
  void OnNodeChanged();

  // MounterOptions' hooks.
  void OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here);
  void OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin);

  // SchedulerDirectory.
  [[nodiscard]] std::optional<v1::LinkStatus> Status() const override;
  [[nodiscard]] std::vector<std::string> Problems() const override;
  [[nodiscard]] Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                          OnProgress on_progress) override;
  // Tokens that identify a consumer. It waits for the scheduler. Errors as Ask's.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::TokenAnswer>> Tokens(v1::TokenAsk ask, TimePoint deadline);

 private:
  // Where there is no uplink.
  [[nodiscard]] absl::Status WhyNoLink() const;
  [[nodiscard]] Awaitable<void> FollowDrain(NodeDrainer& drainer);

  asio::any_io_executor executor_;
  const BerthdConfig& config_;
  Mounter& mounter_;
  EventLog& events_;
  std::unique_ptr<LinkStore> store_;
  std::map<std::string, std::string> rows_;
  std::unique_ptr<LeaseKeeper> keeper_;
  std::unique_ptr<SchedulerDialer> dialer_;
  std::unique_ptr<Uplink> uplink_;
  // Consumers that ended while berthd was away, found while it comes back.
  struct Ended {
    std::string consumer;
    std::string cause;
    Origin origin = Origin::kCaller;
  };
  std::vector<Ended> ended_early_;
  TaskScope tasks_;
};

}  // namespace berth
