// For tests: plugin files.
#pragma once

namespace berth {

// What a plugin file says at least.
inline constexpr char kLeastPluginFile[] = "kind = \"node\"\ncommand = \"/bin/true\"\n";

}  // namespace berth
