// The life of one volume on this node: what a request, a fact or a step's outcome changes. volume_plan.h
// describes the states, and says which step may come next.
//
// The rules that keep data safe:
//   * Once a stage or publish was sent, "absent" needs a successful reverse call, whatever the failure's
//     code was: final only means that repeating forward is of no use. The caller gets the first error.
//   * Unstage begins only when no publication is left, whatever its state; or, to repair the staging, when
//     each one that is left was undone and waits to be published again.
//   * While it unstages, nothing new is requested: the mounter finishes that first (see RequestPublish).
//   * An ephemeral volume is unpublished only at a caller's request, since that deletes it; or to undo a
//     publish that never ended.
//   * A publication that is to be mounted again by itself does not vanish because that failed: it is tried
//     until a request for its unpublish.
//
// Pure: no clock, no I/O. One thread. The caller that performs a step calls OnSent before it, and OnOutcome
// after it.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "csi/errors.h"
#include "mounter/forward_permissions.h"
#include "mounter/volume_plan.h"
#include "mounter/volume_record.h"

namespace berth {

enum class FollowUp {
  kNext,    // ask Next again
  kRepeat,  // the same step again, after a backoff
  kPause,   // later: its time is over, or repeating would not help
};

class VolumeMachine {
 public:
  // A volume without anything on this node. `record` says what it is; it has no publications.
  [[nodiscard]] static VolumeMachine Fresh(VolumeRecord record);
  // A volume as the journal remembers it (recovered_record.h).
  [[nodiscard]] static VolumeMachine Recovered(VolumeRecord record, bool rebooted);

  [[nodiscard]] const VolumeRecord& record() const { return record_; }
  // Whether a row and directories exist, or may.
  [[nodiscard]] bool present() const { return present_; }
  // Which step may come next. It looks at this machine: for the moment only.
  [[nodiscard]] VolumePlan plan() const {
    return {record_,
            {.present = present_,
             .leaving = !leaving_.empty(),
             .expansion_deferred = expansion_deferred_,
             .expansion_refused = expansion_refused_}};
  }

  // A publication is wanted: a new one, or one that is publishing already, which a caller now drives (with
  // secrets, if it has them). Not while it unstages, and not while that publication is being unpublished.
  void RequestPublish(PublicationRecord publication);
  // Rolls back a RequestPublish that could not be written down, and sent nothing. `before`: the machine as it
  // was then. Later changes stay, such as a confirmation by its scheduler.
  void RollBackRequest(const PublicationKey& key, const VolumeMachine& before);
  // In which boot the mounts to come are made.
  void SetBootId(std::string boot_id) { record_.boot_id = std::move(boot_id); }
  // True: the volume has another label now. An empty one changes nothing.
  bool SetLabel(const std::string& label);
  // A repeated publish: PublicationRecord::Update of the one with its key, and RollBackUpdate.
  bool UpdateRequest(const PublicationRecord& said) {
    PublicationRecord* known = record_.Find(said.key);
    return known != nullptr && known->Update(said);
  }
  void RollBackUpdate(const PublicationRecord& before) {
    if (PublicationRecord* known = record_.Find(before.key)) known->RollBackUpdate(before);
  }
  // A rebuilt record learns what only the lost journal knew.
  void FillRebuilt(const PublicationRecord& said, VolumeUse use,
                   std::map<std::string, std::string> volume_context,
                   std::optional<std::map<std::string, std::string>> publish_context) {
    record_.FillRebuilt(said, std::move(use), std::move(volume_context), std::move(publish_context));
  }
  // It is not wanted any more. If nothing of it was sent it is gone at once. False if it does not exist.
  bool RequestUnpublish(const PublicationKey& key);

