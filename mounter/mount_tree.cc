#include "mounter/mount_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "mounter/mount_table.h"
#include "mounter/statmount.h"

namespace berth {
namespace {

// A detached copy of `directory`'s mount. Beneath a mount namespace that belongs to a user namespace, mounts
// from outside are locked together and can only be copied with all that lies beneath them.
UniqueFd CopyMount(const std::string& directory) {
  constexpr unsigned kFlags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW;
  UniqueFd copy(open_tree(AT_FDCWD, directory.c_str(), kFlags));
  if (!copy.valid() && errno == EINVAL) {
    copy.Reset(open_tree(AT_FDCWD, directory.c_str(), kFlags | AT_RECURSIVE));
  }
  return copy;
}

bool SetPropagation(int fd, uint64_t propagation) {
  mount_attr attributes{};
  attributes.propagation = propagation;
  return mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0;
}

// A plain bind mount would stay in the peer group of the mount that it was copied from: with a shared root,
// each of a plugin's mounts would then turn up a second time, hidden beneath the tree. So the copy leaves
// that group and begins one of its own before it is attached; other namespaces receive the tree itself as
// they receive any mount, and follow the new group.
absl::Status MountOntoItself(const std::string& directory) {
  const UniqueFd copy = CopyMount(directory);
  if (!copy.valid()) return ErrnoStatus(errno, fmt::format("bind {}", directory));
  if (!SetPropagation(copy.get(), MS_PRIVATE) || !SetPropagation(copy.get(), MS_SHARED)) {
    return ErrnoStatus(errno, fmt::format("make {} shared", directory));
  }
  if (move_mount(copy.get(), "", AT_FDCWD, directory.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return ErrnoStatus(errno, fmt::format("mount {} onto itself", directory));
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

absl::Status SetUpMountTree(const std::string& directory) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0711));
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(directory));
  if (!S_ISDIR(facts.mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: must be a directory, not a symlink or file", directory));
  }
  if (!facts.mount_root) BERTH_RETURN_IF_ERROR(MountOntoItself(directory));
  // Of a mount that was there: by an earlier berthd, or by an operator who gave the tree a disk of its own.
  if (mount(nullptr, directory.c_str(), nullptr, MS_SHARED, nullptr) != 0) {
    return ErrnoStatus(errno, fmt::format("make {} shared", directory));
  }
  return Verify(directory);
}

absl::Status TakeDownMountTree(const std::string& directory) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(directory));
  BERTH_ASSIGN_OR_RETURN(const PathFacts parent,
                         LookAt(std::filesystem::path(directory).parent_path().string()));
  const bool onto_itself = facts.device == parent.device;
  if (!facts.mount_root || !onto_itself) return absl::OkStatus();
  if (umount2(directory.c_str(), UMOUNT_NOFOLLOW) != 0) {
    return ErrnoStatus(errno, fmt::format("umount {}", directory));
  }
  return absl::OkStatus();
}

}  // namespace berth
