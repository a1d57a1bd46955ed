#include "plugins/hostpath/controller_service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/unique_fd.h"
#include "plugins/hostpath/loop_device.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using Space = OperationLocks::Space;

namespace {

bool IsForSeveralNodes(AccessMode::Mode mode) {
  return mode == AccessMode::MULTI_NODE_READER_ONLY || mode == AccessMode::MULTI_NODE_SINGLE_WRITER ||
         mode == AccessMode::MULTI_NODE_MULTI_WRITER;
}

}  // namespace

absl::StatusOr<int64_t> ControllerService::AvailableBytes() const {
  Storage::Space space;
  BERTH_ASSIGN_OR_RETURN(space, context_.storage.GetSpace());
  if (context_.options.capacity == 0) return space.available;
  int64_t claimed = 0;
  BERTH_ASSIGN_OR_RETURN(claimed, context_.store.ClaimedBytes());
  return std::max<int64_t>(0, context_.options.capacity - claimed);
}

// --- Create ---

grpc::Status ControllerService::CreateVolume(grpc::ServerContext*,
                                             const ::csi::v1::CreateVolumeRequest* request,
                                             ::csi::v1::CreateVolumeResponse* response) {
  return Answer(context_, CallKind::kChanges, "CreateVolume", request->name(),
                [&] { return Create(*request, response); });
}

absl::Status ControllerService::CheckRepeat(const ::csi::v1::CreateVolumeRequest& request,
                                            const Parameters& parameters, const VolumeRecord& present) const {
  if (present.lifecycle != Lifecycle::kReady) {
    return absl::AbortedError(
        fmt::format("the volume named {} is being deleted", Printable(request.name(), 128)));
  }
  const auto differs = [&](std::string_view what) {
    return absl::AlreadyExistsError(fmt::format("a volume named {} exists as {}, but with {}",
                                                Printable(request.name(), 128), present.id, what));
  };
  if (!CapacityFits(present.capacity, request.capacity_range())) {
    return differs(fmt::format("{} bytes, outside of capacity_range", present.capacity));
  }
  if (present.parameters != parameters.canonical) return differs("other parameters");
  for (const auto& capability : request.volume_capabilities()) {
    const absl::Status fits = SupportsCapability(present.kind, present.fs_type, capability);
    if (!fits.ok()) return differs(fmt::format("other capabilities: {}", std::string(fits.message())));
  }
  const auto& source = request.volume_content_source();
  if (present.source_snapshot != source.snapshot().snapshot_id() ||
      present.source_volume != source.volume().volume_id()) {
    return differs("another volume_content_source");
  }
  if (!TopologyMatches(context_.options.topology, request.accessibility_requirements().requisite())) {
    return differs("another topology");
  }
  return absl::OkStatus();
}

absl::StatusOr<ControllerService::CopyFrom> ControllerService::FindSource(
    const ::csi::v1::VolumeContentSource& source) {
  CopyFrom from;
  if (source.has_snapshot()) {
    from.area = Area::kSnapshots;
    from.id = source.snapshot().snapshot_id();
    auto hold = context_.locks.Share(Space::kSnapshot, from.id);
    if (!hold.ok()) return hold.status();
    from.hold.emplace(*std::move(hold));
    SnapshotRecord snapshot;
    BERTH_ASSIGN_OR_RETURN(snapshot, context_.store.GetSnapshot(from.id));
    if (snapshot.lifecycle != Lifecycle::kReady) {
      return absl::NotFoundError(fmt::format("there is no snapshot {}", Printable(from.id, 128)));
    }
    from.source = {.kind = snapshot.kind, .fs_type = snapshot.fs_type, .size = snapshot.size};
    from.format = snapshot.format;
    from.grow_pending = snapshot.grow_pending;
    return from;
  }
  from.id = source.volume().volume_id();
  auto hold = context_.locks.Share(Space::kVolume, from.id);
  if (!hold.ok()) return hold.status();
  from.hold.emplace(*std::move(hold));
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, from.id));
  from.source = {.kind = volume.kind, .fs_type = volume.fs_type, .size = volume.capacity};
  from.format = volume.format;
  from.grow_pending = volume.grow_pending;
  return from;
}

