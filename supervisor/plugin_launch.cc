#include "supervisor/plugin_launch.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/blocking.h"
#include "base/file.h"
#include "base/number_text.h"
#include "base/safe_path.h"
#include "base/status.h"

namespace berth {
namespace {

// The value of a variable that lies in a file: one line end at its end is the editor's, not the value's.
absl::StatusOr<std::string> ReadValue(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(std::string value, ReadFile(path, kEnvironmentValueLimit));
  if (value.ends_with('\n')) value.pop_back();
  if (value.ends_with('\r')) value.pop_back();
  if (value.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(fmt::format("{} holds a NUL character", path));
  }
  return value;
}

constexpr size_t kLookupBuffer = 64 * size_t{1024};
constexpr int kMostGroups = 65536;  // the kernel's NGROUPS_MAX

absl::Status UnknownName(const PluginConfig& config, std::string_view key, const std::string& name,
                         int error) {
  const std::string what = fmt::format("{}: {}: \"{}\"", config.file, key, Printable(name, 64));
  if (error != 0) return ErrnoStatus(error, what);
  return absl::NotFoundError(
      fmt::format("{}: no such {} on this node", what, key == "user" ? "user" : "group"));
}

std::optional<uint32_t> AsNumber(const std::string& name) {
  uint32_t number = 0;
  return ParseNumber(name, &number) ? std::optional(number) : std::nullopt;
}

absl::StatusOr<gid_t> LookUpGroup(const PluginConfig& config, std::string_view key, const std::string& name) {
  if (const std::optional<uint32_t> number = AsNumber(name)) return *number;
  std::vector<char> buffer(kLookupBuffer);
  group entry{};
  group* found = nullptr;
  const int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return UnknownName(config, key, name, error);
  return entry.gr_gid;
}

struct FoundUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;  // empty: no user here has this number
};

absl::StatusOr<FoundUser> LookUpUser(const PluginConfig& config, const std::string& name) {
  std::vector<char> buffer(kLookupBuffer);
  passwd entry{};
  passwd* found = nullptr;
  const std::optional<uint32_t> number = AsNumber(name);
  const int error = number.has_value()
                        ? getpwuid_r(*number, &entry, buffer.data(), buffer.size(), &found)
                        : getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return FoundUser{.uid = entry.pw_uid, .gid = entry.pw_gid, .name = entry.pw_name};
  // A number needs no entry; its group is the one of the same number, unless the file gives another.
  if (number.has_value()) return FoundUser{.uid = *number, .gid = *number, .name = ""};
  return UnknownName(config, "user", name, error);
}

std::vector<gid_t> GroupsOf(const FoundUser& user, gid_t gid) {
  if (user.name.empty()) return {gid};
  int count = 64;
  while (true) {
    std::vector<gid_t> groups(static_cast<size_t>(count));
    const int asked = count;
    if (getgrouplist(user.name.c_str(), gid, groups.data(), &count) >= 0) {
      groups.resize(static_cast<size_t>(count));
      return groups;
    }
    count = std::min(std::max(count, asked * 2), kMostGroups);
    if (count <= asked) return groups;
  }
}

}  // namespace

Variables PluginVariables(const PluginPaths& paths, std::string_view id) {
  const std::string socket = PluginSocketPath(paths, id);
  Variables variables = {{"CSI_ENDPOINT", "unix://" + socket},
                         {"CSI_SOCKET", socket},
                         {"BERTH_NODE_ID", paths.node_id},
                         {"BERTH_PLUGIN_DIR", PluginStateDir(paths, id)}};
  if (!paths.credentials_dir.empty()) variables["CREDENTIALS_DIRECTORY"] = paths.credentials_dir;
  return variables;
}

absl::StatusOr<std::vector<std::string>> PluginArguments(const PluginConfig& config,
                                                         const PluginPaths& paths) {
  const Variables variables = PluginVariables(paths, config.id);
  std::vector<std::string> arguments;
  arguments.reserve(config.arguments.size());
  for (const std::string& argument : config.arguments) {
    BERTH_ASSIGN_OR_RETURN(std::string expanded, Expand(argument, variables));
    arguments.push_back(std::move(expanded));
  }
  return arguments;
}