  // Of a recovered volume: no publication stands on its staging, so that nothing proves that it is still
  // there.
  void DoubtStaging();
  // The kernel does not show the mount of what is staged (any more), or another on top of it.
  void MarkStagingLost(std::string error);
  // It shows it again.
  void MarkStagingFound();
  // VolumeRecord::staging_mount_id, staging_mount_path and staged_mounts.
  void SetStagingMount(StagingMount mount) {
    record_.staging_mount_id = mount.mount_id;
    record_.staging_mount_path = std::move(mount.path);
    record_.staged_mounts = std::move(mount.others);
  }
  // PublicationRecord's MarkLost, MarkFound and ApplyVerdict, of a published one.
  void MarkLost(const PublicationKey& key, std::string error) {
    if (PublicationRecord* publication = Published(key)) publication->MarkLost(std::move(error));
  }
  void MarkFound(const PublicationKey& key) {
    if (PublicationRecord* publication = Published(key)) publication->MarkFound();
  }
  void OnVerdict(const PublicationKey& key, const absl::Status& verdict) {
    if (PublicationRecord* publication = Published(key)) publication->ApplyVerdict(verdict);
  }
  // Whether this process has the secrets that it needs in memory.
  void SetSecretsAtHand(const PublicationKey& key, bool at_hand) {
    if (PublicationRecord* publication = record_.Find(key)) publication->secrets_at_hand = at_hand;
  }
  // The kernel's id of its mount; 0: it is not known, as once a renewal was sent.
  void SetMountId(const PublicationKey& key, uint64_t mount_id) {
    if (PublicationRecord* publication = record_.Find(key)) publication->mount_id = mount_id;
  }
  // It is there in this boot: its consumer may have it.
  void SetOfThisBoot(const PublicationKey& key) {
    if (PublicationRecord* publication = record_.Find(key)) publication->before_reboot = false;
  }
  void SetPermissionsSet(const PublicationKey& key) {
    if (PublicationRecord* publication = record_.Find(key)) publication->permissions_set = true;
  }
  // The kernel has what it had of the volume's last use, too.
  void Inherit(const VolumeRecord& last) {
    record_.Inherit(last);
    SetPendingExpansion(last.pending_expansion_bytes);
  }
  // The kernel has nothing of it yet, and these mounts.
  void SetEarlierMounts(EarlierMounts mounts) { record_.earlier_mounts = std::move(mounts); }
  // The kernel has these of it, from now on. Those that are known already are not added again.
  void AddObjects(const std::vector<KernelObject>& objects) { MergeObjects(objects, &record_.objects); }
  void AddOtherName(const VolumeRecord& left) { record_.AddOtherName(left); }
  // A mount of it was detached while it was in use.
  void AddDetachedMount(uint64_t mount_id) { record_.AddDetachedMount(mount_id); }
  // The kernel has released it all, and the plugin is still to be asked.
  void SetWithoutPlugin(WithoutPlugin said) { record_.SetWithoutPlugin(std::move(said)); }
  // The kernel still has it: these objects, or what is not known.
  void SetInUse(std::vector<KernelObject> objects) { record_.SetInUse(std::move(objects)); }
  // PublicationRecord::NotePath. Unnote: it could not be written down.
  bool NotePath(const PublicationKey& key) {
    PublicationRecord* publication = record_.Find(key);
    return publication != nullptr && publication->NotePath();
  }
  void UnnotePath(const PublicationKey& key) {
    if (PublicationRecord* publication = record_.Find(key)) publication->path_made = {};
  }
  // PublicationRecord's SetPathMounted and DoubtPath.
  void SetPathMounted(const PublicationKey& key, uint64_t mount_id, std::string unguarded) {
    if (PublicationRecord* p = record_.Find(key)) p->SetPathMounted(mount_id, std::move(unguarded));
  }
  void DoubtPath(const PublicationKey& key, std::string error) {
    if (PublicationRecord* p = record_.Find(key)) p->DoubtPath(std::move(error));
  }

