#include "plugins/hostpath/node_service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <utility>

#include "base/unique_fd.h"
#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using ::csi::v1::NodeServiceCapability;
using Space = OperationLocks::Space;

namespace {

std::string Image(Context& context, const VolumeRecord& volume) {
  return context.storage.ContentPath(Area::kVolumes, volume.id, volume.kind);
}

}  // namespace

absl::StatusOr<std::optional<Attachment>> NodeService::CheckAttached(std::string_view volume_id,
                                                                     const StringMap& publish_context) {
  if (!context_.options.attach) return std::optional<Attachment>();
  const std::string_view node_id = context_.options.node_id;
  std::vector<Attachment> attachments;
  BERTH_ASSIGN_OR_RETURN(attachments, context_.store.AttachmentsOf(volume_id));
  const auto own = std::find_if(attachments.begin(), attachments.end(),
                                [&](const Attachment& attachment) { return attachment.node_id == node_id; });
  if (own == attachments.end()) {
    return absl::FailedPreconditionError(
        fmt::format("volume {} is not attached to node {}: call ControllerPublishVolume first", volume_id,
                    Printable(node_id, 256)));
  }
  BERTH_RETURN_IF_ERROR(CheckPublishContext(*own, publish_context));
  return std::optional<Attachment>(*own);
}

absl::StatusOr<bool> NodeService::IsIntact(const VolumeRecord& volume, const Staging& staging) {
  if (!staging.complete) return false;
  if (!staging.block) return IsMountedAt(context_.storage, volume, staging.path);
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops, FindLoops(Image(context_, volume)));
  return std::any_of(loops.begin(), loops.end(),
                     [&](const LoopDevice& loop) { return loop.read_only == staging.read_only; });
}

absl::StatusOr<bool> NodeService::IsIntact(const VolumeRecord& volume, const Publication& publication) {
  if (!publication.complete) return false;
  return IsMountedAt(context_.storage, volume, publication.target);
}

// --- Stage ---

grpc::Status NodeService::NodeStageVolume(grpc::ServerContext*,
                                          const ::csi::v1::NodeStageVolumeRequest* request,
                                          ::csi::v1::NodeStageVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "NodeStageVolume", request->volume_id(),
                [&] { return Stage(*request); });
}

absl::Status NodeService::Stage(const ::csi::v1::NodeStageVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto& capability = request.volume_capability();
  MountFlags flags;
  BERTH_ASSIGN_OR_RETURN(flags, ParseMountFlags(capability.mount().mount_flags()));
  const std::string& group = capability.mount().volume_mount_group();
  if (!group.empty()) BERTH_RETURN_IF_ERROR(ParseMountGroup(group).status());

  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  const auto path_lock = context_.locks.Take(Space::kTarget, TrimSlashes(request.staging_target_path()));
  if (!path_lock.ok()) return path_lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckVolumeContext(volume, request.volume_context()));
  BERTH_RETURN_IF_ERROR(SupportsCapability(volume.kind, volume.fs_type, capability));
  std::optional<Attachment> attachment;
  BERTH_ASSIGN_OR_RETURN(attachment, CheckAttached(volume.id, request.publish_context()));

  Staging staging;
  staging.volume_id = volume.id;
  staging.path = std::string(TrimSlashes(request.staging_target_path()));
  staging.capability = CapabilityDigest(capability);
  staging.block = capability.has_block();
  staging.read_only = IsReaderOnly(capability.access_mode().mode()) || flags.read_only ||
                      (attachment.has_value() && attachment->read_only);
  flags.read_only = staging.read_only;
  if (volume.kind == Kind::kDirectory && !flags.data.empty()) {
    return absl::InvalidArgumentError(
        "mount_flags: one of them is for a file system of its own, which a volume of kind directory has not");
  }

  bool staged = false;
  BERTH_ASSIGN_OR_RETURN(staged, CompareStaging(volume, staging));
  if (staged) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(CheckStagingPath(staging));
  BERTH_RETURN_IF_ERROR(
      context_.storage.CheckContent(Area::kVolumes, volume.id, volume.kind, volume.capacity));
  BERTH_RETURN_IF_ERROR(context_.store.PutStaging(staging, context_.options.max_volumes));
  absl::Status status;
  if (staging.block) {
    status = StageBlock(volume, staging);
  } else if (volume.kind == Kind::kDirectory) {
    status = CloneMount(Image(context_, volume), staging.path, flags);
  } else {
    status = StageImage(volume, staging, flags);
  }
  if (status.ok() && !group.empty() && !staging.read_only) status = ApplyMountGroup(staging.path, group);
  if (!status.ok()) {
    // If this fails as well, the intent stays on record, and the next stage or unstage goes on with it.
    if (const absl::Status undone = UndoStage(volume, staging); !undone.ok()) {
      SPDLOG_WARN("NodeStageVolume {}: what was begun could not be undone: {}", volume.id,
                  std::string(undone.message()));
    }
    return status;
  }
  staging.complete = true;
  return context_.store.PutStaging(staging, /*limit=*/0);
}

