// What the commands about volumes have in common: naming one, its secrets, sizes, and looking it up.
//
// Its command's thread only.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <string>

#include "berth/v1/node.pb.h"
#include "cli/session.h"

namespace berth::cli {

// The plugin and the volume that nearly every command here is about.
struct VolumeOptions {
  std::string plugin;
  std::string volume;
};

void DeclareVolume(CLI::App& command, VolumeOptions& options);
// The same, with the plugin left to HolderOf where it is not named.
void DeclareHeldVolume(CLI::App& command, VolumeOptions& options);
void DeclareSecrets(CLI::App& command, std::string& file);

// The plugin that holds `volume_id` here, for those who do not name it. NOT_FOUND with a suggestion,
// UsageError where several do.
[[nodiscard]] absl::StatusOr<std::string> HolderOf(NodeClient& node, const std::string& volume_id);
// Fills `plugin_id` so where `options` do not name it.
[[nodiscard]] absl::Status NameVolume(NodeClient& node, const VolumeOptions& options, std::string* plugin_id);

// `failure` with a hint that fits how the volume is now: stuck, hung, dead, blocked, waiting for secrets,
// busy. As it is where the node does not say within a second.
[[nodiscard]] absl::Status Advised(NodeClient& node, const VolumeOptions& options, absl::Status failure);

}  // namespace berth::cli
