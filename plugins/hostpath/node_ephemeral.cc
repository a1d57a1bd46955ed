// NodeService: ephemeral inline volumes, which live as long as their publication.
//
// The caller gives the id, and everything else in volume_context. NodePublishVolume makes the volume and
// mounts it at the target, with no staging between; NodeUnpublishVolume unmounts and deletes it. In the store
// it is a volume like any other, with a name that CreateVolume cannot give.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/size_text.h"
#include "plugins/hostpath/node_service.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using Space = OperationLocks::Space;

namespace {

constexpr std::string_view kSizeKey = "size";

// What the volume is to be made of.
struct Inline {
  Parameters parameters;
  VolumePlan plan;
  int64_t capacity = 0;
};

absl::StatusOr<Inline> ReadContext(const ::csi::v1::NodePublishVolumeRequest& request,
                                   const Machine& machine) {
  if (request.volume_capability().has_block()) {
    return absl::InvalidArgumentError("volume_capability: an ephemeral volume is mounted, never raw");
  }
  Inline asked;
  StringMap context = request.volume_context();
  ::csi::v1::CapacityRange range;
  if (const auto size = context.find(std::string(kSizeKey)); size != context.end()) {
    auto bytes = ParseSize(size->second);
    if (!bytes) bytes = ParseSize(size->second + "B");
    if (!bytes || *bytes == 0 || *bytes > (uint64_t{1} << 62)) {
      return absl::InvalidArgumentError(
          fmt::format("volume_context: \"{}\" is no size: 64MiB, 1GiB or a number of bytes are",
                      Printable(size->second, 64)));
    }
    range.set_required_bytes(static_cast<int64_t>(*bytes));
    context.erase(size);
  }
  BERTH_ASSIGN_OR_RETURN(asked.parameters, ParseParameters(context));
  Capabilities capabilities;
  *capabilities.Add() = request.volume_capability();
  BERTH_ASSIGN_OR_RETURN(asked.plan, PlanVolume(capabilities, asked.parameters, machine, std::nullopt));
  BERTH_ASSIGN_OR_RETURN(asked.capacity, ChooseCapacity(range, asked.plan, std::nullopt));
  return asked;
}

}  // namespace

absl::StatusOr<VolumeRecord> NodeService::MakeEphemeral(const ::csi::v1::NodePublishVolumeRequest& request) {
  Inline asked;
  BERTH_ASSIGN_OR_RETURN(asked, ReadContext(request, context_.machine));
  const std::string name = EphemeralName(request.volume_id());
  absl::StatusOr<VolumeRecord> present = context_.store.GetVolumeByName(name);
  if (present.ok()) {
    if (present->lifecycle != Lifecycle::kReady) {
      return absl::AbortedError(fmt::format("volume {} is being deleted", present->id));
    }
    if (present->parameters == asked.parameters.canonical && present->capacity == asked.capacity) {
      return present;
    }
    return absl::AlreadyExistsError(fmt::format("ephemeral volume {} exists with another volume_context",
                                                Printable(request.volume_id(), 128)));
  }
  if (!absl::IsNotFound(present.status())) return present.status();
  if (context_.store.GetVolume(request.volume_id()).ok()) {
    return absl::AlreadyExistsError(
        fmt::format("volume {} is one that CreateVolume made, not an ephemeral one", request.volume_id()));
  }

  BERTH_RETURN_IF_ERROR(CheckSpace(context_, asked.capacity, 0));
  VolumeRecord volume;
  volume.id = Storage::NewId(Area::kVolumes);
  volume.name = name;
  volume.kind = asked.plan.kind;
  volume.fs_type = asked.plan.fs_type;
  volume.capacity = asked.capacity;
  volume.preallocate = asked.parameters.preallocate;
  volume.direct_io = asked.parameters.direct_io;
  volume.parameters = asked.parameters.canonical;
  BERTH_RETURN_IF_ERROR(context_.store.InsertVolume(volume, context_.options.capacity));
  absl::Status status =
      context_.storage.MakeEmpty(volume.id, volume.kind, volume.capacity, volume.preallocate);
  if (status.ok()) status = context_.store.SetVolumeLifecycle(volume.id, Lifecycle::kReady);
  if (status.ok()) return context_.store.GetVolume(volume.id);
  // Should this fail too, the next start does it.
  if (context_.storage.Discard(Area::kVolumes, volume.id).ok()) {
    context_.store.DeleteVolume(volume.id).IgnoreError();
    context_.storage.EmptyTrash();
  }
  return status;
}

