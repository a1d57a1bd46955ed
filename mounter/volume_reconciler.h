// What the kernel, consumers and other people change about one volume, and what follows; and what of it may
// go forward at all.
//
// Owned by the volume's actor; loop thread only. Decides nothing by itself: recovery.h compares, and the
// VolumeMachine says what is to be done, which the actor then does in the background.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "mounter/recovery.h"
#include "mounter/volume_state.h"
#include "mounts/mount_health.h"

namespace berth {

class VolumeReconciler {
 public:
  // `volume` outlives it.
  explicit VolumeReconciler(VolumeState& volume) : volume_(volume) {}

  // Compares the record with the kernel, and does what follows (recovery.h).
  void Reconcile(Circumstances circumstances);
  // A verdict about one of WatchedMounts.
  void OnHealth(const std::string& component, const absl::Status& verdict);
  [[nodiscard]] std::vector<WatchedMount> WatchedMounts() const;
  // FAILED_PRECONDITION: what is staged or published of it is dead, or, if it is to be written, read-only.
  // Only the kernel is asked.
  [[nodiscard]] absl::Status CheckStorage(bool writes) const;

  // Whether what `step` would publish from has to be staged (again) first, as the kernel shows it now.
  [[nodiscard]] bool StagingComesFirst(const Step& step);
  // A step has staged it, or has mounted a publication at its path.
  void OnStaged() { staging_dead_ = false; }
  void OnPathMounted(const PublicationKey& key, const PathMount& mounted);
  // What died while a step was under way is repaired after it.
  void RepairDeadStaging();

  // Nothing forward is begun or repeated of what `origin` requested; a publish of its that has not begun ends
  // (UNAVAILABLE). A call that has left is not called back.
  void BlockForward(Origin origin, const std::string& why);
  // The same for all origins, for good.
  void BeginShutdown(const std::string& why);
  // A lease of `origin`'s is valid, unbroken since `since` (VolumeMachine::UnblockForward). Returns how many
  // publications are unconfirmed.
  size_t UnblockForward(Origin origin, BootTime since);
  // The scheduler still wants it (VolumeMachine::Confirm): what was blocked goes on. The row is written soon.
  bool Confirm(const PublicationKey& key);
  // Whether something that `origin` requested is blocked.
  [[nodiscard]] bool HasBlocked(Origin origin) const;
  // An operator's request: a publication with a lost or dead mount is mounted again, whatever its policy.
  // False if there is nothing to repair.
  bool Repair(const PublicationKey& key, const std::string& why);

 private:
  void Apply(const Reconciliation& found);
  // Everything is undone and done again, the staging first; false if that may not be.
  bool RepairStaging(const std::string& why, bool asked);
  // The machine's Repair of one, which goes on with the secrets that are kept while tokens are renewed.
  bool MountAgain(const PublicationKey& key, const std::string& why, bool asked);
  void KeepSecretsAtHand();
  // What was dead, or unmounted, while it was blocked is repaired, unless it still is blocked.
  void RepairDeferred();
  // Something that was blocked is not any more.
  void ResumeForward();
  // Of a staging whose mount is not recorded: where it lies.
  void FindStagingMount();
  // What is not mounted at its path any more is mounted there again. True if there is something to do.
  bool ReconcilePaths();

  VolumeState& volume_;
  bool staging_dead_ = false;  // its file system does not answer any more
  std::set<PublicationKey>
      deferred_repairs_;  // dead, and to be mounted again once they are not blocked any more
};

}  // namespace berth
