// What consumers consist of, opened: shared by those who watch them and end them. Not for others.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace berth::consumer_internal {

// The process, pinned by a pidfd. Its number may have been reused before that, which its start time shows (0:
// it is read into there). NOT_FOUND: no such process. FAILED_PRECONDITION: it is another one.
// INVALID_ARGUMENT: it is a thread.
[[nodiscard]] absl::StatusOr<UniqueFd> OpenProcess(int64_t pid, uint64_t* start_time);

// cgroup.events of a group. NOT_FOUND: there is no such group. INVALID_ARGUMENT: it can be none, or the root,
// which never ends.
[[nodiscard]] absl::StatusOr<UniqueFd> OpenCgroup(const std::string& path);

}  // namespace berth::consumer_internal
