// The command line of berth-hostpath, and the checks that need nothing but the words on it.
//
// Pure but for the environment variable CSI_ENDPOINT, which serves where no --endpoint is given, and for
// the text that --help, --version and a usage error print.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "plugins/hostpath/volume_kind.h"

namespace berth::hostpath {

struct Options {
  std::string socket_path;  // absolute
  std::string node_id;
  std::string state_dir;  // absolute
  std::string driver_name = "hostpath.berth.dev";
  int64_t max_volumes = 0;                      // 0: no limit
  std::map<std::string, std::string> topology;  // never empty
  bool attach = false;                          // demand ControllerPublishVolume before staging
  bool health = false;                          // advertise CSI 1.13's health capabilities
  int64_t capacity = 0;                         // bytes of the pool; 0: what the file system has
  std::optional<Kind> default_kind;             // unset: image where there are loop devices
  std::string log_level = "info";
};

struct CommandLine {
  Options options;
  // Set when there is nothing more to do: --help or --version (0), or wrong usage (2), already printed.
  std::optional<int> exit_code;
};

[[nodiscard]] CommandLine ParseCommandLine(int argc, const char* const* argv);

// The path in `unix:///abs`, `unix:/abs` or a bare `/abs`. INVALID_ARGUMENT for another scheme, a relative
// path, or one that a Unix socket's address cannot hold (107 bytes).
[[nodiscard]] absl::StatusOr<std::string> SocketPath(std::string_view endpoint);

// CSI's rule for a plugin's name: domain notation, at most 63 characters.
[[nodiscard]] absl::Status CheckDriverName(std::string_view name);

// CSI's rules for one topology segment: `prefix/name` or `name`, and its value.
[[nodiscard]] absl::Status CheckTopologySegment(std::string_view key, std::string_view value);

// The one segment of a node without a configured one. A node id that is no valid value is hashed.
[[nodiscard]] std::map<std::string, std::string> DefaultTopology(std::string_view driver_name,
                                                                 std::string_view node_id);

}  // namespace berth::hostpath
