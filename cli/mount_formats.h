// A consumer's mounts in the words of the program that is to make them: exactly the syntax that it takes,
// with its own escapes. What a format cannot say is an error that says so (FAILED_PRECONDITION), never
// something near it.
//
// Pure but for ShowMounts; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "cli/mount_places.h"
#include "cli/output.h"
#include "cli/table.h"

namespace berth::cli {

enum class MountFormat {
  kTable,
  kJson,     // the API's own messages, with "destination" in each
  kOci,      // a part of config.json: "mounts", and for block devices "linux"
  kPodman,   // options of `podman run` on one line, each quoted for a shell
  kDocker,   // the same of `docker run`
  kNspawn,   // the same of systemd-nspawn
  kSystemd,  // lines of a unit's [Service]
  kEnv,      // BERTH_VOLUME_<NAME>=<path here>: for programs that run on the host itself
};

// "oci"; UsageError names them all.
[[nodiscard]] absl::StatusOr<MountFormat> ParseMountFormat(std::string_view name);
inline constexpr std::string_view kMountFormats = "oci, podman, docker, nspawn, systemd, env, json, table";

// Of every format but kTable. Ends with a newline.
[[nodiscard]] absl::StatusOr<std::string> FormatMounts(MountFormat format,
                                                       const std::vector<PlacedMount>& mounts);

[[nodiscard]] Table MountTable(const std::vector<PlacedMount>& mounts);

// Prints them in any format.
[[nodiscard]] absl::Status ShowMounts(const Output& output, MountFormat format,
                                      const std::vector<PlacedMount>& mounts);

}  // namespace berth::cli
