// One volume of this node: its queue of requests, and the one coroutine that works on it.
//
//   Submit ──► queue ──► Work: Execute one request ──► Drive a publication to its goal ──► RunStep ──► ...
//                          └── queue empty: Settle what is still owed, again and again, ever slower
//
// Decisions are the VolumeMachine's, steps are carried out by VolumeSteps, and what is durable goes through
// the journal: the intent before the first RPC, the outcome before the answer.
//
// Shared by the Mounter and the work in flight; loop thread only. Work runs in the Mounter's scope, so no
// caller's leaving ends it.
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mounter/mounter_context.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_operation.h"
#include "mounter/volume_steps.h"

namespace berth {

class VolumeActor : public std::enable_shared_from_this<VolumeActor> {
 public:
  // `on_gone` is called once nothing of the volume is here and nobody waits for it.
  VolumeActor(MounterContext& context, VolumeMachine machine, std::function<void()> on_gone);

  // Queues `request`, or joins an identical one that waits or runs with nothing for the same publication
  // behind it. RESOURCE_EXHAUSTED where too many wait.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<VolumeOperation>> Submit(VolumeRequest request,
                                                                        TimePoint until);

  // What to tell a caller whose time is over while `operation` goes on.
  [[nodiscard]] absl::Status Overdue(const VolumeOperation& operation) const;

  // Begins to finish what the journal says is owed.
  void Start();
  // The context is stopping: waits end, and nothing new begins.
  void WakeUp() { changed_.NotifyAll(); }
  // Ends every request that waits, at shutdown.
  void FailAll(const absl::Status& status);

  // GetVolumeStats, past the queue; one in flight, which later callers share.
  [[nodiscard]] static Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::shared_ptr<VolumeActor> self, TimePoint deadline);

  [[nodiscard]] const VolumeMachine& machine() const { return machine_; }
  [[nodiscard]] bool present() const { return machine_.present(); }
  // Whether a step runs that a stopping mounter waits for: not one that itself waits for a plugin.
  [[nodiscard]] bool busy() const { return working_ && waiting_for_.empty(); }
  [[nodiscard]] VolumeView View() const;

  // The kernel no longer shows a published publication.
  void MarkLost(const PublicationKey& key, std::string error) { machine_.MarkLost(key, std::move(error)); }

 private:
  struct SharedStats;

  static Awaitable<void> Work(std::shared_ptr<VolumeActor> self);
  [[nodiscard]] Awaitable<absl::Status> Execute(std::shared_ptr<VolumeOperation> operation);
  [[nodiscard]] Awaitable<absl::Status> ExecutePublish(std::shared_ptr<VolumeOperation> operation,
                                                       PublishRequest request);
  [[nodiscard]] Awaitable<absl::Status> ExecuteUnpublish(std::shared_ptr<VolumeOperation> operation,
                                                         UnpublishRequest request);
  [[nodiscard]] Awaitable<absl::Status> ExecuteExpand(std::shared_ptr<VolumeOperation> operation,
                                                      ExpandRequest request);
  [[nodiscard]] Awaitable<void> Settle();

  // Before a publish: finishes what is being undone in its way, and says whether it is published already.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> MakeWay(PublishRequest request, TimePoint until);
  // Writes the intent down, with the directories that it needs; undone in memory if that fails.
  [[nodiscard]] Awaitable<absl::Status> CommitIntent(PublishRequest request, PluginFacts facts);
  // Takes one publication to its goal, and the volume after it where it was the last; OK once that is
  // durable. Else why not: its first error, while the rest goes on in the background.
  [[nodiscard]] Awaitable<absl::Status> Drive(PublicationKey key);
  [[nodiscard]] Awaitable<absl::Status> CommitOutcome(PublicationKey key);
  [[nodiscard]] Awaitable<FollowUp> RunStep(Step step);
  [[nodiscard]] Awaitable<absl::Status> Commit();
  void SaveSoon();
  // What the volume adds to Mounter::HeldThrough, told when it has changed: it grows and shrinks by one
  // publication at a time, and a volume without any is an entry of its own.
  void TellHolders();
  [[nodiscard]] size_t Holders() const {
    return machine_.present() ? machine_.record().publications.size() + 1 : 0;
  }

  [[nodiscard]] StepProgress Progress(const Step& step);
  [[nodiscard]] Secrets SecretsFor(const PublicationKey& key) const;
  // Whether somebody waits who wants `step` undone: then it is not repeated.
  [[nodiscard]] bool Superseded(const Step& step) const;
  void Announce(const Step& step, const StepReport& report, FollowUp follow_up);
  void Event(std::string type, const std::string& consumer, std::string message);
  void EnsureWorking();

  MounterContext& context_;
  VolumeSteps steps_;
  VolumeMachine machine_;
  std::function<void()> on_gone_;
  std::string key_;  // in the journal, and of the directory

  std::deque<std::shared_ptr<VolumeOperation>> queue_;
  std::shared_ptr<VolumeOperation> current_;
  Condition changed_;  // the queue, or the context's stopping
  bool working_ = false;

  // Of publications that are on their way; gone once they have arrived or are given up.
  std::map<PublicationKey, Secrets> secrets_;
  std::shared_ptr<SharedStats> stats_;

  // The row on the disk is not what holds: a commit failed after the plugin had done its part.
  bool stale_row_ = false;
  int failures_in_a_row_ = 0;
  TimePoint next_retry_{};
  absl::Status last_error_;
  size_t told_holders_ = 0;
  std::string last_told_;  // the failure that the newest event told of

  // What people see of the present step.
  std::string running_;
  std::optional<WallTime> running_since_;
  std::string waiting_for_;
  std::optional<WallTime> next_retry_at_;
};

}  // namespace berth
