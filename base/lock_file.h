// A lock between processes that no other user can take: a file with mode 0600.
//
// flock() needs only a descriptor for reading. So a file or a directory that others may read is no place for
// a lock: any user could keep it for ever. Any thread; a call may block for two seconds.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/unique_fd.h"

namespace berth {

// Makes the file at `path` if it does not exist, and locks it until the descriptor is closed. The file stays:
// it cannot be removed without a race. FAILED_PRECONDITION: another process has the lock; the message names
// it. If that process has ended, its children get two seconds to execute their programs or to end: until then
// they have the lock. Other errors have the errno's code.
[[nodiscard]] absl::StatusOr<UniqueFd> TakeLockFile(const std::string& path);

}  // namespace berth
