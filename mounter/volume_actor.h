// One volume of this node: its queue of requests, and the one coroutine that works on it.
//
//   Submit ──► queue ──► Work: Execute one request ──► VolumePublisher ──► VolumeDriver ──► VolumeSteps ──►
//   ...
//                          ├── queue empty: Settle what is pending, again and again, ever slower
//                          └── queue empty: RenewTokens, when it is time
//
// The parts, and what they share: volume_state.h. Decisions are the VolumeMachine's, and what is durable goes
// through the journal: the intent before the first RPC, the outcome before the answer.
//
// Shared by the Mounter and the work in flight; loop thread only. Work runs in the Mounter's scope, so it
// does not end when a caller leaves.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mounter/volume_driver.h"
#include "mounter/volume_health.h"
#include "mounter/volume_publisher.h"
#include "mounter/volume_reconciler.h"
#include "mounter/volume_state.h"

namespace berth {

class VolumeActor : public std::enable_shared_from_this<VolumeActor> {
  struct PrivateTag {};

 public:
  // `on_gone` is called once nothing of the volume is here and no caller waits for it.
  [[nodiscard]] static std::shared_ptr<VolumeActor> Create(MounterContext& context, VolumeMachine machine,
                                                           std::function<void()> on_gone);
  // For Create.
  VolumeActor(PrivateTag tag, MounterContext& context, VolumeMachine machine, std::function<void()> on_gone);
  VolumeActor(const VolumeActor&) = delete;
  VolumeActor& operator=(const VolumeActor&) = delete;

  // VolumeQueue::Submit, and begins to work on it.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<VolumeOperation>> Submit(VolumeRequest request,
                                                                        TimePoint until);
  // StepStatus::Overdue.
  [[nodiscard]] absl::Status Overdue(const VolumeOperation& operation) const {
    return volume_.status.Overdue(operation, volume_.forced.WhatWasDone());
  }
  // Whether a publish for this consumer waits or runs, which the record may not show yet.
  [[nodiscard]] bool Expects(const std::string& consumer) const { return volume_.queue.Expects(consumer); }

  // Begins now to finish what is pending, or goes on with it at once.
  void Start();
  // The context is stopping: waits end, and nothing new begins.
  void WakeUp() { volume_.changed.NotifyAll(); }
  // The machine has slept, and timers stood still meanwhile: what is due by now begins.
  void AfterSleep() {
    slept_ = true;
    volume_.changed.NotifyAll();
  }
  // Ends every request that waits, at shutdown.
  void FailAll(const absl::Status& status) { volume_.queue.FailAll(status); }

  // What the kernel, leases and people change.
  [[nodiscard]] VolumeReconciler& reconciler() { return reconciler_; }
  [[nodiscard]] const VolumeReconciler& reconciler() const { return reconciler_; }
  // A volume leaves the node that is the same object: noted before its row is deleted.
  void AddOtherName(const VolumeRecord& left) {
    volume_.machine.AddOtherName(left);
    volume_.row.SaveSoon();
  }
  // Its plugin may want other tokens than before.
  void OnTokensWantedChanged();
  // Notes an expansion durably, and begins it.
  [[nodiscard]] static Awaitable<absl::Status> SetPendingExpansion(std::shared_ptr<VolumeActor> self,
                                                                   int64_t bytes);
  // For NodeGetVolumeStats and NodeGetVolumeHealth; keeps the actor alive.
  [[nodiscard]] static std::shared_ptr<VolumeHealth> Health(const std::shared_ptr<VolumeActor>& self) {
    return {self, &self->health_};
  }

  [[nodiscard]] const VolumeMachine& machine() const { return volume_.machine; }
  [[nodiscard]] bool present() const { return volume_.machine.present(); }
  // Its row is being deleted: what is noted of it now would go with it.
  [[nodiscard]] bool Leaving() const { return volume_.trying.kind == StepKind::kForget; }
  // Whether a step runs that a stopping mounter waits for: not one that itself waits for a plugin.
  [[nodiscard]] bool busy() const { return working_ && volume_.status.waiting_for().empty(); }
  [[nodiscard]] VolumeView View() const;
  // The last calls of the plugin, the newest last.
  [[nodiscard]] std::vector<RpcTrace> rpcs() const { return volume_.status.rpcs(); }

  // VolumeReporter's.
  void ReportUsers() { volume_.ReportUsers(); }
  void ReportView() const { volume_.reporter.ReportView(); }

 private:
  static Awaitable<void> Work(std::shared_ptr<VolumeActor> self);
  [[nodiscard]] Awaitable<absl::Status> Execute(std::shared_ptr<VolumeOperation> operation);
  [[nodiscard]] Awaitable<absl::Status> ExecuteUnpublish(std::shared_ptr<VolumeOperation> operation,
                                                         UnpublishRequest request);
  [[nodiscard]] Awaitable<absl::Status> ExecuteExpand(std::shared_ptr<VolumeOperation> operation,
                                                      ExpandRequest request);
  [[nodiscard]] Awaitable<void> Settle();
  // Gives the plugin new tokens when it is time, until a request waits.
  [[nodiscard]] Awaitable<void> RenewTokens();
  // When background work runs next. max(): never.
  [[nodiscard]] TimePoint NextMove() const;
  // Whether a step, or its row, is to be tried again.
  [[nodiscard]] bool Unfinished() const { return volume_.row.stale || volume_.machine.plan().Unsettled(); }
  void EnsureWorking();
  // Its consumer has ended.
  void Release(const PublicationKey& key, const ConsumerLife& life, const std::string& why);

  VolumeState volume_;
  VolumeReconciler reconciler_;
  VolumeDriver driver_;
  VolumePublisher publisher_;
  VolumeHealth health_;
  std::function<void()> on_gone_;

  bool working_ = false;
  bool slept_ = false;  // since the present wait began
  int failures_in_a_row_ = 0;
  TimePoint next_retry_{};
};

}  // namespace berth