absl::StatusOr<bool> NodeService::CompareStaging(const VolumeRecord& volume, const Staging& wanted) {
  std::optional<Staging> present;
  BERTH_ASSIGN_OR_RETURN(present, context_.store.StagingOf(volume.id));
  if (!present.has_value()) return false;
  bool intact = false;
  BERTH_ASSIGN_OR_RETURN(intact, IsIntact(volume, *present));
  if (present->path != wanted.path) {
    if (intact || !present->complete) {
      return absl::FailedPreconditionError(
          fmt::format("volume {} is staged at {}; a volume has one staging path", volume.id, present->path));
    }
  } else if (intact) {
    if (present->capability == wanted.capability) return true;
    return absl::AlreadyExistsError(
        fmt::format("volume {} is staged at {} with another capability", volume.id, present->path));
  }
  BERTH_RETURN_IF_ERROR(UndoStage(volume, *present));
  return false;
}

absl::Status NodeService::CheckStagingPath(const Staging& staging) {
  std::optional<Staging> other;
  BERTH_ASSIGN_OR_RETURN(other, context_.store.StagingAt(staging.path));
  if (other.has_value() && other->volume_id != staging.volume_id) {
    return absl::FailedPreconditionError(
        fmt::format("{}: volume {} is staged there", staging.path, other->volume_id));
  }
  PathState path;
  BERTH_ASSIGN_OR_RETURN(path, LookAtPath(staging.path));
  if (!path.exists || !S_ISDIR(path.mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it is not a directory; the caller makes the staging path", staging.path));
  }
  // The caller may have made the staging path a mount of its own: the volume goes on top of it.
  return absl::OkStatus();
}

absl::Status NodeService::PrepareFormat(const VolumeRecord& volume) {
  if (volume.format == FormatState::kFormatted) return absl::OkStatus();
  const std::string image = Image(context_, volume);
  ImageContent content;
  BERTH_ASSIGN_OR_RETURN(content, LookIntoImage(image));
  FormatStep step = FormatStep::kMount;
  BERTH_ASSIGN_OR_RETURN(step, DecideFormat(volume.kind, volume.format, content, volume.fs_type));
  if (step == FormatStep::kFormat) {
    BERTH_RETURN_IF_ERROR(context_.store.SetVolumeFormat(volume.id, FormatState::kFormatting));
    BERTH_RETURN_IF_ERROR(MakeFileSystem(image, volume.fs_type));
  }
  BERTH_RETURN_IF_ERROR(context_.store.SetVolumeFormat(volume.id, FormatState::kFormatted));
  // A fresh file system fills its image.
  if (step == FormatStep::kFormat) return context_.store.SetVolumeGrowPending(volume.id, false);
  return absl::OkStatus();
}

absl::Status NodeService::FinishGrowth(const VolumeRecord& volume, const std::string& device,
                                       const std::string& mount_point) {
  BERTH_RETURN_IF_ERROR(GrowFileSystem(volume.fs_type, device, mount_point));
  return context_.store.SetVolumeGrowPending(volume.id, false);
}

absl::Status NodeService::StageImage(const VolumeRecord& volume, const Staging& staging, MountFlags flags) {
  BERTH_RETURN_IF_ERROR(PrepareFormat(volume));
  VolumeRecord fresh;
  BERTH_ASSIGN_OR_RETURN(fresh, context_.store.GetVolume(volume.id));
  // A copy of an xfs has the same UUID as its original, and xfs would mount only one of them.
  const bool copy = !volume.source_volume.empty() || !volume.source_snapshot.empty();
  if (copy && volume.fs_type == "xfs") flags.data += flags.data.empty() ? "nouuid" : ",nouuid";
  std::vector<LoopDevice> present;
  BERTH_ASSIGN_OR_RETURN(present, FindLoops(Image(context_, volume)));
  if (fresh.grow_pending && present.empty() && !GrowsWhileMounted(volume.fs_type)) {
    BERTH_RETURN_IF_ERROR(GrowUnmountedExt4(Image(context_, volume)));
    BERTH_RETURN_IF_ERROR(context_.store.SetVolumeGrowPending(volume.id, false));
    fresh.grow_pending = false;
  }
  // A file system that must grow is writable until it has, even where it is to be read only: it is promised
  // at its full size.
  if (fresh.grow_pending) flags.read_only = false;

  LoopDevice loop;
  UniqueFd hold;
  BERTH_RETURN_IF_ERROR(OpenImage(volume, present, &loop, &hold));
  BERTH_RETURN_IF_ERROR(MountFileSystem(loop.path, staging.path, volume.fs_type, flags));
  if (!fresh.grow_pending) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(FinishGrowth(volume, loop.path, staging.path));
  return staging.read_only ? MakeReadOnly(staging.path) : absl::OkStatus();
}

absl::Status NodeService::OpenImage(const VolumeRecord& volume, const std::vector<LoopDevice>& present,
                                    LoopDevice* loop, UniqueFd* hold) {
  // A mount that still exists in another mount namespace keeps its device. That device is mounted again,
  // which gives the same file system; a second device would give a second file system in the same image, and
  // ruin it.
  if (!present.empty()) {
    *loop = present.front();
    *hold = UniqueFd(open(loop->path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!hold->valid()) return ErrnoStatus(errno, fmt::format("open {}", loop->path));
    return absl::OkStatus();
  }
  // Even a file system that is mounted read-only may have to replay its journal, so that the device is
  // writable. It goes with its last user: a crash before the mount leaves nothing attached.
  absl::StatusOr<AttachedLoop> attached =
      AttachLoop(Image(context_, volume), {.direct_io = volume.direct_io, .auto_clear = true});
  if (!attached.ok()) return attached.status();
  *loop = std::move(attached->loop);
  *hold = std::move(attached->fd);
  return absl::OkStatus();
}

absl::Status NodeService::StageBlock(const VolumeRecord& volume, const Staging& staging) {
  // From now on the image may be written raw: a mkfs that was cut off is no longer ours to repeat.
  if (volume.format == FormatState::kFormatting) {
    BERTH_RETURN_IF_ERROR(context_.store.SetVolumeFormat(volume.id, FormatState::kNone));
  }
  return BlockDevice(volume, staging.read_only).status();
}

absl::StatusOr<LoopDevice> NodeService::BlockDevice(const VolumeRecord& volume, bool read_only) {
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops, FindLoops(Image(context_, volume)));
  for (const LoopDevice& loop : loops) {
    if (loop.read_only == read_only) return loop;
  }
  absl::StatusOr<AttachedLoop> attached =
      AttachLoop(Image(context_, volume), {.read_only = read_only, .direct_io = volume.direct_io});
  if (!attached.ok()) return attached.status();
  return attached->loop;
}

absl::Status NodeService::UndoStage(const VolumeRecord& volume, const Staging& staging) {
  if (staging.block) {
    std::vector<LoopDevice> loops;
    BERTH_ASSIGN_OR_RETURN(loops, FindLoops(Image(context_, volume)));
    for (const LoopDevice& loop : loops) BERTH_RETURN_IF_ERROR(DetachLoop(loop, Image(context_, volume)));
  } else {
    // The loop device goes with the last mount of the file system.
    Recognise ours;
    BERTH_ASSIGN_OR_RETURN(ours, RecogniseVolume(context_.storage, volume));
    BERTH_RETURN_IF_ERROR(UnmountOurs(staging.path, ours));
  }
  return context_.store.DeleteStaging(volume.id);
}

// --- Unstage ---

grpc::Status NodeService::NodeUnstageVolume(grpc::ServerContext*,
                                            const ::csi::v1::NodeUnstageVolumeRequest* request,
                                            ::csi::v1::NodeUnstageVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "NodeUnstageVolume", request->volume_id(),
                [&] { return Unstage(*request); });
}

