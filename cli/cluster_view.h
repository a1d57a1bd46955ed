// How a cluster's nodes, drivers and volumes are named and shown. Pure but for the clock, to which times are
// relative.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "berth/v1/cluster.pb.h"
#include "cli/table.h"

namespace berth::cli {

// "cluster prod:", which leads every answer of a cluster.
[[nodiscard]] std::string ClusterLine(const std::string& cluster_id);

// The name of a volume in a cluster.
struct ClusterVolumeName {
  std::string name_space;
  std::string id;
};
// UsageError: it is not NAMESPACE/ID.
[[nodiscard]] absl::StatusOr<ClusterVolumeName> ParseClusterVolume(const std::string& text);

// A row for each volume; and one in all detail.
[[nodiscard]] Table ClusterVolumeTable(const v1::ListClusterVolumesResponse& volumes);
[[nodiscard]] Table ClusterVolumeDetails(const v1::ClusterVolume& volume);

// A row for each claim; and one in all detail.
[[nodiscard]] Table ClaimTable(const google::protobuf::RepeatedPtrField<v1::ClusterClaim>& claims);
[[nodiscard]] Table ClaimDetails(const v1::ClusterClaim& claim);

// A row for each machine.
[[nodiscard]] Table NodeTable(const v1::ListNodesResponse& nodes);
// One in all detail, without its plugins and volumes.
[[nodiscard]] Table NodeDetails(const v1::ClusterNode& node);

// A row for each driver.
[[nodiscard]] Table DriverTable(const v1::ListClusterPluginsResponse& plugins);
// A row for each plugin of one driver.
[[nodiscard]] Table InstanceTable(const v1::ClusterPlugin& plugin);

}  // namespace berth::cli
