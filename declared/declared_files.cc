#include "declared/declared_files.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/directory_stream.h"
#include "base/status.h"
#include "mounts/mount_table.h"
#include "request/request_check.h"
#include "spec/volume_spec.h"

namespace berth {
namespace {

DeclaredFile ReadOne(const std::string& directory, const std::string& name) {
  DeclaredFile file{.name = name, .path = directory + "/" + name, .request = {}, .use = DeclaredUse{}};
  absl::StatusOr<DeclaredVolume> volume = ReadDeclaredVolume(file.path);
  if (!volume.ok()) {
    file.use = volume.status();
    return file;
  }
  absl::StatusOr<PublishRequest> request = CheckPublish(volume->request);
  if (!request.ok()) {
    file.use = Annotate(request.status(), file.path);
    return file;
  }
  request->origin = Origin::kDeclared;
  request->path = {.path = volume->path, .suid = volume->path_suid, .dev = volume->path_dev};
  file.request = std::move(volume->request);
  DeclaredUse use{.request = *std::move(request), .attach = volume->attach, .mount_digest = ""};
  use.mount_digest = MountDigest(use.request, use.attach);
  file.use = std::move(use);
  return file;
}

bool Overlap(const std::string& a, const std::string& b) {
  return IsAtOrBeneath(a, b) || IsAtOrBeneath(b, a);
}

// Why a volume cannot be mounted at the path of `file`, given the files before it by their paths.
std::string WhyNoPath(const DeclaredFile& file, const std::map<std::string, std::string>& before,
                      const std::vector<std::string>& own) {
  const std::string& path = file.use->request.path.path;
  if (path.empty()) return {};
  for (const std::string& directory : own) {
    if (directory.empty() || !Overlap(path, directory)) continue;
    return fmt::format("{}: path: {}: must not be in or above {}, which is berthd's own", file.path,
                       Printable(path, 512), directory);
  }
  for (const auto& [other, name] : before) {
    if (!Overlap(path, other)) continue;
    return fmt::format(
        "{}: path: {}: {} mounts another volume at {}; give each a path of its own, none in another",
        file.path, Printable(path, 512), name, Printable(other, 512));
  }
  return {};
}

}  // namespace

DeclaredKey KeyOf(const DeclaredUse& use) {
  return {use.request.plugin_id, use.request.volume_id, use.request.consumer, use.request.name};
}

absl::StatusOr<std::vector<DeclaredFile>> ReadDeclaredFiles(const std::string& directory,
                                                            const std::set<std::string>& in_use,
                                                            const std::vector<std::string>& own) {
  const DirectoryStream stream(opendir(directory.c_str()));
  if (stream == nullptr) return ErrnoStatus(errno, fmt::format("read {}", directory));
  std::vector<std::string> names;
  while (const dirent* entry = readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".toml") && !name.starts_with('.')) names.emplace_back(name);
  }
  // Who comes first keeps what two files declare.
  std::ranges::sort(names, [&in_use](const std::string& a, const std::string& b) {
    return std::pair(!in_use.contains(a), std::string_view(a)) <
           std::pair(!in_use.contains(b), std::string_view(b));
  });

  std::vector<DeclaredFile> files;
  std::map<DeclaredKey, std::string> first;
  std::map<std::string, std::string> paths;
  for (const std::string& name : names) {
    if (files.size() >= kDeclaredFilesLimit) {
      files.push_back({.name = name,
                       .path = directory + "/" + name,
                       .request = {},
                       .use = absl::ResourceExhaustedError(fmt::format(
                           "{}/{}: there are more than {} files", directory, name, kDeclaredFilesLimit))});
      continue;
    }
    DeclaredFile file = ReadOne(directory, name);
    if (file.use.ok()) {
      const auto [before, fresh] = first.emplace(KeyOf(*file.use), name);
      if (!fresh) {
        file.use = absl::InvalidArgumentError(
            fmt::format("{}: {} declares the same volume for the same consumer and name already", file.path,
                        before->second));
      }
    }
    if (file.use.ok()) {
      if (const std::string why = WhyNoPath(file, paths, own); !why.empty()) {
        file.use = absl::InvalidArgumentError(why);
      } else if (!file.use->request.path.path.empty()) {
        paths.emplace(file.use->request.path.path, name);
      }
    }
    files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, &DeclaredFile::name);
  return files;
}

DeclaredReload TakeIn(std::vector<DeclaredFile> read, DeclaredSet* set) {
  DeclaredReload report;
  std::map<std::string, DeclaredFile> files;
  for (DeclaredFile& file : read) files.emplace(file.name, std::move(file));
  for (const auto& [name, file] : set->files) {
    if (files.contains(name)) continue;
    if (set->uses.erase(name) > 0) report.withdrawn.push_back(name);
  }
  for (const auto& [name, file] : files) {
    if (!file.use.ok()) {
      report.broken.emplace_back(MessageOf(file.use.status()));
      continue;
    }
    const auto before = set->uses.find(name);
    if (before == set->uses.end()) {
      report.declared.push_back(name);
    } else if (before->second.mount_digest != file.use->mount_digest ||
               before->second.request.path != file.use->request.path) {
      report.changed.push_back(name);
    }
    set->uses.insert_or_assign(name, *file.use);
  }
  set->files = std::move(files);
  return report;
}

}  // namespace berth
