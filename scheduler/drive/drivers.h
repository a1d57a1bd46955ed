// Which plugin of a driver is asked, of those that the nodes say they run.
//
// Nothing of it is stored. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "scheduler/links/node_links.h"
#include "scheduler/records/records.pb.h"

namespace berth::scheduler {

struct PluginPlace {
  std::string node;
  std::string plugin_id;
  // The controller knows SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
  bool single_node_modes = false;
};

struct DriverFacts {
  // The first by node and id that takes work.
  std::optional<PluginPlace> controller;
  std::optional<PluginPlace> node_plugin;
  // The driver has a controller, whether one takes work or not.
  bool has_controller = false;
  bool needs_attach = false;
};

// FAILED_PRECONDITION: no node that is connected runs it, or no plugin of it that could confirm a volume
// takes work.
[[nodiscard]] absl::StatusOr<DriverFacts> FindDriver(const std::string& driver,
                                                     const std::vector<NodeView>& nodes);

// Puts the machine of `claim`'s node, and the plugin there, into it. NOT_FOUND: no machine has that name.
// FAILED_PRECONDITION: the node, or its plugin, takes no claim now.
[[nodiscard]] absl::Status PlaceOnNode(pb::ClaimRecord& claim, const MachineNow& now);

}  // namespace berth::scheduler
