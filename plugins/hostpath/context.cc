#include "plugins/hostpath/context.h"

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/loop_device.h"

namespace berth::hostpath {

namespace {

// A control character, which no name of a CreateVolume may hold.
constexpr char kEphemeral = '\x01';

}  // namespace

std::string EphemeralName(std::string_view volume_id) { return fmt::format("{}{}", kEphemeral, volume_id); }

bool IsEphemeral(const VolumeRecord& volume) { return volume.name.starts_with(kEphemeral); }

absl::StatusOr<VolumeRecord> FindVolume(Context& context, std::string_view id) {
  absl::StatusOr<VolumeRecord> found = context.store.GetVolume(id);
  if (absl::IsNotFound(found.status())) {
    absl::StatusOr<VolumeRecord> ephemeral = context.store.GetVolumeByName(EphemeralName(id));
    if (ephemeral.ok()) found = std::move(ephemeral);
  }
  if (!found.ok()) return found.status();
  VolumeRecord volume = *std::move(found);
  if (volume.lifecycle == Lifecycle::kReady) return volume;
  return absl::NotFoundError(fmt::format("there is no volume {}", Printable(id, 128)));
}

absl::Status CheckSpace(const Context& context, int64_t bytes, int64_t present) {
  Storage::Space space;
  BERTH_ASSIGN_OR_RETURN(space, context.storage.GetSpace());
  const int64_t pool = context.options.capacity == 0 ? space.total : context.options.capacity;
  if (bytes > pool) {
    return absl::OutOfRangeError(fmt::format("{} bytes are more than the whole pool of {} has", bytes, pool));
  }
  // With a pool of a given size the store keeps account. Without, images are sparse and may promise more
  // together than there is, but each by itself no more than there is.
  if (context.options.capacity == 0 && bytes - present > space.available) {
    return absl::ResourceExhaustedError(fmt::format("{} bytes are asked for, but the file system has {} left",
                                                    bytes - present, space.available));
  }
  return absl::OkStatus();
}

absl::StatusOr<Recognise> RecogniseVolume(const Storage& storage, const VolumeRecord& volume) {
  const std::string content = storage.ContentPath(Area::kVolumes, volume.id, volume.kind);
  if (volume.kind == Kind::kDirectory) {
    PathState own;
    BERTH_ASSIGN_OR_RETURN(own, LookAtPath(content));
    return Recognise([own](const PathState& state) {
      return own.exists && state.device == own.device && state.inode == own.inode;
    });
  }
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops, FindLoops(content));
  return Recognise([loops = std::move(loops)](const PathState& state) {
    const dev_t device = S_ISBLK(state.mode) ? state.special : state.device;
    return std::any_of(loops.begin(), loops.end(),
                       [&](const LoopDevice& loop) { return loop.device == device; });
  });
}

absl::StatusOr<bool> IsMountedAt(const Storage& storage, const VolumeRecord& volume,
                                 const std::string& path) {
  PathState state;
  BERTH_ASSIGN_OR_RETURN(state, LookAtPath(path));
  if (!state.exists || !state.mount_root) return false;
  Recognise ours;
  BERTH_ASSIGN_OR_RETURN(ours, RecogniseVolume(storage, volume));
  return ours(state);
}

std::map<std::string, std::string> VolumeContext(const VolumeRecord& volume) {
  std::map<std::string, std::string> context = {{"kind", std::string(KindName(volume.kind))}};
  if (!volume.fs_type.empty()) context["fsType"] = volume.fs_type;
  return context;
}

absl::Status CheckVolumeContext(const VolumeRecord& volume, const StringMap& given) {
  for (const auto& [key, value] : VolumeContext(volume)) {
    const auto found = given.find(key);
    if (found == given.end() || found->second == value) continue;
    return absl::InvalidArgumentError(fmt::format("volume_context: {} is {} for this volume, not \"{}\"", key,
                                                  value, Printable(found->second, 64)));
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> PublishContext(const Attachment& attachment) {
  return {{"attachedNode", attachment.node_id}, {"attachedVolume", attachment.volume_id}};
}

absl::Status CheckPublishContext(const Attachment& attachment, const StringMap& given) {
  for (const auto& [key, value] : PublishContext(attachment)) {
    const auto found = given.find(key);
    if (found != given.end() && found->second == value) continue;
    return absl::InvalidArgumentError(fmt::format(
        "publish_context: {} must be {}, as ControllerPublishVolume answered", key, Printable(value, 256)));
  }
  return absl::OkStatus();
}

absl::Status Recover(Context& context) {
  std::vector<VolumeRecord> volumes;
  BERTH_ASSIGN_OR_RETURN(volumes, context.store.UnfinishedVolumes());
  std::vector<SnapshotRecord> snapshots;
  BERTH_ASSIGN_OR_RETURN(snapshots, context.store.UnfinishedSnapshots());

  // A copy that was cut off may have left its source frozen.
  std::vector<std::string> sources;
  sources.reserve(volumes.size() + snapshots.size());
  for (const VolumeRecord& volume : volumes) sources.push_back(volume.source_volume);
  for (const SnapshotRecord& snapshot : snapshots) sources.push_back(snapshot.source_volume);
  for (const std::string& source : sources) {
    const absl::StatusOr<VolumeRecord> volume = context.store.GetVolume(source);
    if (!volume.ok() || volume->kind == Kind::kDirectory) continue;
    const auto staging = context.store.StagingOf(source);
    if (!staging.ok() || !staging->has_value() || (*staging)->block) continue;
    const auto mounted = IsMountedAt(context.storage, *volume, (*staging)->path);
    if (mounted.ok() && *mounted) Thaw((*staging)->path);
  }

  // No caller ever got the id of an unfinished thing, and a deletion has no user any more.
  for (const VolumeRecord& volume : volumes) {
    SPDLOG_INFO("volume {}: its {} was cut off; discarding what is left of it", volume.id,
                volume.lifecycle == Lifecycle::kCreating ? "creation" : "deletion");
    BERTH_RETURN_IF_ERROR(context.storage.Discard(Area::kVolumes, volume.id));
    BERTH_RETURN_IF_ERROR(context.store.DeleteVolume(volume.id));
  }
  for (const SnapshotRecord& snapshot : snapshots) {
    SPDLOG_INFO("snapshot {}: its {} was cut off; discarding what is left of it", snapshot.id,
                snapshot.lifecycle == Lifecycle::kCreating ? "creation" : "deletion");
    BERTH_RETURN_IF_ERROR(context.storage.Discard(Area::kSnapshots, snapshot.id));
    BERTH_RETURN_IF_ERROR(context.store.DeleteSnapshot(snapshot.id));
  }
  return absl::OkStatus();
}

}  // namespace berth::hostpath
