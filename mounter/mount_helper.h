// Runs berth-mount-helper (mount_helper_main.cc): the things that may hang on a dead file system, in a
// process that berthd can leave behind.
//
// Owned by the Mounter; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// Where the helper is: beside this program, else in ../libexec/berth from there, else `configured`.
// NOT_FOUND names the places.
[[nodiscard]] absl::StatusOr<std::string> FindMountHelper(const std::string& configured);

class MountHelper {
 public:
  // `reaper` outlives the helper processes that were left behind; usually the Mounter's own scope.
  MountHelper(std::string executable, TaskScope& reaper)
      : executable_(std::move(executable)), reaper_(reaper) {}

  // Takes one mount away. ErrnoOf tells why not (EBUSY, EINVAL where none is there). DEADLINE_EXCEEDED: the
  // helper hangs, and goes on hanging alone.
  [[nodiscard]] Awaitable<absl::Status> Unmount(std::string path, TimePoint deadline);

  // Whether statvfs says that `path` is read-only.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> IsReadonly(std::string path, TimePoint deadline);

 private:
  [[nodiscard]] Awaitable<absl::StatusOr<std::string>> Run(std::string operation, std::string path,
                                                           TimePoint deadline);

  std::string executable_;
  TaskScope& reaper_;
};

}  // namespace berth
