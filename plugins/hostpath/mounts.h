// Mounts that this plugin makes: a file system at a staging path, and a copy of a mount (or of a device
// node) at a target.
//
// Copies are made with open_tree, given their attributes while they are still attached nowhere, and moved
// into place: a read-only publication is never writable, not even for a moment. Nothing is unmounted that
// the caller has not recognised as its own. Blocks; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "csi/csi.pb.h"

namespace berth::hostpath {

// Mount flags, parsed.
struct MountFlags {
  uint64_t attributes = 0;  // MOUNT_ATTR_…, for one mount
  uint64_t attributes_cleared = 0;
  unsigned long flags = 0;  // MS_… of the file system as a whole
  std::string data;         // the file system's own options, joined by commas
  bool read_only = false;
};
// Pure. A flag may hold several, separated by commas. INVALID_ARGUMENT for one that would change what is
// mounted rather than how (bind, remount, loop, …); the message does not show it, since flags may be
// sensitive.
[[nodiscard]] absl::StatusOr<MountFlags> ParseMountFlags(
    const ::google::protobuf::RepeatedPtrField<std::string>& flags);

// What is at a path, links not followed.
struct PathState {
  bool exists = false;
  bool mount_root = false;
  mode_t mode = 0;
  dev_t device = 0;  // of the file system there
  ino_t inode = 0;
  dev_t special = 0;  // the device that a device node stands for
};
[[nodiscard]] absl::StatusOr<PathState> LookAtPath(const std::string& path);

// Mounts the file system on `device` at `path`.
[[nodiscard]] absl::Status MountFileSystem(const std::string& device, const std::string& path,
                                           std::string_view fs_type, const MountFlags& flags);

// Makes a mounted file system read-only.
[[nodiscard]] absl::Status MakeReadOnly(const std::string& path);

// Attaches a copy of what is at `from` (a directory or a device node, not what is mounted beneath it) to
// `path`.
[[nodiscard]] absl::Status CloneMount(const std::string& from, const std::string& path,
                                      const MountFlags& flags);

// Whether what is mounted at a path is ours.
using Recognise = std::function<bool(const PathState&)>;

// Unmounts from `path` what is ours, layer by layer, down to the first that is not (which is left alone: it
// may have been there before). OK where nothing is mounted.
[[nodiscard]] absl::Status UnmountOurs(const std::string& path, const Recognise& ours);

// Makes the empty directory, or empty file, that a volume is published on. One that is there is taken if it
// is empty and nothing is mounted on it; FAILED_PRECONDITION otherwise.
[[nodiscard]] absl::Status MakeTarget(const std::string& path, bool file);

// Removes it again: an empty directory or empty file that nothing is mounted on, nothing else. OK where
// there is nothing.
[[nodiscard]] absl::Status RemoveTarget(const std::string& path);

// Hands the volume's root to the group `gid`: readable, writable and searchable for it, and inherited by
// what is made there. Any number that is no group id is INVALID_ARGUMENT.
[[nodiscard]] absl::Status ApplyMountGroup(const std::string& root, std::string_view group);
[[nodiscard]] absl::StatusOr<gid_t> ParseMountGroup(std::string_view group);

}  // namespace berth::hostpath
