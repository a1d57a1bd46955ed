// Reads one plugin file's tables into a PluginConfig, and gathers what is wrong with them.
//
// Plain values; any thread. From .cc files only, as toml_reader.h.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/value_reader.h"
#include "supervisor/plugin_config.h"

namespace berth {

// See ParsePluginFile.
[[nodiscard]] absl::StatusOr<PluginConfig> ReadPluginFile(const std::string& path, const toml::table& file,
                                                          const PluginPaths& paths);

}  // namespace berth
