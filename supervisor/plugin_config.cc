#include "supervisor/plugin_config.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "supervisor/plugin_file_reader.h"

namespace berth {
namespace {

constexpr size_t kIdLimit = 63;
constexpr int64_t kOwnersFormat = 1;
constexpr size_t kOwnersLimit = 1024 * size_t{1024};

// The id that a broken file gives, where it can still be read.
std::string ClaimedId(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadTomlFile(path);
  if (!content.ok()) return "";
  const absl::StatusOr<toml::table> table = ParseToml(path, *content);
  if (!table.ok()) return "";
  const std::optional<std::string> id = (*table)["id"].value<std::string>();
  return id.has_value() && ValidPluginId(*id) ? *id : "";
}

absl::Status ListFiles(const std::string& dir, std::set<std::string>* paths) {
  DIR* open = opendir(dir.c_str());
  if (open == nullptr) return ErrnoStatus(errno, fmt::format("read {}", dir));
  while (const dirent* entry = readdir(open)) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".toml") && !name.starts_with('.')) paths->insert(fmt::format("{}/{}", dir, name));
  }
  closedir(open);
  return absl::OkStatus();
}

}  // namespace

std::string PluginRuntimeDir(const PluginPaths& paths, std::string_view id) {
  return fmt::format("{}/plugins/{}", paths.runtime_dir, id);
}

std::string PluginSocketPath(const PluginPaths& paths, std::string_view id) {
  return PluginRuntimeDir(paths, id) + "/csi.sock";
}

std::string PluginStateDir(const PluginPaths& paths, std::string_view id) {
  return fmt::format("{}/plugins/{}", paths.state_dir, id);
}

std::string PlacedPluginDir(const PluginPaths& paths) { return paths.state_dir + "/plugins.d"; }

bool ValidPluginId(std::string_view id) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (id.empty() || id.size() > kIdLimit || !plain(id.front())) return false;
  return std::all_of(id.begin(), id.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

absl::StatusOr<PluginConfig> ParsePluginFile(const std::string& path, std::string_view content,
                                             const PluginPaths& paths) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  return ReadPluginFile(path, table, paths);
}

absl::StatusOr<PluginConfig> LoadPluginFile(const std::string& path, const PluginPaths& paths) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTrustedTomlFile(path));
  return ParsePluginFile(path, content, paths);
}

namespace {

// Of the files that claim `id`, the one that gets it; the others become errors.
PluginFile& DecideClaim(const std::string& id, const std::vector<PluginFile*>& claimants,
                        const PluginFileOwners& owners) {
  const auto recorded = owners.find(id);
  const auto owner = std::ranges::find_if(claimants, [&](const PluginFile* file) {
    return claimants.size() == 1 || (recorded != owners.end() && file->path == recorded->second);
  });
  for (PluginFile* file : claimants) {
    if (owner != claimants.end() && file == *owner) continue;
    if (owner != claimants.end()) {
      file->config = absl::AlreadyExistsError(fmt::format(
          "{}: id: \"{}\" is the id of {} already, which keeps it; give each file an id of its own",
          file->path, id, (*owner)->path));
      continue;
    }
    const PluginFile* other = claimants[file == claimants.front() ? 1 : 0];
    file->config = absl::AlreadyExistsError(fmt::format(
        "{}: id: \"{}\" is also the id of {}, and it is not known which of the two has the volumes "
        "of plugin {}: neither is used; remove one, or give it an id of its own",
        file->path, id, other->path, id));
  }
  return owner != claimants.end() ? **owner : *claimants.front();
}

// An id for a broken file, by its name.
std::string IdByName(const std::string& claimed, const std::string& file,
                     const std::map<std::string, std::string>& taken) {
  const std::filesystem::path path(file);
  const std::string stem = Printable(path.stem().string(), 128);
  for (const std::string& id : {claimed, stem, Printable(path.filename().string(), 128)}) {
    if (!id.empty() && !taken.contains(id)) return id;
  }
  for (int n = 2;; ++n) {
    if (std::string id = fmt::format("{}#{}", stem, n); !taken.contains(id)) return id;
  }
}

}  // namespace

