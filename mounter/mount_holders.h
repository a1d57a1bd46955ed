// Who keeps a mount busy: found in /proc, without touching the file system, which may be dead.
//
// Loop thread; the reading is done on a helper thread, and what may hang (what processes have mapped) in a
// helper process. What /proc shows is a moment's picture, and others
// write into it: every list is read up to a limit.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "mounter/mount_helper.h"
#include "mounter/mounter.h"

namespace berth {

inline constexpr size_t kHoldersShown = 64;

// For each other mount namespace in which the file system is mounted, and stays so when it is unmounted here,
// a process that is in it, then processes with an open file, a working directory, a root or a mapped file on
// the mount at `path` (as the kernel shows it), in whichever namespace. `device` is the file system's
// (PathFacts::device; 0: the one that the mount table shows at `path`): it finds those who hold the file
// system elsewhere when nothing is mounted at `path` any more. Other mounts of it in our own namespace are
// other uses of it, and not told. At most kHoldersShown. MountHolder::consumer is left empty. At the
// deadline: what was found by then; DEADLINE_EXCEEDED where that is nothing.
[[nodiscard]] Awaitable<absl::StatusOr<std::vector<MountHolder>>> HoldersOf(MountHelper& helper,
                                                                            std::string path, dev_t device,
                                                                            TimePoint deadline);

}  // namespace berth
