#include "plugins/hostpath/controller_service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/unique_fd.h"
#include "plugins/hostpath/loop_device.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using ::csi::v1::ControllerServiceCapability;
using Space = OperationLocks::Space;

namespace {

constexpr std::string_view kTokenPrefix = "after-";

void SetTime(int64_t nanoseconds, ::google::protobuf::Timestamp* out) {
  out->set_seconds(nanoseconds / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
}

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(WallClock::now().time_since_epoch()).count();
}

void DescribeSnapshot(const SnapshotRecord& record, ::csi::v1::Snapshot* out) {
  out->set_snapshot_id(record.id);
  out->set_source_volume_id(record.source_volume);
  out->set_size_bytes(record.size);
  out->set_ready_to_use(true);
  SetTime(record.created_ns, out->mutable_creation_time());
}

bool IsForSeveralNodes(AccessMode::Mode mode) {
  return mode == AccessMode::MULTI_NODE_READER_ONLY || mode == AccessMode::MULTI_NODE_SINGLE_WRITER ||
         mode == AccessMode::MULTI_NODE_MULTI_WRITER;
}

}  // namespace

std::string MakePageToken(int64_t sequence) { return fmt::format("{}{}", kTokenPrefix, sequence); }

absl::StatusOr<int64_t> ParsePageToken(std::string_view token, int64_t last) {
  if (token.empty()) return 0;
  int64_t sequence = 0;
  if (token.starts_with(kTokenPrefix)) {
    const std::string_view digits = token.substr(kTokenPrefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), sequence);
    if (error == std::errc() && end == digits.data() + digits.size() && sequence > 0 && sequence <= last) {
      return sequence;
    }
  }
  return absl::AbortedError("starting_token: it was not given out by this plugin; begin again without one");
}

// --- What volumes are ---

void ControllerService::Describe(const VolumeRecord& volume, ::csi::v1::Volume* out) const {
  out->set_volume_id(volume.id);
  out->set_capacity_bytes(volume.capacity);
  for (const auto& [key, value] : VolumeContext(volume)) (*out->mutable_volume_context())[key] = value;
  if (!volume.source_snapshot.empty()) {
    out->mutable_content_source()->mutable_snapshot()->set_snapshot_id(volume.source_snapshot);
  } else if (!volume.source_volume.empty()) {
    out->mutable_content_source()->mutable_volume()->set_volume_id(volume.source_volume);
  }
  auto* segments = out->add_accessible_topology()->mutable_segments();
  for (const auto& [key, value] : context_.options.topology) (*segments)[key] = value;
}