absl::Status ControllerService::Quiesce(const VolumeRecord& volume, std::optional<FrozenFileSystem>* frozen) {
  // Files of a directory are copied one by one: there is nothing to hold them still with.
  if (volume.kind == Kind::kDirectory) return absl::OkStatus();
  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (!staging.has_value()) return absl::OkStatus();
  if (!staging->block) {
    bool mounted = false;
    BERTH_ASSIGN_OR_RETURN(mounted, IsMountedAt(context_.storage, volume, staging->path));
    // Nothing writes to a file system that is mounted read-only.
    if (!mounted || staging->read_only) return absl::OkStatus();
    absl::StatusOr<FrozenFileSystem> freeze = FrozenFileSystem::Freeze(staging->path);
    if (!freeze.ok()) return freeze.status();
    frozen->emplace(*std::move(freeze));
    return absl::OkStatus();
  }
  // What was written to a raw device may still lie in the device's own cache.
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops,
                         FindLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
  for (const LoopDevice& loop : loops) {
    const UniqueFd fd(open(loop.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", loop.path));
    if (fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", loop.path));
  }
  return absl::OkStatus();
}

absl::Status ControllerService::Copy(const CopyFrom& from, const VolumeRecord& volume) {
  std::optional<FrozenFileSystem> frozen;
  if (from.area == Area::kVolumes) {
    VolumeRecord original;
    BERTH_ASSIGN_OR_RETURN(original, FindVolume(context_, from.id));
    BERTH_RETURN_IF_ERROR(Quiesce(original, &frozen));
  }
  BERTH_RETURN_IF_ERROR(
      context_.storage.MakeCopy(from.area, from.id, Area::kVolumes, volume.id, volume.kind, volume.capacity));
  if (!volume.preallocate) return absl::OkStatus();
  return context_.storage.GrowImage(volume.id, volume.kind, volume.capacity, /*preallocate=*/true);
}

absl::Status ControllerService::Create(const ::csi::v1::CreateVolumeRequest& request,
                                       ::csi::v1::CreateVolumeResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  Parameters parameters;
  BERTH_ASSIGN_OR_RETURN(parameters, ParseParameters(request.parameters()));
  const auto name_lock = context_.locks.Take(Space::kVolumeName, request.name());
  if (!name_lock.ok()) return name_lock.status();

  if (const absl::StatusOr<VolumeRecord> present = context_.store.GetVolumeByName(request.name());
      present.ok()) {
    BERTH_RETURN_IF_ERROR(CheckRepeat(request, parameters, *present));
    Describe(*present, response->mutable_volume());
    return absl::OkStatus();
  } else if (!absl::IsNotFound(present.status())) {
    return present.status();
  }
  if (!TopologyMatches(context_.options.topology, request.accessibility_requirements().requisite())) {
    return absl::ResourceExhaustedError(
        "accessibility_requirements: this node lies in none of the requisite topologies");
  }
  std::optional<CopyFrom> from;
  std::optional<Source> source;
  if (request.has_volume_content_source()) {
    absl::StatusOr<CopyFrom> found = FindSource(request.volume_content_source());
    if (!found.ok()) return found.status();
    from.emplace(*std::move(found));
    source = from->source;
  }
  VolumePlan plan;
  BERTH_ASSIGN_OR_RETURN(plan,
                         PlanVolume(request.volume_capabilities(), parameters, context_.machine, source));

  VolumeRecord volume;
  volume.id = Storage::NewId(Area::kVolumes);
  volume.name = request.name();
  volume.kind = plan.kind;
  volume.fs_type = plan.fs_type;
  BERTH_ASSIGN_OR_RETURN(volume.capacity, ChooseCapacity(request.capacity_range(), plan, source));
  BERTH_RETURN_IF_ERROR(CheckSpace(context_, volume.capacity, 0));
  volume.preallocate = parameters.preallocate;
  volume.direct_io = parameters.direct_io;
  volume.parameters = parameters.canonical;
  volume.source_snapshot = request.volume_content_source().snapshot().snapshot_id();
  volume.source_volume = request.volume_content_source().volume().volume_id();
  if (from.has_value()) {
    volume.format = from->format;
    volume.grow_pending =
        from->grow_pending || (volume.format != FormatState::kNone && volume.capacity > source->size);
  }

  BERTH_RETURN_IF_ERROR(Make(volume, from));
  Describe(volume, response->mutable_volume());
  return absl::OkStatus();
}

absl::Status ControllerService::Make(const VolumeRecord& volume, const std::optional<CopyFrom>& from) {
  BERTH_RETURN_IF_ERROR(context_.store.InsertVolume(volume, context_.options.capacity));
  absl::Status status = from.has_value() ? Copy(*from, volume)
                                         : context_.storage.MakeEmpty(volume.id, volume.kind, volume.capacity,
                                                                      volume.preallocate);
  if (status.ok()) status = context_.store.SetVolumeLifecycle(volume.id, Lifecycle::kReady);
  // Should this fail too, the next start does it.
  if (!status.ok() && context_.storage.Discard(Area::kVolumes, volume.id).ok()) {
    context_.store.DeleteVolume(volume.id).IgnoreError();
    context_.storage.EmptyTrash();
  }
  return status;
}

// --- Delete ---

grpc::Status ControllerService::DeleteVolume(grpc::ServerContext*,
                                             const ::csi::v1::DeleteVolumeRequest* request,
                                             ::csi::v1::DeleteVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "DeleteVolume", request->volume_id(),
                [&] { return Delete(*request); });
}

absl::Status ControllerService::CheckUnused(const VolumeRecord& volume) {
  const auto in_use = [&](std::string_view how) {
    return absl::FailedPreconditionError(fmt::format("volume {} is in use: {}", volume.id, how));
  };
  std::vector<Publication> publications;
  BERTH_ASSIGN_OR_RETURN(publications, context_.store.PublicationsOf(volume.id));
  if (!publications.empty()) return in_use(fmt::format("it is published at {}", publications.front().target));
  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (staging.has_value()) return in_use(fmt::format("it is staged at {}", staging->path));
  std::vector<Attachment> attachments;
  BERTH_ASSIGN_OR_RETURN(attachments, context_.store.AttachmentsOf(volume.id));
  if (!attachments.empty() && context_.options.attach) {
    return in_use(fmt::format("it is attached to node {}", Printable(attachments.front().node_id, 256)));
  }
  if (volume.kind == Kind::kDirectory) return absl::OkStatus();
  // A mount in another mount namespace still keeps the device, and has a user.
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops,
                         FindKeptLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
  if (loops.empty()) return absl::OkStatus();
  return in_use(fmt::format("{} is still attached to its image", loops.front().path));
}

absl::Status ControllerService::Delete(const ::csi::v1::DeleteVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  {
    const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
    if (!lock.ok()) return lock.status();
    const absl::StatusOr<VolumeRecord> volume = context_.store.GetVolume(request.volume_id());
    if (absl::IsNotFound(volume.status())) return absl::OkStatus();
    if (!volume.ok()) return volume.status();
    if (volume->lifecycle == Lifecycle::kCreating) {
      return absl::AbortedError(fmt::format("volume {} is still being created", volume->id));
    }
    BERTH_RETURN_IF_ERROR(CheckUnused(*volume));
    BERTH_RETURN_IF_ERROR(context_.store.SetVolumeLifecycle(volume->id, Lifecycle::kDeleting));
    BERTH_RETURN_IF_ERROR(context_.storage.Discard(Area::kVolumes, volume->id));
    BERTH_RETURN_IF_ERROR(context_.store.DeleteVolume(volume->id));
  }
  context_.storage.EmptyTrash();
  return absl::OkStatus();
}

// --- Attach, detach ---

grpc::Status ControllerService::ControllerPublishVolume(
    grpc::ServerContext*, const ::csi::v1::ControllerPublishVolumeRequest* request,
    ::csi::v1::ControllerPublishVolumeResponse* response) {
  return Answer(context_, CallKind::kChanges, "ControllerPublishVolume", request->volume_id(),
                [&] { return Attach(*request, response); });
}

absl::Status ControllerService::Attach(const ::csi::v1::ControllerPublishVolumeRequest& request,
                                       ::csi::v1::ControllerPublishVolumeResponse* response) {
  if (!context_.options.attach) {
    return absl::UnimplementedError("ControllerPublishVolume: this plugin runs without --attach");
  }
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  if (request.node_id() != context_.options.node_id) {
    return absl::NotFoundError(fmt::format("there is no node {}: the volume is on {}",
                                           Printable(request.node_id(), 256), context_.options.node_id));
  }
  BERTH_RETURN_IF_ERROR(CheckVolumeContext(volume, request.volume_context()));
  if (const absl::Status fits = SupportsCapability(volume.kind, volume.fs_type, request.volume_capability());
      !fits.ok()) {
    return absl::InvalidArgumentError(fits.message());
  }

  Attachment attachment;
  attachment.volume_id = volume.id;
  attachment.node_id = request.node_id();
  attachment.capability = CapabilityDigest(request.volume_capability());
  attachment.read_only = request.readonly();
  attachment.several_nodes = IsForSeveralNodes(request.volume_capability().access_mode().mode());
  std::vector<Attachment> present;
  BERTH_ASSIGN_OR_RETURN(present, context_.store.AttachmentsOf(volume.id));
  bool repeat = false;
  for (const Attachment& other : present) {
    if (other.node_id == attachment.node_id) {
      if (other.capability != attachment.capability || other.read_only != attachment.read_only) {
        return absl::AlreadyExistsError(
            fmt::format("volume {} is attached to node {} with another capability or readonly flag",
                        volume.id, other.node_id));
      }
      repeat = true;
    } else if (!other.several_nodes || !attachment.several_nodes) {
      return absl::FailedPreconditionError(
          fmt::format("volume {} is attached to node {}", volume.id, Printable(other.node_id, 256)));
    }
  }
  if (!repeat) BERTH_RETURN_IF_ERROR(context_.store.PutAttachment(attachment, context_.options.max_volumes));
  for (const auto& [key, value] : PublishContext(attachment))
    (*response->mutable_publish_context())[key] = value;
  return absl::OkStatus();
}

grpc::Status ControllerService::ControllerUnpublishVolume(
    grpc::ServerContext*, const ::csi::v1::ControllerUnpublishVolumeRequest* request,
    ::csi::v1::ControllerUnpublishVolumeResponse*) {
  return Answer(context_, CallKind::kChanges, "ControllerUnpublishVolume", request->volume_id(),
                [&] { return Detach(*request); });
}

absl::Status ControllerService::Detach(const ::csi::v1::ControllerUnpublishVolumeRequest& request) {
  if (!context_.options.attach) {
    return absl::UnimplementedError("ControllerUnpublishVolume: this plugin runs without --attach");
  }
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  // A volume or node that this plugin does not know has nothing attached: no other keeps account of it.
  const absl::StatusOr<VolumeRecord> volume = FindVolume(context_, request.volume_id());
  if (absl::IsNotFound(volume.status())) return absl::OkStatus();
  if (!volume.ok()) return volume.status();
  if (request.node_id().empty() || request.node_id() == context_.options.node_id) {
    std::optional<Staging> staging;
    BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume->id));
    if (staging.has_value()) {
      return absl::FailedPreconditionError(
          fmt::format("volume {} is still staged at {}: unstage it first", volume->id, staging->path));
    }
  }
  return context_.store.DeleteAttachment(volume->id, request.node_id());
}

