// One volume of this node: its queue of requests, and the one coroutine that works on it.
//
//   Submit ──► queue ──► Work: Execute one request ──► Drive a publication to its goal ──► RunStep ──► ...
//                          ├── queue empty: Settle what is still owed, again and again, ever slower
//                          └── queue empty: RenewTokens, when it is time
//
//   volume_actor.cc      what each request of the queue (volume_queue.h) does
//   volume_drive.cc      steps: tried, repeated, given up for what supersedes them, written down
//   volume_reconcile.cc  what the kernel, consumers and others change: lost and dead mounts, releases
//   volume_stats.cc      NodeGetVolumeStats and NodeGetVolumeHealth, past the queue
//   volume_telling.cc    events, and what people see
//
// Tokens of consumers are renewed as token_renewer.h says; users and views are reported by volume_reporter.h.
//
// Decisions are the VolumeMachine's, steps are carried out by VolumeSteps, and what is durable goes through
// the journal: the intent before the first RPC, the outcome before the answer.
//
// What waits does not wait for nothing: a step that waits for an absent plugin is given up as soon as the
// queue holds what supersedes it (an unpublish of the same), and one of the background for any request. A
// step whose call has left is given up only for a forced unpublish; its call may go on in the plugin.
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
#include <set>
#include <string>
#include <vector>

#include "mounter/failure_log.h"
#include "mounter/mounter_context.h"
#include "mounter/plugin_caller.h"
#include "mounter/recovery.h"
#include "mounter/token_renewer.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_operation.h"
#include "mounter/volume_queue.h"
#include "mounter/volume_reporter.h"
#include "mounter/volume_steps.h"
#include "mounts/mount_health.h"

namespace berth {

class VolumeActor : public std::enable_shared_from_this<VolumeActor> {
 public:
  // `on_gone` is called once nothing of the volume is here and nobody waits for it.
  VolumeActor(MounterContext& context, VolumeMachine machine, std::function<void()> on_gone);

  // VolumeQueue::Submit, and begins to work on it.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<VolumeOperation>> Submit(VolumeRequest request,
                                                                        TimePoint until);

  // What to tell a caller whose time is over while `operation` goes on: what runs, since when, and for whom.
  [[nodiscard]] absl::Status Overdue(const VolumeOperation& operation) const;

  // Whether a publish for this consumer waits or runs, of which the record may not tell yet.
  [[nodiscard]] bool Expects(const std::string& consumer) const { return queue_.Expects(consumer); }

  // Begins now to finish what is owed, or goes on with it at once.
  void Start();
  // Nothing forward is begun or repeated any more; a request for it that has not begun ends (UNAVAILABLE). A
  // call that has left is not called back.
  void Leave(const std::string& why);
  // The context is stopping: waits end, and nothing new begins.
  void WakeUp() { changed_.NotifyAll(); }
  // The machine has slept, and timers stood still meanwhile: what is due by now begins.
  void AfterSleep() {
    slept_ = true;
    changed_.NotifyAll();
  }
  // Ends every request that waits, at shutdown.
  void FailAll(const absl::Status& status) { queue_.FailAll(status); }

  // Compares the record with the kernel, and does what follows (recovery.h).
  void Reconcile(Circumstances circumstances);
  // A verdict about one of WatchedMounts.
  void OnHealth(const std::string& component, const absl::Status& verdict);
  [[nodiscard]] std::vector<WatchedMount> WatchedMounts() const;
  // FAILED_PRECONDITION: what is staged or published of it is dead, or, if it is to be written, read-only.
  // The kernel alone is asked.
  [[nodiscard]] absl::Status CheckStorage(bool writes) const;
  // Nothing forward is begun or repeated of what `origin` asked for; a publish of its that has not begun ends
  // (UNAVAILABLE). A call that has left is not called back.
  void Withhold(Origin origin, const std::string& why);
  // A lease of `origin`'s is valid, unbroken since `since` (VolumeMachine::AllowForward). Returns how many
  // publications are unconfirmed.
  size_t AllowForward(Origin origin, BootTime since);
  // The scheduler still wants it (VolumeMachine::Confirm): what was blocked goes on. The row is written soon.
  bool Confirm(const PublicationKey& key);
  // Whether something of `origin`'s waits for its word.
  [[nodiscard]] bool Awaits(Origin origin) const;
  // An operator's word: a publication whose mount is lost or dead is mounted again, whatever its policy.
  // False where there is nothing to repair.
  bool Repair(const PublicationKey& key, const std::string& why);
  // Its plugin may want other tokens than before.
  void OnTokensWantedChanged();
  // Its consumer has ended.
  void Release(const PublicationKey& key, const ConsumerLife& life, const std::string& why);
  // Notes an expansion durably, and begins it.
  [[nodiscard]] static Awaitable<absl::Status> Owe(std::shared_ptr<VolumeActor> self, int64_t bytes);

