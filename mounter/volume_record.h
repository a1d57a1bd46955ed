// The durable record of one volume with its publications, as a plain value: what the journal holds, plus a
// few facts that live only as long as this berthd does.
//
// Pure; any thread. A record never holds a secret.
#pragma once

#include <absl/status/statusor.h>

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "mounter/volume_types.h"
#include "mounts/kernel_object.h"
#include "mounts/mountinfo.h"

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
  // Not written. The kernel showed it mounted at `path`, since this berthd began.
  bool path_mounted = false;
  // Not written. Why it is not mounted at `path`.
  std::string path_error;
  // Of a scheduler's: when the scheduler requested or confirmed it last, on the boot's clock. Unset: not in
  // this boot.
  std::optional<BootTime> confirmed_at;
  // Not written. Nothing forward is begun or repeated for it, for this reason (VolumeMachine::BlockForward,
  // UnblockForward). Empty: it may go forward.
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
};

inline constexpr size_t kPastConsumers = 64;

struct VolumeRecord {
  std::string plugin_id;
  std::string volume_id;
  std::string driver_name;
  std::string node_id;
  std::string boot_id;
  std::string label;  // PublishRequest::label
  VolumeUse use;
  ::csi::v1::VolumeCapability::AccessMode::Mode sent_mode =
      ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER;
  std::map<std::string, std::string> volume_context;
  std::optional<std::map<std::string, std::string>> publish_context;
  bool stages = false;
  StageState stage_state = StageState::kAbsent;
  bool stage_uncertain = false;
  std::string last_error;
  // The kernel's id of the mount at its staging path, in the boot `boot_id`; 0: not known, or the plugin
  // stages without one.
  uint64_t staging_mount_id = 0;
  // It was staged with a mount, and the kernel does not show that any more, or another on top of it. Until it
  // is staged again, with a mount, nothing is published from there.
  bool staging_lost = false;
  // NodeExpandVolume is pending: to this size; 0: it is not.
  int64_t pending_expansion_bytes = 0;
  // Rebuilt from its identity file after the journal was lost: its contexts and mount flags are not known, so
  // nothing goes forward until a publish brings them (which ends it).
  bool rebuilt = false;
  // A mount of it was detached while in use, or nothing of it is published or staged and the kernel still has
  // it: it may be written to. The record stays until the kernel has released it.
  bool still_in_use = false;
  // What the kernel has or had of it, in the boot `boot_id` (kernel_object.h), and the ids of its mounts that
  // were detached while in use (PathFacts::mount_id).
  std::vector<KernelObject> objects;
  std::vector<uint64_t> detached_mounts;
  // The mounts from before the kernel had anything of the volume, in the boot `boot_id`. It stays until the
  // volume is released.
  EarlierMounts earlier_mounts;
  // A step that mounts was begun, and berthd ended, in the boot `boot_id`, before it was noted what was
  // mounted.
  bool mounts_unknown = false;
  // Consumers of publications that have ended since the volume was last free, in that boot: one of them may
  // still have it. At most kPastConsumers; an empty name stands for the others.
  std::vector<std::string> past_consumers;
  // Its publications and its staging are pending with the plugin alone.
  std::optional<WithoutPlugin> without_plugin;
  std::vector<PublicationRecord> publications;

  // Not written; as PublicationRecord::sent, of NodeStageVolume.
  bool stage_sent = true;

  // The kernel is believed to have its staging, and the plugin has answered.
  [[nodiscard]] bool Staged() const { return stage_state == StageState::kStaged && !stage_uncertain; }
  [[nodiscard]] bool NeedsStaging(const PublicationRecord& publication) const {
    return stages && !publication.ephemeral;
  }
  // The ids of its mounts (PathFacts::mount_id), as far as they are known, also of those that were detached.
  [[nodiscard]] std::vector<uint64_t> Mounts() const;
  [[nodiscard]] PublicationRecord* Find(const PublicationKey& key);
  [[nodiscard]] const PublicationRecord* Find(const PublicationKey& key) const;
};

// Whether no use with this mode writes.
[[nodiscard]] bool ReadsOnly(::csi::v1::VolumeCapability::AccessMode::Mode mode);

// The journal's bytes of a record, and back. DATA_LOSS: not a record, or a number is out of range.
// FAILED_PRECONDITION: another version of berthd wrote it.
[[nodiscard]] std::string EncodeRecord(const VolumeRecord& record);
[[nodiscard]] absl::StatusOr<VolumeRecord> DecodeRecord(std::string_view bytes);

// "consumer web" or "consumer web, name data", made printable.
[[nodiscard]] std::string Describe(const PublicationKey& key);

}  // namespace berth
