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

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "controller/controller_directory.h"
#include "mounter/mounter.h"
#include "rpc/node_api.h"
#include "rpc/plugin_control.h"
#include "rpc/scheduler_directory.h"
#include "rpc/uplink/dial_schedule.h"
#include "rpc/uplink/link_lease.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/link_session.h"
#include "rpc/uplink/link_stream.h"
#include "rpc/uplink/operation_check.h"
#include "rpc/uplink/operation_runner.h"

namespace berth {

struct UplinkOptions {
  std::vector<std::string> addresses;  // at least one
  std::string node_id;
  std::string version;
  v1::LeasePolicy on_lease_expiry = v1::KEEP;
  std::set<v1::NodeState::Right> may = {v1::NodeState::VOLUMES};
  DialLimits dial = {};
  LinkTimes times = {};
  Duration dial_within = std::chrono::seconds(20);
  Duration node_state_every = std::chrono::seconds(5);
};

// What it joins.
struct UplinkParts {
  LinkDialer& dialer;
  LinkLease& lease;
  LinkRows& rows;
  NodeApi& api;
  PluginControl& plugins;
  ControllerDirectory& controllers;
  Mounter& mounter;
  EventLog& events;
  CallController controller;
};

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
  void OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here);
  void OnNodeChanged();
  void OnForcedReleasesChanged();
  void OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin);

  // SchedulerDirectory.
  [[nodiscard]] std::optional<v1::LinkStatus> Status() const override;
  [[nodiscard]] Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                          OnProgress on_progress) override;

 private:
  struct Running;

  // LinkHost.
  [[nodiscard]] v1::Hello MakeHello() override;
  [[nodiscard]] absl::Status OnWelcome(const v1::Welcome& welcome) override;
  void OnBegun() override;
  [[nodiscard]] Awaitable<std::optional<v1::Object>> Describe(ObjectKey key) override;
  void OnHeartbeat(uint64_t number) override { parts_.lease.OnHeartbeat(number); }
  [[nodiscard]] Awaitable<absl::Status> OnHeartbeatAnswer(v1::HeartbeatAnswer answer) override {
    return parts_.lease.OnAnswer(std::move(answer));
  }
  [[nodiscard]] std::optional<v1::OperationResult> OnOperation(v1::Operation operation) override;
  void OnCancel(uint64_t operation_id) override;
  void OnAcknowledge(const v1::Acknowledge& acknowledge) override;
  void OnAnswer(v1::Answer answer) override;
  void OnAskProgress(const v1::AskProgress& progress) override;
  void OnSynced() override;

  void Restore(std::map<std::string, std::string> rows);
  [[nodiscard]] Awaitable<void> Run();
  // `value` is asked for at each try.
  [[nodiscard]] Awaitable<void> PutUntilDone(std::string key, std::function<std::string()> value);
  // Sent once its number and itself are on the disk.
  [[nodiscard]] Awaitable<void> ReportEnded(v1::EndedConsumer ended);
  // One attempt, and the stream that comes of it, to its end.
  struct Ended {
    absl::Status why;
    bool said = false;  // by the scheduler
    std::optional<TimePoint> welcomed;
  };
  [[nodiscard]] Awaitable<Ended> RunOnce(std::string address);
  void ReportEnd(const std::string& address, const Ended& ended);
  [[nodiscard]] Awaitable<void> FollowPlugins();
  [[nodiscard]] Awaitable<void> FollowNode();
  [[nodiscard]] Awaitable<void> Execute(v1::Operation operation, OperationFacts facts);
  // A publish of a volume that the node is releasing now.
  [[nodiscard]] bool GivingUp(const v1::Operation& operation) const;
  [[nodiscard]] Awaitable<void> KeepResult(v1::OperationResult result, std::string subject);
  [[nodiscard]] bool IsGreeted() const;
  void DropEndedConsumer(uint64_t number);
  void SetState(v1::LinkStatus::State state);
  void Wake();

  asio::any_io_executor executor_;
  UplinkOptions options_;
  UplinkParts parts_;
  OperationRunner runner_;
  bool leaving_ = false;
  uint64_t connection_number_ = 0;
  std::string instance_id_;
  std::string run_id_;
  std::optional<std::string> cluster_id_;  // unset: it was never welcomed anywhere

  LinkState state_;
  LinkSession* session_ = nullptr;  // of the stream that is up
  std::optional<TimePoint> welcomed_;
  std::map<uint64_t, std::shared_ptr<Running>> running_;
  std::map<uint64_t, v1::EndedConsumer> ended_consumers_;
  uint64_t next_ended_ = 1;
  std::map<uint64_t, std::string> forced_releases_;  // as the outbox knows them
  std::map<std::string, size_t> known_plugins_;      // their hashes
  bool node_changed_ = false;

  v1::LinkStatus status_;  // what does not follow from the rest
  bool reported_lost_ = false;
  bool reported_dropped_ = false;            // that ended consumers are dropped
  std::set<std::string> reported_refusals_;  // since there was a stream
  Condition changed_;                        // answers, the node
  TaskScope tasks_;
  TaskScope operations_;
};

}  // namespace berth
