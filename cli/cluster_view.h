// How a cluster's nodes and drivers are shown to people. Pure but for the clock, to which times are relative.
#pragma once

#include <string>

#include "berth/v1/cluster.pb.h"
#include "cli/table.h"

namespace berth::cli {

// "cluster prod:", which leads every answer of a cluster.
[[nodiscard]] std::string ClusterLine(const std::string& cluster_id);

// A row for each machine.
[[nodiscard]] Table NodeTable(const v1::ListNodesResponse& nodes);
// One in all detail, without its plugins and volumes.
[[nodiscard]] Table NodeDetails(const v1::ClusterNode& node);

// A row for each driver.
[[nodiscard]] Table DriverTable(const v1::ListClusterPluginsResponse& plugins);
// A row for each plugin of one driver.
[[nodiscard]] Table InstanceTable(const v1::ClusterPlugin& plugin);

}  // namespace berth::cli
