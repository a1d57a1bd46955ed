// What a plugin's file means at launch: its arguments, its environment, its user.
//
// Plain functions. What reads files or looks up names blocks, and says so; the rest is pure. Any thread but
// for TryPluginLaunch, a coroutine of the loop.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/task_scope.h"
#include "supervisor/expansion.h"
#include "supervisor/plugin_config.h"

namespace berth {

// A variable of the environment that comes from a file or a credential holds no more.
inline constexpr size_t kEnvironmentValueLimit = 64 * size_t{1024};

// The variables that a plugin file may use: CSI_ENDPOINT, CSI_SOCKET, BERTH_NODE_ID, BERTH_PLUGIN_DIR, and
// CREDENTIALS_DIRECTORY if there is one.
[[nodiscard]] Variables PluginVariables(const PluginPaths& paths, std::string_view id);

// The arguments as the plugin gets them.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> PluginArguments(const PluginConfig& config,
                                                                       const PluginPaths& paths);

// The whole environment of the plugin, "NAME=value": PATH, HOME, LANG, CSI_ENDPOINT, BERTH_NODE_ID,
// BERTH_PLUGIN_DIR and the file's own. Reads files and credentials (blocks): the result holds secrets, those
// alone in `secrets` too. Errors name the variable and the file, never a value.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> PluginEnvironment(
    const PluginConfig& config, const PluginPaths& paths, std::vector<std::string>* secrets = nullptr);

// Looks user and groups up (blocks: names may come from the network). Unset where the file names none: then
// the plugin has berthd's own. A user without a group has that user's groups; supplementary_groups are added
// to them. NOT_FOUND: the message names the file, the key and the name.
[[nodiscard]] absl::StatusOr<std::optional<ProcessUser>> PluginUser(const PluginConfig& config);

struct PluginLaunch {
  ProcessSpec spec;                  // but for its descriptors, its cgroup and the gate
  std::vector<std::string> secrets;  // values of files and credentials in the environment
};
// All of the above, and the rest of what the file says about the process. Blocks.
[[nodiscard]] absl::StatusOr<PluginLaunch> MakePluginLaunch(const PluginConfig& config,
                                                            const PluginPaths& paths);

// Whether `config` could be launched now: all of the above, and its program can be executed as its user.
// Files are read on a thread, the program is checked by a process: a file system that does not answer costs
// only the caller its deadline. OK for a plugin that berthd does not launch. Errors are those of
// MakePluginLaunch and Process::Try.
[[nodiscard]] Awaitable<absl::Status> TryPluginLaunch(PluginConfig config, PluginPaths paths,
                                                      TimePoint deadline);

// Equal for two configurations that launch the same thing: command, arguments, environment (where values
// come from, not secrets), rights, limits of the process and its place, and places. Different where a new
// process is needed.
[[nodiscard]] std::string LaunchFingerprint(const PluginConfig& config, const PluginPaths& paths);

}  // namespace berth
