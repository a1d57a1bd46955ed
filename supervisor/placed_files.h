// Plugin files that a scheduler has placed on this node: <state_dir>/plugins.d/<id>.toml. berthd alone writes
// there. Files that people write are in <config_dir>/plugins.d, and are never changed.
//
// Plain functions that block; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "supervisor/plugin_config.h"

namespace berth {

// Whether the file is one of those, by its path.
[[nodiscard]] bool IsPlacedFile(const PluginPaths& paths, std::string_view path);

// The content as a plugin's file. INVALID_ARGUMENT: every mistake, with its line; or the content is of
// another plugin, or longer than a plugin's file may be.
[[nodiscard]] absl::StatusOr<PluginConfig> CheckPlacedFile(const PluginPaths& paths, const std::string& id,
                                                           std::string_view content);

// On the disk when it returns. Replaces what was placed for this id before. ALREADY_EXISTS: a file in
// `people_dir` has the id, also one with mistakes; nothing is changed.
[[nodiscard]] absl::Status WritePlacedFile(const std::string& people_dir, const PluginPaths& paths,
                                           const std::string& id, std::string_view content);

// False: none was placed for this id. INVALID_ARGUMENT: it is not an id.
[[nodiscard]] absl::StatusOr<bool> RemovePlacedFile(const PluginPaths& paths, const std::string& id);

}  // namespace berth
