// The answers of berth.v1.Cluster about nodes and plugins, made of what the links know. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "base/clock.h"
#include "berth/v1/cluster.pb.h"
#include "scheduler/links/node_links.h"

namespace berth::scheduler {

// `now`: by the clock of the leases.
[[nodiscard]] v1::ClusterNode ToProto(const NodeView& node, const LeaseClock& leases, BootTime now);

// A page of `nodes`, which are in List's order. INVALID_ARGUMENT: page_size.
[[nodiscard]] absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request,
                                                              const std::vector<NodeView>& nodes,
                                                              const LeaseClock& leases, BootTime now);

// NOT_FOUND: no machine of that name was ever connected.
[[nodiscard]] absl::StatusOr<v1::GetNodeResponse> GetNode(const v1::GetNodeRequest& request,
                                                          const std::vector<NodeView>& nodes,
                                                          const LeaseClock& leases, BootTime now);

[[nodiscard]] v1::ListClusterPluginsResponse ListPlugins(const v1::ListClusterPluginsRequest& request,
                                                         const std::vector<NodeView>& nodes);

}  // namespace berth::scheduler
