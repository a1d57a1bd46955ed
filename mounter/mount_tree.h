// The one directory tree beneath which every volume is staged and published, as a shared mount of its own:
// what a plugin mounts there is seen by whoever runs beside it, in other mount namespaces too.
//
// Owned by the Mounter; used at start and at shutdown, on the loop thread. Touches the local disk only.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace berth {

// Makes `directory` (mode 0711) if it is missing, mounts it onto itself unless it is a mount already, makes
// that mount shared, and verifies both with the kernel. May be repeated: there is never a second mount.
// Works in a user namespace too, if the caller has CAP_SYS_ADMIN there.
[[nodiscard]] absl::Status SetUpMountTree(const std::string& directory);

// Takes the mount away, if it is one that SetUpMountTree made; an operator's own disk there stays mounted, as
// does the directory. FAILED_PRECONDITION while something is mounted in it, or open.
[[nodiscard]] absl::Status TakeDownMountTree(const std::string& directory);

}  // namespace berth
