// The durable record of one volume with its publications, as a plain value: what the journal holds, plus a
// few facts that live only as long as this berthd does.
//
// Pure; any thread. A record never holds a secret.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "mounter/publication_record.h"
#include "mounter/volume_types.h"
#include "mounts/earlier_mounts.h"
#include "mounts/kernel_object.h"

namespace berth {

inline constexpr size_t kPastConsumers = 64;
inline constexpr size_t kOtherNames = 64;

// The mount that the staging of a volume is.
struct StagingMount {
  std::string path;       // beneath the staging path; empty: on it
  uint64_t mount_id = 0;  // 0: not known, or the plugin stages without one
  // All mounts on the node when it had been staged.
  EarlierMounts others = {};
};

// Another volume, as far as the storage knows, which the kernel showed as the same object (IsSameObject).
struct OtherName {
  std::string plugin_id;
  std::string driver_name;
  std::string volume_id;

  bool operator==(const OtherName&) const = default;
};

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
  // The parts of a StagingMount, in the boot `boot_id`.
  uint64_t staging_mount_id = 0;
  std::string staging_mount_path;
  EarlierMounts staged_mounts;
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
  // Volumes that have left this node and were the same object: they are not deleted or detached while this
  // one is here. The last kOtherNames.
  std::vector<OtherName> other_names;
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
  // Whether it is this volume, or the same object: the other's driver and id, or an object in common.
  [[nodiscard]] bool IsSame(const VolumeRecord& other) const;
  // What the kernel has of it, and its label, are as `last` says.
  void Inherit(const VolumeRecord& last);
  void AddOtherName(const VolumeRecord& left);
  // The kernel still has it: this mount, which was detached (0: not known which); these objects, or what is
  // not known.
  void AddDetachedMount(uint64_t mount_id);
  void SetInUse(std::vector<KernelObject> kept);
  // The kernel has released it all, and the plugin is still to be asked.
  void SetWithoutPlugin(WithoutPlugin said);
  // Of a rebuilt record: what only the lost journal knew. Nothing, of another.
  void FillRebuilt(const PublicationRecord& said, VolumeUse new_use,
                   std::map<std::string, std::string> new_volume_context,
                   std::optional<std::map<std::string, std::string>> new_publish_context);
  [[nodiscard]] PublicationRecord* Find(const PublicationKey& key);
  [[nodiscard]] const PublicationRecord* Find(const PublicationKey& key) const;
};

// Whether no use with this mode writes.
[[nodiscard]] bool ReadsOnly(::csi::v1::VolumeCapability::AccessMode::Mode mode);

// The journal's bytes of a record, and back. DATA_LOSS: not a record, or a number is out of range.
// FAILED_PRECONDITION: another version of berthd wrote it.
[[nodiscard]] std::string EncodeRecord(const VolumeRecord& record);
[[nodiscard]] absl::StatusOr<VolumeRecord> DecodeRecord(std::string_view bytes);

}  // namespace berth
