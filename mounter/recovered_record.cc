#include "mounter/recovered_record.h"

#include <algorithm>

namespace berth {
namespace {

constexpr const char* kNoLeaseYet = "berthd was restarted: no valid lease of its scheduler is known yet";

// What the kernel has of the volume, or may have.
void RecoverUse(bool rebooted, VolumeRecord* record) {
  VolumeRecord& r = *record;
  if (rebooted) {
    r.still_in_use = false;
    r.objects.clear();
    r.detached_mounts.clear();
    r.earlier_mounts = {};
    r.mounts_unknown = false;
    r.past_consumers.clear();
  }
  const bool cut_off = r.rebuilt || r.stage_state == StageState::kStaging ||
                       std::ranges::any_of(r.publications, [](const PublicationRecord& p) {
                         return p.state == PublicationState::kPublishing;
                       });
  if (cut_off && !rebooted) r.mounts_unknown = true;
  // What kept it in use was not written down.
  if (r.still_in_use && r.objects.empty() && (r.rebuilt || !r.mounts_unknown)) {
    r.objects.push_back(KernelObject{});
  }
}

void RecoverStaging(bool rebooted, VolumeRecord* record) {
  VolumeRecord& r = *record;
  if (rebooted && r.stage_state == StageState::kStaged) r.stage_state = StageState::kStaging;
  // A staging that was repaired may have begun again since the row was written.
  const bool needed =
      std::ranges::any_of(r.publications, [&r](const PublicationRecord& p) { return r.NeedsStaging(p); });
  if (needed && r.stage_state == StageState::kAbsent) r.stage_state = StageState::kStaging;
  if (r.stage_state == StageState::kStaging || r.stage_state == StageState::kUnstaging) {
    r.stage_uncertain = true;
  }
  r.stage_sent = true;
  if (!rebooted) return;
  r.staging_mount_id = 0;
  r.staging_mount_path.clear();
  r.staged_mounts = {};
  r.staging_lost = false;
}

void RecoverPublication(bool rebooted, bool unstaging, PublicationRecord* publication) {
  PublicationRecord& p = *publication;
  p.sent = true;
  p.secrets_at_hand = false;
  p.ForgetHealth();
  if (p.origin == Origin::kScheduler) p.forward_blocked = kNoLeaseYet;
  // Whether it is mounted at its path the kernel says, once that is asked.
  p.path_mounted = false;
  p.path_error.clear();
  if (rebooted) {
    p.confirmed_at.reset();
    p.path_mount_id = 0;
    p.mount_id = 0;
    p.before_reboot = true;
  }
  if (p.state == PublicationState::kPublished) return;
  p.uncertain = true;
  // The staging was being repaired, and how far the publication had come meanwhile was not written.
  if (unstaging && !p.ephemeral && p.state == PublicationState::kPublishing) {
    p.state = PublicationState::kUnpublishing;
    p.remount_after_undo = true;
  }
}

}  // namespace

VolumeRecord RecoveredRecord(VolumeRecord record, bool rebooted) {
  RecoverUse(rebooted, &record);
  RecoverStaging(rebooted, &record);
  const bool unstaging = record.stage_state == StageState::kUnstaging;
  for (PublicationRecord& publication : record.publications) {
    RecoverPublication(rebooted, unstaging, &publication);
  }
  return record;
}

}  // namespace berth
