#include "mounter/leftovers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/status.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

constexpr size_t kEntriesNamed = 5;

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

absl::StatusOr<std::vector<Leftover>> ListLeftovers(const SafeRoot& directory) {
  BERTH_ASSIGN_OR_RETURN(std::vector<std::string> names, directory.List("", kTreeLimit));
  std::ranges::sort(names);
  std::vector<Leftover> leftovers;
  for (const std::string& name : names) {
    // A disk may have been mounted there.
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
