// Capabilities and other numbers by CSI's own names, for what people and programs read:
// "STAGE_UNSTAGE_VOLUME".
//
// A number that our copy of the proto does not know (the plugin may be newer) is shown in decimal.
// Pure; any thread.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace berth {

[[nodiscard]] std::string PluginServiceName(int number);
[[nodiscard]] std::string VolumeExpansionName(int number);
[[nodiscard]] std::string ControllerCapabilityName(int number);
[[nodiscard]] std::string GroupControllerCapabilityName(int number);
[[nodiscard]] std::string NodeCapabilityName(int number);
[[nodiscard]] std::string AccessModeName(int number);
[[nodiscard]] std::string VolumeHealthName(int number);
[[nodiscard]] std::string StorageHealthName(int number);

// The names of `numbers`, sorted: Names(facts.node_capabilities, NodeCapabilityName).
[[nodiscard]] std::vector<std::string> Names(const std::set<int>& numbers, std::string (*name)(int));

}  // namespace berth
