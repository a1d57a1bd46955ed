#include "mounts/device_node.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace berth {
namespace {

// A file system of our own, mounted nowhere.
UniqueFd PrivateDirectory() {
  const UniqueFd made(static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
  if (!made.valid()) return {};
  if (syscall(SYS_fsconfig, made.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return {};
  return UniqueFd(static_cast<int>(syscall(SYS_fsmount, made.get(), FSMOUNT_CLOEXEC, 0)));
}

// Open for its place alone.
UniqueFd OwnNode(dev_t device) {
  const UniqueFd directory = PrivateDirectory();
  constexpr mode_t kMode = S_IFBLK | S_IRUSR | S_IWUSR;
  if (!directory.valid() || mknodat(directory.get(), "device", kMode, device) != 0) return {};
  return UniqueFd(openat(directory.get(), "device", O_PATH | O_CLOEXEC));
}

// The same in /dev, by the name that the kernel gave it.
UniqueFd NodeInDev(dev_t device) {
  std::array<char, 64> sysfs{};
  std::snprintf(sysfs.data(), sysfs.size(), "/sys/dev/block/%u:%u/uevent", major(device), minor(device));
  FILE* const uevent = std::fopen(sysfs.data(), "re");
  std::array<char, 256> line{};
  std::array<char, 300> path{};
  while (uevent != nullptr && std::fgets(line.data(), line.size(), uevent) != nullptr) {
    if (std::strncmp(line.data(), "DEVNAME=", 8) != 0) continue;
    line[std::strcspn(line.data(), "\n")] = '\0';
    std::snprintf(path.data(), path.size(), "/dev/%s", line.data() + 8);
  }
  if (uevent != nullptr) std::fclose(uevent);
  UniqueFd node(path[0] == '\0' ? -1 : open(path.data(), O_PATH | O_CLOEXEC));
  struct stat is{};
  if (node.valid() && fstat(node.get(), &is) == 0 && S_ISBLK(is.st_mode) && is.st_rdev == device) return node;
  return {};
}

}  // namespace

UniqueFd OpenBlockDevice(dev_t device, int flags) {
  UniqueFd node = OwnNode(device);
  if (!node.valid()) node = NodeInDev(device);
  if (!node.valid()) {
    errno = EPERM;
    return {};
  }
  std::array<char, 32> self{};
  std::snprintf(self.data(), self.size(), "/proc/self/fd/%d", node.get());
  UniqueFd fd(open(self.data(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags));
  const int error = errno;
  node.Reset();
  errno = error;
  return fd;
}

}  // namespace berth
