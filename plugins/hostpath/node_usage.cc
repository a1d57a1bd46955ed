// How full the volumes of the Node service are, and how they grow while they are in use.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/unique_fd.h"
#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/node_service.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using ::csi::v1::VolumeUsage;
using Space = OperationLocks::Space;

namespace {

constexpr const char* kReadOnly = "ReadOnly";
// Less than one part in so many: it is almost full.
constexpr int64_t kFullShare = 50;

}  // namespace

absl::StatusOr<NodeService::Place> NodeService::FindPlace(const VolumeRecord& volume, std::string_view path) {
  const std::string_view wanted = TrimSlashes(path);
  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (staging.has_value() && staging->complete && staging->path == wanted) {
    return Place{.block = staging->block, .read_only = staging->read_only};
  }
  std::optional<Publication> publication;
  BERTH_ASSIGN_OR_RETURN(publication, context_.store.PublicationAt(wanted));
  if (publication.has_value() && publication->complete && publication->volume_id == volume.id) {
    return Place{.block = publication->block, .read_only = publication->read_only};
  }
  return absl::NotFoundError(
      fmt::format("volume {} is neither staged nor published at {}", volume.id, Printable(path, 256)));
}

absl::StatusOr<NodeService::Trouble> NodeService::Examine(const VolumeRecord& volume, const Place& place,
                                                          const std::string& path) {
  using Type = ::csi::v1::VolumeHealthErrorType;
  const absl::Status content =
      context_.storage.CheckContent(Area::kVolumes, volume.id, volume.kind, volume.capacity);
  if (!content.ok()) return Trouble{Type::DATA_LOSS, "ContentMissing", std::string(content.message())};
  if (place.block) {
    std::vector<LoopDevice> loops;
    BERTH_ASSIGN_OR_RETURN(loops,
                           FindLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
    if (loops.empty()) return Trouble{Type::INACCESSIBLE, "DeviceGone", "its loop device is gone"};
  } else {
    bool mounted = false;
    BERTH_ASSIGN_OR_RETURN(mounted, IsMountedAt(context_.storage, volume, path));
    if (!mounted) {
      return Trouble{Type::INACCESSIBLE, "NotMounted", fmt::format("it is no longer mounted at {}", path)};
    }
    struct statvfs info{};
    if (statvfs(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("statfs {}", path));
    if ((info.f_flag & ST_RDONLY) != 0 && !place.read_only) {
      return Trouble{
          Type::INACCESSIBLE, "ReadOnly",
          "its file system has become read-only, as the kernel does on errors; see the kernel's log"};
    }
  }
  return Trouble();
}

grpc::Status NodeService::NodeGetVolumeHealth(grpc::ServerContext*,
                                              const ::csi::v1::NodeGetVolumeHealthRequest* request,
                                              ::csi::v1::NodeGetVolumeHealthResponse* response) {
  return Answer(context_, CallKind::kReads, "NodeGetVolumeHealth", request->volume_id(),
                [&] { return Health(*request, response->mutable_volume_health()); });
}

absl::Status NodeService::Health(const ::csi::v1::NodeGetVolumeHealthRequest& request,
                                 ::csi::v1::VolumeHealth* health) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  Place place;
  BERTH_ASSIGN_OR_RETURN(place, FindPlace(volume, request.volume_publish_path()));
  Trouble trouble;
  BERTH_ASSIGN_OR_RETURN(trouble,
                         Examine(volume, place, std::string(TrimSlashes(request.volume_publish_path()))));
  health->set_volume_id(volume.id);
  if (trouble.reason.empty()) return absl::OkStatus();
  auto* entry = health->add_health_statuses();
  entry->set_status(trouble.type);
  entry->set_reason(trouble.reason);
  entry->set_message(trouble.message);
  return absl::OkStatus();
}

grpc::Status NodeService::NodeGetStorageHealth(grpc::ServerContext*,
                                               const ::csi::v1::NodeGetStorageHealthRequest*,
                                               ::csi::v1::NodeGetStorageHealthResponse* response) {
  return Answer(context_, CallKind::kReads, "NodeGetStorageHealth", "", [&] {
    const auto add = [&](::csi::v1::StorageHealthErrorType type, const char* reason, std::string message) {
      auto* entry = response->add_backend_health();
      entry->set_status(type);
      entry->set_reason(reason);
      entry->set_message(std::move(message));
    };
    if (const absl::Status usable = context_.storage.Check(); !usable.ok()) {
      add(::csi::v1::STORAGE_UNREACHABLE, "NotUsable", std::string(usable.message()));
      return absl::OkStatus();
    }
    const auto space = context_.storage.GetSpace();
    if (!space.ok()) return space.status();
    if (space->available < space->total / kFullShare) {
      add(::csi::v1::STORAGE_DEGRADED, "AlmostFull",
          fmt::format("{} of {} bytes are left for volumes", space->available, space->total));
    }
    return absl::OkStatus();
  });
}

grpc::Status NodeService::NodeGetVolumeStats(grpc::ServerContext*,
                                             const ::csi::v1::NodeGetVolumeStatsRequest* request,
                                             ::csi::v1::NodeGetVolumeStatsResponse* response) {
  return Answer(context_, CallKind::kReads, "NodeGetVolumeStats", request->volume_id(),
                [&] { return Stats(*request, response); });
}

absl::Status NodeService::Stats(const ::csi::v1::NodeGetVolumeStatsRequest& request,
                                ::csi::v1::NodeGetVolumeStatsResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  Place place;
  BERTH_ASSIGN_OR_RETURN(place, FindPlace(volume, request.volume_path()));
  const std::string path(TrimSlashes(request.volume_path()));
  Trouble trouble;
  BERTH_ASSIGN_OR_RETURN(trouble, Examine(volume, place, path));
  response->mutable_volume_condition()->set_abnormal(!trouble.reason.empty());
  response->mutable_volume_condition()->set_message(trouble.reason.empty() ? "in use, nothing is wrong"
                                                                           : trouble.message);
  if (place.block) {
    auto* bytes = response->add_usage();
    bytes->set_unit(VolumeUsage::BYTES);
    bytes->set_total(volume.capacity);
    return absl::OkStatus();
  }
  // What is mounted at the path then is not the volume, or not all of it.
  if (!trouble.reason.empty() && trouble.reason != kReadOnly) return absl::OkStatus();
  struct statvfs info{};
  if (statvfs(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("statfs {}", path));
  const auto unit = static_cast<int64_t>(info.f_frsize);
  auto* bytes = response->add_usage();
  bytes->set_unit(VolumeUsage::BYTES);
  bytes->set_total(static_cast<int64_t>(info.f_blocks) * unit);
  bytes->set_available(static_cast<int64_t>(info.f_bavail) * unit);
  bytes->set_used(static_cast<int64_t>(info.f_blocks - info.f_bfree) * unit);
  auto* inodes = response->add_usage();
  inodes->set_unit(VolumeUsage::INODES);
  inodes->set_total(static_cast<int64_t>(info.f_files));
  inodes->set_available(static_cast<int64_t>(info.f_favail));
  inodes->set_used(static_cast<int64_t>(info.f_files - info.f_ffree));
  return absl::OkStatus();
}

grpc::Status NodeService::NodeExpandVolume(grpc::ServerContext*,
                                           const ::csi::v1::NodeExpandVolumeRequest* request,
                                           ::csi::v1::NodeExpandVolumeResponse* response) {
  return Answer(context_, CallKind::kChanges, "NodeExpandVolume", request->volume_id(),
                [&] { return Expand(*request, response); });
}

absl::Status NodeService::Expand(const ::csi::v1::NodeExpandVolumeRequest& request,
                                 ::csi::v1::NodeExpandVolumeResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  const auto lock = context_.locks.Take(Space::kVolume, request.volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  Place place;
  BERTH_ASSIGN_OR_RETURN(place, FindPlace(volume, request.volume_path()));
  if (request.has_volume_capability()) {
    const absl::Status fits = SupportsCapability(volume.kind, volume.fs_type, request.volume_capability());
    if (!fits.ok()) return absl::InvalidArgumentError(fits.message());
  }
  if (volume.capacity < request.capacity_range().required_bytes()) {
    return absl::OutOfRangeError(
        fmt::format("volume {} has {} bytes; call ControllerExpandVolume first to make it larger", volume.id,
                    volume.capacity));
  }
  if (request.capacity_range().limit_bytes() != 0 &&
      volume.capacity > request.capacity_range().limit_bytes()) {
    return absl::OutOfRangeError(
        fmt::format("volume {} has {} bytes already, more than limit_bytes", volume.id, volume.capacity));
  }
  response->set_capacity_bytes(volume.capacity);
  if (volume.kind == Kind::kDirectory) return absl::OkStatus();

  std::vector<LoopDevice> loops;
  BERTH_ASSIGN_OR_RETURN(loops,
                         FindLoops(context_.storage.ContentPath(Area::kVolumes, volume.id, volume.kind)));
  if (loops.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("volume {}: its loop device is gone: stage it again", volume.id));
  }
  for (const LoopDevice& loop : loops) BERTH_RETURN_IF_ERROR(RefreshLoopCapacity(loop));
  if (place.block || !volume.grow_pending) return absl::OkStatus();

  std::optional<Staging> staging;
  BERTH_ASSIGN_OR_RETURN(staging, context_.store.StagingOf(volume.id));
  if (!staging.has_value() || staging->read_only) {
    return absl::FailedPreconditionError(fmt::format(
        "volume {} is staged read-only, so that its file system cannot grow now; it will at the next stage",
        volume.id));
  }
  return FinishGrowth(volume, loops.front().path, staging->path);
}

}  // namespace berth::hostpath
