// A volume and how it is to be used, in one flat TOML file: for `berthctl volume publish --file`, and in
// volumes.d. The keys are those of berth-volume.toml(5), which, with example-volume.toml, names them all.
//
// The file is checked as a whole: every unknown key, wrong type and contradiction is named at once, each with
// its line and what would be right (INVALID_ARGUMENT). The node checks the rest (lengths, whether the plugin
// exists). No secrets in the file itself: it says where they are.
//
// Plain functions; any thread, but not a loop's: names of owners are looked up (permission_text.h).
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>

#include "berth/v1/node.pb.h"

namespace berth {

// `path` leads each message. Whatever the file does not say stays unset in the request, plugin, volume and
// consumer too: the command line may add them.
[[nodiscard]] absl::StatusOr<v1::PublishVolumeRequest> ParseVolumeSpec(const std::string& path,
                                                                       std::string_view content);
// Reads the file first: a regular one of at most 64 KiB.
[[nodiscard]] absl::StatusOr<v1::PublishVolumeRequest> ReadVolumeSpec(const std::string& path);

// A file in volumes.d.
struct DeclaredVolume {
  // Complete: plugin and volume are demanded; the consumer is "declared/<file name without .toml>" and
  // remount is true where the file does not say otherwise.
  v1::PublishVolumeRequest request;
  // Whether the volume is attached to this node first. Unset: where its plugin needs it. Never with a
  // publish_context.
  std::optional<bool> attach;
  // Where the published file system is mounted too; empty: nowhere. Absolute and plain: no "..", no slash at
  // the end, not in /proc, /sys or /dev.
  std::string path;
  bool path_suid = false;
  bool path_dev = false;
};
[[nodiscard]] absl::StatusOr<DeclaredVolume> ParseDeclaredVolume(const std::string& path,
                                                                 std::string_view content);
[[nodiscard]] absl::StatusOr<DeclaredVolume> ReadDeclaredVolume(const std::string& path);

}  // namespace berth
