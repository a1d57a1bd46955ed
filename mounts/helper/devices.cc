// Whether the kernel has a file system with a device number, or a block device to itself.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "mounts/helper/operations.h"

namespace berth::mount_helper {
namespace {

bool Device(const char* text, dev_t* device) {
  unsigned long numbers[2] = {0, 0};
  const char* const colon = std::strchr(text, ':');
  char first[16];
  if (colon == nullptr || static_cast<size_t>(colon - text) >= sizeof first) return false;
  std::memcpy(first, text, static_cast<size_t>(colon - text));
  first[colon - text] = '\0';
  if (!Number(first, 10, 0xFFF, &numbers[0]) || !Number(colon + 1, 10, 0xFFFFF, &numbers[1])) return false;
  *device = makedev(numbers[0], numbers[1]);
  return true;
}

// How open(2) of a block device with this number ends.
int OpenExclusively(dev_t device) {
  char sysfs[64];
  std::snprintf(sysfs, sizeof sysfs, "/sys/dev/block/%u:%u/uevent", major(device), minor(device));
  FILE* const uevent = std::fopen(sysfs, "re");
  if (uevent == nullptr) return errno;
  char line[256];
  char path[300] = "";
  while (std::fgets(line, sizeof line, uevent) != nullptr) {
    if (std::strncmp(line, "DEVNAME=", 8) != 0) continue;
    line[std::strcspn(line, "\n")] = '\0';
    std::snprintf(path, sizeof path, "/dev/%s", line + 8);
  }
  std::fclose(uevent);
  const int place = open(path, O_PATH | O_CLOEXEC);
  if (place < 0) return errno;
  // The name may be another device's by now, or another file's.
  struct stat is{};
  const bool found = fstat(place, &is) == 0 && S_ISBLK(is.st_mode) && is.st_rdev == device;
  char self[64];
  std::snprintf(self, sizeof self, "/proc/self/fd/%d", place);
  const int fd = found ? open(self, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC) : -1;
  const int error = found ? errno : ENODEV;
  if (fd >= 0) close(fd);
  close(place);
  return fd >= 0 ? 0 : error;
}

// 0: the kernel does not use the block device itself. EBUSY: it does. Anything else: it is not known.
int Claimed(dev_t device) {
  switch (const int error = OpenExclusively(device)) {
    case ENOENT:
    case ENODEV:
    case ENXIO:  // it is gone
    case EIO:
    case ENOMEDIUM:  // a claim is looked for before the driver opens the device
      return 0;
    default:
      return error;
  }
}

// 0: no file system has this number. EBUSY: one has. ENOSYS, EPERM: this kernel cannot be asked.
int HasSuperblock(dev_t device) {
#ifdef SYS_ustat
  // The kernel's own form of a number: 12 bits major, 20 bits minor. What it writes is of no interest.
  const unsigned number = (minor(device) & 0xFFU) | (major(device) << 8U) | ((minor(device) & ~0xFFU) << 12U);
  char ignored[256];
  if (syscall(SYS_ustat, number, ignored) == 0) return EBUSY;
  if (errno == EINVAL) return 0;
  // A file system exists also if its own answer failed (a dead server).
  return errno == ENOSYS || errno == EPERM ? errno : EBUSY;
#else
  static_cast<void>(device);
  return ENOSYS;
#endif
}

}  // namespace

int Exclusive(const char* text) {
  dev_t device = 0;
  if (!Device(text, &device)) return Usage();
  return Answered(Claimed(device));
}

int Superblock(int argc, char** argv) {
  dev_t device = 0;
  dev_t disk = 0;
  if (argc < 3 || argc > 4 || !Device(argv[2], &device)) return Usage();
  if (argc == 4 && !Device(argv[3], &disk)) return Usage();
  int error = HasSuperblock(device);
  if (error != EBUSY && disk != 0) {
    // Milliseconds, as a rule. The kernel does not report when a claim ends.
    constexpr int kTries = 1000;
    error = Claimed(disk);
    for (int i = 0; i < kTries && error == EBUSY; ++i) {
      poll(nullptr, 0, 1);
      error = Claimed(disk);
    }
  }
  if (error != 0 && error != EBUSY) return Answered(error);
  std::puts(error == EBUSY ? "alive 1" : "alive 0");
  return 0;
}

}  // namespace berth::mount_helper
