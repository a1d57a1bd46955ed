#include "mounts/kernel_object.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/mountinfo.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

constexpr size_t kSequenceFileLimit = 64;

// The block device that a mount's source names, by the kernel's own name of it in sysfs; 0: the
// source names no device. It is what a user wrote, and may lie on a file system that does not answer: it is
// not looked up.
dev_t DeviceNamed(std::string_view source) {
  constexpr std::string_view kLead = "/dev/";
  if (!source.starts_with(kLead) || source.find('/', kLead.size()) != std::string_view::npos) return 0;
  const auto number =
      ReadFile(fmt::format("/sys/class/block/{}/dev", source.substr(kLead.size())), kSequenceFileLimit);
  unsigned major_number = 0;
  unsigned minor_number = 0;
  if (!number.ok() || std::sscanf(number->c_str(), "%u:%u", &major_number, &minor_number) != 2) return 0;
  return makedev(major_number, minor_number);
}

}  // namespace

absl::StatusOr<KernelObject> ShownAt(const std::string& path, const PathFacts& facts) {
  KernelObject object{.device = facts.device, .inode_device = facts.device, .inode = facts.inode};
  BERTH_ASSIGN_OR_RETURN(const auto told, StatMount(facts.mount_id));
  if (told.has_value() && (!told->source.empty() || major(told->device) != 0)) {
    // The file system's number: of a btrfs subvolume stat(2) shows another one.
    object.device = told->device;
    object.root = told->root;
    object.fs_type = told->fs_type;
    object.source = told->source;
  } else {
    bool found = false;
    // The last line is the topmost mount.
    BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
      if (DecodeMountinfo(line.target) != path) return true;
      found = true;
      object.device = makedev(line.device_major, line.device_minor);
      object.root = DecodeMountinfo(line.root);
      object.fs_type = line.fs_type;
      object.source = DecodeMountinfo(line.source);
      return true;
    }));
    if (!found) return absl::UnavailableError(fmt::format("{}: its mount has gone meanwhile", path));
  }
  return object;
}

namespace {

// The same, with the disk behind it, as it is recorded.
absl::StatusOr<KernelObject> FileSystemOf(const std::string& path, const PathFacts& facts) {
  BERTH_ASSIGN_OR_RETURN(KernelObject object, ShownAt(path, facts));
  object.disk = major(object.device) != 0 ? object.device : DeviceNamed(object.source);
  if (object.disk != 0) object.disk_sequence = DiskSequence(object.disk);
  if (major(object.device) != 0) {
    object.source.clear();
  } else if (!SourceNamesDirectory(object.fs_type)) {
    object.source_fingerprint = SourceFingerprint(object.source);
    object.source.clear();
  }
  return object;
}

}  // namespace

absl::StatusOr<std::vector<KernelObject>> ObjectsAt(const std::string& path, const std::string& tree) {
  std::vector<KernelObject> objects;
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  if (!facts.exists) return objects;
  if (facts.mount_root) {
    BERTH_ASSIGN_OR_RETURN(KernelObject mounted, FileSystemOf(path, facts));
    objects.push_back(std::move(mounted));
  }
  if (!S_ISBLK(facts.mode)) return objects;
  if (!facts.mount_root && path.starts_with(tree)) {
    // A node that the plugin made in the tree: a bind of it shows the tree's file system and its path there.
    BERTH_ASSIGN_OR_RETURN(const PathFacts above, LookAt(tree));
    if (above.mount_root) {
      BERTH_ASSIGN_OR_RETURN(KernelObject node, FileSystemOf(tree, above));
      node.root = (node.root == "/" ? "" : node.root) + path.substr(tree.size());
      node.inode = 0;  // the tree's own: what counts is the device
      objects.push_back(std::move(node));
    }
  }
  objects.push_back({.block_device = true,
                     .device = facts.special,
                     .disk = facts.special,
                     .disk_sequence = DiskSequence(facts.special)});
  return objects;
}

bool IsSameObject(const KernelObject& one, const KernelObject& other) {
  if (one.device == 0 || other.device == 0) return false;
  if (one.block_device || other.block_device) {
    return one.disk != 0 && one.disk == other.disk && one.disk_sequence == other.disk_sequence;
  }
  return one.inode_device == other.inode_device && one.inode != 0 && one.inode == other.inode;
}

void MergeObjects(const std::vector<KernelObject>& found, std::vector<KernelObject>* objects) {
  for (const KernelObject& object : found) {
    // Of one that was noted while its file system did not answer, or by an older berthd, the inode comes
    // later.
    const auto known = std::ranges::find_if(*objects, [&object](KernelObject each) {
      if (each.inode == 0 || object.inode == 0) each.inode = object.inode;
      return each == object;
    });
    if (known == objects->end()) {
      objects->push_back(object);
    } else if (known->inode == 0) {
      known->inode = object.inode;
    }
  }
}

namespace {

// 0: there is no such device, or it has no number. An error: the kernel has not said.
absl::StatusOr<uint64_t> AskForSequence(dev_t device) {
  constexpr const char* kDevices = "/sys/dev/block";
  const std::string disk = fmt::format("{}/{}:{}", kDevices, major(device), minor(device));
  // A loop device outlives the file that it was attached to.
  constexpr unsigned kLoopMajor = 7;
  if (major(device) == kLoopMajor && access((disk + "/loop").c_str(), F_OK) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, disk);
  } else {
    // Of a partition: its disk's.
    for (const char* const file : {"/diskseq", "/../diskseq"}) {
      const auto text = ReadFile(disk + file, kSequenceFileLimit);
      if (!text.ok() && ErrnoOf(text.status()) == ENOENT) continue;
      if (!text.ok()) return text.status();
      uint64_t sequence = 0;
      std::from_chars(text->data(), text->data() + text->size(), sequence);
      return sequence;
    }
  }
  if (access(kDevices, F_OK) != 0) return ErrnoStatus(errno, kDevices);
  return 0;
}

}  // namespace

uint64_t DiskSequence(dev_t device) { return AskForSequence(device).value_or(0); }

bool DiskIsGone(const KernelObject& object) {
  if (object.disk_sequence == 0) return false;
  const auto now = AskForSequence(object.disk);
  return now.ok() && *now != object.disk_sequence;
}

}  // namespace berth