template <class Status>
absl::Status ControllerService::DescribeStatus(const VolumeRecord& volume, Status* out) const {
  if (context_.options.attach) {
    std::vector<Attachment> attachments;
    BERTH_ASSIGN_OR_RETURN(attachments, context_.store.AttachmentsOf(volume.id));
    for (const Attachment& attachment : attachments) out->add_published_node_ids(attachment.node_id);
  }
  const absl::Status content =
      context_.storage.CheckContent(Area::kVolumes, volume.id, volume.kind, volume.capacity);
  out->mutable_volume_condition()->set_abnormal(!content.ok());
  out->mutable_volume_condition()->set_message(content.ok() ? "its content is there"
                                                            : std::string(content.message()));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ControllerService::AvailableBytes() const {
  Storage::Space space;
  BERTH_ASSIGN_OR_RETURN(space, context_.storage.GetSpace());
  if (context_.options.capacity == 0) return space.available;
  int64_t claimed = 0;
  BERTH_ASSIGN_OR_RETURN(claimed, context_.store.ClaimedBytes());
  return std::max<int64_t>(0, context_.options.capacity - claimed);
}

absl::Status ControllerService::CheckSpace(int64_t bytes) const {
  Storage::Space space;
  BERTH_ASSIGN_OR_RETURN(space, context_.storage.GetSpace());
  const int64_t pool = context_.options.capacity == 0 ? space.total : context_.options.capacity;
  if (bytes > pool) {
    return absl::OutOfRangeError(fmt::format("{} bytes are more than the whole pool of {} has", bytes, pool));
  }
  // With a pool of a given size the store keeps account. Without, images are sparse and may promise more
  // together than there is, but each by itself no more than there is.
  if (context_.options.capacity == 0 && bytes > space.available) {
    return absl::ResourceExhaustedError(
        fmt::format("{} bytes are asked for, but the file system has {} left", bytes, space.available));
  }
  return absl::OkStatus();
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
    // Nobody writes to a file system that is mounted read-only.
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
    if (present->lifecycle != Lifecycle::kReady) {
      return absl::AbortedError(
          fmt::format("the volume named {} is being deleted", Printable(request.name(), 128)));
    }
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
  BERTH_RETURN_IF_ERROR(CheckSpace(volume.capacity));
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

  BERTH_RETURN_IF_ERROR(context_.store.InsertVolume(volume, context_.options.capacity));
  absl::Status status = from.has_value() ? Copy(*from, volume)
                                         : context_.storage.MakeEmpty(volume.id, volume.kind, volume.capacity,
                                                                      volume.preallocate);
  if (status.ok()) status = context_.store.SetVolumeLifecycle(volume.id, Lifecycle::kReady);
  if (!status.ok()) {
    // Should this fail too, the next start does it.
    if (context_.storage.Discard(Area::kVolumes, volume.id).ok()) {
      context_.store.DeleteVolume(volume.id).IgnoreError();
      context_.storage.EmptyTrash();
    }
    return status;
  }
  Describe(volume, response->mutable_volume());
  return absl::OkStatus();
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
  // A mount that lives on in another mount namespace keeps the device, and is somebody's.
  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops,
                         FindLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
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

// --- Look ---

grpc::Status ControllerService::ValidateVolumeCapabilities(
    grpc::ServerContext*, const ::csi::v1::ValidateVolumeCapabilitiesRequest* request,
    ::csi::v1::ValidateVolumeCapabilitiesResponse* response) {
  return Answer(context_, CallKind::kReads, "ValidateVolumeCapabilities", request->volume_id(),
                [&] { return ValidateCapabilities(*request, response); });
}

absl::Status ControllerService::ValidateCapabilities(
    const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
    ::csi::v1::ValidateVolumeCapabilitiesResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  // Something that does not fit is an answer here, not an error.
  const auto deny = [&](const absl::Status& reason) {
    response->set_message(std::string(reason.message()));
    return absl::OkStatus();
  };
  for (const auto& capability : request.volume_capabilities()) {
    if (const absl::Status fits = SupportsCapability(volume.kind, volume.fs_type, capability); !fits.ok()) {
      return deny(fits);
    }
    const auto flags = ParseMountFlags(capability.mount().mount_flags());
    if (!flags.ok()) return deny(flags.status());
  }
  if (const absl::Status same = CheckVolumeContext(volume, request.volume_context()); !same.ok())
    return deny(same);
  if (!request.parameters().empty()) {
    const absl::StatusOr<Parameters> parameters = ParseParameters(request.parameters());
    if (!parameters.ok()) return deny(parameters.status());
    const bool other_kind = parameters->kind.has_value() && *parameters->kind != volume.kind;
    const bool other_fs = !parameters->fs_type.empty() && parameters->fs_type != volume.fs_type;
    if (other_kind || other_fs || (parameters->preallocate && !volume.preallocate) ||
        (parameters->direct_io && !volume.direct_io)) {
      return deny(absl::InvalidArgumentError("parameters: the volume was created with others"));
    }
  }
  if (!request.mutable_parameters().empty()) {
    return deny(absl::InvalidArgumentError("mutable_parameters: this plugin has none"));
  }
  auto* confirmed = response->mutable_confirmed();
  *confirmed->mutable_volume_capabilities() = request.volume_capabilities();
  *confirmed->mutable_volume_context() = request.volume_context();
  *confirmed->mutable_parameters() = request.parameters();
  return absl::OkStatus();
}

grpc::Status ControllerService::ListVolumes(grpc::ServerContext*,
                                            const ::csi::v1::ListVolumesRequest* request,
                                            ::csi::v1::ListVolumesResponse* response) {
  return Answer(context_, CallKind::kReads, "ListVolumes", "", [&] { return List(*request, response); });
}

absl::Status ControllerService::List(const ::csi::v1::ListVolumesRequest& request,
                                     ::csi::v1::ListVolumesResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  int64_t last = 0;
  BERTH_ASSIGN_OR_RETURN(last, context_.store.LastVolumeSequence());
  int64_t after = 0;
  BERTH_ASSIGN_OR_RETURN(after, ParsePageToken(request.starting_token(), last));
  // One more than asked for tells whether there is a next page.
  const int64_t limit = request.max_entries() == 0 ? 0 : int64_t{request.max_entries()} + 1;
  std::vector<VolumeRecord> volumes;
  BERTH_ASSIGN_OR_RETURN(volumes, context_.store.ListVolumes(after, limit));
  if (limit != 0 && static_cast<int64_t>(volumes.size()) == limit) {
    volumes.pop_back();
    response->set_next_token(MakePageToken(volumes.back().sequence));
  }
  for (const VolumeRecord& volume : volumes) {
    auto* entry = response->add_entries();
    Describe(volume, entry->mutable_volume());
    BERTH_RETURN_IF_ERROR(DescribeStatus(volume, entry->mutable_status()));
  }
  return absl::OkStatus();
}

grpc::Status ControllerService::ControllerGetVolume(grpc::ServerContext*,
                                                    const ::csi::v1::ControllerGetVolumeRequest* request,
                                                    ::csi::v1::ControllerGetVolumeResponse* response) {
  return Answer(context_, CallKind::kReads, "ControllerGetVolume", request->volume_id(),
                [&]() -> absl::Status {
                  BERTH_RETURN_IF_ERROR(CheckRequest(*request));
                  VolumeRecord volume;
                  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request->volume_id()));
                  Describe(volume, response->mutable_volume());
                  return DescribeStatus(volume, response->mutable_status());
                });
}