absl::StatusOr<std::vector<std::string>> PluginEnvironment(const PluginConfig& config,
                                                           const PluginPaths& paths,
                                                           std::vector<std::string>* secrets) {
  const Variables variables = PluginVariables(paths, config.id);
  std::map<std::string, std::string> environment = {
      {"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
      {"HOME", "/"},
      {"LANG", "C.UTF-8"},
      {"CSI_ENDPOINT", variables.at("CSI_ENDPOINT")},
      {"BERTH_NODE_ID", variables.at("BERTH_NODE_ID")},
      {"BERTH_PLUGIN_DIR", variables.at("BERTH_PLUGIN_DIR")},
  };
  for (const auto& [name, given] : config.environment) {
    absl::StatusOr<std::string> value = std::string();
    switch (given.source) {
      case EnvironmentValue::Source::kText:
        value = Expand(given.value, variables);
        break;
      case EnvironmentValue::Source::kFile:
        value = ReadValue(given.value);
        break;
      case EnvironmentValue::Source::kCredential:
        value = ReadValue(paths.credentials_dir + "/" + given.value);
        break;
    }
    if (!value.ok()) return Annotate(value.status(), fmt::format("{}: env.{}", config.file, name));
    if (secrets != nullptr && given.source != EnvironmentValue::Source::kText) secrets->push_back(*value);
    environment[name] = *std::move(value);
  }
  std::vector<std::string> result;
  result.reserve(environment.size());
  for (const auto& [name, value] : environment) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

absl::StatusOr<std::optional<ProcessUser>> PluginUser(const PluginConfig& config) {
  const PluginUserConfig& wanted = config.user;
  if (wanted.user.empty() && wanted.group.empty() && wanted.supplementary_groups.empty()) {
    return std::optional<ProcessUser>();
  }
  BERTH_ASSIGN_OR_RETURN(const FoundUser found,
                         LookUpUser(config, wanted.user.empty() ? "root" : wanted.user));
  ProcessUser user{.uid = found.uid, .gid = found.gid, .groups = {}};
  if (!wanted.group.empty()) {
    BERTH_ASSIGN_OR_RETURN(user.gid, LookUpGroup(config, "group", wanted.group));
  }
  std::set<gid_t> groups;
  for (const gid_t group : GroupsOf(found, user.gid)) groups.insert(group);
  for (const std::string& name : wanted.supplementary_groups) {
    BERTH_ASSIGN_OR_RETURN(const gid_t group, LookUpGroup(config, "supplementary_groups", name));
    groups.insert(group);
  }
  user.groups.assign(groups.begin(), groups.end());
  return std::optional<ProcessUser>(std::move(user));
}

absl::StatusOr<PluginLaunch> MakePluginLaunch(const PluginConfig& config, const PluginPaths& paths) {
  PluginLaunch launch;
  ProcessSpec& spec = launch.spec;
  spec.executable = config.command;
  BERTH_ASSIGN_OR_RETURN(spec.arguments, PluginArguments(config, paths));
  BERTH_ASSIGN_OR_RETURN(spec.environment, PluginEnvironment(config, paths, &launch.secrets));
  BERTH_ASSIGN_OR_RETURN(spec.user, PluginUser(config));
  if (!config.user.working_directory.empty()) {
    BERTH_ASSIGN_OR_RETURN(spec.working_directory,
                           Expand(config.user.working_directory, PluginVariables(paths, config.id)));
  }
  spec.umask = config.user.umask;
  spec.capability_bounding_set = config.user.capability_bounding_set;
  spec.ambient_capabilities = config.user.ambient_capabilities;
  spec.no_new_privileges = config.user.no_new_privileges;
  spec.resource_limits = config.rlimits;
  return launch;
}

Awaitable<absl::Status> TryPluginLaunch(PluginConfig config, PluginPaths paths, TimePoint deadline) {
  if (config.external() || !config.enabled) co_return absl::OkStatus();
  auto make = [config, paths] { return MakePluginLaunch(config, paths); };
  BERTH_CO_ASSIGN_OR_RETURN(PluginLaunch launch,
                            co_await RunBlocking(fmt::format("{}: read the files that it names", config.file),
                                                 std::move(make), deadline));
  launch.spec.working_directory = "/";  // the launch makes it, where it is the plugin's own
  co_return co_await Process::Try(std::move(launch.spec), deadline);
}

std::string LaunchFingerprint(const PluginConfig& config, const PluginPaths& paths) {
  std::string text;
  const auto add = [&text](std::string_view part) { text += fmt::format("{}:{},", part.size(), part); };
  const auto add_number = [&add](const auto& number) { add(number ? fmt::format("{}", *number) : "-"); };
  add(config.id);
  add(config.command);
  add(std::to_string(config.arguments.size()));
  for (const std::string& argument : config.arguments) add(argument);
  for (const auto& [name, value] : config.environment) {
    add(name);
    add(std::to_string(static_cast<int>(value.source)));
    add(value.value);
  }
  for (const auto& [name, value] : PluginVariables(paths, config.id)) {
    add(name);
    // systemd gives the credentials' directory a new name for each run of a service.
    if (name != "CREDENTIALS_DIRECTORY") add(value);
  }
  // Keys that are not given add nothing, so that a newer berthd with more keys finds its plugins unchanged.
  const PluginUserConfig& user = config.user;
  if (user != PluginUserConfig()) {
    add("rights");
    add(user.user);
    add(user.group);
    add(std::to_string(user.supplementary_groups.size()));
    for (const std::string& group : user.supplementary_groups) add(group);
    add_number(user.capability_bounding_set);
    add(std::to_string(user.ambient_capabilities));
    add(user.no_new_privileges ? "no-new-privileges" : "");
    add(std::to_string(user.umask));
    add(user.working_directory);
  }
  for (const ResourceLimit& limit : config.rlimits) {
    add(fmt::format("rlimit {} {} {}", limit.resource, limit.soft, limit.hard));
  }
  if (config.limits != CgroupLimits()) {
    add("limits");
    add_number(config.limits.memory_max);
    add_number(config.limits.pids_max);
    add_number(config.limits.cpus);
  }
  if (!config.volumes_path.empty()) add("volumes " + config.volumes_path);
  return HashComponent({text});
}

}  // namespace berth
