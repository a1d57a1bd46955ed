// The launch of a child by clone3: what process.cc and run_process.cc share. Not for others.
//
// Nothing of the parent is in the child but what its spec says. Blocks until the program runs, or has failed
// to; then nothing is left behind.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string_view>

#include "base/process.h"
#include "base/unique_fd.h"

namespace berth::process_internal {

struct Launched {
  pid_t pid = -1;
  UniqueFd pidfd;
};
[[nodiscard]] absl::StatusOr<Launched> CloneAndExecute(const ProcessSpec& spec);

// Failures for want of a resource carry one code, whatever the errno.
[[nodiscard]] absl::Status LaunchStatus(int error, std::string_view what);

// A duplicate above the standard descriptors, so that setting those up in the child cannot overwrite it.
[[nodiscard]] absl::StatusOr<UniqueFd> DuplicateHigh(int fd, std::string_view what);

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
// Close-on-exec, both ends above the standard descriptors.
[[nodiscard]] absl::StatusOr<Pipe> MakePipe();

// Waits for the end of our own child and lets go of its number.
void Reap(int pidfd);

}  // namespace berth::process_internal