  // A published one with a lost or dead mount is to be mounted again: undone first, unless it is ephemeral.
  // False if that may not be: it is not published, it hangs, a rebuilt record does not know how, it is
  // blocked and this was not `asked` for, or it is leaving.
  bool Repair(const PublicationKey& key, std::string error, bool asked = false);
  // The staging's file system is dead: everything is undone, and done again. False if that may not be: a
  // publication hangs, or is not to be mounted again by itself and this was not `asked` for; or it is
  // leaving.
  bool RepairStaging(const std::string& error, bool asked = false);
  // After a reboot one that was published, or nearly, is to be mounted again. It is undone first, the staging
  // too where nothing else holds it, since a plugin's books may have outlived its mounts: it would answer OK,
  // and an empty directory would be published. An ephemeral one just goes forward.
  void Resume(const PublicationKey& key, std::string error);
  // Nothing is done about a publication, for this reason, until RequestPublish, RequestUnpublish or Confirm.
  void Block(const PublicationKey& key, std::string why);
  // No lease is valid: nothing forward is begun or repeated for what `origin` requested, whatever its state,
  // until UnblockForward or RequestPublish.
  void BlockForward(Origin origin, const std::string& why) {
    permissions_.Block(origin, why);
    ApplyPermissions(origin);
  }
  // A lease is valid, and has been without a break since `since`, on the boot's clock. What was requested or
  // confirmed in that time goes on; the rest is unconfirmed. True if something goes on that was blocked.
  bool UnblockForward(Origin origin, BootTime since) {
    permissions_.Unblock(origin, since);
    return ApplyPermissions(origin);
  }
  // The scheduler still wants this publication, at `at`: it is confirmed and not blocked any more. False, and
  // nothing changes, if a confirmation is not enough: it does not exist, is not the scheduler's, is being
  // unpublished, or a rebuilt record does not know how to publish it.
  bool Confirm(const PublicationKey& key, BootTime at);

  // The node has to expand the volume to this size.
  void SetPendingExpansion(int64_t bytes);
  // It was expanded to this size.
  void OnExpanded(int64_t bytes);
  // An expansion that failed may be tried again.
  void RetryExpansion() { expansion_deferred_ = false; }

  // Nothing forward is begun or repeated any more, for this reason: berthd or the machine is being stopped.
  // Final. What is being undone goes on.
  void BeginShutdown(std::string why) { leaving_ = std::move(why); }
  // Why nothing goes forward; empty: it may.
  [[nodiscard]] const std::string& leaving() const { return leaving_; }

  void OnSent(const Step& step);
  // `error` is what failed (ignored for kDone and kAbsent); `time_left` whether the step may be repeated
  // before its deadline.
  FollowUp OnOutcome(const Step& step, CallOutcome outcome, const absl::Status& error, bool time_left,
                     WallTime now);
  // The plugin's call or the helper has not returned: in the middle of a call, or after OnOutcome. If it is
  // the same as before, it hangs since then.
  void OnStuck(StuckView stuck);
  [[nodiscard]] const std::optional<StuckView>& stuck() const { return stuck_; }

  // Why a publication that was wanted is now being undone, or is gone: the error for its caller. Once.
  [[nodiscard]] std::optional<absl::Status> TakeFailure(const PublicationKey& key);

  // That it is published could not be written down: it counts as not done, and is done again, with the
  // secrets that the caller still keeps.
  void Unsettle(const PublicationKey& key, std::string error);

 private:
  // What failed for good: undone, or kept where it is to be mounted again of itself. True if it is kept.
  bool GiveUp(const PublicationKey& key, const absl::Status& error);
  void Remove(PublicationKey key);  // by value: the caller's may live in what is erased
  void Normalize();
  // True if one of its publications was blocked, and is not any more.
  bool ApplyPermissions(Origin origin);
  [[nodiscard]] PublicationRecord* Published(const PublicationKey& key);  // null: it is not
  FollowUp OnStage(CallOutcome outcome, const absl::Status& error, bool time_left);
  FollowUp OnPublish(PublicationRecord& publication, CallOutcome outcome, const absl::Status& error,
                     bool time_left, WallTime now);
  FollowUp OnExpand(CallOutcome outcome, const absl::Status& error);
  FollowUp OnMountPath(PublicationRecord& publication, CallOutcome outcome, const absl::Status& error,
                       bool time_left);
  FollowUp OnUnpublish(PublicationRecord& publication, CallOutcome outcome, const absl::Status& error,
                       bool time_left);
  FollowUp OnUnstage(CallOutcome outcome, const absl::Status& error, bool time_left);

  VolumeRecord record_;
  bool present_ = false;
  std::string leaving_;              // empty: it is not
  int64_t expanding_ = 0;            // to which size it was asked last
  bool expansion_deferred_ = false;  // it failed: later
  bool expansion_refused_ = false;   // for good: not before the next stage, publish, or SetPendingExpansion
  std::optional<StuckView> stuck_;
  ForwardPermissions permissions_;
  std::map<PublicationKey, absl::Status> failures_;
};

}  // namespace berth
