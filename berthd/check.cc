#include "berthd/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "declared/declared_files.h"
#include "mounts/immutable.h"
#include "rpc/convert.h"
#include "rpc/uplink/tls_identity.h"
#include "supervisor/plugin_launch.h"

namespace berth {
namespace {

// Where systemd puts the credentials of a unit that runs.
constexpr const char* kUnitCredentials = "/run/credentials/berthd.service";

class FileCheck {
 public:
  explicit FileCheck(const BerthdOptions& options) : options_(options) {}

  CheckedFiles Run() {
    struct stat info{};
    if (stat(options_.config_dir.c_str(), &info) != 0) {
      found_.mistakes.push_back(
          fmt::format("--config: {}", MessageOf(ErrnoStatus(errno, options_.config_dir))));
      return std::move(found_);
    }
    CheckSettings();
    const std::set<std::string> plugins = CheckPlugins();
    CheckVolumes(plugins);
    CheckImmutable("the tree of volumes", config_.state_dir);
    return std::move(found_);
  }

 private:
  void Mistake(const std::string& file, std::string_view text) {
    for (const std::string& line : LinesOf(text)) {
      const std::string mistake = WithLine(file, line);
      found_.mistakes.push_back(mistake.starts_with(file) ? mistake : fmt::format("{}: {}", file, mistake));
    }
  }

  void CheckSettings() {
    const std::string file = options_.config_dir + "/berthd.toml";
    const absl::StatusOr<BerthdConfig> settings = LoadBerthdConfig(options_);
    if (!settings.ok()) {
      for (const std::string& line : LinesOf(MessageOf(settings.status()))) found_.mistakes.push_back(line);
      // What the other files are read against is then what it would be without berthd.toml.
      config_.state_dir = options_.state_dir.value_or(config_.state_dir);
      config_.runtime_dir = options_.runtime_dir.value_or(config_.runtime_dir);
      config_.node_id = options_.node_id.value_or("node");
      return;
    }
    config_ = *settings;
    const UplinkConfig& scheduler = config_.scheduler;
    const bool tls = !std::ranges::all_of(scheduler.addresses, &UplinkAddress::is_unix);
    if (!tls) return;
    const absl::Status loaded =
        TlsIdentity::Load(scheduler.files, scheduler.identities, WallClock::now()).status();
    if (!loaded.ok()) Mistake(file, fmt::format("scheduler: {}", MessageOf(loaded)));
  }

  // The ids of all plugins, also with broken files.
  std::set<std::string> CheckPlugins() {
    const PluginPaths paths{.runtime_dir = config_.runtime_dir,
                            .state_dir = config_.state_dir,
                            .node_id = config_.node_id,
                            .credentials_dir = CredentialsDir()};
    // The files that claim the same id. A user without the right to read it checks without.
    const PluginFileOwners owners =
        ReadPluginFileOwners(PluginFileOwnersPath(config_.state_dir)).value_or(PluginFileOwners());
    const std::string directory = options_.config_dir + "/plugins.d";
    std::set<std::string> ids;
    const auto files = LoadPluginDir(directory, paths, owners);
    if (!files.ok()) {
      if (!absl::IsNotFound(files.status())) found_.mistakes.emplace_back(MessageOf(files.status()));
      return ids;
    }
    for (const PluginFile& file : *files) {
      ++found_.plugins;
      ids.insert(file.id);
      if (!file.config.ok()) {
        Mistake(file.path, MessageOf(file.config.status()));
      } else {
        CheckUser(*file.config);
        if (!file.config->external()) CheckLaunch(*file.config, paths);
      }
    }
    return ids;
  }

  static std::string CredentialsDir() {
    if (const char* given = std::getenv("CREDENTIALS_DIRECTORY")) return given;
    struct stat info{};
    return stat(kUnitCredentials, &info) == 0 ? kUnitCredentials : "";
  }

  // One name at a time, so that each that is unknown is named.
  void CheckUser(const PluginConfig& config) {
    const auto check = [&](PluginUserConfig names) {
      PluginConfig one;
      one.file = config.file;
      one.user = std::move(names);
      const absl::Status known = PluginUser(one).status();
      if (!known.ok()) Mistake(config.file, MessageOf(known));
    };
    if (!config.user.user.empty()) check({.user = config.user.user});
    if (!config.user.group.empty()) check({.group = config.user.group});
    for (const std::string& group : config.user.supplementary_groups) {
      check({.supplementary_groups = {group}});
    }
  }

  // What the launch checks. A user without the right to read a secret checks without.
  void CheckLaunch(const PluginConfig& config, const PluginPaths& paths) {
    struct stat info{};
    const bool there = stat(config.command.c_str(), &info) == 0;
    if (!there || !S_ISREG(info.st_mode) || access(config.command.c_str(), X_OK) != 0) {
      const int error = there && !S_ISREG(info.st_mode) ? EACCES : errno;
      Mistake(config.file, fmt::format("{}: command: {}", config.file,
                                       MessageOf(ErrnoStatus(error, "execute " + config.command))));
    }
    for (const auto& variable : config.environment) {
      PluginConfig one;
      one.file = config.file;
      one.environment.insert(variable);
      const absl::Status known = PluginEnvironment(one, paths).status();
      if (!known.ok() && !absl::IsPermissionDenied(known)) Mistake(config.file, MessageOf(known));
    }
  }

  void CheckVolumes(const std::set<std::string>& plugins) {
    const std::string directory = options_.config_dir + "/volumes.d";
    const auto files = ReadDeclaredFiles(directory, {}, {config_.state_dir, config_.runtime_dir});
    if (!files.ok()) {
      if (!absl::IsNotFound(files.status())) found_.mistakes.emplace_back(MessageOf(files.status()));
      return;
    }
    for (const DeclaredFile& file : *files) {
      ++found_.volumes;
      if (!file.use.ok()) {
        Mistake(file.path, MessageOf(file.use.status()));
        continue;
      }
      const PublishRequest& request = file.use->request;
      if (!plugins.contains(request.plugin_id)) {
        found_.notes.push_back(WithLine(
            file.path,
            fmt::format("{}: plugin: no file in plugins.d has the id \"{}\"; it must be the name of a "
                        "driver",
                        file.path, Printable(request.plugin_id, 256))));
      }
      if (!request.path.path.empty()) CheckImmutable(file.path + ": path", request.path.path);
    }
  }

  // Of `path`, or of the directory in which it would be made. What is mounted there hides the directory.
  void CheckImmutable(const std::string& what, const std::string& path) {
    std::filesystem::path directory(path);
    struct statx info{};
    while (statx(AT_FDCWD, directory.c_str(), AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0 ||
           (directory == path && (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)) {
      if (directory == directory.parent_path()) return;
      directory = directory.parent_path();
    }
    const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || IsImmutable(fd.get()).ok()) return;
    found_.notes.push_back(
        fmt::format("{}: the file system of {} has no immutable flag, so that files can be put "
                    "there while nothing is mounted",
                    what, Printable(directory.string(), 512)));
  }

  const BerthdOptions& options_;
  BerthdConfig config_;
  CheckedFiles found_;
};

}  // namespace

CheckedFiles CheckFiles(const BerthdOptions& options) { return FileCheck(options).Run(); }

}  // namespace berth