std::vector<PluginFile> AssignPluginIds(std::vector<PluginFile> files, const PluginFileOwners& owners) {
  std::map<std::string, std::string> taken;  // id → the file that has it
  std::set<std::string> named;               // files that have their id
  std::map<std::string, std::vector<PluginFile*>> claims;
  const auto give = [&](PluginFile& file, const std::string& id) {
    file.id = id;
    taken.emplace(id, file.path);
    named.insert(file.path);
  };
  for (PluginFile& file : files) {
    if (file.config.ok()) {
      claims[file.config->id].push_back(&file);
      continue;
    }
    const auto owned = std::ranges::find(owners, file.path, &PluginFileOwners::value_type::second);
    if (owned != owners.end()) give(file, owned->first);
  }
  for (auto& [id, claimants] : claims) {
    const auto broken_owner = taken.find(id);
    if (broken_owner != taken.end()) {
      for (PluginFile* file : claimants) {
        file->config = absl::AlreadyExistsError(fmt::format(
            "{}: id: \"{}\" is the id of the plugin of {}, which is wrong itself: correct or remove "
            "one of the two files",
            file->path, id, broken_owner->second));
      }
      continue;
    }
    give(DecideClaim(id, claimants, owners), id);
  }
  // Other broken files are named last: none takes a good one's id.
  for (PluginFile& file : files) {
    if (named.contains(file.path)) continue;
    file.id = IdByName(file.id, file.path, taken);
    taken.emplace(file.id, file.path);
  }
  return files;
}

PluginFileOwners OwnersAfter(PluginFileOwners owners, const std::vector<PluginFile>& files) {
  for (const PluginFile& file : files) {
    if (!file.config.ok()) continue;
    // Its id was changed: the file is the owner of one id.
    std::erase_if(owners, [&file](const auto& owner) { return owner.second == file.path; });
    owners[file.id] = file.path;
  }
  return owners;
}

std::string PluginFileOwnersPath(const std::string& state_dir) { return state_dir + "/plugin-files.toml"; }

absl::StatusOr<PluginFileOwners> ReadPluginFileOwners(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadFile(path, kOwnersLimit);
  if (absl::IsNotFound(content.status())) return PluginFileOwners();
  if (!content.ok()) return content.status();
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, *content));
  const toml::table* files = table["files"].as_table();
  if (table["format"].value_or(int64_t{0}) != kOwnersFormat || files == nullptr) {
    return absl::InvalidArgumentError(fmt::format("read {}: its format is not {}", path, kOwnersFormat));
  }
  PluginFileOwners owners;
  for (const auto& [id, file] : *files) {
    const std::optional<std::string> name = file.value<std::string>();
    if (!name.has_value()) return absl::InvalidArgumentError(fmt::format("read {}: no path", path));
    owners.emplace(id.str(), *name);
  }
  return owners;
}

absl::Status WritePluginFileOwners(const std::string& path, const PluginFileOwners& owners) {
  toml::table files;
  for (const auto& [id, file] : owners) files.insert(id, file);
  toml::table table;
  table.insert("format", kOwnersFormat);
  table.insert("files", std::move(files));
  std::ostringstream text;
  text << table << '\n';
  return WriteFileAtomic(path, text.str(), 0600);
}

absl::StatusOr<std::vector<PluginFile>> LoadPluginDir(const std::string& dir, const PluginPaths& paths,
                                                      const PluginFileOwners& owners) {
  std::set<std::string> files_found;
  BERTH_RETURN_IF_ERROR(ListFiles(dir, &files_found));
  const absl::Status placed = ListFiles(PlacedPluginDir(paths), &files_found);
  // A check of the settings without root may not see them.
  const bool may_not_look = absl::IsPermissionDenied(placed) && geteuid() != 0;
  if (!placed.ok() && !absl::IsNotFound(placed) && !may_not_look) return placed;

  std::vector<PluginFile> files;
  for (const std::string& path : files_found) {
    PluginFile file{path, "", LoadPluginFile(path, paths)};
    file.id = file.config.ok() ? file.config->id : ClaimedId(path);
    files.push_back(std::move(file));
  }
  return AssignPluginIds(std::move(files), owners);
}

}  // namespace berth
