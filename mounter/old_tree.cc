#include "mounter/old_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/status.h"
#include "mounter/volume_identity.h"

namespace berth {
namespace {

constexpr size_t kTreeLimit = 1'000'000;
constexpr size_t kIdentityLimit = size_t{64} * 1024;
constexpr size_t kEntriesNamed = 5;

std::string IdentityFileIn(const std::string& directory) { return directory + "/identity.json"; }
std::string PublishIn(const std::string& name) { return name + "/publish"; }

// Names that a directory of ours may have; nothing where there is no such directory.
std::vector<std::string> Components(const SafeRoot& root, const std::string& directory) {
  auto names = root.List(directory, kTreeLimit);
  if (!names.ok()) return {};
  std::erase_if(*names, [](const std::string& name) { return !VolumePaths::IsComponent(name); });
  return *std::move(names);
}

absl::StatusOr<VolumeRecord> ReadOldIdentity(const SafeRoot& tree, const std::string& name) {
  const std::string path = IdentityFileIn(name);
  BERTH_ASSIGN_OR_RETURN(const std::string text, tree.ReadFile(path, kIdentityLimit));
  BERTH_ASSIGN_OR_RETURN(VolumeRecord record, ParseIdentity(text, tree.Absolute(path)));
  if (VolumePaths::VolumeKey(record.plugin_id, record.volume_id) != name) {
    return absl::DataLossError(fmt::format("{}: is another volume's", tree.Absolute(path)));
  }
  record.publications.clear();
  for (const std::string& component : Components(tree, PublishIn(name))) {
    const auto publication =
        tree.ReadFile(IdentityFileIn(fmt::format("{}/{}", PublishIn(name), component)), kIdentityLimit);
    record.publications.push_back(ParseOldPublication(publication.value_or(""), component));
  }
  return record;
}

// With what a berthd that was killed left of one that it was writing.
absl::Status RemoveIdentityFiles(const SafeRoot& tree, const std::string& directory) {
  const auto names = tree.List(directory, kTreeLimit);
  if (!names.ok()) return absl::OkStatus();
  constexpr std::string_view kLead = "identity.json.";
  constexpr size_t kRandom = 6;
  for (const std::string& name : *names) {
    const bool unfinished = name.starts_with(kLead) && name.size() == kLead.size() + kRandom;
    if (name != "identity.json" && !unfinished) continue;
    BERTH_RETURN_IF_ERROR(tree.RemoveFile(fmt::format("{}/{}", directory, name), /*must_be_empty=*/false));
  }
  return absl::OkStatus();
}

bool IsInTheWay(const absl::Status& status) { return status.code() == absl::StatusCode::kFailedPrecondition; }

// Whether it is a directory of this file system: nothing is mounted there, and nothing is followed.
bool IsPlainDirectory(const SafeRoot& root, const std::string& path) {
  const auto facts = root.Look(path);
  return facts.ok() && facts->exists && S_ISDIR(facts->mode) && !facts->mount_root;
}

// Adds what lies in `path`, itself named where it is no directory of ours or has become empty.
void Collect(const SafeRoot& root, const std::string& path, int depth, Leftover* leftover) {
  constexpr int kDeepest = 4;  // <hash>/publish/<hash>/target
  const auto add = [leftover](const std::string& entry) {
    if (leftover->entries.size() < kEntriesNamed) {
      leftover->entries.push_back(entry);
    } else {
      ++leftover->more;
    }
  };
  const auto names = depth > kDeepest || !IsPlainDirectory(root, path)
                         ? absl::StatusOr<std::vector<std::string>>(std::vector<std::string>())
                         : root.List(path, kTreeLimit);
  if (!names.ok() || names->empty()) return add(path);
  std::vector<std::string> sorted = *names;
  std::ranges::sort(sorted);
  for (const std::string& name : sorted) Collect(root, fmt::format("{}/{}", path, name), depth + 1, leftover);
}

}  // namespace

absl::StatusOr<std::set<std::string>> TakeOverIdentities(const SafeRoot& tree, const VolumePaths& paths) {
  std::set<std::string> taken;
  for (const std::string& name : Components(tree, "")) {
    const auto record = ReadOldIdentity(tree, name);
    if (absl::IsNotFound(record.status())) continue;
    if (!record.ok()) {
      SPDLOG_WARN("{}: left where it is", MessageOf(record.status()));
      continue;
    }
    if (!paths.HasIdentity(name)) BERTH_RETURN_IF_ERROR(paths.WriteIdentity(*record));
    taken.insert(name);
  }
  if (taken.empty()) return taken;
  BERTH_RETURN_IF_ERROR(paths.SyncAllIdentities());
  for (const std::string& name : taken) {
    for (const std::string& component : Components(tree, PublishIn(name))) {
      BERTH_RETURN_IF_ERROR(RemoveIdentityFiles(tree, fmt::format("{}/{}", PublishIn(name), component)));
    }
    BERTH_RETURN_IF_ERROR(RemoveIdentityFiles(tree, name));
  }
  SPDLOG_INFO("{}: took over the identity files of {} volumes", tree.path(), taken.size());
  return taken;
}

absl::Status RemoveEmptyDirectories(const SafeRoot& tree, const VolumePaths& paths) {
  const auto remove = [&tree](const std::string& path) {
    const absl::Status removed = tree.RemoveEmptyDirectory(path);
    return IsInTheWay(removed) ? absl::OkStatus() : removed;
  };
  for (const std::string& name : Components(tree, "")) {
    if (!IsPlainDirectory(tree, name)) continue;
    const auto identity = paths.ReadIdentity(name);
    const bool block = identity.ok() && identity->use.access_type == AccessType::kBlock;
    for (const std::string& component : Components(tree, PublishIn(name))) {
      const std::string directory = fmt::format("{}/{}", PublishIn(name), component);
      const std::string target = directory + "/target";
      if (IsPlainDirectory(tree, target)) {
        BERTH_RETURN_IF_ERROR(remove(target));
      } else if (block) {
        const absl::Status removed = tree.RemoveFile(target, /*must_be_empty=*/true);
        if (!removed.ok() && !IsInTheWay(removed)) return removed;
      }
      BERTH_RETURN_IF_ERROR(remove(directory));
    }
    for (const std::string& directory : {PublishIn(name), name + "/staging", name}) {
      if (IsPlainDirectory(tree, directory)) BERTH_RETURN_IF_ERROR(remove(directory));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Leftover>> ListLeftovers(const SafeRoot& directory) {
  BERTH_ASSIGN_OR_RETURN(std::vector<std::string> names, directory.List("", kTreeLimit));
  std::ranges::sort(names);
  std::vector<Leftover> leftovers;
  for (const std::string& name : names) {
    // A disk of somebody's that was mounted there.
    if (name == "lost+found") continue;
    Leftover& leftover = leftovers.emplace_back();
    leftover.name = name;
    Collect(directory, name, 1, &leftover);
  }
  return leftovers;
}

std::string Describe(const Leftover& leftover) {
  std::vector<std::string> shown;
  for (const std::string& entry : leftover.entries) shown.push_back(Printable(entry, 256));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     leftover.more == 0 ? "" : fmt::format(" and {} more", leftover.more));
}

}  // namespace berth
