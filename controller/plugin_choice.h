// Which plugin a request means, and which one's controller serves it.
//
// A caller names a plugin by its id or by its driver name (from GetPluginInfo). Several plugins of a node may
// be one driver: its node half and its controller half, or two equal controllers of one storage.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <vector>

#include "supervisor/registry.h"

namespace berth {

using PluginMap = std::map<std::string, PluginSnapshot>;

// The id of the plugin that `name` means for work on this node's volumes: the plugin of that id, or else the
// only one that serves Node under that driver name. NOT_FOUND names the plugins there are; INVALID_ARGUMENT
// where the driver name fits several.
[[nodiscard]] absl::StatusOr<std::string> ResolveNodePlugin(const PluginMap& plugins,
                                                            const std::string& name);

// What a controller is wanted for: a volume that is not there yet is not made by a plugin that drains.
enum class ControllerWork { kNewVolume, kKnownVolume };

// The id of the plugin that serves Controller calls for `name`: the plugin itself if it has a controller that
// works now, or else another one of the same driver; if none works now, one that will in a moment: it is
// `paused`, and the caller waits. NOT_FOUND: no plugin has this name. FAILED_PRECONDITION: no plugin of this
// driver has a controller, or those that have one drain. UNAVAILABLE: those that have one are not ready
// (state and reason of each), or it is not yet known what the plugin is.
[[nodiscard]] absl::StatusOr<std::string> ChooseController(
    const PluginMap& plugins, const std::string& name, ControllerWork work = ControllerWork::kKnownVolume);

// Every plugin through which a volume of `name`'s driver may be in use here; `name` itself always.
[[nodiscard]] std::vector<std::string> SameDriver(const PluginMap& plugins, const std::string& name);

// NOT_FOUND "no plugin is called NAME; there are a, b".
[[nodiscard]] absl::Status NoSuchPlugin(const PluginMap& plugins, const std::string& name);

}  // namespace berth
