// berth-scheduler's settings: the command line over /etc/berth/scheduler.toml.
//
// Plain values; any thread. Mistakes are INVALID_ARGUMENT, all of a file's at once, with file, line and key.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/links/lease_clock.h"

namespace berth::scheduler {

struct Config {
  // A node stays with the cluster of its first Welcome: never change it.
  std::string cluster_id;
  std::string state_dir = "/var/lib/berth-scheduler";
  // Where nodes and users connect: "unix:/path", or an address of this machine alone and a port. There is no
  // access control yet, so no other is taken.
  std::vector<std::string> listen = {"unix:/run/berth-scheduler/scheduler.sock"};
  std::string log_level = "info";
  LeaseSettings lease;
};

// What the command line gave; unset: the file decides.
struct Options {
  std::string config_file = "/etc/berth/scheduler.toml";
  std::optional<std::string> state_dir;
  std::optional<std::string> log_level;
};

// Reads the content of a settings file; `path` is for messages.
[[nodiscard]] absl::StatusOr<Config> ParseConfig(const std::string& path, std::string_view content);

// What a scheduler starts with: reads the file, which must be there, for it names the cluster, and applies
// `options`. INVALID_ARGUMENT: all mistakes, a line each. Other codes: the file could not be read.
[[nodiscard]] absl::StatusOr<Config> LoadConfig(const Options& options);

// Why the scheduler cannot listen on `address`. Empty: it can.
[[nodiscard]] std::string MistakeInAddress(std::string_view address);

// As sysexits.h and systemd have them: another start does not correct a mistake in the settings.
enum class Exit {
  kDone = 0,
  kFailed = 1,  // the disk is full, another scheduler has the lock: another start may succeed
  kUsage = 2,
  kConfiguration = 78,
};
[[nodiscard]] Exit ExitOf(const absl::Status& loaded);

}  // namespace berth::scheduler
