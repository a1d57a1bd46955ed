// berthd's settings: the command line over /etc/berth/berthd.toml over defaults.
//
// Plain values; read at start, and again at a reload. Names of users and groups are looked up, which may ask
// a network: not on the loop, but at start. Mistakes are INVALID_ARGUMENT, all of a file's at once, with
// file, line and key.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/acl.h"
#include "base/clock.h"
#include "mounter/volume_types.h"
#include "rpc/access.h"
#include "rpc/uplink/uplink_config.h"

namespace berth {

// berthd.toml's table [volumes].
struct VolumeSettings {
  // How often file systems that can die (FUSE, network) are asked whether they live; 0: never.
  Duration health_interval = std::chrono::seconds(30);
  // For one call of a plugin in a volume's step, whatever time its caller has.
  Duration rpc_timeout = std::chrono::minutes(2);
  // Calls that change something, through one plugin at a time.
  uint64_t calls_per_plugin = 32;
  // When the machine is shut down: how long the release of the declared volumes may delay it.
  Duration shutdown_timeout = std::chrono::minutes(1);
  // Users that may pass through the tree of volumes, in addition to root and plugins (mounts/tree_access.h).
  std::set<AclEntry> traverse;

  bool operator==(const VolumeSettings&) const = default;
};

struct BerthdConfig {
  std::string config_dir = "/etc/berth";
  std::string state_dir = "/var/lib/berth";
  std::string runtime_dir = "/run/berth";
  std::string node_id;  // the host's name where nothing says another
  std::string log_level = "info";
  AccessConfig access;
  std::vector<SocketAccess> sockets;  // LoadBerthdConfig: what `access` comes to
  VolumeSettings volumes;
  UplinkConfig scheduler;
  // What consumers' runtimes on this node can mount, each name once. Empty: not known, so everything.
  std::vector<RuntimeAbility> runtimes;
  // Of the command line alone: start also where the host does not see what is mounted here.
  bool allow_private_mounts = false;
};

// What the command line gave; unset: the file decides.
struct BerthdOptions {
  std::string config_dir = "/etc/berth";
  std::optional<std::string> state_dir;
  std::optional<std::string> runtime_dir;
  std::optional<std::string> node_id;
  std::optional<std::string> log_level;
  bool allow_private_mounts = false;
};

// Reads berthd.toml's content; `path` is for messages.
[[nodiscard]] absl::StatusOr<BerthdConfig> ParseBerthdConfig(const std::string& path,
                                                             std::string_view content);

// What a berthd starts with, or applies at a reload: reads <config_dir>/berthd.toml, which may be missing,
// applies `options`, and checks the whole: directories are absolute, the node's id is text of 1 to 192 bytes
// (what a CSI node id may hold, with room), berthd's sockets fit into a socket address, there is such a log
// level, and the groups of [access] exist. That may ask a directory service, and block. INVALID_ARGUMENT: all
// mistakes, a line each, with file, line and key where one of the file's keys is to blame. Other codes: the
// file could not be read.
[[nodiscard]] absl::StatusOr<BerthdConfig> LoadBerthdConfig(const BerthdOptions& options);

// "FILE: key: text", as a check without the file's text says it, with the line that has the key:
// "FILE:3: key: text". As it is where the file cannot be read or has no such key.
[[nodiscard]] std::string WithLine(const std::string& file, const std::string& mistake);

// The exit codes of berthd(8). What only a change of the configuration, or of the unit, can end is kept
// apart: systemd does not start such a berthd again (RestartPreventExitStatus= in berthd.service).
enum class BerthdExit {
  kDone = 0,
  kFailed = 1,  // a full disk, a journal that another berthd has locked: another start may succeed
  kUsage = 2,
  kConfiguration = 78,  // EX_CONFIG of sysexits.h
};
// Marks a failure of a start that repeating it cannot end.
[[nodiscard]] absl::Status AsConfigurationError(absl::Status status);
// Of a failure of LoadBerthdConfig or Berthd::Start. kConfiguration: it is marked so.
[[nodiscard]] BerthdExit ExitOf(const absl::Status& failure);

// What `wanted` asks for that a running berthd with `now` cannot take over, one line each: it takes a
// restart.
[[nodiscard]] std::vector<std::string> NeedsRestart(const BerthdConfig& now, const BerthdConfig& wanted);

}  // namespace berth
