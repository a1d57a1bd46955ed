// Loop devices: a file as a block device.
//
// A loop device belongs to the kernel, not to us: it outlives a killed plugin. It is found again by the
// device and inode number of its backing file, never by a remembered name, since /dev/loop7 may be another
// program's by now. Blocks; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace berth::hostpath {

// Whether this process may use loop devices, and mount what is on them.
[[nodiscard]] bool LoopDevicesWork();

struct LoopDevice {
  std::string path;  // /dev/loop7
  dev_t device = 0;  // its number
  bool read_only = false;
};

struct LoopOptions {
  bool read_only = false;
  bool direct_io = false;
  // The kernel detaches the device at its last close: for a device that is mounted at once and must not be
  // left behind by a crash. Not for one that is only bind-mounted, which does not hold it open.
  bool auto_clear = false;
};

struct AttachedLoop {
  LoopDevice loop;
  UniqueFd fd;  // keeps an auto_clear device until something else holds it open
};

// Attaches `file` to a free device. RESOURCE_EXHAUSTED where none can be had.
[[nodiscard]] absl::StatusOr<AttachedLoop> AttachLoop(const std::string& file, const LoopOptions& options);

// The devices that `file` is attached to, even if it was removed since.
[[nodiscard]] absl::StatusOr<std::vector<LoopDevice>> FindLoops(const std::string& file);

// The same, without those that are detached within a second; if `device` is not 0, only that one. Programs
// that look at every block device (udev, blkid, a search for users of a volume) open one for a moment, and so
// keep it attached.
[[nodiscard]] absl::StatusOr<std::vector<LoopDevice>> FindKeptLoops(const std::string& file,
                                                                    dev_t device = 0);

// Detaches `loop` if it is still backed by `file`. UNAVAILABLE if a process keeps it open for more
// than a second (the kernel then detaches it at the last close).
[[nodiscard]] absl::Status DetachLoop(const LoopDevice& loop, const std::string& file);

// Makes the device as large as its file has become.
[[nodiscard]] absl::Status RefreshLoopCapacity(const LoopDevice& loop);

}  // namespace berth::hostpath