// --- Expand ---

grpc::Status ControllerService::ControllerExpandVolume(
    grpc::ServerContext*, const ::csi::v1::ControllerExpandVolumeRequest* request,
    ::csi::v1::ControllerExpandVolumeResponse* response) {
  return Answer(context_, CallKind::kChanges, "ControllerExpandVolume", request->volume_id(),
                [&] { return Expand(*request, response); });
}

absl::Status ControllerService::Expand(const ::csi::v1::ControllerExpandVolumeRequest& request,
                                       ::csi::v1::ControllerExpandVolumeResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  if (request.has_volume_capability()) {
    const absl::Status fits = SupportsCapability(volume.kind, volume.fs_type, request.volume_capability());
    if (!fits.ok()) return absl::InvalidArgumentError(fits.message());
  }
  const int64_t limit = request.capacity_range().limit_bytes();
  if (limit != 0 && volume.capacity > limit) {
    return absl::OutOfRangeError(
        fmt::format("volume {} has {} bytes already, more than limit_bytes", volume.id, volume.capacity));
  }

  // Raw devices follow their image at once, below; a file system has to be grown where it is mounted, and
  // that is pending until it is done.
  const bool mountable = volume.kind != Kind::kDirectory && !volume.fs_type.empty();
  const bool as_block = request.has_volume_capability() ? request.volume_capability().has_block()
                                                        : volume.kind == Kind::kBlock && !mountable;
  if (volume.capacity < request.capacity_range().required_bytes()) {
    int64_t capacity = 0;
    BERTH_ASSIGN_OR_RETURN(
        capacity, ChooseCapacity(request.capacity_range(), {.kind = volume.kind, .fs_type = volume.fs_type},
                                 std::nullopt));
    BERTH_RETURN_IF_ERROR(CheckSpace(context_, capacity, volume.capacity));
    const bool owed = mountable && volume.format != FormatState::kNone;
    // The record first: an image that is smaller than its record is grown by the repeat; one that is larger
    // would be space that is not accounted for.
    BERTH_RETURN_IF_ERROR(context_.store.GrowVolume(volume.id, capacity, owed || volume.grow_pending,
                                                    context_.options.capacity));
    volume.capacity = capacity;
  }
  if (volume.kind != Kind::kDirectory) {
    BERTH_RETURN_IF_ERROR(
        context_.storage.GrowImage(volume.id, volume.kind, volume.capacity, volume.preallocate));
    std::vector<LoopDevice> loops;
    BERTH_ASSIGN_OR_RETURN(loops,
                           FindLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
    for (const LoopDevice& loop : loops) BERTH_RETURN_IF_ERROR(RefreshLoopCapacity(loop));
  }
  response->set_capacity_bytes(volume.capacity);
  response->set_node_expansion_required(mountable && !as_block);
  return absl::OkStatus();
}

}  // namespace berth::hostpath
