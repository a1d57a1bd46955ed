// Checks of a request by the request alone: required fields, CSI's size limits, values that no plugin could
// accept. Everything here answers OK or INVALID_ARGUMENT, naming the field.
//
// One overload per RPC, called before anything is looked up, so that a bad request gets this error for any
// volume. Pure; any thread. No message holds a secret or a mount flag.
#pragma once

#include <absl/status/status.h>

#include <string_view>

#include "csi/csi.pb.h"

namespace berth::hostpath {

[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::CreateVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::DeleteVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ControllerPublishVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ControllerUnpublishVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ListVolumesRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ControllerGetVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::GetCapacityRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::CreateSnapshotRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::DeleteSnapshotRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ListSnapshotsRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::GetSnapshotRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::ControllerExpandVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeStageVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeUnstageVolumeRequest& request);
// A missing staging path is FAILED_PRECONDITION here, as CSI has it for this one RPC.
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodePublishVolumeRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeUnpublishVolumeRequest& request);
// The paths of these are only looked up: one that is not absolute is simply not the volume's.
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeGetVolumeHealthRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeGetVolumeStatsRequest& request);
[[nodiscard]] absl::Status CheckRequest(const ::csi::v1::NodeExpandVolumeRequest& request);

// One capability: an access type, a known access mode, sizes within CSI's limits.
[[nodiscard]] absl::Status CheckCapability(const ::csi::v1::VolumeCapability& capability);

// Neither bound negative, at least one given, the lower not above the upper.
[[nodiscard]] absl::Status CheckCapacityRange(const ::csi::v1::CapacityRange& range);

// Whether a publish asks for an ephemeral inline volume.
[[nodiscard]] bool IsEphemeral(const ::csi::v1::NodePublishVolumeRequest& request);

// `path` without slashes at its end, for comparing.
[[nodiscard]] std::string_view TrimSlashes(std::string_view path);

}  // namespace berth::hostpath
