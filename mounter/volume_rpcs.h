// The node RPCs of a volume, as messages made from its record.
//
// Pure; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csi/csi.pb.h"
#include "mounter/consumer_tokens.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"

namespace berth {

// Kubernetes' key in volume_context for an ephemeral inline volume: drivers of such volumes look for it.
inline constexpr std::string_view kEphemeralKey = "csi.storage.k8s.io/ephemeral";

// The capability as the plugin got it first, and gets it ever after.
[[nodiscard]] ::csi::v1::VolumeCapability CapabilityOf(const VolumeRecord& record);

[[nodiscard]] ::csi::v1::NodeStageVolumeRequest StageRequest(
    const VolumeRecord& record, const VolumePaths& paths, const std::map<std::string, std::string>& secrets);
[[nodiscard]] ::csi::v1::NodePublishVolumeRequest NodePublishRequest(
    const VolumeRecord& record, const PublicationRecord& publication, const VolumePaths& paths,
    const std::map<std::string, std::string>& secrets);
// Puts Kubernetes' keys about the consumer into the volume_context of a NodePublishVolume, for drivers that
// read them (podInfoOnMount): csi.storage.k8s.io/pod.name, pod.namespace, pod.uid, serviceAccount.name, from
// the labels of these names; a scheduler's consumer has a name and a namespace without them. And `ephemeral`.
void AddPodInfo(const PublicationRecord& publication, ::csi::v1::NodePublishVolumeRequest* request);
// What of a NodePublishVolume with these is to be kept out of logs and errors, wherever in it they stand.
[[nodiscard]] std::vector<std::string> TokensIn(const PluginTokens& tokens);
[[nodiscard]] ::csi::v1::NodeUnpublishVolumeRequest NodeUnpublishRequest(const VolumeRecord& record,
                                                                         const PublicationRecord& publication,
                                                                         const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeUnstageVolumeRequest UnstageRequest(const VolumeRecord& record,
                                                                 const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeGetVolumeStatsRequest StatsRequest(const VolumeRecord& record,
                                                                const PublicationRecord& publication,
                                                                const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeGetVolumeHealthRequest HealthRequest(const VolumeRecord& record,
                                                                  const PublicationRecord& publication,
                                                                  const VolumePaths& paths);
// Where the volume is grown: where it is published to be written, else where it is staged (of a block volume,
// a plugin may have nothing at the staging path to find the device by). Unset: nowhere, for now; of a volume
// that is only read never.
[[nodiscard]] std::optional<std::string> ExpansionPath(const VolumeRecord& record, const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeExpandVolumeRequest NodeExpandRequest(
    const VolumeRecord& record, const VolumePaths& paths, const ::csi::v1::CapacityRange& range,
    const std::map<std::string, std::string>& secrets);

// `path` as it is to a plugin that sees the tree of volumes `tree` at `volumes_path` (empty: at the same
// place). A path outside the tree stays as it is. `tree` and `volumes_path` are absolute, without a slash at
// their end.
[[nodiscard]] std::string PathSeenByPlugin(std::string_view path, std::string_view tree,
                                           std::string_view volumes_path);

// The paths of a request, translated so.
template <class Request>
[[nodiscard]] Request SeenByPlugin(Request request, std::string_view tree, std::string_view volumes_path) {
  if (volumes_path.empty()) return request;
  if constexpr (requires { request.mutable_staging_target_path(); }) {
    if (!request.staging_target_path().empty()) {
      request.set_staging_target_path(PathSeenByPlugin(request.staging_target_path(), tree, volumes_path));
    }
  }
  if constexpr (requires { request.mutable_target_path(); }) {
    request.set_target_path(PathSeenByPlugin(request.target_path(), tree, volumes_path));
  }
  if constexpr (requires { request.mutable_volume_path(); }) {
    request.set_volume_path(PathSeenByPlugin(request.volume_path(), tree, volumes_path));
  }
  if constexpr (requires { request.mutable_volume_publish_path(); }) {
    request.set_volume_publish_path(PathSeenByPlugin(request.volume_publish_path(), tree, volumes_path));
  }
  return request;
}

}  // namespace berth
