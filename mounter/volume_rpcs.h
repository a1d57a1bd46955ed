// The node RPCs of a volume, as messages made from its record.
//
// Pure; any thread.
#pragma once

#include <map>
#include <string>

#include "csi/csi.pb.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"

namespace berth {

// The capability as the plugin was told it first, and is told ever after.
[[nodiscard]] ::csi::v1::VolumeCapability CapabilityOf(const VolumeRecord& record);

[[nodiscard]] ::csi::v1::NodeStageVolumeRequest StageRequest(
    const VolumeRecord& record, const VolumePaths& paths, const std::map<std::string, std::string>& secrets);
[[nodiscard]] ::csi::v1::NodePublishVolumeRequest NodePublishRequest(
    const VolumeRecord& record, const PublicationRecord& publication, const VolumePaths& paths,
    const std::map<std::string, std::string>& secrets);
[[nodiscard]] ::csi::v1::NodeUnpublishVolumeRequest NodeUnpublishRequest(const VolumeRecord& record,
                                                                         const PublicationRecord& publication,
                                                                         const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeUnstageVolumeRequest UnstageRequest(const VolumeRecord& record,
                                                                 const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeGetVolumeStatsRequest StatsRequest(const VolumeRecord& record,
                                                                const PublicationRecord& publication,
                                                                const VolumePaths& paths);
[[nodiscard]] ::csi::v1::NodeExpandVolumeRequest NodeExpandRequest(
    const VolumeRecord& record, const PublicationRecord& publication, const VolumePaths& paths,
    const ::csi::v1::CapacityRange& range, const std::map<std::string, std::string>& secrets);

}  // namespace berth
