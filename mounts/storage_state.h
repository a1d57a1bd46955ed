// Whether the storage under a mount, or behind a block device, is in trouble, as far as the kernel knows: no
// file system and no device is asked.
//
//   dead        the file system was shut down after an error; the disk was detached, or its number is another
//               disk's by now. Only a new mount helps.
//   read-only   the mount, its file system or the block device refuses writes: after an error, or since a
//               person made it so. Whether that is trouble depends on the request.
//
// Blocks only for the kernel's own tables (statmount(2), sysfs; before Linux 6.11 the mount table, which is
// read once for each StorageLook). Any thread.
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mounts/kernel_object.h"

namespace berth {

struct StorageState {
  bool there = false;  // a mount lies there, or a block device
  uint64_t mount_id = 0;
  dev_t device = 0;     // of the file system, or the block device itself
  std::string fs_type;  // empty: a block device, or not known
  std::string dead;     // what is wrong; empty: nothing
  std::string read_only;
};

// What the options of a superblock, as mountinfo has them, say of its health. `read_only`: it has that flag.
[[nodiscard]] StorageState StateFromOptions(std::string_view options, bool read_only);

class StorageLook {
 public:
  // `objects`: what was recorded of the volume (VolumeRecord::objects), for its disk.
  [[nodiscard]] StorageState At(const std::string& path, const std::vector<KernelObject>& objects);

 private:
  struct Shown {
    std::string fs_type;
    std::string options;
    bool read_only = false;
    dev_t device = 0;
  };
  [[nodiscard]] std::optional<Shown> Ask(const std::string& path, uint64_t mount_id);

  std::optional<std::map<std::string, Shown>> table_;  // by target
};

// Whether a block device refuses writes, as sysfs has it. Unset where it does not say.
[[nodiscard]] std::optional<bool> DeviceIsReadonly(dev_t device);

// FAILED_PRECONDITION: what is at `path` is dead, or, if it `writes`, read-only. The message says why.
[[nodiscard]] absl::Status CheckUsable(const std::string& path, const std::vector<KernelObject>& objects,
                                       bool writes);

}  // namespace berth
