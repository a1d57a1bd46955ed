// The one directory tree in which every volume is staged and published, as a shared tmpfs of its own: other
// mount namespaces, too, see what a plugin mounts there. A directory in it never outlives the mounts of its
// boot.
//
//   <state_dir>/volumes     the tmpfs "berth-volumes"
//     beneath it            a directory on the disk, empty and immutable if its file system can do that:
//                           before berthd starts, no process can put a file where a volume is to be mounted
//
// Used at start and at shutdown, on the loop thread; OpenCovered on any thread. Touches the local disk only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "base/unique_fd.h"
#include "mounts/mount_table.h"

namespace berth {

// What the mount table shows as the source of the tmpfs.
inline constexpr char kTreeSource[] = "berth-volumes";
// Whether it is a tmpfs of ours.
[[nodiscard]] bool IsTree(const Mount& mount);

// Makes `directory` (mode 0700) if it is missing, mounts a tmpfs there unless it is mounted already, makes
// that mount shared, verifies both with the kernel, and closes the tree to other users (tree_access.h opens
// it to some). May be repeated: there is never a second tmpfs. A disk that an operator has mounted there is
// left, and the tmpfs mounted over it. Works in a user namespace too, if the caller has CAP_SYS_ADMIN there.
// Returns the directory over which it was mounted, or lies; not valid where that cannot be opened.
// FAILED_PRECONDITION: something is mounted in a mount that is not ours, or in the directory lie volumes of a
// berthd that was never released; nothing was changed.
[[nodiscard]] absl::StatusOr<UniqueFd> SetUpMountTree(const std::string& directory);

// Takes the mount away, if it is one that SetUpMountTree made; an operator's own disk there stays mounted, as
// does the directory. FAILED_PRECONDITION while something is mounted in it, open, or a file or directory is
// left in it.
[[nodiscard]] absl::Status TakeDownMountTree(const std::string& directory);

// The directory over which the tree is mounted. FAILED_PRECONDITION: the kernel does not let us past the
// mount.
[[nodiscard]] absl::StatusOr<UniqueFd> OpenCovered(const std::string& directory);

}  // namespace berth
