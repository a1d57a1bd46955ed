// What the kernel has of a volume: the file system that is mounted for it, or its block device. While the
// kernel has one of them anywhere on the node, the volume is not released (volume_release.h).
//
//   volume                   objects recorded
//   own file system          device of its superblock, root "/"
//   directory, NFS subtree   the same device as others use, and the root path (NFS: the source) of this one
//   raw block                the block device itself, and the bind mount of its node
//
// An object without a device stands for one that is not known: only a reboot ends it.
//
// Values and pure functions; any thread. ObjectsAt asks the kernel, and touches no file system.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/safe_path.h"

namespace berth {

struct KernelObject {
  // A block device that a process may open; else a mounted file system.
  bool block_device = false;
  // The file system's device number, as mountinfo shows it, or the block device's own.
  dev_t device = 0;
  // The same as stat(2) shows it: of a btrfs subvolume it is another number.
  dev_t inode_device = 0;
  // The block device that holds its data: `device`, or of btrfs the one that it was mounted from. 0: it has
  // none, as a network file system. And the kernel's sequence number of the disk behind that number
  // (/sys/dev/block/M:m/diskseq): another one means that the device was detached since. 0: unknown.
  dev_t disk = 0;
  uint64_t disk_sequence = 0;
  // Of a file system: the directory of it that is mounted, and its type, as mountinfo shows them.
  std::string root = {};
  std::string fs_type = {};
  // The inode number of that directory. 0: not known.
  uint64_t inode = 0;
  // Of a network file system: the source as mountinfo shows it, for that names the directory there. Of others
  // without a block device it may hold more than should be written down: its SourceFingerprint
  // (mountinfo_line.h), by which one is told from another that has its device number by now. 0: not known.
  std::string source = {};
  uint64_t source_fingerprint = 0;

  bool operator==(const KernelObject&) const = default;

  // A whole file system on a block device: the kernel ends its superblock with its last user. Of others the
  // same file system may have other uses.
  [[nodiscard]] bool IsWholeDisk() const { return !block_device && disk != 0 && root == "/"; }
};

// What the kernel has at `path`: the mount that lies there, and the block device that it shows, if it is one.
// Empty: nothing is mounted there, and no block device is there. `tree` is the volume tree's root: a device
// node that lies in the tree without a mount of its own is found there.
[[nodiscard]] absl::StatusOr<std::vector<KernelObject>> ObjectsAt(const std::string& path,
                                                                  const std::string& tree);

// The file system and the directory of it that the mount at `path` shows; `facts` are LookAt's. Without its
// disk.
[[nodiscard]] absl::StatusOr<KernelObject> ShownAt(const std::string& path, const PathFacts& facts);

// Whether both are one object to the kernel: one directory (device and inode), one block device, or a block
// device and the file system on it. False if an inode is not known.
[[nodiscard]] bool IsSameObject(const KernelObject& one, const KernelObject& other);

// Adds what of `found` is not in `objects` yet.
void MergeObjects(const std::vector<KernelObject>& found, std::vector<KernelObject>* objects);

// The disk behind a block device's number now; 0: there is no such device, or this kernel does not number
// disks (before 5.15), or it has not said. Reads sysfs.
[[nodiscard]] uint64_t DiskSequence(dev_t device);

// Whether the disk of an object has been detached or replaced since: then the kernel has nothing of it. False
// for an object without a disk, or with an unknown disk number, and where the kernel cannot be asked.
[[nodiscard]] bool DiskIsGone(const KernelObject& object);

}  // namespace berth
