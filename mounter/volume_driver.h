// Takes one volume's publications to their goals, step by step: each step is tried, repeated, ended for what
// supersedes it, and written down.
//
//   Drive ──► the machine's next step ──► RunStep ──► Try (VolumeSteps) ──► the machine's follow-up ──► ...
//         ──► no step left: CommitOutcome
//
// A step that waits for an absent plugin ends as soon as an unpublish of the same publication is queued; one
// of the background ends for any request. A step whose call has left ends only for a forced unpublish; its
// call may go on in the plugin.
//
// Owned by the volume's actor; loop thread only. Work runs in the Mounter's scope, so it does not end when a
// caller leaves.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mounter/plugin_caller.h"
#include "mounter/volume_reconciler.h"
#include "mounter/volume_state.h"
#include "mounter/volume_steps.h"

namespace berth {

class VolumeDriver {
 public:
  // What is given outlives it.
  VolumeDriver(VolumeState& volume, VolumeReconciler& reconciler)
      : volume_(volume), reconciler_(reconciler), steps_(volume.context), caller_(volume.context) {}

  // Takes one publication to its goal, and the volume after it if it was the last; OK once that is durable.
  // Else its first error, while the rest goes on in the background.
  [[nodiscard]] Awaitable<absl::Status> Drive(PublicationKey key);
  [[nodiscard]] Awaitable<FollowUp> RunStep(Step step);
  [[nodiscard]] Awaitable<StepReport> TryExpand(ExpandRequest request, TimePoint deadline);
  // What is being unpublished is unmounted by berthd, since the plugin cannot: `why`. Its calls stay pending.
  [[nodiscard]] Awaitable<absl::Status> ReleaseWithoutPlugin(std::shared_ptr<VolumeOperation> operation,
                                                             std::string requested_by, absl::Status why);
  // The plugin, once it is usable; ABORTED once `should_end` says so.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginDirectory::Entry>> AwaitPlugin(
      std::string plugin_id, std::function<bool()> should_end, TimePoint until);

  // A request begins: what the last one met counts no more.
  void OnRequest() { gives_way_ = false; }
  void OnUnpublish() { plugin_cannot_ = false; }
  // Whether an unpublish waits that supersedes `step`: then it is not repeated.
  [[nodiscard]] bool Superseded(const Step& step) const;
  // Whether `operation`, which ended with `status`, did so to let an unpublish go first, and is to go on.
  [[nodiscard]] bool GivesWay(const VolumeOperation& operation, const absl::Status& status) const;
  [[nodiscard]] bool ExpansionShouldEnd() const;

  // Who stood in the way of the last try.
  [[nodiscard]] const std::vector<MountHolder>& holders() const { return holders_; }
  // The last unstage or forget found the volume in use.
  [[nodiscard]] bool in_use() const { return in_use_; }
  // The plugin could not do the last reverse step (StepReport::plugin_cannot).
  [[nodiscard]] bool plugin_cannot() const { return plugin_cannot_; }

 private:
  // `was_published`: by a call of the plugin just now, which is reported.
  [[nodiscard]] Awaitable<absl::Status> CommitOutcome(PublicationKey key, bool was_published);
  // One try of a step, until it ends or is ended early (ShouldEnd).
  [[nodiscard]] Awaitable<StepReport> Try(Step step, StepInput input, TimePoint deadline);
  // What a step takes in addition to the record. Unset: it may not go on any more. An error: its secrets
  // could not be read.
  [[nodiscard]] Awaitable<std::optional<absl::StatusOr<StepInput>>> TakeInput(Step step, TimePoint deadline);
  // The same; unset if secrets have to be read from where they are kept.
  [[nodiscard]] std::optional<StepInput> InputAtHand(const Step& step) const;
  [[nodiscard]] Awaitable<absl::StatusOr<StepInput>> ReadInput(Step step, TimePoint deadline);
  // What the kernel shows of what a step made is kept, and what it unmounts is not missed.
  void BeforeTry(const Step& step);
  void AfterTry(const Step& step, const StepReport& report);
  // The volume is still in use: what the step found is kept, and it is tried again as soon as a holder ends.
  void AfterInUse(const StepReport& report);
  void WatchHolders(const std::vector<MountHolder>& holders);
  [[nodiscard]] StepProgress Progress(const Step& step);
  // Whether the row is wrong once the call of `step` has left.
  [[nodiscard]] bool OverturnsRow(const Step& step) const;
  // Why `step`, which goes forward, may not: what it is for is blocked meanwhile, or nothing goes forward any
  // more. Empty: it may.
  [[nodiscard]] std::string WhyForwardBlocked(const Step& step) const;
  [[nodiscard]] bool ForwardBlocked(const Step& step) const { return !WhyForwardBlocked(step).empty(); }
  [[nodiscard]] bool MayNotRepeat(const Step& step) const {
    return Superseded(step) || ForwardBlocked(step) || ShouldEnd(step);
  }
  // Whether `step`, which goes forward, may leave now.
  [[nodiscard]] bool StillWanted(const Step& step) const;
  // Whether a try of `step` is to end now, whatever its call does.
  [[nodiscard]] bool ShouldEnd(const Step& step) const;

  VolumeState& volume_;
  VolumeReconciler& reconciler_;
  VolumeSteps steps_;
  PluginCaller caller_;

  std::vector<MountHolder> holders_;
  size_t watched_holders_ = 0;  // processes that keep the volume in use; see WatchHolders
  bool in_use_ = false;
  bool gives_way_ = false;               // the last try ended so that an unpublish could go first
  std::optional<HungSince> hung_since_;  // of the reverse step that is under way
  bool plugin_cannot_ = false;
};

}  // namespace berth
