// openat2(2), which glibc lacks. Close-on-exec. No library but the standard one; any thread.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/unique_fd.h"

namespace berth {

// Not valid: errno says why. `resolve`: RESOLVE_BENEATH and the like.
[[nodiscard]] inline UniqueFd OpenAt2(int directory, const char* path, int flags, uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.resolve = resolve;
  while (true) {
    UniqueFd fd(static_cast<int>(syscall(SYS_openat2, directory, path, &how, sizeof how)));
    // EAGAIN: a rename elsewhere raced with the walk; the kernel asks for another try.
    if (fd.valid() || (errno != EINTR && errno != EAGAIN)) return fd;
  }
}

}  // namespace berth
