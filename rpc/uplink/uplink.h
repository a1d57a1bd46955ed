// The link to a central scheduler (berth.v1.SchedulerLink), for as long as berthd runs: dials, keeps one
// stream up, and joins what it carries to the parts of this node.
//
//   Run:  DialSchedule ──▶ LinkDialer ──▶ LinkSession ──▶ its end ──▶ DialSchedule ──▶ …
//                                            │
//        what changes here ──▶ Outbox ───────┤ State
//        mounter: consumers that ended ──────┤ EndedConsumer
//        berthctl volume claim ──▶ AskTable ─┤ Ask ◀─▶ Answer
//        OperationRunner ◀── OperationTable ◀┤ Operation ──▶ OperationResult ──▶ rows ──▶ stream
//        LinkLease ◀─────────────────────────┘ HeartbeatAnswer
//
// The node works on whether there is a stream or not. What is to be sent meanwhile is bounded by the objects
// there are: see outbox.h; results, ended consumers and asks have limits of their own.
//
// Owned by main, made after the mounter has recovered; loop thread only. What it is given outlives it.
//
// Events: scheduler.connected, scheduler.lost (a stream ended, or the first attempt failed: once, with the
// reason, however many fail after it), scheduler.refused (it is not ours, or refuses us: once for each
// reason, until there is a stream again), scheduler.untold (too many ended consumers: the oldest are not
// reported; once, until no report waits for an acknowledgement).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/scheduler_directory.h"
#include "rpc/uplink/link_asks.h"
#include "rpc/uplink/link_operations.h"
#include "rpc/uplink/link_session.h"
#include "rpc/uplink/node_objects.h"
#include "rpc/uplink/uplink_context.h"

namespace berth {

class Uplink final : public SchedulerDirectory, private LinkHost {
 public:
  // `rows`: all that was kept (LinkStore::TakeRows).
  Uplink(asio::any_io_executor executor, UplinkOptions options, UplinkParts parts,
         std::map<std::string, std::string> rows);
  ~Uplink() override;

  void Start();
  // Ends the stream and what runs for it: the scheduler asks again for what has no result. Before the
  // destructor.
  [[nodiscard]] Awaitable<void> Shutdown(bool machine_stops = false);

  // To be called: for each volume that may look different (MounterOptions::on_volume_changed), for the node
  // itself (its drain, its lease), for forced releases, and for each consumer that has ended.
  void OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here) {
    objects_.OnVolumeChanged(plugin_id, volume_id, here);
  }
  void OnNodeChanged() { objects_.OnNodeChanged(); }
  void OnForcedReleasesChanged() { objects_.OnForcedReleasesChanged(); }
  void OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin) {
    objects_.OnConsumerEnded(consumer, cause, origin);
  }

  // SchedulerDirectory.
  [[nodiscard]] std::optional<v1::LinkStatus> Status() const override;
  [[nodiscard]] Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                          OnProgress on_progress) override {
    return asks_.Ask(std::move(ask), wait, deadline, std::move(on_progress));
  }

 private:
  // LinkHost.
  [[nodiscard]] v1::Hello MakeHello() override;
  [[nodiscard]] absl::Status OnWelcome(const v1::Welcome& welcome) override;
  void OnBegun() override { objects_.OnBegun(); }
  [[nodiscard]] Awaitable<std::optional<v1::Object>> Describe(ObjectKey key) override {
    return objects_.Describe(std::move(key));
  }
  void OnHeartbeat(uint64_t number) override { link_.parts.lease.OnHeartbeat(number); }
  [[nodiscard]] Awaitable<absl::Status> OnHeartbeatAnswer(v1::HeartbeatAnswer answer) override {
    return link_.parts.lease.OnAnswer(std::move(answer));
  }
  [[nodiscard]] std::optional<v1::OperationResult> OnOperation(v1::Operation operation) override {
    return operations_.OnOperation(std::move(operation));
  }
  void OnCancel(uint64_t operation_id) override { operations_.OnCancel(operation_id); }
  void OnAcknowledge(const v1::Acknowledge& acknowledge) override;
  void OnAnswer(v1::Answer answer) override { asks_.OnAnswer(std::move(answer)); }
  void OnAskProgress(const v1::AskProgress& progress) override { asks_.OnAskProgress(progress); }
  void OnSynced() override { SetState(v1::LinkStatus::SYNCED); }

  void Restore(std::map<std::string, std::string> rows);
  [[nodiscard]] Awaitable<void> Run();
  // One attempt, and the stream that comes of it, to its end.
  struct Ended {
    absl::Status why;
    bool said = false;  // by the scheduler
    std::optional<TimePoint> welcomed;
  };
  [[nodiscard]] Awaitable<Ended> RunOnce(std::string address);
  void ReportEnd(const std::string& address, const Ended& ended);
  void SetState(v1::LinkStatus::State state);

  UplinkContext link_;
  LinkOperations operations_{link_};
  LinkAsks asks_{link_};
  NodeObjects objects_{link_};
  bool leaving_ = false;
  uint64_t connection_number_ = 0;
  std::string instance_id_;
  std::string run_id_;
  std::optional<std::string> cluster_id_;  // unset: it was never welcomed anywhere
  std::optional<TimePoint> welcomed_;
  bool reported_lost_ = false;
  std::set<std::string> reported_refusals_;  // since there was a stream
  TaskScope tasks_;
};

}  // namespace berth
