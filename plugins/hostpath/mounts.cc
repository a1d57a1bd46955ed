#include "plugins/hostpath/mounts.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/number_text.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

// A flag that Linux knows for every file system, and what it does to one mount and to the whole.
struct GenericFlag {
  std::string_view name;
  uint64_t set = 0;
  uint64_t clear = 0;
  unsigned long whole = 0;
};
constexpr GenericFlag kGenericFlags[] = {
    {"ro", MOUNT_ATTR_RDONLY, 0, 0},
    {"rw", 0, MOUNT_ATTR_RDONLY, 0},
    {"nosuid", MOUNT_ATTR_NOSUID, 0, 0},
    {"suid", 0, MOUNT_ATTR_NOSUID, 0},
    {"nodev", MOUNT_ATTR_NODEV, 0, 0},
    {"dev", 0, MOUNT_ATTR_NODEV, 0},
    {"noexec", MOUNT_ATTR_NOEXEC, 0, 0},
    {"exec", 0, MOUNT_ATTR_NOEXEC, 0},
    {"nodiratime", MOUNT_ATTR_NODIRATIME, 0, 0},
    {"diratime", 0, MOUNT_ATTR_NODIRATIME, 0},
    {"noatime", MOUNT_ATTR_NOATIME, MOUNT_ATTR__ATIME, 0},
    {"strictatime", MOUNT_ATTR_STRICTATIME, MOUNT_ATTR__ATIME, 0},
    {"relatime", 0, MOUNT_ATTR__ATIME, 0},
    {"nosymfollow", MOUNT_ATTR_NOSYMFOLLOW, 0, 0},
    {"sync", 0, 0, MS_SYNCHRONOUS},
    {"dirsync", 0, 0, MS_DIRSYNC},
    {"lazytime", 0, 0, MS_LAZYTIME},
    {"silent", 0, 0, MS_SILENT},
    {"defaults", 0, 0, 0},
    {"async", 0, 0, 0},
    {"atime", 0, 0, 0},
    {"nolazytime", 0, 0, 0},
};

constexpr std::string_view kForbiddenFlags[] = {
    "bind",    "rbind",   "move",     "remount", "loop",   "offset",     "sizelimit",  "shared",
    "rshared", "private", "rprivate", "slave",   "rslave", "unbindable", "runbindable"};

// The options in `text`: separated by commas, but not by one within double quotes.
std::vector<std::string_view> SplitOptions(std::string_view text) {
  std::vector<std::string_view> options;
  bool quoted = false;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '"') quoted = !quoted;
    if (i < text.size() && (text[i] != ',' || quoted)) continue;
    if (i > begin) options.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return options;
}

// The flags of mount(2) that say what the attributes of mount_setattr(2) say. A file system that is mounted
// read-only is so as a whole.
unsigned long AsMountFlags(const MountFlags& flags) {
  unsigned long result = flags.flags;
  if (flags.read_only) result |= MS_RDONLY;
  if ((flags.attributes & MOUNT_ATTR_NOSUID) != 0) result |= MS_NOSUID;
  if ((flags.attributes & MOUNT_ATTR_NODEV) != 0) result |= MS_NODEV;
  if ((flags.attributes & MOUNT_ATTR_NOEXEC) != 0) result |= MS_NOEXEC;
  if ((flags.attributes & MOUNT_ATTR_NODIRATIME) != 0) result |= MS_NODIRATIME;
  if ((flags.attributes & MOUNT_ATTR_NOATIME) != 0) result |= MS_NOATIME;
  if ((flags.attributes & MOUNT_ATTR_STRICTATIME) != 0) result |= MS_STRICTATIME;
  if ((flags.attributes & MOUNT_ATTR_NOSYMFOLLOW) != 0) result |= MS_NOSYMFOLLOW;
  return result;
}

