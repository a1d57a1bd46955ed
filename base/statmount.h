// One mount, asked of the kernel by its number: statmount(2), Linux 6.8 and later. Microseconds with any
// number of mounts, and no file system is asked anything. Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace berth {

struct MountFacts {
  std::string target;     // as this namespace's root sees it; empty where it cannot be reached from there
  std::string fs_type;    // "fuse.sshfs" where there is a subtype
  bool readonly = false;  // by its own flag or by its superblock's
  bool shared = false;    // what is mounted beneath it is seen in other namespaces
  dev_t device = 0;       // the file system's, as mountinfo shows it
  std::string root;       // the directory of the file system that is mounted
  std::string source;     // as mountinfo shows it; empty before Linux 6.13
  uint64_t old_id = 0;    // as /proc/PID/mountinfo and fdinfo number it: used again once the mount has gone
};

// Unset where the kernel does not have the call. NOT_FOUND: there is no such mount (any more) in this mount
// namespace. `mount_id` is the unique one (PathFacts::mount_id).
[[nodiscard]] absl::StatusOr<std::optional<MountFacts>> StatMount(uint64_t mount_id);

// What of it says whether its file system may be asked.
struct MountType {
  std::string fs_type;  // without a subtype: "fuse"
  dev_t device = 0;
};
// As StatMount, and quicker.
[[nodiscard]] absl::StatusOr<std::optional<MountType>> StatMountType(uint64_t mount_id);

// What says whether writes are refused, and whether the file system is well.
struct MountState {
  std::string fs_type;    // "fuse.sshfs" where there is a subtype
  dev_t device = 0;       // the file system's, as mountinfo shows it
  std::string options;    // the file system's own, without "ro" and "rw"
  bool readonly = false;  // by the mount's own flag or by its superblock's
};
// As StatMount; unset also before Linux 6.11, which does not show the options.
[[nodiscard]] absl::StatusOr<std::optional<MountState>> StatMountState(uint64_t mount_id);

// The unique number of the mount that has the number `old_id` (MountFacts::old_id) in this mount namespace.
// Asks for each existing mount. 0: no mount, or the kernel has no unique numbers (before 6.8).
[[nodiscard]] uint64_t UniqueMountId(uint64_t old_id);

// The unique number of the mount at `path`, or on which it lies (openat(2) says what `directory` is; a
// symlink at its end is not followed, nothing is mounted on the way), Linux 6.12 and later. No file system is
// asked, and none is kept from being unmounted. Unset where the kernel does not have the call. ErrnoOf
// ENOENT, ENOTDIR: nothing is there.
[[nodiscard]] absl::StatusOr<std::optional<uint64_t>> MountIdOf(int directory, const std::string& path);

// A number above the unique numbers of all existing mounts, in any namespace, and below those of all mounts
// made later (it is the number of a copy of the mount at `directory`, which ends at once). 0: the kernel has
// no unique numbers (before 6.8), or does not let us copy it.
[[nodiscard]] uint64_t MountIdNow(const std::string& directory);

}  // namespace berth