grpc::Status ControllerService::GetCapacity(grpc::ServerContext*,
                                            const ::csi::v1::GetCapacityRequest* request,
                                            ::csi::v1::GetCapacityResponse* response) {
  return Answer(context_, CallKind::kReads, "GetCapacity", "", [&] { return Capacity(*request, response); });
}

absl::Status ControllerService::Capacity(const ::csi::v1::GetCapacityRequest& request,
                                         ::csi::v1::GetCapacityResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  Parameters parameters;
  BERTH_ASSIGN_OR_RETURN(parameters, ParseParameters(request.parameters()));
  ::google::protobuf::RepeatedPtrField<::csi::v1::Topology> where;
  if (request.has_accessible_topology()) *where.Add() = request.accessible_topology();
  // What cannot be made here, or not there, has no capacity.
  const absl::StatusOr<VolumePlan> plan =
      PlanVolume(request.volume_capabilities(), parameters, context_.machine, std::nullopt);
  if (!TopologyMatches(context_.options.topology, where) || !plan.ok()) return absl::OkStatus();
  int64_t available = 0;
  BERTH_ASSIGN_OR_RETURN(available, AvailableBytes());
  const int64_t largest = available / kSizeGranule * kSizeGranule;
  response->set_available_capacity(available);
  response->mutable_maximum_volume_size()->set_value(largest);
  response->mutable_minimum_volume_size()->set_value(MinimumSize(plan->kind, plan->fs_type));
  return absl::OkStatus();
}

grpc::Status ControllerService::ControllerGetCapabilities(
    grpc::ServerContext*, const ::csi::v1::ControllerGetCapabilitiesRequest*,
    ::csi::v1::ControllerGetCapabilitiesResponse* response) {
  using Rpc = ControllerServiceCapability::RPC;
  return Answer(context_, CallKind::kReads, "ControllerGetCapabilities", "", [&] {
    // GET_SNAPSHOT is left out, though the RPC is served: it is alpha and new in CSI 1.12, and callers built
    // for earlier versions take a capability they do not know for an error.
    for (const auto type :
         {Rpc::CREATE_DELETE_VOLUME, Rpc::LIST_VOLUMES, Rpc::GET_CAPACITY, Rpc::CREATE_DELETE_SNAPSHOT,
          Rpc::LIST_SNAPSHOTS, Rpc::CLONE_VOLUME, Rpc::EXPAND_VOLUME, Rpc::VOLUME_CONDITION, Rpc::GET_VOLUME,
          Rpc::SINGLE_NODE_MULTI_WRITER}) {
      response->add_capabilities()->mutable_rpc()->set_type(type);
    }
    if (context_.options.attach) {
      for (const auto type :
           {Rpc::PUBLISH_UNPUBLISH_VOLUME, Rpc::PUBLISH_READONLY, Rpc::LIST_VOLUMES_PUBLISHED_NODES}) {
        response->add_capabilities()->mutable_rpc()->set_type(type);
      }
    }
    return absl::OkStatus();
  });
}

