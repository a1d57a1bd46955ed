// One plugin's file, /etc/berth/plugins.d/*.toml, read and checked as a whole. Every key, with its meaning
// and default, stands in example-plugin.toml.
//
// Plain values and functions; any thread. A mistake is INVALID_ARGUMENT, one line for each of a file's
// mistakes, all at once: "/etc/berth/plugins.d/nfs.toml:4: colour: unknown key; …". What the file refers to
// (the command, files of the environment) is looked at too, but never opened: secrets are read at launch
// only, by PluginEnvironment.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "supervisor/expansion.h"
#include "supervisor/registry.h"
#include "supervisor/restart_policy.h"

namespace berth {

// [health]
struct HealthConfig {
  Duration interval = std::chrono::seconds(10);  // between probes of a plugin that is well
  Duration timeout = std::chrono::seconds(5);    // of one Probe
  int failures = 3;                              // in a row, until it counts as unhealthy
  Duration fingerprint_interval = std::chrono::minutes(5);

  bool operator==(const HealthConfig&) const = default;
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
  std::string command;                 // absolute path
  std::vector<std::string> arguments;  // unexpanded
  std::map<std::string, EnvironmentValue> environment;
  Duration start_timeout = std::chrono::seconds(30);
  Duration stop_timeout = std::chrono::seconds(30);
  HealthConfig health;
  RestartLimits restart;

  bool operator==(const PluginConfig&) const = default;
};

// What a file is read against: this node's places.
struct PluginPlaces {
  std::string runtime_dir;
  std::string state_dir;
  std::string node_id;
  std::string credentials_dir;  // systemd's $CREDENTIALS_DIRECTORY; empty where there is none
};

// <runtime_dir>/plugins/<id>: the socket's directory; and the socket in it.
[[nodiscard]] std::string PluginRuntimeDir(const PluginPlaces& places, std::string_view id);
[[nodiscard]] std::string PluginSocketPath(const PluginPlaces& places, std::string_view id);
// <state_dir>/plugins/<id>: the plugin's own, BERTH_PLUGIN_DIR.
[[nodiscard]] std::string PluginStateDir(const PluginPlaces& places, std::string_view id);

// The variables that arguments and environment values may name: CSI_ENDPOINT, CSI_SOCKET, BERTH_NODE_ID,
// BERTH_PLUGIN_DIR, and CREDENTIALS_DIRECTORY where there is one.
[[nodiscard]] Variables PluginVariables(const PluginPlaces& places, std::string_view id);

// A plugin's name in Berth: a lower case letter or digit, then those and . _ -, 63 characters at most.
[[nodiscard]] bool ValidPluginId(std::string_view id);

[[nodiscard]] absl::StatusOr<PluginConfig> ParsePluginFile(const std::string& path, std::string_view content,
                                                           const PluginPlaces& places);

// One file of plugins.d. `id` names the plugin in the registry, unique among the files, also where the
// file is broken: then the id it gives if that can be read and is free, else the file's stem or name.
struct PluginFile {
  std::string path;
  std::string id;
  absl::StatusOr<PluginConfig> config;
};

// NOT_FOUND, PERMISSION_DENIED and so on where the file cannot be read at all.
[[nodiscard]] absl::StatusOr<PluginConfig> LoadPluginFile(const std::string& path,
                                                          const PluginPlaces& places);

// All *.toml in `dir` that are not hidden, by name. Of several files with one id the first keeps it; each
// other is broken, with an error that names both. The status is about `dir` itself.
[[nodiscard]] absl::StatusOr<std::vector<PluginFile>> LoadPluginDir(const std::string& dir,
                                                                    const PluginPlaces& places);

// The arguments as the plugin gets them.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> PluginArguments(const PluginConfig& config,
                                                                       const PluginPlaces& places);
// The whole environment of the plugin, "NAME=value": PATH, HOME, LANG, CSI_ENDPOINT, BERTH_NODE_ID,
// BERTH_PLUGIN_DIR and the file's own. Reads files and credentials: the result holds secrets. Errors name the
// variable and the file, never a value.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> PluginEnvironment(const PluginConfig& config,
                                                                         const PluginPlaces& places);

// Equal for two configurations that launch the same thing: command, arguments, environment (where values
// come from, not secrets) and places.
[[nodiscard]] std::string LaunchFingerprint(const PluginConfig& config, const PluginPlaces& places);

}  // namespace berth
