#include "base/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/clock.h"
#include "base/file.h"
#include "base/number_text.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr mode_t kMode = 0600;
// A child has the descriptors of its parent until it executes its program. So the lock of a process that was
// killed may be held for a moment longer.
constexpr Duration kFreeWithin = std::chrono::seconds(2);
constexpr int kLookAgainMs = 5;

// The pid that the holder of the lock wrote; empty where it is not there yet.
std::string HolderIn(int fd) {
  std::array<char, 16> text{};
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  const std::string_view digits(text.data(), count < 0 ? 0 : static_cast<size_t>(count));
  const size_t end = digits.find_first_not_of("0123456789");
  return std::string(digits.substr(0, end));
}

bool HasEnded(const std::string& holder) {
  pid_t pid = 0;
  return ParseNumber(holder, &pid) && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

absl::StatusOr<UniqueFd> TakeLockFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (fchmod(fd.get(), kMode) != 0) return ErrnoStatus(errno, fmt::format("set the mode of {}", path));
  const TimePoint deadline = Clock::now() + kFreeWithin;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, fmt::format("lock {}", path));
    const std::string holder = HolderIn(fd.get());
    if (HasEnded(holder) && Clock::now() < deadline) {
      poll(nullptr, 0, kLookAgainMs);  // flock() itself has no bound
      continue;
    }
    return absl::FailedPreconditionError(
        fmt::format("lock {}: process {} has it", path, holder.empty() ? "(unknown)" : holder));
  }
  if (ftruncate(fd.get(), 0) != 0) return ErrnoStatus(errno, fmt::format("write {}", path));
  BERTH_RETURN_IF_ERROR(WriteAll(fd.get(), fmt::format("{}\n", getpid()), fmt::format("write {}", path)));
  return fd;
}

}  // namespace berth
