// What comes in through berth.v1.Node, checked whole and turned into the values that the node works with.
//
// Every mistake of a request is named at once, by its field: "volume_id: must not be empty;
// capability.mount_flags: not with BLOCK". All errors are INVALID_ARGUMENT. No message here repeats a value
// that may be secret (secrets, contexts, parameters, mount flags).
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "berth/v1/node.pb.h"
#include "berth/v1/scheduler.pb.h"
#include "csi/csi.pb.h"
#include "mounter/volume_types.h"

namespace berth {

class Mistakes;  // request_parts.h

// The longest that is taken, in bytes. CSI's own limits where it has some, else what any honest caller
// stays far below; beyond the sum of them lies the server's limit on a message.
struct RequestLimits {
  static constexpr size_t kPluginName = 256;
  static constexpr size_t kPluginFile = size_t{63} << 10;  // its content
  static constexpr size_t kVolumeId = 4096;
  static constexpr size_t kConsumer = 1024;
  static constexpr size_t kVolumeName = 1024;
  static constexpr size_t kFsType = 128;
  static constexpr size_t kMountFlags = 4096;  // all of them
  static constexpr size_t kMountGroup = 128;   // CSI's limit on a string
  static constexpr size_t kLabel = 4096;       // of SELinux
  static constexpr size_t kFileName = 255;
  static constexpr int kDeclaredNames = 256;   // how many
  static constexpr size_t kLabelBytes = 4096;  // of a consumer's labels together
  static constexpr size_t kReplaced = 16;      // consumers of one claim
  static constexpr size_t kReason = 1024;      // of a drain
  static constexpr size_t kRuntimeName = 256;
  static constexpr size_t kFsTypes = 64;
  static constexpr size_t kMapEntries = 1024;
  static constexpr size_t kMapBytes = size_t{64} << 10;  // keys and values
  static constexpr int kCapabilities = 32;
  static constexpr size_t kPath = 4095;  // PATH_MAX without its zero
  static constexpr size_t kCommand = kPath;
  static constexpr size_t kArguments = 256;  // how many
  static constexpr size_t kArgumentBytes = size_t{64} << 10;
};

// INVALID_ARGUMENT with every mistake. With `mistakes`: of a request that is part of another one; the result
// is good only where none was added.
[[nodiscard]] absl::StatusOr<PublishRequest> CheckPublish(const v1::PublishVolumeRequest& request);
PublishRequest CheckPublish(const v1::PublishVolumeRequest& request, Mistakes& mistakes);
[[nodiscard]] absl::StatusOr<UnpublishRequest> CheckUnpublish(const v1::UnpublishVolumeRequest& request);
UnpublishRequest CheckUnpublish(const v1::UnpublishVolumeRequest& request, Mistakes& mistakes);
// As the scheduler is asked it, but for who asks.
[[nodiscard]] absl::StatusOr<v1::ClaimAsk> CheckClaim(const v1::ClaimVolumeRequest& request);
[[nodiscard]] absl::StatusOr<v1::ReleaseAsk> CheckRelease(const v1::ReleaseClaimRequest& request);

// The plugin's own requests, without what only the plugin's facts say (CreateVolume's topology,
// ControllerExpandVolume's volume capability, access modes that an older plugin does not know).
[[nodiscard]] absl::StatusOr<::csi::v1::CreateVolumeRequest> CheckCreate(
    const v1::CreateVolumeRequest& request);
[[nodiscard]] absl::StatusOr<::csi::v1::DeleteVolumeRequest> CheckDelete(
    const v1::DeleteVolumeRequest& request);
[[nodiscard]] absl::StatusOr<::csi::v1::ControllerExpandVolumeRequest> CheckExpand(
    const v1::ExpandVolumeRequest& request);
::csi::v1::ControllerExpandVolumeRequest CheckExpand(const v1::ExpandVolumeRequest& request,
                                                     Mistakes& mistakes);

[[nodiscard]] absl::Status CheckList(const v1::ListVolumesRequest& request);
[[nodiscard]] absl::Status CheckStorageList(const v1::ListStorageVolumesRequest& request);
[[nodiscard]] absl::Status CheckDeclaredList(const v1::ListDeclaredVolumesRequest& request);

// For requests that only name a volume (GetVolume, GetVolumeStats), a plugin, or what to filter by.
[[nodiscard]] absl::Status CheckVolumeName(const std::string& plugin_id, const std::string& volume_id);
[[nodiscard]] absl::Status CheckConsumer(const std::string& consumer);
// RESOURCE_EXHAUSTED where an answer of so many bytes about all of `consumer` would not reach a client, which
// takes 4 MiB: half of the `what` of a consumer would be taken for all of it.
[[nodiscard]] absl::Status CheckAnswerSize(size_t bytes, std::string_view what, const std::string& consumer);
[[nodiscard]] absl::Status CheckPluginName(const std::string& id);
[[nodiscard]] absl::Status CheckSwap(const v1::SwapPluginRequest& request);
void CheckSwap(const v1::SwapPluginRequest& request, Mistakes& mistakes);
[[nodiscard]] absl::Status CheckReadLog(const v1::ReadPluginLogRequest& request);
[[nodiscard]] absl::Status CheckWatch(const v1::WatchEventsRequest& request);
[[nodiscard]] absl::Status CheckDrain(const v1::DrainNodeRequest& request);

// `use` as CSI writes it.
[[nodiscard]] ::csi::v1::VolumeCapability ToCsi(const VolumeUse& use);

}  // namespace berth
