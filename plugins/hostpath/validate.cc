#include "plugins/hostpath/validate.h"

#include <fmt/format.h>

#include <climits>
#include <string>

#include "base/status.h"

namespace berth::hostpath {
namespace {

using ::csi::v1::VolumeCapability;

// CSI, "Size Limits".
constexpr size_t kLongestString = 128;
constexpr size_t kLongestNodeId = 256;
constexpr size_t kLargestMap = 4096;

absl::Status Invalid(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", field, what));
}

absl::Status CheckLength(std::string_view field, std::string_view value, size_t limit = kLongestString) {
  if (value.size() <= limit) return absl::OkStatus();
  return Invalid(field, fmt::format("{} bytes, where CSI allows {}", value.size(), limit));
}

absl::Status CheckRequired(std::string_view field, std::string_view value, size_t limit = kLongestString) {
  if (value.empty()) return Invalid(field, "missing, but required");
  return CheckLength(field, value, limit);
}

absl::Status CheckMap(std::string_view field, const ::google::protobuf::Map<std::string, std::string>& map) {
  size_t size = 0;
  for (const auto& [key, value] : map) size += key.size() + value.size();
  if (size <= kLargestMap) return absl::OkStatus();
  return Invalid(field, fmt::format("{} bytes, where CSI allows {}", size, kLargestMap));
}

// A name may hold any character but control characters; tab, newline and carriage return are not counted
// among those. Protobuf has already seen to it that the text is valid UTF-8.
absl::Status CheckName(std::string_view field, std::string_view name) {
  BERTH_RETURN_IF_ERROR(CheckRequired(field, name));
  for (size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const bool c0 = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
    const bool c1 = byte == 0xC2 && i + 1 < name.size() && static_cast<unsigned char>(name[i + 1]) < 0xA0;
    if (c0 || byte == 0x7F || c1) return Invalid(field, "holds a control character, which CSI bans");
  }
  return absl::OkStatus();
}

absl::Status CheckPath(std::string_view field, std::string_view path) {
  BERTH_RETURN_IF_ERROR(CheckRequired(field, path, PATH_MAX - 1));
  if (!path.starts_with("/")) return Invalid(field, "must be an absolute path");
  if (path.find('\0') != std::string_view::npos) return Invalid(field, "holds a NUL byte");
  if (TrimSlashes(path).empty()) return Invalid(field, "must not be the root directory");
  return absl::OkStatus();
}

template <class Capabilities>
absl::Status CheckCapabilities(const Capabilities& capabilities) {
  if (capabilities.empty()) return Invalid("volume_capabilities", "missing, but required");
  for (const VolumeCapability& capability : capabilities) BERTH_RETURN_IF_ERROR(CheckCapability(capability));
  return absl::OkStatus();
}

absl::Status CheckMaxEntries(int32_t max_entries) {
  if (max_entries < 0) return Invalid("max_entries", "must not be negative");
  return absl::OkStatus();
}

template <class Request>
absl::Status CheckOneCapability(const Request& request) {
  if (!request.has_volume_capability()) return Invalid("volume_capability", "missing, but required");
  return CheckCapability(request.volume_capability());
}

}  // namespace

std::string_view TrimSlashes(std::string_view path) {
  while (path.ends_with("/")) path.remove_suffix(1);
  return path;
}

absl::Status CheckCapability(const VolumeCapability& capability) {
  if (capability.access_type_case() == VolumeCapability::ACCESS_TYPE_NOT_SET) {
    return Invalid("volume_capability.access_type", "missing, but required: block or mount");
  }
  const auto mode = capability.access_mode().mode();
  if (mode == VolumeCapability::AccessMode::UNKNOWN) {
    return Invalid("volume_capability.access_mode", "missing, but required");
  }
  if (!VolumeCapability::AccessMode::Mode_IsValid(mode)) {
    return Invalid("volume_capability.access_mode",
                   fmt::format("mode {} is not known", static_cast<int>(mode)));
  }
  if (!capability.has_mount()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(CheckLength("volume_capability.mount.fs_type", capability.mount().fs_type()));
  BERTH_RETURN_IF_ERROR(
      CheckLength("volume_capability.mount.volume_mount_group", capability.mount().volume_mount_group()));
  size_t flags = 0;
  for (const std::string& flag : capability.mount().mount_flags()) flags += flag.size();
  if (flags > kLargestMap) {
    return Invalid("volume_capability.mount.mount_flags",
                   fmt::format("{} bytes, where CSI allows {}", flags, kLargestMap));
  }
  return absl::OkStatus();
}

absl::Status CheckCapacityRange(const ::csi::v1::CapacityRange& range) {
  if (range.required_bytes() < 0 || range.limit_bytes() < 0)
    return Invalid("capacity_range", "must not be negative");
  if (range.required_bytes() == 0 && range.limit_bytes() == 0) {
    return Invalid("capacity_range", "needs required_bytes or limit_bytes");
  }
  if (range.limit_bytes() != 0 && range.required_bytes() > range.limit_bytes()) {
    return Invalid("capacity_range", fmt::format("required_bytes {} is above limit_bytes {}",
                                                 range.required_bytes(), range.limit_bytes()));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const ::csi::v1::CreateVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckName("name", request.name()));
  BERTH_RETURN_IF_ERROR(CheckCapabilities(request.volume_capabilities()));
  if (request.has_capacity_range()) BERTH_RETURN_IF_ERROR(CheckCapacityRange(request.capacity_range()));
  BERTH_RETURN_IF_ERROR(CheckMap("parameters", request.parameters()));
  BERTH_RETURN_IF_ERROR(CheckMap("secrets", request.secrets()));
  if (!request.mutable_parameters().empty()) {
    return Invalid("mutable_parameters", "this plugin has none (no MODIFY_VOLUME capability)");
  }
  if (request.has_volume_content_source()) {
    const auto& source = request.volume_content_source();
    switch (source.type_case()) {
      case ::csi::v1::VolumeContentSource::kSnapshot:
        BERTH_RETURN_IF_ERROR(
            CheckRequired("volume_content_source.snapshot.snapshot_id", source.snapshot().snapshot_id()));
        break;
      case ::csi::v1::VolumeContentSource::kVolume:
        BERTH_RETURN_IF_ERROR(
            CheckRequired("volume_content_source.volume.volume_id", source.volume().volume_id()));
        break;
      case ::csi::v1::VolumeContentSource::TYPE_NOT_SET:
        return Invalid("volume_content_source", "needs a snapshot or a volume");
    }
  }
  if (request.has_accessibility_requirements()) {
    const auto& topology = request.accessibility_requirements();
    if (topology.requisite().empty() && topology.preferred().empty()) {
      return Invalid("accessibility_requirements", "needs requisite or preferred topologies");
    }
    for (const auto* list : {&topology.requisite(), &topology.preferred()}) {
      for (const auto& one : *list)
        BERTH_RETURN_IF_ERROR(CheckMap("accessibility_requirements", one.segments()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const ::csi::v1::DeleteVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ControllerPublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckRequired("node_id", request.node_id(), kLongestNodeId));
  BERTH_RETURN_IF_ERROR(CheckOneCapability(request));
  BERTH_RETURN_IF_ERROR(CheckMap("volume_context", request.volume_context()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ControllerUnpublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckLength("node_id", request.node_id(), kLongestNodeId));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckCapabilities(request.volume_capabilities()));
  BERTH_RETURN_IF_ERROR(CheckMap("volume_context", request.volume_context()));
  BERTH_RETURN_IF_ERROR(CheckMap("parameters", request.parameters()));
  BERTH_RETURN_IF_ERROR(CheckMap("mutable_parameters", request.mutable_parameters()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ListVolumesRequest& request) {
  return CheckMaxEntries(request.max_entries());
}

absl::Status CheckRequest(const ::csi::v1::ControllerGetVolumeRequest& request) {
  return CheckRequired("volume_id", request.volume_id());
}

absl::Status CheckRequest(const ::csi::v1::GetCapacityRequest& request) {
  for (const auto& capability : request.volume_capabilities())
    BERTH_RETURN_IF_ERROR(CheckCapability(capability));
  BERTH_RETURN_IF_ERROR(CheckMap("parameters", request.parameters()));
  return CheckMap("accessible_topology", request.accessible_topology().segments());
}

absl::Status CheckRequest(const ::csi::v1::CreateSnapshotRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("source_volume_id", request.source_volume_id()));
  BERTH_RETURN_IF_ERROR(CheckName("name", request.name()));
  BERTH_RETURN_IF_ERROR(CheckMap("parameters", request.parameters()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::DeleteSnapshotRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("snapshot_id", request.snapshot_id()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ListSnapshotsRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckMaxEntries(request.max_entries()));
  BERTH_RETURN_IF_ERROR(CheckLength("source_volume_id", request.source_volume_id()));
  BERTH_RETURN_IF_ERROR(CheckLength("snapshot_id", request.snapshot_id()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::GetSnapshotRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("snapshot_id", request.snapshot_id()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::ControllerExpandVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  if (!request.has_capacity_range()) return Invalid("capacity_range", "missing, but required");
  BERTH_RETURN_IF_ERROR(CheckCapacityRange(request.capacity_range()));
  if (request.has_volume_capability()) BERTH_RETURN_IF_ERROR(CheckCapability(request.volume_capability()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::NodeStageVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckPath("staging_target_path", request.staging_target_path()));
  BERTH_RETURN_IF_ERROR(CheckOneCapability(request));
  BERTH_RETURN_IF_ERROR(CheckMap("publish_context", request.publish_context()));
  BERTH_RETURN_IF_ERROR(CheckMap("volume_context", request.volume_context()));
  return CheckMap("secrets", request.secrets());
}

absl::Status CheckRequest(const ::csi::v1::NodeUnstageVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  return CheckPath("staging_target_path", request.staging_target_path());
}

bool IsEphemeral(const ::csi::v1::NodePublishVolumeRequest& request) {
  const auto found = request.volume_context().find("csi.storage.k8s.io/ephemeral");
  return found != request.volume_context().end() && found->second == "true";
}

absl::Status CheckRequest(const ::csi::v1::NodePublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckPath("target_path", request.target_path()));
  BERTH_RETURN_IF_ERROR(CheckOneCapability(request));
  BERTH_RETURN_IF_ERROR(CheckMap("publish_context", request.publish_context()));
  BERTH_RETURN_IF_ERROR(CheckMap("volume_context", request.volume_context()));
  BERTH_RETURN_IF_ERROR(CheckMap("secrets", request.secrets()));
  if (IsEphemeral(request)) {
    if (request.staging_target_path().empty()) return absl::OkStatus();
    return Invalid("staging_target_path", "given, but an ephemeral volume is not staged");
  }
  if (request.staging_target_path().empty()) {
    return absl::FailedPreconditionError(
        "staging_target_path: missing; stage the volume first and say where");
  }
  BERTH_RETURN_IF_ERROR(CheckPath("staging_target_path", request.staging_target_path()));
  if (TrimSlashes(request.target_path()) == TrimSlashes(request.staging_target_path())) {
    return Invalid("target_path", "must not be the staging path");
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const ::csi::v1::NodeUnpublishVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  return CheckPath("target_path", request.target_path());
}

absl::Status CheckRequest(const ::csi::v1::NodeGetVolumeStatsRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_path", request.volume_path(), PATH_MAX - 1));
  return CheckLength("staging_target_path", request.staging_target_path(), PATH_MAX - 1);
}

absl::Status CheckRequest(const ::csi::v1::NodeGetVolumeHealthRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_publish_path", request.volume_publish_path(), PATH_MAX - 1));
  return CheckLength("staging_target_path", request.staging_target_path(), PATH_MAX - 1);
}

absl::Status CheckRequest(const ::csi::v1::NodeExpandVolumeRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_id", request.volume_id()));
  BERTH_RETURN_IF_ERROR(CheckRequired("volume_path", request.volume_path(), PATH_MAX - 1));
  BERTH_RETURN_IF_ERROR(CheckLength("staging_target_path", request.staging_target_path(), PATH_MAX - 1));
  if (request.has_capacity_range()) BERTH_RETURN_IF_ERROR(CheckCapacityRange(request.capacity_range()));
  if (request.has_volume_capability()) BERTH_RETURN_IF_ERROR(CheckCapability(request.volume_capability()));
  return CheckMap("secrets", request.secrets());
}

}  // namespace berth::hostpath
