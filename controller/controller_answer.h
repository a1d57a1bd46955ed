// Checks a controller's answer to a request, by the rules of CSI.
//
// Plugins are not trusted: an answer is believed once it has passed here. Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>

#include "csi/csi.pb.h"

namespace berth {

// The most bytes of an answer that is handed on, without secrets and with its texts made printable. A message
// of the API and of the link has up to 4 MiB, and the answer does not go alone.
inline constexpr size_t kAnswerBytes = size_t{3} << 20;

// INTERNAL "plugin P: its answer to RPC is too long: WHAT".
[[nodiscard]] absl::Status TooLongAnswer(std::string_view plugin_id, std::string_view rpc,
                                         std::string_view what);

// INTERNAL "plugin P: its answer to RPC is wrong: WHAT".
[[nodiscard]] absl::Status WrongAnswer(std::string_view plugin_id, std::string_view rpc,
                                       std::string_view what);

// INTERNAL, with what is wrong: no id or capacity, one that was not asked for, a context beyond all measure,
// a source that was left out, another volume than the one that was asked about, more entries than were
// wanted, and the like.
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ControllerPublishVolumeRequest& request,
                                       const ::csi::v1::ControllerPublishVolumeResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
                                       const ::csi::v1::ValidateVolumeCapabilitiesResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::CreateVolumeRequest& request,
                                       const ::csi::v1::CreateVolumeResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ListVolumesRequest& request,
                                       const ::csi::v1::ListVolumesResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ControllerGetVolumeRequest& request,
                                       const ::csi::v1::ControllerGetVolumeResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::GetCapacityRequest& request,
                                       const ::csi::v1::GetCapacityResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ControllerExpandVolumeRequest& request,
                                       const ::csi::v1::ControllerExpandVolumeResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::CreateSnapshotRequest& request,
                                       const ::csi::v1::CreateSnapshotResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::ListSnapshotsRequest& request,
                                       const ::csi::v1::ListSnapshotsResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::GetSnapshotRequest& request,
                                       const ::csi::v1::GetSnapshotResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::CreateVolumeGroupSnapshotRequest& request,
                                       const ::csi::v1::CreateVolumeGroupSnapshotResponse& answer);
[[nodiscard]] absl::Status CheckAnswer(const ::csi::v1::GetVolumeGroupSnapshotRequest& request,
                                       const ::csi::v1::GetVolumeGroupSnapshotResponse& answer);

// CSI wants a confirmation compared with what was asked: an older plugin skips what it does not know. Takes
// `confirmed` out of the answer, and says in its message what is not confirmed, where a capability of
// `request`, which is as the plugin was sent it, has no equal there, or a map that it gives back is another
// one. A map that it leaves out says nothing, by CSI. An unset fs_type is the plugin's to choose.
void TakeBackUnconfirmed(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
                         ::csi::v1::ValidateVolumeCapabilitiesResponse* answer);

// The answers that say nothing but OK.
[[nodiscard]] inline absl::Status CheckAnswer(
    const ::csi::v1::ControllerUnpublishVolumeRequest& /*request*/,
    const ::csi::v1::ControllerUnpublishVolumeResponse& /*answer*/) {
  return absl::OkStatus();
}
[[nodiscard]] inline absl::Status CheckAnswer(const ::csi::v1::DeleteVolumeRequest& /*request*/,
                                              const ::csi::v1::DeleteVolumeResponse& /*answer*/) {
  return absl::OkStatus();
}
[[nodiscard]] inline absl::Status CheckAnswer(const ::csi::v1::ControllerModifyVolumeRequest& /*request*/,
                                              const ::csi::v1::ControllerModifyVolumeResponse& /*answer*/) {
  return absl::OkStatus();
}
[[nodiscard]] inline absl::Status CheckAnswer(const ::csi::v1::DeleteSnapshotRequest& /*request*/,
                                              const ::csi::v1::DeleteSnapshotResponse& /*answer*/) {
  return absl::OkStatus();
}
[[nodiscard]] inline absl::Status CheckAnswer(
    const ::csi::v1::DeleteVolumeGroupSnapshotRequest& /*request*/,
    const ::csi::v1::DeleteVolumeGroupSnapshotResponse& /*answer*/) {
  return absl::OkStatus();
}

}  // namespace berth
