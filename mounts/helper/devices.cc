// Whether the kernel has a file system with a device number, or a block device to itself, or has still to
// write to it.
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "mounts/census_host.h"
#include "mounts/device_node.h"
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

// 0: the kernel has this block device. ENODEV: it has not. Anything else: it is not known.
int Exists(dev_t device) {
  char sysfs[64];
  std::snprintf(sysfs, sizeof sysfs, "/sys/dev/block/%u:%u", major(device), minor(device));
  if (access(sysfs, F_OK) == 0) return 0;
  if (errno != ENOENT) return errno;
  return access("/sys/dev/block", F_OK) == 0 ? ENODEV : ENOSYS;
}

// These errors mean that the device has no disk: nothing is written to it.
bool HasNoDisk(int error) { return error == ENODEV || error == ENXIO || error == ENOMEDIUM; }

// 0: the kernel does not use the block device itself. EBUSY: it does. Anything else: it is not known.
int Claimed(dev_t device) {
  const int missing = Exists(device);
  if (missing != 0) return missing == ENODEV ? 0 : missing;
  const UniqueFd fd = OpenBlockDevice(device, O_EXCL);
  // EIO: a claim is looked for before the driver opens the device.
  return fd.valid() || HasNoDisk(errno) || errno == EIO ? 0 : errno;
}

// Whether writes to the device are in flight. False if the kernel does not count them.
bool IsWrittenTo(dev_t device) {
  char path[64];
  std::snprintf(path, sizeof path, "/sys/dev/block/%u:%u/inflight", major(device), minor(device));
  FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return false;
  unsigned reads = 0;
  unsigned writes = 0;
  const bool read = std::fscanf(file, "%u %u", &reads, &writes) == 2;
  std::fclose(file);
  return read && writes != 0;
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

// Writes to its disk what the kernel has still to write to a block device and its partitions, and waits until
// no write is in flight. There is nothing to do if the device has gone, or has another disk. An error of the
// disk is an answer, too.
int Flush(const char* text, const char* sequence) {
  dev_t device = 0;
  unsigned long long wanted = 0;
  if (!Device(text, &device) || std::sscanf(sequence, "%llu", &wanted) != 1) return Usage();
  const int missing = Exists(device);
  if (missing != 0) return Answered(missing == ENODEV ? 0 : missing);
  int failed = 0;
  CensusHost host;
  for (const dev_t part : host.PartsOf(device)) {
    const UniqueFd fd = OpenBlockDevice(part);
    if (!fd.valid() && HasNoDisk(errno)) continue;
    if (!fd.valid() && errno != EIO) return Answered(errno);
    uint64_t now = 0;
    const bool another =
        fd.valid() && wanted != 0 && ioctl(fd.get(), BLKGETDISKSEQ, &now) == 0 && now != wanted;
    if (another) return Answered(0);
    if (!fd.valid() || fsync(fd.get()) != 0) failed = errno;
  }
  // A partition that was not seen.
  if (!host.missed().empty()) return Answered(EAGAIN);
  // fsync does not wait for others' requests. The kernel does not report when they end.
  while (IsWrittenTo(device)) poll(nullptr, 0, 1);
  if (failed != 0) std::printf("failed %d\n", failed);
  return Answered(0);
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
