#include "mounter/superblock.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/blocking.h"
#include "mounter/mountinfo.h"

namespace berth {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(50);
// How long a look at the mount table may take.
constexpr Duration kLook = std::chrono::seconds(2);

// Where the kernel shows what it has to write back, per file system, and as long as that lives.
std::string BooksOf(dev_t device) {
  return fmt::format("/sys/class/bdi/{}:{}", major(device), minor(device));
}

absl::StatusOr<bool> IsMountedHere(dev_t device) {
  bool mounted = false;
  BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    mounted = line.device_major == major(device) && line.device_minor == minor(device);
    return !mounted;
  }));
  return mounted;
}

// Also where it cannot be known.
Awaitable<bool> MayBeMountedHere(dev_t device) {
  auto look = [device] { return IsMountedHere(device); };
  const auto mounted =
      co_await RunBlocking("look where a file system is mounted", std::move(look), Clock::now() + kLook);
  co_return !mounted.ok() || *mounted;
}

}  // namespace

Awaitable<bool> LivesUnmounted(dev_t device, TimePoint deadline) {
  if (device == 0 || major(device) != 0) co_return false;
  const std::string books = BooksOf(device);
  const auto kept = [&books] { return access(books.c_str(), F_OK) == 0; };
  if (!kept()) co_return false;
  if (co_await MayBeMountedHere(device)) co_return false;
  while (kept()) {
    // The number may be another's by now.
    if (Clock::now() >= deadline) co_return !co_await MayBeMountedHere(device);
    co_await SleepUntil(std::min(deadline, Clock::now() + kBetweenLooks));
  }
  co_return false;
}

}  // namespace berth
