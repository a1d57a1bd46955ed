#include "plugins/hostpath/loop_device.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/loop.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace berth::hostpath {
namespace {

constexpr const char* kControl = "/dev/loop-control";
// The inode number of the one user namespace without a parent (PROC_USER_INIT_INO in the kernel).
constexpr ino_t kInitialUserNamespace = 0xEFFFFFFD;
// How often a free device may be snatched away between asking for it and configuring it.
constexpr int kAttempts = 64;
// How long a program may have a device open that only looks at it, and how often we look whether it still
// has.
constexpr std::chrono::milliseconds kLookedAtFor{1000};
constexpr std::chrono::milliseconds kPause{5};

// The last three parts of `root/…/volumes/ID/image` identify it in any mount namespace in which the kernel
// resolves the name.
std::string_view LastParts(std::string_view path) {
  size_t slash = path.size();
  for (int part = 0; part < 3 && slash != std::string_view::npos && slash > 0; ++part) {
    slash = path.rfind('/', slash - 1);
  }
  return slash == std::string_view::npos ? path : path.substr(slash);
}

// Whether the open loop device is backed by the file that `info` describes.
bool BackedBy(int fd, const struct stat& file, loop_info64* info) {
  if (ioctl(fd, LOOP_GET_STATUS64, info) != 0) return false;
  return info->lo_device == file.st_dev && info->lo_inode == file.st_ino;
}

}  // namespace

bool LoopDevicesWork() {
  // Root of a user namespace may be allowed to open the devices, but may not mount what is on them.
  struct stat user_namespace{};
  if (stat("/proc/self/ns/user", &user_namespace) != 0 || user_namespace.st_ino != kInitialUserNamespace) {
    return false;
  }
  const UniqueFd control(open(kControl, O_RDWR | O_CLOEXEC));
  return control.valid();
}

absl::StatusOr<AttachedLoop> AttachLoop(const std::string& file, const LoopOptions& options) {
  const int flags = (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
  const UniqueFd backing(open(file.c_str(), flags));
  if (!backing.valid()) return ErrnoStatus(errno, fmt::format("open {}", file));
  const UniqueFd control(open(kControl, O_RDWR | O_CLOEXEC));
  if (!control.valid()) return ErrnoStatus(errno, fmt::format("open {}", kControl));

  loop_config config{};
  config.fd = static_cast<__u32>(backing.get());
  config.block_size = 512;
  if (options.read_only) config.info.lo_flags |= LO_FLAGS_READ_ONLY;
  if (options.auto_clear) config.info.lo_flags |= LO_FLAGS_AUTOCLEAR;
  if (options.direct_io) config.info.lo_flags |= LO_FLAGS_DIRECT_IO;
  // Only shown to people; cut where it does not fit.
  file.copy(reinterpret_cast<char*>(config.info.lo_file_name), LO_NAME_SIZE - 1);

  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return absl::ResourceExhaustedError(fmt::format("{}: no free loop device", kControl));
    AttachedLoop attached;
    attached.loop.path = fmt::format("/dev/loop{}", number);
    attached.fd = UniqueFd(open(attached.loop.path.c_str(), flags));
    if (!attached.fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", attached.loop.path));
    if (ioctl(attached.fd.get(), LOOP_CONFIGURE, &config) == 0) {
      struct stat info{};
      if (fstat(attached.fd.get(), &info) != 0)
        return ErrnoStatus(errno, fmt::format("stat {}", attached.loop.path));
      attached.loop.device = info.st_rdev;
      attached.loop.read_only = options.read_only;
      return attached;
    }
    if (errno != EBUSY) return ErrnoStatus(errno, fmt::format("attach {} to {}", file, attached.loop.path));
  }
  return absl::ResourceExhaustedError(
      fmt::format("attach {}: every free loop device was taken by others", file));
}

absl::StatusOr<std::vector<LoopDevice>> FindLoops(const std::string& file) {
  std::vector<LoopDevice> found;
  struct stat info{};
  const bool missing = stat(file.c_str(), &info) != 0;
  if (missing && errno != ENOENT) return ErrnoStatus(errno, fmt::format("stat {}", file));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/sys/block"), closedir);
  if (directory == nullptr) return ErrnoStatus(errno, "open /sys/block");
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with("loop")) continue;
    // Only devices that may be ours are opened: opening a foreign one could disturb it.
    const absl::StatusOr<std::string> backing =
        ReadFile(fmt::format("/sys/block/{}/loop/backing_file", name), size_t{2} * PATH_MAX);
    if (!backing.ok() || backing->find(LastParts(file)) == std::string::npos) continue;
    LoopDevice loop;
    loop.path = fmt::format("/dev/{}", name);
    const UniqueFd fd(open(loop.path.c_str(), O_RDONLY | O_CLOEXEC));
    loop_info64 status{};
    struct stat device{};
    if (!fd.valid() || fstat(fd.get(), &device) != 0) continue;
    // A file that was removed beneath its device can only be known by its name, which is never used twice.
    if (!BackedBy(fd.get(), info, &status) && !missing) continue;
    loop.device = device.st_rdev;
    loop.read_only = (status.lo_flags & LO_FLAGS_READ_ONLY) != 0;
    found.push_back(std::move(loop));
  }
  return found;
}

absl::StatusOr<std::vector<LoopDevice>> FindKeptLoops(const std::string& file, dev_t device) {
  const TimePoint until = Clock::now() + kLookedAtFor;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(std::vector<LoopDevice> found, FindLoops(file));
    if (device != 0) std::erase_if(found, [device](const LoopDevice& loop) { return loop.device != device; });
    if (found.empty() || Clock::now() >= until) return found;
    poll(nullptr, 0, static_cast<int>(kPause.count()));  // The kernel does not report the last close.
  }
}

absl::Status DetachLoop(const LoopDevice& loop, const std::string& file) {
  const auto is_this = [&](const LoopDevice& other) { return other.device == loop.device; };
  {
    // Held open, the device cannot become another file's between the look and the deed.
    const UniqueFd fd(open(loop.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", loop.path));
    std::vector<LoopDevice> present;
    BERTH_ASSIGN_OR_RETURN(present, FindLoops(file));
    if (std::none_of(present.begin(), present.end(), is_this)) return absl::OkStatus();
    if (ioctl(fd.get(), LOOP_CLR_FD) != 0 && errno != ENXIO) {
      return ErrnoStatus(errno, fmt::format("detach {}", loop.path));
    }
    // The kernel does it when the last descriptor is closed, which may be this one.
  }
  std::vector<LoopDevice> left;
  BERTH_ASSIGN_OR_RETURN(left, FindKeptLoops(file, loop.device));
  if (left.empty()) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("detach {}: a process has it open", loop.path));
}

absl::Status RefreshLoopCapacity(const LoopDevice& loop) {
  const UniqueFd fd(open(loop.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", loop.path));
  if (ioctl(fd.get(), LOOP_SET_CAPACITY) != 0) return ErrnoStatus(errno, fmt::format("resize {}", loop.path));
  return absl::OkStatus();
}

}  // namespace berth::hostpath