absl::Status NodeService::Unstage(const ::csi::v1::NodeUnstageVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (!staging.has_value() || staging->path != TrimSlashes(request.staging_target_path()))
    return absl::OkStatus();
  std::vector<Publication> publications;
  BERTH_ASSIGN_OR_RETURN(publications, context_.store.PublicationsOf(volume.id));
  for (const Publication& publication : publications) {
    bool mounted = false;
    BERTH_ASSIGN_OR_RETURN(mounted, IsMountedAt(context_.storage, volume, publication.target));
    if (mounted) {
      return absl::FailedPreconditionError(fmt::format(
          "volume {} is still published at {}: unpublish it first", volume.id, publication.target));
    }
    // It was unmounted by another program: it holds neither this staging nor a later publication.
    BERTH_RETURN_IF_ERROR(context_.store.DeletePublication(publication.target));
  }
  return UndoStage(volume, *staging);
}

// --- Publish ---

grpc::Status NodeService::NodePublishVolume(grpc::ServerContext*,
                                            const ::csi::v1::NodePublishVolumeRequest* request,
                                            ::csi::v1::NodePublishVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "NodePublishVolume", request->volume_id(),
                [&] { return IsEphemeral(*request) ? PublishEphemeral(*request) : Publish(*request); });
}

absl::StatusOr<NodeService::PublishBeginning> NodeService::BeginPublish(
    const ::csi::v1::NodePublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto& mount = request.volume_capability().mount();
  BERTH_ASSIGN_OR_RETURN(MountFlags flags, ParseMountFlags(mount.mount_flags()));
  if (!mount.volume_mount_group().empty()) {
    BERTH_RETURN_IF_ERROR(ParseMountGroup(mount.volume_mount_group()).status());
  }
  std::string target(TrimSlashes(request.target_path()));
  BERTH_ASSIGN_OR_RETURN(auto volume, context_.locks.Take(Space::kVolume, request.volume_id()));
  BERTH_ASSIGN_OR_RETURN(auto at_target, context_.locks.Take(Space::kTarget, target));
  return PublishBeginning{std::move(flags), std::move(target), std::move(volume), std::move(at_target)};
}

