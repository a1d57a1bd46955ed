#include "supervisor/placed_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr std::string_view kMark =
    "\n# Placed by this node's scheduler. berthd replaces and removes this file: a change made here is "
    "lost.\n";
// With the mark it is no longer than a plugin's file may be.
constexpr size_t kContentLimit = (size_t{64} << 10) - kMark.size();

std::string PlacedPath(const PluginPaths& paths, const std::string& id) {
  return fmt::format("{}/{}.toml", PlacedPluginDir(paths), id);
}

absl::Status CheckId(const std::string& id) {
  if (ValidPluginId(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("id: \"{}\": must be a lower case letter or digit, then those and . _ -, 63 characters at "
                  "most",
                  Printable(id, 128)));
}

}  // namespace

bool IsPlacedFile(const PluginPaths& paths, std::string_view path) {
  return path.starts_with(PlacedPluginDir(paths) + "/");
}

absl::StatusOr<PluginConfig> CheckPlacedFile(const PluginPaths& paths, const std::string& id,
                                             std::string_view content) {
  BERTH_RETURN_IF_ERROR(CheckId(id));
  const std::string path = PlacedPath(paths, id);
  if (content.size() > kContentLimit) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes long, at most {} are taken", path, content.size(), kContentLimit));
  }
  BERTH_ASSIGN_OR_RETURN(PluginConfig config, ParsePluginFile(path, content, paths));
  if (config.id != id) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: id: \"{}\": must be \"{}\", as the request says, or be left out", path, config.id, id));
  }
  return config;
}

absl::Status WritePlacedFile(const std::string& people_dir, const PluginPaths& paths, const std::string& id,
                             std::string_view content) {
  BERTH_RETURN_IF_ERROR(CheckId(id));
  BERTH_ASSIGN_OR_RETURN(const std::vector<PluginFile> files, LoadPluginDir(people_dir, paths, {}));
  for (const PluginFile& file : files) {
    const bool claims = file.id == id || (file.config.ok() && file.config->id == id);
    if (!claims || IsPlacedFile(paths, file.path)) continue;
    return absl::AlreadyExistsError(fmt::format(
        "plugin {} is defined by {}, which a person wrote: a scheduler does not change it", id, file.path));
  }
  BERTH_RETURN_IF_ERROR(MakeDirectories(PlacedPluginDir(paths), 0700));
  BERTH_RETURN_IF_ERROR(SyncParent(PlacedPluginDir(paths)));
  std::string marked(content);
  marked += kMark;
  return WriteFileAtomic(PlacedPath(paths, id), marked, 0600);
}

absl::StatusOr<bool> RemovePlacedFile(const PluginPaths& paths, const std::string& id) {
  BERTH_RETURN_IF_ERROR(CheckId(id));
  const std::string path = PlacedPath(paths, id);
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return false;
  BERTH_RETURN_IF_ERROR(RemoveFile(path));
  return true;
}

}  // namespace berth