absl::Status NodeService::PublishEphemeral(const ::csi::v1::NodePublishVolumeRequest& request) {
  BERTH_ASSIGN_OR_RETURN(PublishBeginning beginning, BeginPublish(request));
  MountFlags& flags = beginning.flags;
  const std::string& target = beginning.target;
  const auto& capability = request.volume_capability();
  const std::string& group = capability.mount().volume_mount_group();
  std::optional<Publication> present;
  BERTH_ASSIGN_OR_RETURN(present, context_.store.PublicationAt(target));
  absl::StatusOr<VolumeRecord> made = MakeEphemeral(request);
  if (!made.ok()) return made.status();
  const VolumeRecord& volume = *made;
  if (volume.kind == Kind::kDirectory && !flags.data.empty()) {
    return absl::InvalidArgumentError(
        "mount_flags: one of them is for a file system of its own, which a volume of kind directory has not");
  }

  Publication publication;
  publication.target = target;
  publication.volume_id = volume.id;
  publication.capability = CapabilityDigest(capability);
  publication.mode = capability.access_mode().mode();
  publication.asked_read_only = request.readonly();
  publication.read_only = request.readonly() || IsReaderOnly(publication.mode) || flags.read_only;
  flags.read_only = publication.read_only;
  bool already = false;
  BERTH_ASSIGN_OR_RETURN(already, IsPublishedAlready(volume, present, publication));
  if (already) return absl::OkStatus();
  std::vector<Publication> publications;
  BERTH_ASSIGN_OR_RETURN(publications, context_.store.PublicationsOf(volume.id));
  for (const Publication& other : publications) {
    if (other.target == target) continue;
    return absl::FailedPreconditionError(
        fmt::format("ephemeral volume {} is published at {}, and has one target",
                    Printable(request.volume_id(), 128), other.target));
  }

  // Where its mount was lost, or its publish cut off, what it holds stays.
  return CarryOut(volume, present, publication,
                  [&] { return MakeEphemeralPublication(volume, publication, flags, group); });
}

absl::Status NodeService::MakeEphemeralPublication(const VolumeRecord& volume, const Publication& publication,
                                                   const MountFlags& flags, const std::string& group) {
  if (absl::Status status = MakeTarget(publication.target, /*block=*/false); !status.ok()) {
    // What is there and stands in the way is not ours, and not ours to remove.
    BERTH_RETURN_IF_ERROR(context_.store.DeletePublication(publication.target));
    return status;
  }
  if (volume.kind == Kind::kDirectory) {
    BERTH_RETURN_IF_ERROR(CloneMount(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind),
                                     publication.target, flags));
  } else {
    Staging direct;
    direct.volume_id = volume.id;
    direct.path = publication.target;
    direct.read_only = publication.read_only;
    BERTH_RETURN_IF_ERROR(StageImage(volume, direct, flags));
  }
  if (group.empty() || publication.read_only) return absl::OkStatus();
  return ApplyMountGroup(publication.target, group);
}

absl::Status NodeService::DeleteEphemeral(const VolumeRecord& volume) {
  std::vector<Publication> publications;
  BERTH_ASSIGN_OR_RETURN(publications, context_.store.PublicationsOf(volume.id));
  // Asked for at a path that is not its own.
  if (!publications.empty()) return absl::OkStatus();
  const absl::Status begun = context_.store.SetVolumeLifecycle(volume.id, Lifecycle::kDeleting);
  // On a full disk the data go first, which makes room: the volume has no user any more, and the unpublish is
  // repeated.
  if (!begun.ok() && !absl::IsResourceExhausted(begun)) return begun;
  BERTH_RETURN_IF_ERROR(context_.storage.Discard(Area::kVolumes, volume.id));
  BERTH_RETURN_IF_ERROR(context_.store.DeleteVolume(volume.id));
  context_.storage.EmptyTrash();
  return absl::OkStatus();
}

}  // namespace berth::hostpath
