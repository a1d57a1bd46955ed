// The kernel's mounts, as the mounter asks about them.
//
// Nothing here can hang on a dead file system: it reads the mount table, never a file system. Any thread.
// Whether a path is a mount root is PathFacts::mount_root (base/safe_path.h): a microsecond with any number
// of mounts. The whole table is read only at start, and where something unexpected was left behind.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mountinfo_line.h"

namespace berth {

// More mounts than any host has: beyond it there is an error.
inline constexpr size_t kMountLimit = 1'000'000;

struct Mount {
  std::string target;  // as the kernel shows it: any bytes
  std::string source;
  std::string fs_type;
  bool shared = false;
  bool readonly = false;
  std::string options = {};  // the mount's and the file system's
};

// Every mount at or beneath `directory` in this mount namespace, in the kernel's order. Keeps at most
// `limit` (RESOURCE_EXHAUSTED beyond): their number and names are in others' hands.
[[nodiscard]] absl::StatusOr<std::vector<Mount>> MountsBeneath(const std::string& directory, size_t limit);

// Whether the mount with its root at `path` refuses writes, by its own flag or its superblock's; from
// statmount(2). Unset if the kernel has no statmount (before 6.8): then the mount helper's statvfs has to be
// used. NOT_FOUND: no mount is there.
[[nodiscard]] absl::StatusOr<std::optional<bool>> MountIsReadonly(const std::string& path);

// What is mounted on top at `path`, without its options. From the whole mount table where statmount(2) does
// not say it all (before Linux 6.13). NOT_FOUND: no mount lies there.
[[nodiscard]] absl::StatusOr<Mount> TopMountAt(const std::string& path);

// The type of the file system mounted on top at `path` ("ext4", "fuse.sshfs"), asked of statmount(2), or of
// the mount table where the kernel has no statmount. NOT_FOUND: no mount lies there.
[[nodiscard]] absl::StatusOr<std::string> FileSystemAt(const std::string& path);

}  // namespace berth
