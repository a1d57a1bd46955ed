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

// The plugin and the volume that nearly every command here is about. NameVolume fills what was left to the
// node.
struct VolumeOptions {
  std::string plugin;
  std::string volume;
  std::string label;  // in the place of `volume`
};

// --plugin and the volume's id, both required.
void DeclareVolume(CLI::App& command, VolumeOptions& options);
// --plugin, and the volume's id or its label.
void DeclareVolumeOrLabel(CLI::App& command, VolumeOptions& options);
// The same; --plugin is needed only where several have such a volume.
void DeclareHeldVolume(CLI::App& command, VolumeOptions& options);
void DeclareSecrets(CLI::App& command, std::string& file);

// Fills `plugin` and `volume` from what the node has, where the options name the volume by its label, or
// without its plugin. UsageError: no volume is named, or several are meant. NOT_FOUND, with a suggestion:
// none is.
[[nodiscard]] absl::Status NameVolume(NodeClient& node, VolumeOptions& options);

// `failure` with a hint that fits how the volume is now: stuck, hung, dead, blocked, waiting for secrets,
// busy. As it is where the node does not say within a second.
[[nodiscard]] absl::Status Advised(NodeClient& node, const VolumeOptions& options, absl::Status failure);

}  // namespace berth::cli