// --- Snapshots ---

grpc::Status ControllerService::CreateSnapshot(grpc::ServerContext*,
                                               const ::csi::v1::CreateSnapshotRequest* request,
                                               ::csi::v1::CreateSnapshotResponse* response) {
  return Answer(context_, CallKind::kChanges, "CreateSnapshot", request->name(),
                [&] { return Snap(*request, response); });
}

absl::Status ControllerService::Snap(const ::csi::v1::CreateSnapshotRequest& request,
                                     ::csi::v1::CreateSnapshotResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  BERTH_RETURN_IF_ERROR(CheckSnapshotParameters(request.parameters()));
  const auto name_lock = context_.locks.Take(Space::kSnapshotName, request.name());
  if (!name_lock.ok()) return name_lock.status();
  if (const absl::StatusOr<SnapshotRecord> present = context_.store.GetSnapshotByName(request.name());
      present.ok()) {
    if (present->lifecycle != Lifecycle::kReady) {
      return absl::AbortedError(
          fmt::format("the snapshot named {} is being deleted", Printable(request.name(), 128)));
    }
    if (present->source_volume != request.source_volume_id()) {
      return absl::AlreadyExistsError(fmt::format("a snapshot named {} exists as {}, but of volume {}",
                                                  Printable(request.name(), 128), present->id,
                                                  present->source_volume));
    }
    DescribeSnapshot(*present, response->mutable_snapshot());
    return absl::OkStatus();
  } else if (!absl::IsNotFound(present.status())) {
    return present.status();
  }

  const auto lock = context_.locks.Share(Space::kVolume, request.source_volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.source_volume_id()));
  SnapshotRecord snapshot;
  snapshot.id = Storage::NewId(Area::kSnapshots);
  snapshot.name = request.name();
  snapshot.source_volume = volume.id;
  snapshot.kind = volume.kind;
  snapshot.fs_type = volume.fs_type;
  snapshot.size = volume.capacity;
  snapshot.format = volume.format;
  snapshot.grow_pending = volume.grow_pending;
  BERTH_RETURN_IF_ERROR(context_.store.InsertSnapshot(snapshot, context_.options.capacity));

  std::optional<FrozenFileSystem> frozen;
  absl::Status status = Quiesce(volume, &frozen);
  if (status.ok()) {
    snapshot.created_ns = NowNanoseconds();
    status = context_.storage.MakeCopy(Area::kVolumes, volume.id, Area::kSnapshots, snapshot.id,
                                       snapshot.kind, snapshot.size);
  }
  frozen.reset();
  if (status.ok()) status = context_.store.FinishSnapshot(snapshot.id, snapshot.created_ns);
  if (!status.ok()) {
    if (context_.storage.Discard(Area::kSnapshots, snapshot.id).ok()) {
      context_.store.DeleteSnapshot(snapshot.id).IgnoreError();
      context_.storage.EmptyTrash();
    }
    return status;
  }
  DescribeSnapshot(snapshot, response->mutable_snapshot());
  return absl::OkStatus();
}

grpc::Status ControllerService::DeleteSnapshot(grpc::ServerContext*,
                                               const ::csi::v1::DeleteSnapshotRequest* request,
                                               ::csi::v1::DeleteSnapshotResponse*) {
  return Answer(context_, CallKind::kChanges, "DeleteSnapshot", request->snapshot_id(),
                [&] { return DropSnapshot(*request); });
}

absl::Status ControllerService::DropSnapshot(const ::csi::v1::DeleteSnapshotRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  {
    const auto lock = context_.locks.Take(Space::kSnapshot, request.snapshot_id());
    if (!lock.ok()) return lock.status();
    const absl::StatusOr<SnapshotRecord> snapshot = context_.store.GetSnapshot(request.snapshot_id());
    if (absl::IsNotFound(snapshot.status())) return absl::OkStatus();
    if (!snapshot.ok()) return snapshot.status();
    if (snapshot->lifecycle == Lifecycle::kCreating) {
      return absl::AbortedError(fmt::format("snapshot {} is still being created", snapshot->id));
    }
    BERTH_RETURN_IF_ERROR(context_.store.SetSnapshotLifecycle(snapshot->id, Lifecycle::kDeleting));
    BERTH_RETURN_IF_ERROR(context_.storage.Discard(Area::kSnapshots, snapshot->id));
    BERTH_RETURN_IF_ERROR(context_.store.DeleteSnapshot(snapshot->id));
  }
  context_.storage.EmptyTrash();
  return absl::OkStatus();
}