absl::Status NodeService::Publish(const ::csi::v1::NodePublishVolumeRequest& request) {
  BERTH_ASSIGN_OR_RETURN(PublishBeginning beginning, BeginPublish(request));
  MountFlags& flags = beginning.flags;
  const std::string& target = beginning.target;
  const auto& capability = request.volume_capability();
  const std::string& group = capability.mount().volume_mount_group();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckVolumeContext(volume, request.volume_context()));
  BERTH_RETURN_IF_ERROR(SupportsCapability(volume.kind, volume.fs_type, capability));
  std::optional<Attachment> attachment;
  BERTH_ASSIGN_OR_RETURN(attachment, CheckAttached(volume.id, request.publish_context()));

  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  bool staged = false;
  if (staging.has_value()) {
    BERTH_ASSIGN_OR_RETURN(staged, IsIntact(volume, *staging));
  }
  if (!staged || staging->path != TrimSlashes(request.staging_target_path())) {
    return absl::FailedPreconditionError(
        fmt::format("volume {} is not staged at {}: call NodeStageVolume first", volume.id,
                    Printable(request.staging_target_path(), 256)));
  }
  if (staging->block != capability.has_block()) {
    return absl::FailedPreconditionError(fmt::format("volume {} is staged {}", volume.id,
                                                     staging->block ? "as a block device" : "to be mounted"));
  }

  Publication publication;
  publication.target = target;
  publication.volume_id = volume.id;
  publication.capability = CapabilityDigest(capability);
  publication.mode = capability.access_mode().mode();
  publication.block = capability.has_block();
  publication.asked_read_only = request.readonly();
  publication.read_only = request.readonly() || IsReaderOnly(publication.mode) || flags.read_only ||
                          staging->read_only || (attachment.has_value() && attachment->read_only);
  flags.read_only = publication.read_only;

  std::optional<Publication> present;
  BERTH_ASSIGN_OR_RETURN(present, context_.store.PublicationAt(target));
  bool already = false;
  BERTH_ASSIGN_OR_RETURN(already, IsPublishedAlready(volume, present, publication));
  if (already) return absl::OkStatus();
  std::vector<Publication> publications;
  BERTH_ASSIGN_OR_RETURN(publications, context_.store.PublicationsOf(volume.id));
  for (const Publication& other : publications) {
    if (other.target == target) continue;
    if (AllowsSeveralTargets(other.mode) && AllowsSeveralTargets(publication.mode)) continue;
    return absl::FailedPreconditionError(fmt::format(
        "volume {} is published at {}; access mode {} allows one target at a time", volume.id, other.target,
        AccessMode::Mode_Name(AllowsSeveralTargets(other.mode) ? publication.mode : other.mode)));
  }

  return CarryOut(volume, present, publication,
                  [&] { return MakePublication(volume, *staging, publication, flags, group); });
}