  // GetVolumeStats, past the queue; one in flight, which later callers share.
  [[nodiscard]] static Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::shared_ptr<VolumeActor> self, TimePoint deadline);
  // Asks its plugin whether something is wrong with it, if it is published and the plugin can say so. False:
  // the plugin did not answer in time.
  [[nodiscard]] static Awaitable<bool> AskHealth(std::shared_ptr<VolumeActor> self, TimePoint deadline);

  [[nodiscard]] const VolumeMachine& machine() const { return machine_; }
  [[nodiscard]] bool present() const { return machine_.present(); }
  // Its row is being deleted: what is noted of it now would go with it.
  [[nodiscard]] bool Leaving() const { return trying_.kind == StepKind::kForget; }
  // Whether a step runs that a stopping mounter waits for: not one that itself waits for a plugin.
  [[nodiscard]] bool busy() const { return working_ && waiting_for_.empty(); }
  [[nodiscard]] VolumeView View() const;
  // The last calls of the plugin, the newest last.
  [[nodiscard]] std::vector<RpcTrace> rpcs() const { return {rpcs_.begin(), rpcs_.end()}; }

  // VolumeReporter's.
  void ReportUsers();
  void ReportView() const { reporter_.ReportView(); }

 private:
  struct SharedStats;

  static Awaitable<void> Work(std::shared_ptr<VolumeActor> self);
  [[nodiscard]] Awaitable<absl::Status> Execute(std::shared_ptr<VolumeOperation> operation);
  [[nodiscard]] Awaitable<absl::Status> ExecutePublish(std::shared_ptr<VolumeOperation> operation,
                                                       PublishRequest request);
  [[nodiscard]] Awaitable<absl::Status> ExecuteUnpublish(std::shared_ptr<VolumeOperation> operation,
                                                         UnpublishRequest request);
  // What is being unpublished is unmounted by berthd, since the plugin cannot: `why`. Its calls stay pending.
  [[nodiscard]] Awaitable<absl::Status> ReleaseWithoutPlugin(std::shared_ptr<VolumeOperation> operation,
                                                             std::string requested_by, absl::Status why);
  [[nodiscard]] Awaitable<absl::Status> ExecuteExpand(std::shared_ptr<VolumeOperation> operation,
                                                      ExpandRequest request);
  [[nodiscard]] Awaitable<void> Settle();
  // Gives the plugin new tokens where it is time, until somebody waits.
  [[nodiscard]] Awaitable<void> RenewTokens();
  // When the work that needs nobody's request goes on; max(): never.
  [[nodiscard]] TimePoint NextMove() const;
  // Whether a step, or its row, is to be tried again.
  [[nodiscard]] bool Unfinished() const { return stale_row_ || machine_.Unsettled(); }
  // Before a publish: finishes what is being undone in its way, and says whether it is published already.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> MakeWay(PublishRequest request, TimePoint until);
  // Takes a publish to its end that MakeWay has not found published: plugin and secrets, whether it may
  // begin, the intent, the steps.
  [[nodiscard]] Awaitable<absl::Status> GoForward(std::shared_ptr<VolumeOperation> operation,
                                                  PublishRequest request);
  // CheckPlugin, and whether the plugin is being drained, of a publication that is not begun; one that is
  // goes on, unless its attachment is missing. FAILED_PRECONDITION; RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status MayBegin(const PublishRequest& request,
                                      const PluginDirectory::Entry& plugin) const;
  // Once published: whether the file system that the plugin chose is one that the consumer's runtime can use.
  // If not, a publication that nobody was ever told of (`handed_out` false) is undone. FAILED_PRECONDITION.
  [[nodiscard]] Awaitable<absl::Status> CheckWhatIsMounted(PublishRequest request, bool handed_out);
  // Writes down what a repeated publish has said anew; taken back in memory if that fails. `before`: the
  // publication as it was. `completed`: the request brought what a rebuilt record lacked.
  [[nodiscard]] Awaitable<absl::Status> CommitAdopted(PublicationRecord before, bool completed);
  void SyncIdentitySoon();
  // Without waiting for the disk.
  void WriteIdentity();
  // Writes the intent down, with the directories that it needs; undone in memory if that fails.
  [[nodiscard]] Awaitable<absl::Status> CommitIntent(PublishRequest request, PluginFacts facts);
  // Takes one publication to its goal, and the volume after it where it was the last; OK once that is
  // durable. Else why not: its first error, while the rest goes on in the background.
  [[nodiscard]] Awaitable<absl::Status> Drive(PublicationKey key);
  // `was_published`: by a call of the plugin just now, which people are told.
  [[nodiscard]] Awaitable<absl::Status> CommitOutcome(PublicationKey key, bool was_published);
  [[nodiscard]] Awaitable<FollowUp> RunStep(Step step);
  // One try of a step, until it ends or is given up.
  [[nodiscard]] Awaitable<StepReport> Try(Step step, StepInput input, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> TryExpand(ExpandRequest request, TimePoint deadline);
  // The plugin, once it is usable; ABORTED once `given_up` says so.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginDirectory::Entry>> AwaitPlugin(std::string plugin_id,
                                                                              std::function<bool()> given_up,
                                                                              TimePoint until);
  // What a step takes besides the record; nothing where secrets have to be read from where they are kept.
  [[nodiscard]] std::optional<StepInput> InputAtHand(const Step& step) const;
  [[nodiscard]] Awaitable<absl::StatusOr<StepInput>> ReadInput(Step step, TimePoint deadline);
  // Whether what `step` would publish from has to be staged (again) first, as the kernel shows it now.
  [[nodiscard]] bool StagingComesFirst(const Step& step);
  // What the kernel has at `path`, as the mount `mount_id` (0: any), is noted in the record: it has to be
  // gone before the volume counts as released. kBefore: it was there before, so a disk that has the number of
  // a recorded one by now is not the volume's.
  enum class Noted { kNow, kBefore };
  void NoteObjects(const std::string& path, uint64_t mount_id, Noted noted);
  // The volume is still in use: what the step found is kept, and it is tried again as soon as a holder ends.
  void AfterInUse(const StepReport& report);
  void WatchHolders(const std::vector<MountHolder>& holders);
  // What the kernel shows of what a step made is kept, and what is taken away is not missed.
  void BeforeTry(const Step& step);
  void AfterTry(const Step& step, const StepReport& report);
  [[nodiscard]] Awaitable<absl::Status> Commit();
  void SaveSoon();
  void Apply(const Reconciliation& found);
  // Everything is undone and done again, the staging first; false where that may not be.
  bool RepairStaging(const std::string& why, bool asked);
  // The machine's Repair of one, which goes on with the secrets that are kept while tokens are renewed.
  bool MountAgain(const PublicationKey& key, const std::string& why, bool asked);
  void KeepSecretsAtHand();
  // What died while a step was under way is repaired after it.
  void MendStaging();
  // What was dead, or taken away, while it was withheld is repaired, unless it still is.
  void MendWhatWaited();
  // Something that was blocked is not any more.
  void GoOn();
  void OnPathMounted(const PublicationKey& key, const PathMount& mounted);
  // What is not mounted at its path any more is mounted there again. True if there is something to do.
  bool ReconcilePaths();

  [[nodiscard]] StepProgress Progress(const Step& step);
  // Whether the row says what is not true any more once the call of `step` has left.
  [[nodiscard]] bool OverturnsRow(const Step& step) const;
  // Whether somebody waits who wants `step` undone: then it is not repeated.
  [[nodiscard]] bool Superseded(const Step& step) const;
  // Why `step`, which goes forward, may not: what it is for is withheld meanwhile, or nothing goes forward
  // any more. Empty: it may.
  [[nodiscard]] std::string WhyWithheld(const Step& step) const;
  [[nodiscard]] bool Withheld(const Step& step) const { return !WhyWithheld(step).empty(); }
  [[nodiscard]] bool MayNotRepeat(const Step& step) const {
    return Superseded(step) || Withheld(step) || GivenUp(step);
  }
  // Whether `step`, which goes forward, may leave now.
  [[nodiscard]] bool StillWanted(const Step& step) const;
  // Whether a try of `step` is to be left to itself now.
  [[nodiscard]] bool GivenUp(const Step& step) const;
  // Whether `operation`, which ended with `status`, did so to let an unpublish go first, and is to go on.
  [[nodiscard]] bool GivesWay(const VolumeOperation& operation, const absl::Status& status) const;
  // The same of an expansion that was asked for.
  [[nodiscard]] bool ExpansionGivenUp() const;
  void Announce(const Step& step, const StepReport& report, FollowUp follow_up);
  void AnnounceDone(const Step& step);
  void TellAwaiting();
  // What people are told went wrong last.
  [[nodiscard]] std::string ErrorOf(const PublicationRecord& publication) const;
  void EnsureWorking();
  void NoteCondition(ConditionView told);
  // Once others use the volume and those who were forced out are gone, nothing more is forced.
  void ForgetOldLevers();
  // "its file system was aborted 12 s ago; ": what the levers have done. Empty: nothing.
  [[nodiscard]] std::string WhatLeversDid() const;
  // " (failed 12 times)"; empty: once.
  [[nodiscard]] std::string Times() const;
  // What the last tries failed with: "failed 12 times, last: INTERNAL: …, next try in 4 s". Empty: nothing.
  [[nodiscard]] std::string LastFailures() const;
  // "NodeStageVolume has run for 12 s for consumer web": what others wait for.
  [[nodiscard]] std::string WhatRuns() const;

  MounterContext& context_;
  VolumeSteps steps_;
  PluginCaller caller_;
  VolumeMachine machine_;
  std::function<void()> on_gone_;
  std::string key_;  // in the journal, and of the directory
  VolumeReporter reporter_;

  std::vector<MountHolder> holders_;  // who stood in the way of the last try
  size_t watched_holders_ = 0;        // processes that keep the volume in use; see WatchHolders
  bool in_use_ = false;               // the last unstage or forget found that somebody does

  VolumeQueue queue_;
  Condition changed_;  // the queue, the time of the next retry, or the context's stopping
  bool working_ = false;
  bool gives_way_ = false;  // the last try ended so that an unpublish could go first
  bool slept_ = false;      // since the present wait began

  // Of publications that are on their way; gone once they have arrived or are given up. Those that nobody
  // could read again stay while tokens are renewed, which repeats the call with them.
  std::map<PublicationKey, Secrets> secrets_;
  TokenRenewer tokens_;
  bool reconcile_again_ = false;  // something has changed while a renewal's call ran
  std::shared_ptr<SharedStats> stats_;
  std::optional<ConditionView> condition_;  // as its plugin said last
  // What an operator allowed, until the volume is released or published again: a restart of the plugin may
  // come between.
  struct Levers {
    bool force = false;
    bool lazy = false;
    std::set<PublicationKey> for_keys;
    bool call_hung = false;  // a call of the plugin's, in the volume
    // What was done, and when last.
    std::optional<WallTime> aborted_at;
    std::optional<WallTime> detached_at;
  };
  Levers levers_;
  std::optional<HungSince> hung_since_;  // of the reverse step that is under way
  bool sent_ = false;                    // the try that runs has called the plugin
  bool plugin_cannot_ = false;           // the last try of a reverse step ended so
  Step trying_;                          // the try that runs
  std::set<PublicationKey> remounting_;
  bool staging_dead_ = false;            // its file system does not answer any more
  std::set<PublicationKey> unrepaired_;  // dead, and to be mounted again once they are not withheld any more

  // The row on the disk is not what holds: a commit failed after the plugin had done its part.
  bool stale_row_ = false;
  int failures_in_a_row_ = 0;
  TimePoint next_retry_{};
  absl::Status last_error_;
  bool told_awaiting_ = false;
  FailureLog log_;        // which failures are told
  int tries_failed_ = 0;  // in a row, of any step
  std::deque<RpcTrace> rpcs_;

  // What people see of the present step.
  std::string running_;
  std::optional<WallTime> running_since_;
  std::string waiting_for_;
  std::optional<WallTime> next_retry_at_;
};

}  // namespace berth
