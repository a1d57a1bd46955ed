#include "mounts/mount_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "mounts/immutable.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

// A node cannot have more mounts than fs.mount-max, 100,000 a namespace. A publication is one mount at least,
// and takes five directories where no other shares its volume: 500,000. The rest is for what plugins keep in
// their staging directories. An inode takes about 1 KiB of memory, and only while it exists.
constexpr char kInodes[] = "524288";
// Directories take none of it: it is for the small files that plugins keep in their staging directories.
constexpr char kSize[] = "256m";
constexpr size_t kEntryLimit = 1'000'000;

bool SetPropagation(int fd, uint64_t propagation) {
  mount_attr attributes{};
  attributes.propagation = propagation;
  return mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0;
}

// The tmpfs becomes shared before it is attached, so that it begins a peer group of its own: in the group of
// the mount around it, each of a plugin's mounts would turn up a second time. Other namespaces receive it as
// they receive any mount, and follow its group.
absl::Status MountTmpfs(const std::string& directory) {
  const auto failed = [&directory] {
    return ErrnoStatus(errno, fmt::format("mount a tmpfs at {}", directory));
  };
  const UniqueFd context(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return failed();
  const std::pair<const char*, const char*> options[] = {
      {"source", kTreeSource}, {"size", kSize}, {"nr_inodes", kInodes}, {"mode", "0700"}};
  for (const auto& [key, value] : options) {
    if (fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0) return failed();
  }
  if (fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return failed();
  // Without nodev: a plugin may make a device node at a block volume's target.
  const UniqueFd tmpfs(fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  if (!tmpfs.valid()) return failed();
  if (!SetPropagation(tmpfs.get(), MS_SHARED)) {
    return ErrnoStatus(errno, fmt::format("make {} shared", directory));
  }
  if (move_mount(tmpfs.get(), "", AT_FDCWD, directory.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) return failed();
  return absl::OkStatus();
}

UniqueFd OpenDirectory(int at, const std::string& path) {
  return UniqueFd(openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// An operator may have opened it since it was mounted. A tree that is closed keeps its ACL, so that plugins
// that run on are not shut out meanwhile.
absl::Status CloseToOthers(const std::string& directory) {
  const UniqueFd top = OpenDirectory(AT_FDCWD, directory);
  struct stat info{};
  if (!top.valid() || fstat(top.get(), &info) != 0)
    return ErrnoStatus(errno, fmt::format("open {}", directory));
  if ((info.st_mode & S_IRWXO) == 0) return absl::OkStatus();
  if (fchmod(top.get(), 0700) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("chmod {}", directory));
}

// Before the tmpfs is mounted over what is there: what lies beneath it then is out of everybody's sight.
absl::Status CheckMayBeCovered(const std::string& directory, bool mounted) {
  if (mounted) {
    BERTH_ASSIGN_OR_RETURN(const auto mounts, MountsBeneath(directory, kMountLimit));
    for (const Mount& mount : mounts) {
      if (mount.target == directory) continue;
      return absl::FailedPreconditionError(
          fmt::format("{}: a mount that is not berthd's, and {} is mounted in it: unmount that first",
                      directory, Printable(mount.target, 256)));
    }
  }
  BERTH_ASSIGN_OR_RETURN(const SafeRoot root, SafeRoot::Open(directory));
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.List("", kEntryLimit));
  for (const std::string& name : names) {
    const auto identity = root.Look(name + "/identity.json");
    if (!identity.ok() || !identity->exists) continue;
    return absl::FailedPreconditionError(
        fmt::format("{}/{}: a volume of a berthd that was never released, whose state is not read: move {} "
                    "away, or to another state directory",
                    directory, name, directory));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsShared(const std::string& directory, const PathFacts& facts) {
  BERTH_ASSIGN_OR_RETURN(const auto told, StatMount(facts.mount_id));
  if (told.has_value()) return told->shared;
  BERTH_ASSIGN_OR_RETURN(const Mount top, TopMountAt(directory));
  return top.shared;
}

absl::Status Verify(const std::string& directory) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(directory));
  if (!facts.mount_root) {
    return absl::FailedPreconditionError(fmt::format("{}: the kernel shows no mount there", directory));
  }
  BERTH_ASSIGN_OR_RETURN(const bool shared, IsShared(directory, facts));
  if (shared) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{}: the kernel does not show it as shared: mounts made there would not be seen elsewhere", directory));
}

}  // namespace

bool IsTree(const Mount& mount) { return mount.fs_type == "tmpfs" && mount.source == kTreeSource; }

absl::StatusOr<UniqueFd> SetUpMountTree(const std::string& directory) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0700));
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(directory));
  if (!S_ISDIR(facts.mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: must be a directory, not a symlink or file", directory));
  }
  bool ours = false;
  if (facts.mount_root) {
    BERTH_ASSIGN_OR_RETURN(const Mount top, TopMountAt(directory));
    ours = IsTree(top);
  }
  UniqueFd covered;
  if (ours) {
    auto opened = OpenCovered(directory);
    if (opened.ok()) covered = *std::move(opened);
    // An operator may have made it private.
    if (mount(nullptr, directory.c_str(), nullptr, MS_SHARED, nullptr) != 0) {
      return ErrnoStatus(errno, fmt::format("make {} shared", directory));
    }
  } else {
    BERTH_RETURN_IF_ERROR(CheckMayBeCovered(directory, facts.mount_root));
    covered = OpenDirectory(AT_FDCWD, directory);
    BERTH_RETURN_IF_ERROR(MountTmpfs(directory));
  }
  BERTH_RETURN_IF_ERROR(Verify(directory));
  BERTH_RETURN_IF_ERROR(CloseToOthers(directory));
  return covered;
}

absl::Status TakeDownMountTree(const std::string& directory) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(directory));
  if (!facts.mount_root) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const Mount top, TopMountAt(directory));
  if (!IsTree(top)) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const std::string left, FirstEntry(OpenDirectory(AT_FDCWD, directory).get()));
  if (!left.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: not unmounted, since {} is left in it", directory, Printable(left, 128)));
  }
  if (umount2(directory.c_str(), UMOUNT_NOFOLLOW) != 0) {
    return ErrnoStatus(errno, fmt::format("umount {}", directory));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenCovered(const std::string& directory) {
  const std::filesystem::path path(directory);
  // A detached copy of the mount around the tree, without what is mounted in it.
  const UniqueFd around(open_tree(AT_FDCWD, path.parent_path().c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  UniqueFd covered;
  if (around.valid()) covered = OpenDirectory(around.get(), path.filename().string());
  if (covered.valid()) return covered;
  // In a user namespace, mounts from outside cannot be copied without what lies in them.
  return absl::FailedPreconditionError(
      fmt::format("{}: the directory beneath the mount cannot be opened: {}", directory, strerror(errno)));
}

}  // namespace berth