absl::StatusOr<bool> NodeService::IsPublishedAlready(const VolumeRecord& volume,
                                                     const std::optional<Publication>& present,
                                                     const Publication& publication) {
  if (!present.has_value()) return false;
  if (present->volume_id != volume.id) {
    return absl::FailedPreconditionError(
        fmt::format("{}: volume {} is published there", publication.target, present->volume_id));
  }
  bool intact = false;
  BERTH_ASSIGN_OR_RETURN(intact, IsIntact(volume, *present));
  if (!intact) return false;
  if (present->capability == publication.capability &&
      present->asked_read_only == publication.asked_read_only) {
    return true;
  }
  return absl::AlreadyExistsError(
      fmt::format("volume {} is published at {} with another capability or readonly flag", volume.id,
                  publication.target));
}

absl::Status NodeService::CarryOut(const VolumeRecord& volume, const std::optional<Publication>& present,
                                   Publication publication, const std::function<absl::Status()>& make) {
  if (present.has_value()) BERTH_RETURN_IF_ERROR(UndoPublish(volume, *present));
  BERTH_RETURN_IF_ERROR(context_.store.PutPublication(publication));
  const absl::Status status = make();
  if (!status.ok()) {
    if (const absl::Status undone = UndoPublish(volume, publication); !undone.ok()) {
      SPDLOG_WARN("NodePublishVolume {}: what was begun could not be undone: {}", volume.id,
                  std::string(undone.message()));
    }
    return status;
  }
  publication.complete = true;
  return context_.store.PutPublication(publication);
}

absl::Status NodeService::MakePublication(const VolumeRecord& volume, const Staging& staging,
                                          const Publication& publication, const MountFlags& flags,
                                          const std::string& group) {
  if (absl::Status status = MakeTarget(publication.target, publication.block); !status.ok()) {
    // What is there and stands in the way is not ours, and not ours to remove.
    BERTH_RETURN_IF_ERROR(context_.store.DeletePublication(publication.target));
    return status;
  }
  if (!publication.block) {
    if (!group.empty() && !staging.read_only) BERTH_RETURN_IF_ERROR(ApplyMountGroup(staging.path, group));
    return CloneMount(staging.path, publication.target, flags);
  }
  // A read-only mount of a device node would still let the device be written: the device itself must be
  // read-only, so that it is another one.
  LoopDevice device;
  BERTH_ASSIGN_OR_RETURN(device, BlockDevice(volume, publication.read_only));
  return CloneMount(device.path, publication.target, {});
}

