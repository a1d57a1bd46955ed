#include "supervisor/plugin_config.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "base/status.h"
#include "base/toml_reader.h"
#include "supervisor/plugin_file_reader.h"

namespace berth {
namespace {

constexpr size_t kIdLimit = 63;

// The id that a broken file gives, where it can still be read.
std::string ClaimedId(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadTomlFile(path);
  if (!content.ok()) return "";
  const absl::StatusOr<toml::table> table = ParseToml(path, *content);
  if (!table.ok()) return "";
  const std::optional<std::string> id = (*table)["id"].value<std::string>();
  return id.has_value() && ValidPluginId(*id) ? *id : "";
}

}  // namespace

std::string PluginRuntimeDir(const PluginPlaces& places, std::string_view id) {
  return fmt::format("{}/plugins/{}", places.runtime_dir, id);
}

std::string PluginSocketPath(const PluginPlaces& places, std::string_view id) {
  return PluginRuntimeDir(places, id) + "/csi.sock";
}

std::string PluginStateDir(const PluginPlaces& places, std::string_view id) {
  return fmt::format("{}/plugins/{}", places.state_dir, id);
}

bool ValidPluginId(std::string_view id) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (id.empty() || id.size() > kIdLimit || !plain(id.front())) return false;
  return std::all_of(id.begin(), id.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

absl::StatusOr<PluginConfig> ParsePluginFile(const std::string& path, std::string_view content,
                                             const PluginPlaces& places) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  return ReadPluginFile(path, table, places);
}

absl::StatusOr<PluginConfig> LoadPluginFile(const std::string& path, const PluginPlaces& places) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTomlFile(path));
  return ParsePluginFile(path, content, places);
}

absl::StatusOr<std::vector<PluginFile>> LoadPluginDir(const std::string& dir, const PluginPlaces& places) {
  DIR* open = opendir(dir.c_str());
  if (open == nullptr) return ErrnoStatus(errno, fmt::format("read {}", dir));
  std::set<std::string> names;
  while (const dirent* entry = readdir(open)) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".toml") && !name.starts_with('.')) names.emplace(name);
  }
  closedir(open);

  std::vector<PluginFile> files;
  std::map<std::string, std::string> taken;  // id → the file that has it
  for (const std::string& name : names) {
    const std::string path = dir + "/" + name;
    PluginFile file{path, "", LoadPluginFile(path, places)};
    if (file.config.ok()) {
      const auto [first, is_first] = taken.emplace(file.config->id, path);
      if (is_first) {
        file.id = file.config->id;
      } else {
        file.config = absl::InvalidArgumentError(fmt::format(
            "{}: id: \"{}\" is the id of {} already, which keeps it; give each file an id of its own", path,
            first->first, first->second));
      }
    }
    files.push_back(std::move(file));
  }
  // Broken files are named last: none takes a good one's id.
  for (PluginFile& file : files) {
    if (file.config.ok()) continue;
    const std::filesystem::path path(file.path);
    const std::string stem = Printable(path.stem().string(), 128);
    for (const std::string& id : {ClaimedId(file.path), stem, Printable(path.filename().string(), 128)}) {
      if (id.empty() || taken.contains(id)) continue;
      file.id = id;
      break;
    }
    for (int n = 2; file.id.empty(); ++n) {
      if (const std::string id = fmt::format("{}#{}", stem, n); !taken.contains(id)) file.id = id;
    }
    taken.emplace(file.id, file.path);
  }
  return files;
}

}  // namespace berth
