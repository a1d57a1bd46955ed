// One use of a volume by one consumer: what the journal holds of it, plus a few facts that live only as long
// as this berthd does.
//
// Pure; any thread. A record never holds a secret.
#pragma once

#include <absl/status/status.h>

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "mounter/volume_types.h"

namespace berth {

// One use of a volume: a consumer may use a volume several times, under different names.
struct PublicationKey {
  std::string consumer;
  std::string name;

  auto operator<=>(const PublicationKey&) const = default;
};

struct PublicationRecord {
  PublicationKey key;
  std::string component;  // its directory: volume_paths.h
  bool readonly = false;
  bool had_secrets = false;  // a repeat needs them again
  PublicationState state = PublicationState::kPublishing;
  bool uncertain = false;
  std::string last_error;
  std::optional<WallTime> published_at;

  Origin origin = Origin::kCaller;
  bool remount = false;
  bool ephemeral = false;
  ConsumerLife life;
  RootPermissions permissions;
  bool permissions_set = false;  // they were applied: never again
  SecretsReference secrets_reference;
  std::map<std::string, std::string> consumer_labels;
  // Its own mount flags, if they differ from the volume's. Only of a plugin that does not stage: a staging
  // has the volume's flags, once for all publications.
  std::optional<std::vector<std::string>> mount_flags;
  // Why nothing is done about it before a caller, or its scheduler, says so. Empty: nothing is awaited.
  std::string blocked;
  // Once it has been undone it is published again: a repair. Then it is not gone, whatever its state.
  bool remount_after_undo = false;
  // The node was restarted since it was last published: its consumer of then has ended, and what bears the
  // same name now (a unit is started at each boot) has nothing of it.
  bool before_reboot = false;
  // The kernel's id of its mount, in the boot `boot_id`; 0: not known. Another one at the target: another
  // mount lies over it.
  uint64_t mount_id = 0;
  // Where it is to be mounted too.
  PublishedPath path;
  // Where it may be mounted too: written before it is mounted there, and cleared after it was unmounted.
  PublishedPath path_made;
  // The kernel's id of the mount at `path_made`, in the boot `boot_id`; 0: not known.
  uint64_t path_mount_id = 0;
  // Why the directory beneath that mount could not be made immutable. Empty: it is, or it is not known.
  std::string path_unguarded;

  // Not written. Whether NodePublishVolume may have reached the plugin: of a record that was read back,
  // that has to be assumed.
  bool sent = true;
  // Not written. The secrets that it needs are in this process's memory.
  bool secrets_at_hand = false;
  // Not written. Its mount is there, and its file system has ended (dead) or does not answer (hung): the
  // error. At most one of them is set.
  std::string dead;
  std::string hung;
  // Not written. Its mount refuses writes, which it was asked for: why.
  std::string writes_refused;
  // Not written. Since this berthd started, the kernel has shown it mounted at `path`.
  bool path_mounted = false;
  // Not written. Why it is not mounted at `path`.
  std::string path_error;
  // Of a scheduler's: when the scheduler requested or confirmed it last, on the boot's clock. Unset: not in
  // this boot.
  std::optional<BootTime> confirmed_at;
  // Not written. Nothing forward is begun or repeated for it, for this reason (forward_permissions.h). Empty:
  // it may go forward.
  std::string forward_blocked;
  // Not written. It is blocked until its scheduler confirms it or requests it again.
  bool unconfirmed = false;
  // Not written. How often it was confirmed in this run.
  int confirmations = 0;

  [[nodiscard]] const std::vector<std::string>& MountFlags(const VolumeUse& use) const {
    return mount_flags ? *mount_flags : use.mount_flags;
  }
  // It was asked for to write.
  [[nodiscard]] bool Writes(const VolumeUse& use) const;
  // What its consumer consists of, as far as it is known: kUnknown after a reboot until it is published
  // again, since `life` is of another boot.
  [[nodiscard]] ConsumerLife Consumer() const { return before_reboot ? ConsumerLife{} : life; }
  // Its mount is made again of itself when it is gone or dead.
  [[nodiscard]] bool Remounts() const { return remount || origin == Origin::kDeclared; }
  // It needs secrets that this process does not have.
  [[nodiscard]] bool AwaitsSecrets() const {
    return had_secrets && !secrets_at_hand && !IsSet(secrets_reference);
  }

  // What a repeated publish may change: what its consumer consists of, where its secrets are, whether it is
  // mounted again by itself; of a declared one its path; and that a caller's becomes the scheduler's, which
  // it then stays. True if something has changed.
  bool Update(const PublicationRecord& said);
  // Rolls back an Update that could not be written down. `before`: this publication as it was then.
  void RollBackUpdate(const PublicationRecord& before);

  // It is requested once more: an Update, after which it is on its way and nothing blocks it.
  void RequestAgain(const PublicationRecord& said);
  // Rolls that back. What was said since stays: true if its scheduler has confirmed it since.
  bool RollBackRequest(const PublicationRecord& before);

  // NodePublishVolume, or NodeUnpublishVolume of one that is then published again, has succeeded.
  void MarkPublished(WallTime now);
  void MarkUndone();
  // Of a published one. The kernel does not show its mount (any more), or shows it (again).
  void MarkLost(std::string error);
  void MarkFound();
  // What its file system answers. OK: it is well. UNAVAILABLE: it has ended (dead). DEADLINE_EXCEEDED: it
  // does not answer (hung). FAILED_PRECONDITION: it refuses the writes that it was asked for (read-only).
  // Anything else changes nothing.
  void ApplyVerdict(const absl::Status& verdict);
  // Nothing is known of its file system.
  void ForgetHealth();

  // Before it is mounted at its path: from now on it may be. True if that has to be written down first.
  bool NotePath();
  // The kernel shows it mounted at its path; `unguarded`: path_unguarded.
  void SetPathMounted(uint64_t id, std::string unguarded);
  // It does not any more, or may not.
  void DoubtPath(std::string error);
  // Nothing of it is mounted at a path any more.
  void ForgetPath();

  // It is undone, and gone after that.
  void Undo();
  // It is undone, and then published again.
  void UndoAndRemount();
  // It is mounted again, for this error: undone first, unless it is ephemeral.
  void MountAgain(std::string error);
  // Why it is blocked from something that is to be done for it.
  [[nodiscard]] std::optional<Blocked> BlockedBecause() const;
};

// "consumer web" or "consumer web, name data", made printable.
[[nodiscard]] std::string Describe(const PublicationKey& key);

}  // namespace berth
