// One line of a mount table, as /proc/PID/mountinfo has it, and what its fields mean. No library but the
// standard one: berth-mount-helper uses this, too. Pure; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace berth {

struct MountinfoLine {
  uint64_t id = 0;  // not the unique one; of one mount at a time, in all namespaces
  uint64_t parent = 0;
  // A mount or unmount on one member of a peer group happens on all members, and on the mounts that follow
  // the group (mount_namespaces(7)). 0: it is in no group, follows none.
  uint64_t peer_group = 0;
  uint64_t follows = 0;
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  // As the file has them, with \040 and the like: see DecodeMountinfo. They point into the line.
  std::string_view root;  // of the file system: which directory of it is mounted
  std::string_view target;
  std::string_view fs_type;
  std::string_view source;
  std::string_view options;        // the superblock's
  std::string_view mount_options;  // the mount's own
};

// Unset if the line is not in the known form.
[[nodiscard]] std::optional<MountinfoLine> ParseMountinfoLine(std::string_view line);

// Replaces each backslash with three octal digits by the byte.
[[nodiscard]] std::string DecodeMountinfo(std::string_view field);

// Of a mount's source, decoded. Never 0.
[[nodiscard]] uint64_t SourceFingerprint(std::string_view source);

// Distinguishes mounts if the kernel has no unique ids of mounts (before 6.8): a hash of its id, which is
// reused, of its file system, and of its root and target. `root` and `target` are decoded.
[[nodiscard]] uint64_t MountFingerprint(uint64_t id, dev_t device, std::string_view root,
                                        std::string_view target);

// Whether `path` is `directory` or lies in it, by their texts: absolute, without "." and "..".
[[nodiscard]] bool IsAtOrBeneath(std::string_view path, std::string_view directory);

// Whether a mount of this type shows "/" as its root, and names the server's directory in its source.
[[nodiscard]] bool SourceNamesDirectory(std::string_view fs_type);

// Whether a file system of this type lives in a process or on another machine. As mountinfo names it:
// "fuse.sshfs", "nfs4".
[[nodiscard]] bool CanDie(std::string_view fs_type);

}  // namespace berth