absl::Status NodeService::UndoPublish(const VolumeRecord& volume, const Publication& publication) {
  std::optional<Publication> recorded;
  BERTH_ASSIGN_OR_RETURN(recorded, context_.store.PublicationAt(publication.target));
  if (!recorded.has_value()) return absl::OkStatus();
  Recognise ours;
  BERTH_ASSIGN_OR_RETURN(ours, RecogniseVolume(context_.storage, volume));
  if (publication.block) {
    // The loop device may have been detached since: the node that was bound there is still ours.
    ours = [ours = std::move(ours)](const PathState& state) {
      constexpr unsigned kLoopMajor = 7;
      return ours(state) || (S_ISBLK(state.mode) && major(state.special) == kLoopMajor);
    };
  }
  BERTH_RETURN_IF_ERROR(UnmountOurs(publication.target, ours));
  BERTH_RETURN_IF_ERROR(RemoveTarget(publication.target));

  // The read-only device of a volume that is staged writable goes with its last publication.
  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (publication.block && publication.read_only && !(staging.has_value() && staging->read_only)) {
    std::vector<Publication> others;
    BERTH_ASSIGN_OR_RETURN(others, context_.store.PublicationsOf(volume.id));
    const bool needed = std::any_of(others.begin(), others.end(), [&](const Publication& other) {
      return other.target != publication.target && other.block && other.read_only;
    });
    std::vector<LoopDevice> loops;
    BERTH_ASSIGN_OR_RETURN(loops, FindLoops(Image(context_, volume)));
    for (const LoopDevice& loop : loops) {
      if (!needed && loop.read_only) BERTH_RETURN_IF_ERROR(DetachLoop(loop, Image(context_, volume)));
    }
  }
  return context_.store.DeletePublication(publication.target);
}

// --- Unpublish ---

grpc::Status NodeService::NodeUnpublishVolume(grpc::ServerContext*,
                                              const ::csi::v1::NodeUnpublishVolumeRequest* request,
                                              ::csi::v1::NodeUnpublishVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "NodeUnpublishVolume", request->volume_id(),
                [&] { return Unpublish(*request); });
}

absl::Status NodeService::Unpublish(const ::csi::v1::NodeUnpublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const std::string target(TrimSlashes(request.target_path()));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  const auto target_lock = context_.locks.Take(Space::kTarget, target);
  if (!target_lock.ok()) return target_lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  std::optional<Publication> publication;
  BERTH_ASSIGN_OR_RETURN(publication, context_.store.PublicationAt(target));
  const bool published = publication.has_value() && publication->volume_id == volume.id;
  if (published) BERTH_RETURN_IF_ERROR(UndoPublish(volume, *publication));
  return IsEphemeral(volume) ? DeleteEphemeral(volume) : absl::OkStatus();
}

// --- What the node is ---

grpc::Status NodeService::NodeGetCapabilities(grpc::ServerContext*,
                                              const ::csi::v1::NodeGetCapabilitiesRequest*,
                                              ::csi::v1::NodeGetCapabilitiesResponse* response) {
  return Answer(context_, CallKind::kReads, "NodeGetCapabilities", "", [&] {
    for (const auto type :
         {NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME, NodeServiceCapability::RPC::GET_VOLUME_STATS,
          NodeServiceCapability::RPC::EXPAND_VOLUME, NodeServiceCapability::RPC::VOLUME_CONDITION,
          NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER,
          NodeServiceCapability::RPC::VOLUME_MOUNT_GROUP}) {
      response->add_capabilities()->mutable_rpc()->set_type(type);
    }
    // Callers built for CSI 1.12 take a capability that they do not know for an error.
    if (context_.options.health) {
      for (const auto type :
           {NodeServiceCapability::RPC::GET_VOLUME_HEALTH, NodeServiceCapability::RPC::GET_STORAGE_HEALTH}) {
        response->add_capabilities()->mutable_rpc()->set_type(type);
      }
    }
    return absl::OkStatus();
  });
}

grpc::Status NodeService::NodeGetInfo(grpc::ServerContext*, const ::csi::v1::NodeGetInfoRequest*,
                                      ::csi::v1::NodeGetInfoResponse* response) {
  return Answer(context_, CallKind::kReads, "NodeGetInfo", "", [&] {
    response->set_node_id(context_.options.node_id);
    response->set_max_volumes_per_node(context_.options.max_volumes);
    for (const auto& [key, value] : context_.options.topology) {
      (*response->mutable_accessible_topology()->mutable_segments())[key] = value;
    }
    return absl::OkStatus();
  });
}

}  // namespace berth::hostpath
