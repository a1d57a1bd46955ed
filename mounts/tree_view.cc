#include "mounts/tree_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/mountinfo.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr std::string_view kHowTo =
    "let it see the directory above the tree with shared propagation (rshared), and start it again";

bool IsOfTree(const MountInTable& mount, const MountInTable& tree) {
  return mount.device_major == tree.device_major && mount.device_minor == tree.device_minor &&
         mount.root == tree.root;
}

// Both ways: what one side mounts, the other sees.
bool IsUsable(const MountInTable& mount, const MountInTable& tree) {
  return IsOfTree(mount, tree) && mount.peer_group == tree.peer_group;
}

MountInTable Read(const MountinfoLine& line) {
  return {.target = DecodeMountinfo(line.target),
          .device_major = line.device_major,
          .device_minor = line.device_minor,
          .root = DecodeMountinfo(line.root),
          .peer_group = line.peer_group,
          .follows = line.follows};
}

}  // namespace

std::string WhyTreeIsNotUsable(const MountInTable& tree, const std::vector<MountInTable>& theirs,
                               const std::string& path) {
  // The last one lies on top.
  const auto top = std::ranges::find(theirs.rbegin(), theirs.rend(), path, &MountInTable::target);
  if (top != theirs.rend() && IsUsable(*top, tree)) return {};
  const std::string shown = Printable(path, 512);
  const auto elsewhere =
      std::ranges::find_if(theirs, [&tree](const MountInTable& mount) { return IsUsable(mount, tree); });
  if (elsewhere != theirs.end() && elsewhere->target != path) {
    return fmt::format("it sees the tree of volumes at {}, and not at {}: set volumes_path",
                       Printable(elsewhere->target, 512), shown);
  }
  if (top == theirs.rend())
    return fmt::format("it does not see the tree of volumes at {}: {}", shown, kHowTo);
  if (!IsOfTree(*top, tree)) {
    return fmt::format("it sees another mount at {}, and not the tree of volumes: {}", shown, kHowTo);
  }
  const bool slave = top->follows == tree.peer_group && tree.peer_group != 0;
  return fmt::format("what it mounts at {} is not seen here, since its mount there is {}: {}", shown,
                     slave ? "a slave (rslave)" : "private", kHowTo);
}

absl::StatusOr<std::string> LookForTree(const std::string& tree, pid_t pid, const std::string& path) {
  std::optional<MountInTable> ours;
  BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    if (DecodeMountinfo(line.target) == tree) ours = Read(line);
    return true;
  }));
  if (!ours) return absl::NotFoundError(fmt::format("{}: it is in no mount table", tree));
  const std::string& place = path.empty() ? tree : path;
  std::vector<MountInTable> theirs;
  BERTH_RETURN_IF_ERROR(ReadMountinfo(fmt::format("/proc/{}/mountinfo", pid), [&](const MountinfoLine& line) {
    MountInTable mount = Read(line);
    if (mount.target == place || IsOfTree(mount, *ours)) theirs.push_back(std::move(mount));
    return true;
  }));
  return WhyTreeIsNotUsable(*ours, theirs, place);
}

}  // namespace berth