grpc::Status ControllerService::ListSnapshots(grpc::ServerContext*,
                                              const ::csi::v1::ListSnapshotsRequest* request,
                                              ::csi::v1::ListSnapshotsResponse* response) {
  return Answer(context_, CallKind::kReads, "ListSnapshots", "", [&] { return List(*request, response); });
}

absl::Status ControllerService::List(const ::csi::v1::ListSnapshotsRequest& request,
                                     ::csi::v1::ListSnapshotsResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  int64_t last = 0;
  BERTH_ASSIGN_OR_RETURN(last, context_.store.LastSnapshotSequence());
  int64_t after = 0;
  BERTH_ASSIGN_OR_RETURN(after, ParsePageToken(request.starting_token(), last));
  if (!request.snapshot_id().empty()) {
    const absl::StatusOr<SnapshotRecord> snapshot = context_.store.GetSnapshot(request.snapshot_id());
    if (absl::IsNotFound(snapshot.status())) return absl::OkStatus();
    if (!snapshot.ok()) return snapshot.status();
    const bool of_volume =
        request.source_volume_id().empty() || snapshot->source_volume == request.source_volume_id();
    if (snapshot->lifecycle == Lifecycle::kReady && of_volume && snapshot->sequence > after) {
      DescribeSnapshot(*snapshot, response->add_entries()->mutable_snapshot());
    }
    return absl::OkStatus();
  }
  const int64_t limit = request.max_entries() == 0 ? 0 : int64_t{request.max_entries()} + 1;
  std::vector<SnapshotRecord> snapshots;
  BERTH_ASSIGN_OR_RETURN(snapshots, context_.store.ListSnapshots(request.source_volume_id(), after, limit));
  if (limit != 0 && static_cast<int64_t>(snapshots.size()) == limit) {
    snapshots.pop_back();
    response->set_next_token(MakePageToken(snapshots.back().sequence));
  }
  for (const SnapshotRecord& snapshot : snapshots) {
    DescribeSnapshot(snapshot, response->add_entries()->mutable_snapshot());
  }
  return absl::OkStatus();
}

grpc::Status ControllerService::GetSnapshot(grpc::ServerContext*,
                                            const ::csi::v1::GetSnapshotRequest* request,
                                            ::csi::v1::GetSnapshotResponse* response) {
  return Answer(context_, CallKind::kReads, "GetSnapshot", request->snapshot_id(), [&]() -> absl::Status {
    BERTH_RETURN_IF_ERROR(CheckRequest(*request));
    SnapshotRecord snapshot;
    BERTH_ASSIGN_OR_RETURN(snapshot, context_.store.GetSnapshot(request->snapshot_id()));
    if (snapshot.lifecycle != Lifecycle::kReady) {
      return absl::NotFoundError(
          fmt::format("there is no snapshot {}", Printable(request->snapshot_id(), 128)));
    }
    DescribeSnapshot(snapshot, response->mutable_snapshot());
    return absl::OkStatus();
  });
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
  // that is owed until it is done.
  const bool mountable = volume.kind != Kind::kDirectory && !volume.fs_type.empty();
  const bool as_block = request.has_volume_capability() ? request.volume_capability().has_block()
                                                        : volume.kind == Kind::kBlock && !mountable;
  if (volume.capacity < request.capacity_range().required_bytes()) {
    int64_t capacity = 0;
    BERTH_ASSIGN_OR_RETURN(
        capacity, ChooseCapacity(request.capacity_range(), {.kind = volume.kind, .fs_type = volume.fs_type},
                                 std::nullopt));
    BERTH_RETURN_IF_ERROR(CheckSpace(capacity));
    const bool owed = mountable && volume.format != FormatState::kNone;
    // The record first: an image that is smaller than its record is grown by the repeat, whereas one that is
    // larger would be space that nobody accounts for.
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