bool IsEmptyDirectory(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (directory == nullptr) return false;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<MountFlags> ParseMountFlags(const ::google::protobuf::RepeatedPtrField<std::string>& flags) {
  MountFlags parsed;
  for (const std::string& text : flags) {
    if (text.find('\0') != std::string::npos)
      return absl::InvalidArgumentError("mount_flags: holds a NUL byte");
    for (const std::string_view option : SplitOptions(text)) {
      const std::string_view name = option.substr(0, option.find('='));
      if (std::find(std::begin(kForbiddenFlags), std::end(kForbiddenFlags), name) !=
          std::end(kForbiddenFlags)) {
        return absl::InvalidArgumentError(
            "mount_flags: one of them says what to mount or how mounts propagate, which is not the caller's "
            "to say");
      }
      const auto* generic = std::find_if(std::begin(kGenericFlags), std::end(kGenericFlags),
                                         [&](const GenericFlag& flag) { return flag.name == option; });
      if (generic == std::end(kGenericFlags)) {
        if (!parsed.data.empty()) parsed.data += ',';
        parsed.data += option;
        continue;
      }
      // The last of two that contradict each other counts.
      parsed.attributes = (parsed.attributes & ~generic->clear) | generic->set;
      parsed.attributes_cleared = (parsed.attributes_cleared & ~generic->set) | generic->clear;
      parsed.flags |= generic->whole;
    }
  }
  parsed.read_only = (parsed.attributes & MOUNT_ATTR_RDONLY) != 0;
  return parsed;
}

absl::StatusOr<PathState> LookAtPath(const std::string& path) {
  struct statx info{};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  int result = statx(AT_FDCWD, path.c_str(), kFlags, STATX_BASIC_STATS, &info);
  // Its server is gone. What the kernel remembers of it is enough to unmount it.
  if (result != 0 && errno == ENOTCONN) {
    result = statx(AT_FDCWD, path.c_str(), kFlags | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &info);
  }
  if (result != 0) {
    if (errno == ENOENT) return PathState{};
    return ErrnoStatus(errno, fmt::format("stat {}", path));
  }
  PathState state;
  state.exists = true;
  state.mount_root = (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  state.mode = info.stx_mode;
  state.device = makedev(info.stx_dev_major, info.stx_dev_minor);
  state.inode = info.stx_ino;
  state.special = makedev(info.stx_rdev_major, info.stx_rdev_minor);
  return state;
}

absl::Status MountFileSystem(const std::string& device, const std::string& path, std::string_view fs_type,
                             const MountFlags& flags) {
  const std::string type(fs_type);
  if (mount(device.c_str(), path.c_str(), type.c_str(), AsMountFlags(flags), flags.data.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL && !flags.data.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("mount {}: the kernel refuses one of the mount flags for {}", path, type));
  }
  return ErrnoStatus(errno, fmt::format("mount {} as {} at {}", device, type, path));
}

absl::Status MakeReadOnly(const std::string& path) {
  if (mount(nullptr, path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("remount {} read-only", path));
}

absl::Status CloneMount(const std::string& from, const std::string& path, const MountFlags& flags) {
  const UniqueFd tree(
      open_tree(AT_FDCWD, from.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW));
  if (!tree.valid()) return ErrnoStatus(errno, fmt::format("clone the mount at {}", from));
  mount_attr attributes{};
  attributes.attr_set = flags.attributes;
  if (flags.read_only) attributes.attr_set |= MOUNT_ATTR_RDONLY;
  // A time attribute replaces the one that the copy inherited; anything else is only ever added here.
  attributes.attr_clr = flags.attributes_cleared & MOUNT_ATTR__ATIME;
  if ((attributes.attr_set != 0 || attributes.attr_clr != 0) &&
      mount_setattr(tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return ErrnoStatus(errno, fmt::format("set the attributes of the mount for {}", path));
  }
  if (move_mount(tree.get(), "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return ErrnoStatus(errno, fmt::format("mount {} at {}", from, path));
  }
  return absl::OkStatus();
}

absl::Status UnmountOurs(const std::string& path, const Recognise& ours) {
  while (true) {
    PathState state;
    BERTH_ASSIGN_OR_RETURN(state, LookAtPath(path));
    if (!state.exists || !state.mount_root || !ours(state)) return absl::OkStatus();
    if (umount2(path.c_str(), UMOUNT_NOFOLLOW) != 0)
      return ErrnoStatus(errno, fmt::format("unmount {}", path));
  }
}

absl::Status MakeTarget(const std::string& path, bool file) {
  if (file) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd.valid()) return absl::OkStatus();
  } else if (mkdir(path.c_str(), 0750) == 0) {
    return absl::OkStatus();
  }
  if (errno == ENOENT) {
    return absl::FailedPreconditionError(
        fmt::format("make {}: its parent directory is not there, which the caller makes", path));
  }
  if (errno != EEXIST) return ErrnoStatus(errno, fmt::format("make {}", path));
  PathState state;
  BERTH_ASSIGN_OR_RETURN(state, LookAtPath(path));
  if (state.mount_root) {
    return absl::FailedPreconditionError(fmt::format("{}: something else is mounted there", path));
  }
  bool usable = false;
  if (file) {
    struct stat info{};
    usable = S_ISREG(state.mode) && lstat(path.c_str(), &info) == 0 && info.st_size == 0;
  } else {
    usable = S_ISDIR(state.mode) && IsEmptyDirectory(path);
  }
  if (usable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: it exists already, and is not an empty {}", path, file ? "file" : "directory"));
}

absl::Status RemoveTarget(const std::string& path) {
  PathState state;
  BERTH_ASSIGN_OR_RETURN(state, LookAtPath(path));
  if (!state.exists) return absl::OkStatus();
  if (state.mount_root) {
    return absl::FailedPreconditionError(
        fmt::format("remove {}: device {}:{} is mounted there, which is not this volume", path,
                    major(state.device), minor(state.device)));
  }
  if (S_ISREG(state.mode)) {
    struct stat info{};
    if (lstat(path.c_str(), &info) == 0 && info.st_size != 0) {
      return absl::FailedPreconditionError(fmt::format("remove {}: it is not empty", path));
    }
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("remove {}", path));
  }
  if (!S_ISDIR(state.mode)) {
    return absl::FailedPreconditionError(
        fmt::format("remove {}: it is neither a directory nor a file", path));
  }
  if (rmdir(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("remove {}", path));
}

absl::StatusOr<gid_t> ParseMountGroup(std::string_view group) {
  uint32_t gid = 0;
  // The largest number means "no change" to the kernel.
  if (!ParseNumber(group, &gid) || gid == UINT32_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("volume_mount_group: \"{}\" is not the number of a group", Printable(group, 64)));
  }
  return gid;
}

absl::Status ApplyMountGroup(const std::string& root, std::string_view group) {
  gid_t gid = 0;
  BERTH_ASSIGN_OR_RETURN(gid, ParseMountGroup(group));
  const UniqueFd fd(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", root));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", root));
  const mode_t mode = (info.st_mode & 07777) | 02070;
  if (info.st_gid == gid && (info.st_mode & 07777) == mode) return absl::OkStatus();
  // The mode after the owner: changing the owner may clear the set-group-id bit.
  if (fchown(fd.get(), static_cast<uid_t>(-1), gid) != 0) {
    return ErrnoStatus(errno, fmt::format("give {} to group {}", root, gid));
  }
  if (fchmod(fd.get(), mode) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", root));
  return absl::OkStatus();
}

}  // namespace berth::hostpath
