// For tests and the bench: a mount namespace of the caller's own. Needs root.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/unique_fd.h"

namespace berth {

// From now on the calling thread has mounts of its own: nothing that is mounted propagates to it or from it.
// False, with errno: it may not.
//
// In a chroot "/" may be a plain directory. Mounts in it then propagate as the mount that it lies in, which
// has no path in the chroot and so cannot be made private. The directory is made a mount point, and the root
// of the namespace, as container runtimes do it.
[[nodiscard]] inline bool UnshareMounts() {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) return true;
  if (errno != EINVAL) return false;

  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  const UniqueFd root(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd own(open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC));
  // Entering a mount namespace, even the own one, leaves the chroot.
  if (!root.valid() || !own.valid() || setns(own.get(), CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  const UniqueFd tree(
      open_tree(root.get(), "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  return tree.valid() &&
         move_mount(tree.get(), "", root.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0 &&
         fchdir(tree.get()) == 0 && syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 &&
         chdir(error ? "/" : here.c_str()) == 0;
}

}  // namespace berth
