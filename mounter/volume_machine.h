// The life of one volume on this node: which step comes next for a goal, and what follows each outcome.
//
//              Want                                  done                          done
//   absent ────────────► staging ──NodeStageVolume──────► staged ──NodePublishVolume──────► published
//     ▲                     │                             ▲    │  (each publication            │
//     │                final│ failure, or Unwant          │    │   for itself)                 │ Unwant
//     │   forget            ▼                             │    └─ final failure ─┐             ▼
//     └────────────── unstaging ◄──NodeUnstageVolume── last one gone ◄── NodeUnpublishVolume ── unpublishing
//
// A volume whose plugin does not stage goes from absent to publishing, and back without unstaging.
//
// Beside each state there may stand:
//   uncertain          the step was sent and its outcome is not known: it is repeated, or reversed, before
//                      anything else is done with it
//   awaiting secrets   the step has to be repeated, and the secrets that it took were never written down:
//                      only its reverse, which takes none, may run
//   held               the mount was lost while nobody acted on it: only a caller's word moves it
//
// The rules that keep data safe:
//   * Once a stage or publish was sent, "absent" needs a successful reverse call, whatever the failure's
//     code was: final only means that repeating forward is of no use. The caller is told the first error.
//   * Unstage begins only when no publication is left, whatever its state.
//   * While it unstages, nothing new is wanted: the mounter finishes that first (see Want).
//
// Pure: no clock, no I/O. Whoever performs the steps tells OnSent before, OnOutcome after.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "csi/errors.h"
#include "mounter/volume_record.h"

namespace berth {

enum class StepKind {
  kNone,  // nothing to do, or nothing that may be done now
  kStage,
  kPublish,
  kUnpublish,
  kUnstage,
  kForget,  // remove the volume's directories, then its row
};

struct Step {
  StepKind kind = StepKind::kNone;
  PublicationKey key;  // of kStage: whose secrets it takes; of kPublish and kUnpublish: which one

  bool operator==(const Step&) const = default;
};

enum class FollowUp {
  kNext,    // ask Next again
  kRepeat,  // the same step again, after a backoff
  kPause,   // later: its time is over, or repeating would not help
};

class VolumeMachine {
 public:
  // A volume of which nothing is here. `record` says what it is; it has no publications.
  [[nodiscard]] static VolumeMachine Fresh(VolumeRecord record);
  // A volume as the journal remembers it. What was under way is uncertain; what needs secrets awaits them.
  // `rebooted`: its mounts were made in another boot, so none is there. Then nothing goes forward of itself
  // (another node may have the volume by now), while what was being undone is still undone with the plugin.
  [[nodiscard]] static VolumeMachine Recovered(VolumeRecord record, bool rebooted);

  [[nodiscard]] const VolumeRecord& record() const { return record_; }
  // Whether a row and directories exist, or may.
  [[nodiscard]] bool present() const { return present_; }

  // A publication is wanted: a new one, or one that is publishing already, which a caller now drives (with
  // secrets, if it has them). Not while it unstages, and not while that publication is being unpublished.
  void Want(PublicationRecord publication);
  // In which boot the mounts to come are made.
  void SetBootId(std::string boot_id) { record_.boot_id = std::move(boot_id); }
  // It is not wanted any more. One of which nothing was sent is gone at once. False where there is none.
  bool Unwant(const PublicationKey& key);
  // The kernel does not show the mount of a published one (any more).
  void MarkLost(const PublicationKey& key, std::string error);
  // It shows it (again).
  void MarkFound(const PublicationKey& key);

  // The next step for one publication and, when it was the last, for the volume after it.
  [[nodiscard]] Step NextFor(const PublicationKey& key) const;
  // Publications that can move of themselves: those being undone, and those published that are not held and
  // do not await secrets.
  [[nodiscard]] std::vector<PublicationKey> Movable() const;
  // The steps that undo what no publication needs any more.
  [[nodiscard]] Step NextTeardown() const;
  // Whether anything can move of itself.
  [[nodiscard]] bool Unsettled() const;
  [[nodiscard]] bool AwaitingSecrets() const;

  void OnSent(const Step& step);
  // `error` is what failed (ignored for kDone and kAbsent); `time_left` whether the step may be repeated
  // before its deadline.
  FollowUp OnOutcome(const Step& step, CallOutcome outcome, const absl::Status& error, bool time_left,
                     WallTime now);

  // Why a publication that was wanted is now being undone, or is gone: the error for its caller. Once.
  [[nodiscard]] std::optional<absl::Status> TakeFailure(const PublicationKey& key);

  // That it is published could not be written down: it counts as not done, and is done again, with the
  // secrets that the caller still keeps.
  void Unsettle(const PublicationKey& key, std::string error);

 private:
  [[nodiscard]] bool Awaits(const PublicationRecord& publication) const;
  void Remove(PublicationKey key);  // by value: the caller's may live in what is erased
  void Normalize();
  FollowUp OnStage(CallOutcome outcome, const absl::Status& error, bool time_left);
  FollowUp OnPublish(PublicationRecord& publication, CallOutcome outcome, const absl::Status& error,
                     bool time_left, WallTime now);
  FollowUp OnUnpublish(PublicationRecord& publication, CallOutcome outcome, const absl::Status& error,
                       bool time_left);
  FollowUp OnUnstage(CallOutcome outcome, const absl::Status& error, bool time_left);

  VolumeRecord record_;
  bool present_ = false;
  std::map<PublicationKey, absl::Status> failures_;
};

// How long to wait before the next try after `failures` (at least 1) in a row: `first`, doubling up to
// `limit`, of which the half is fixed and the other half scaled by `random` in [0, 1).
[[nodiscard]] Duration RetryDelay(int failures, Duration first, Duration limit, double random);

}  // namespace berth
