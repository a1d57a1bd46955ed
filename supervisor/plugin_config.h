// One plugin's file, /etc/berth/plugins.d/*.toml, read and checked as a whole. Every key, with its meaning
// and default, stands in example-plugin.toml.
//
// Plain values and functions; any thread. A mistake is INVALID_ARGUMENT, one line for each of a file's
// mistakes, all at once: "/etc/berth/plugins.d/nfs.toml:4: colour: unknown key; …". What the file refers to
// (the command, files of the environment) is looked at too, but never opened: secrets are read at launch
// only (plugin_launch.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "csi/wanted_token.h"
#include "supervisor/cgroups/plugin_cgroup.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/registry.h"
#include "supervisor/restart_policy.h"

namespace berth {

// [health]
struct HealthConfig {
  Duration interval = std::chrono::seconds(10);  // between probes of a plugin that is well
  Duration timeout = std::chrono::seconds(5);    // of one Probe
  int failures = 3;                              // in a row, until it counts as unhealthy
  Duration fingerprint_interval = std::chrono::minutes(5);
  // Ill for so long without a break, it is replaced; zero: never. A budget of its own, apart from [restart].
  Duration replace_after = std::chrono::minutes(2);
  int replace_burst = 5;
  Duration replace_window = std::chrono::hours(1);
  // A call that takes a volume back hangs in the plugin itself for so long: it is restarted; zero: never.
  Duration restart_after_hung_call = Duration::zero();

  bool operator==(const HealthConfig&) const = default;
};

// The user and groups that the plugin runs as. Names are looked up at launch (plugin_launch.h).
struct PluginUserConfig {
  std::string user;   // a name or a number; empty: root
  std::string group;  // empty: the user's own
  std::vector<std::string> supplementary_groups;
  std::optional<uint64_t> capability_bounding_set;  // bit mask; unset: as the kernel gives it
  uint64_t ambient_capabilities = 0;                // bit mask
  bool no_new_privileges = false;
  unsigned umask = 0022;
  std::string working_directory;  // unexpanded; empty: /

  bool operator==(const PluginUserConfig&) const = default;
};

// What becomes of the other processes of a plugin when its main process is replaced.
enum class ChildrenPolicy {
  kEnd,
  kKeep,  // those that hold /dev/fuse stay
};

// Where a variable of the environment has its value from.
struct EnvironmentValue {
  enum class Source { kText, kFile, kCredential };
  Source source = Source::kText;
  std::string value;  // the text, unexpanded; the file's path; or the credential's name

  bool operator==(const EnvironmentValue&) const = default;
};

struct PluginConfig {
  std::string file;  // that it was read from
  std::string id;
  PluginKind kind = PluginKind::kMonolith;
  bool enabled = true;
  std::string socket;        // absolute path, of a plugin that berthd does not run; empty: `command` is run
  std::string volumes_path;  // where the plugin sees <state_dir>/volumes; empty: there
  std::string command;       // absolute path
  std::vector<std::string> arguments;  // unexpanded
  std::map<std::string, EnvironmentValue> environment;
  PluginUserConfig user;
  ChildrenPolicy children = ChildrenPolicy::kEnd;
  bool serves_mounts = false;  // volumes vanish with its processes (FUSE)
  Duration start_timeout = std::chrono::seconds(30);
  Duration stop_timeout = std::chrono::seconds(30);
  CgroupLimits limits;
  std::vector<ResourceLimit> rlimits;
  LogLimits log;
  HealthConfig health;
  RestartLimits restart;
  std::vector<WantedToken> tokens;
  bool pod_info = false;  // it reads Kubernetes' keys about the consumer

  [[nodiscard]] bool external() const { return !socket.empty(); }

  bool operator==(const PluginConfig&) const = default;
};

// What a file is read against: this node's places.
struct PluginPaths {
  std::string runtime_dir;
  std::string state_dir;
  std::string node_id;
  std::string credentials_dir;  // systemd's $CREDENTIALS_DIRECTORY; empty: not set
};

// <runtime_dir>/plugins/<id>: the socket's directory; and the socket in it.
[[nodiscard]] std::string PluginRuntimeDir(const PluginPaths& paths, std::string_view id);
[[nodiscard]] std::string PluginSocketPath(const PluginPaths& paths, std::string_view id);
// <state_dir>/plugins/<id>: the plugin's own, BERTH_PLUGIN_DIR.
[[nodiscard]] std::string PluginStateDir(const PluginPaths& paths, std::string_view id);

// <state_dir>/plugins.d: the files that a scheduler has placed (placed_files.h).
[[nodiscard]] std::string PlacedPluginDir(const PluginPaths& paths);

// A plugin's name in Berth: a lower case letter or digit, then those and . _ -, 63 characters at most.
[[nodiscard]] bool ValidPluginId(std::string_view id);

[[nodiscard]] absl::StatusOr<PluginConfig> ParsePluginFile(const std::string& path, std::string_view content,
                                                           const PluginPaths& paths);

// One file of plugins.d. `id` names the plugin in the registry, unique among the files, also where the
// file is broken: then the id it gives if that can be read and is free, else the file's stem or name.
struct PluginFile {
  std::string path;
  std::string id;
  absl::StatusOr<PluginConfig> config;
};

// The path of the file that each plugin was last made from, by the plugin's id. The volumes that the journal
// has under an id belong to the plugin of that file.
using PluginFileOwners = std::map<std::string, std::string>;

// Gives each file of a directory its id. `files` come with the id that each claims; empty where that cannot
// be read. Pure.
//
//   a broken file that is the owner of an id      keeps that id, whatever it claims
//   one good file claims an id                    it has the id
//   several do, and one of them is the owner      the owner has it; each other is broken
//   several do, and the owner is not among them   all are broken: a guess could give the volumes of one
//                                                 plugin to another
//
// The error of a file that may not have the id that it claims is ALREADY_EXISTS: the file itself is good.
[[nodiscard]] std::vector<PluginFile> AssignPluginIds(std::vector<PluginFile> files,
                                                      const PluginFileOwners& owners);

// `owners` once the plugins are made from `files`, which have their ids. An entry without a file stays.
[[nodiscard]] PluginFileOwners OwnersAfter(PluginFileOwners owners, const std::vector<PluginFile>& files);

// <state_dir>/plugin-files.toml. Blocking. Reading: empty where there is no file; INVALID_ARGUMENT where it
// is not what WritePluginFileOwners writes.
[[nodiscard]] std::string PluginFileOwnersPath(const std::string& state_dir);
[[nodiscard]] absl::StatusOr<PluginFileOwners> ReadPluginFileOwners(const std::string& path);
[[nodiscard]] absl::Status WritePluginFileOwners(const std::string& path, const PluginFileOwners& owners);

// NOT_FOUND, PERMISSION_DENIED and so on where the file cannot be read at all.
[[nodiscard]] absl::StatusOr<PluginConfig> LoadPluginFile(const std::string& path, const PluginPaths& paths);

// All *.toml in `dir` that are not hidden, and those that a scheduler has placed, by name, with the ids that
// AssignPluginIds gives them. The status is about the directories themselves. NOT_FOUND: there is no `dir`.
[[nodiscard]] absl::StatusOr<std::vector<PluginFile>> LoadPluginDir(const std::string& dir,
                                                                    const PluginPaths& paths,
                                                                    const PluginFileOwners& owners);

}  // namespace berth
