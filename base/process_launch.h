// The launch of a child by clone3: what process.cc and run_process.cc share. Not for others.
//
// Nothing of the parent is in the child but what its spec says (process_child.h).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <string_view>

#include "base/process.h"
#include "base/unique_fd.h"

namespace berth::process_internal {

struct Launched {
  pid_t pid = -1;
  UniqueFd pidfd;
};
enum class Execute { kProgram, kNothing };
// Process::Launch without the object; kNothing: Process::Try, which gives no process.
[[nodiscard]] Awaitable<absl::StatusOr<Launched>> CloneAndExecute(ProcessSpec spec, TimePoint deadline,
                                                                  Execute execute = Execute::kProgram);

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

// Waits until `descriptor` can be read from, or has hung up (a pidfd: the process has ended). False at the
// deadline. Throws operation_aborted when cancelled.
[[nodiscard]] Awaitable<bool> WaitReadable(asio::posix::stream_descriptor& descriptor, TimePoint deadline);

// Kills a child of ours without a waiter, and reaps it on a thread of its own, whenever it ends.
void KillAndReapLater(UniqueFd pidfd);

}  // namespace berth::process_internal
