// A volume at a path of the operator's: mounted there, unmounted, and the directory as it was before.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "base/mount_calls.h"
#include "mounts/helper/operations.h"

namespace berth::mount_helper {
namespace {

// Says what mount-path did to a directory: kFlagged, or kMade where it made the directory, too. Only where it
// is there free-path undoes that. An immutable flag that an operator has set stays his.
constexpr const char* kGuardMark = "trusted.berth.path";
constexpr char kFlagged = 'f';
constexpr char kMade = 'm';
constexpr int kNamesShown = 5;

// What is at `fd`, without waking its file system.
int Look(int fd, struct statx* info) {
  constexpr int kFlags = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  constexpr unsigned kWanted = STATX_TYPE | STATX_INO | STATX_MNT_ID | kStatxMountIdUnique;
  return statx(fd, "", kFlags, kWanted, info) == 0 ? 0 : errno;
}

bool IsMountRoot(const struct statx& info) { return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0; }

bool SameRoot(const struct statx& a, const struct statx& b) {
  return IsMountRoot(a) && IsMountRoot(b) && a.stx_dev_major == b.stx_dev_major &&
         a.stx_dev_minor == b.stx_dev_minor && a.stx_ino == b.stx_ino;
}

// A directory's parent, opened without following a symlink, and its name in there.
struct Entry {
  int parent = -1;
  int error = 0;
  const char* name = nullptr;
};

Entry OpenParent(const char* path) {
  Entry entry;
  const char* const slash = std::strrchr(path, '/');
  const size_t length = static_cast<size_t>(slash - path);
  static char parent[PATH_MAX];
  if (length >= sizeof parent || slash[1] == '\0') {
    entry.error = EINVAL;
    return entry;
  }
  std::memcpy(parent, path, length);
  parent[length] = '\0';
  entry.parent = OpenAt(AT_FDCWD, length == 0 ? "/" : parent, O_PATH | O_DIRECTORY, kNoSymlinks);
  if (entry.parent < 0) entry.error = errno;
  entry.name = slash + 1;
  return entry;
}

int OpenDirectory(const Entry& entry, int flags) {
  return OpenAt(entry.parent, entry.name, flags | O_DIRECTORY, kNoSymlinks);
}

// How many names are in the directory `fd`; the first of them into `names`. Negative: an errno.
int CountEntries(int fd, char (*names)[NAME_MAX + 1]) {
  const int copy = OpenAt(fd, ".", O_RDONLY | O_DIRECTORY, kNoSymlinks);
  DIR* const entries = copy < 0 ? nullptr : fdopendir(copy);
  if (entries == nullptr) return -errno;
  int count = 0;
  constexpr int kCountLimit = 100'000;
  errno = 0;
  while (const dirent* const entry = readdir(entries)) {
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    if (count < kNamesShown) std::snprintf(names[count], NAME_MAX + 1, "%s", entry->d_name);
    if (++count == kCountLimit) break;
  }
  const int error = count == 0 ? errno : 0;
  closedir(entries);
  return error != 0 ? -error : count;
}

int SayOccupied(int count, char (*names)[NAME_MAX + 1]) {
  const int shown = count < kNamesShown ? count : kNamesShown;
  std::printf("occupied %d\n", count - shown);
  for (int i = 0; i < shown; ++i) std::fwrite(names[i], 1, std::strlen(names[i]) + 1, stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// Makes the directory `fd` immutable, so that no process writes there while nothing is mounted on it. Returns
// the errno. `changed`: it was not so before.
int SetImmutable(int fd, bool made, bool* changed) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return errno;
  if ((flags & FS_IMMUTABLE_FL) != 0) return 0;
  // First: on an immutable directory no attribute can be set. A mark that is there already stays.
  const char mark = made ? kMade : kFlagged;
  if (fsetxattr(fd, kGuardMark, &mark, 1, XATTR_CREATE) != 0 && errno != EEXIST) return errno;
  flags |= FS_IMMUTABLE_FL;
  if (ioctl(fd, FS_IOC_SETFLAGS, &flags) != 0) return errno;
  *changed = true;
  return 0;
}

int ClearImmutable(int fd) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return errno;
  flags &= ~FS_IMMUTABLE_FL;
  return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0 ? 0 : errno;
}

// One helper at a time works on a path, also one that a killed berthd has left behind: by the byte of the
// file `locks` at the path's hash, until this process ends. The directory itself would not do: any process
// that may open it may lock it.
int Lock(const char* locks, const char* path) {
  const int file = open(locks, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return errno;
  unsigned long long hash = 14695981039346656037ULL;  // FNV-1a
  for (; *path != '\0'; ++path) hash = (hash ^ static_cast<unsigned char>(*path)) * 1099511628211ULL;
  struct flock byte{};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>(hash >> 2);
  byte.l_len = 1;
  while (fcntl(file, F_SETLKW, &byte) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

struct PathOptions {
  const char* locks = nullptr;
  const char* path = nullptr;
  pid_t parent = 0;
  bool readonly = false;
  bool suid = false;
  bool dev = false;
};

// A mount of what is mounted at `source`, at the directory `fd`: its flags are right from its first moment
// on.
int MountOn(int source, int fd, const PathOptions& options) {
  const int tree = static_cast<int>(
      syscall(SYS_open_tree, source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (tree < 0) return errno;
  mount_attr attributes{};
  if (options.readonly) attributes.attr_set |= MOUNT_ATTR_RDONLY;
  if (!options.suid) attributes.attr_set |= MOUNT_ATTR_NOSUID;
  if (!options.dev) attributes.attr_set |= MOUNT_ATTR_NODEV;
  // It leaves the peer group of the tree; at a shared mount it gets one of its own.
  attributes.propagation = MS_PRIVATE;
  int error = 0;
  if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) error = errno;
  if (error == 0 &&
      syscall(SYS_move_mount, tree, "", fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
    error = errno;
  }
  close(tree);
  return error;
}

int SayMounted(const struct statx& info, bool fresh, int guard) {
  std::printf("mounted %llu %d %d\n", static_cast<unsigned long long>(info.stx_mnt_id), fresh ? 1 : 0, guard);
  return 0;
}

// Mounts on the directory `place`, which is not mounted on.
int MountOnDirectory(const Entry& entry, int place, int source, bool made, const PathOptions& options) {
  const int directory = OpenAt(place, ".", O_RDONLY | O_DIRECTORY, kNoSymlinks);
  if (directory < 0) return Answered(errno);
  if (const int error = Lock(options.locks, options.path); error != 0) return Answered(error);
  // The next berthd is at work on it by now.
  if (getppid() != options.parent) return Answered(ECANCELED);
  static char names[kNamesShown][NAME_MAX + 1];
  int count = CountEntries(directory, names);
  if (count < 0) return Answered(-count);
  if (count > 0) return SayOccupied(count, names);
  bool changed = false;
  const int guard = SetImmutable(directory, made, &changed);
  // A process may have written there before the flag was set.
  count = CountEntries(directory, names);
  if (count > 0) {
    if (changed && ClearImmutable(directory) == 0) fremovexattr(directory, kGuardMark);
    return SayOccupied(count, names);
  }
  // Locked: if another helper has mounted there meanwhile, that shows now.
  struct statx info{};
  int top = OpenDirectory(entry, O_PATH);
  if (top < 0) return Answered(errno);
  if (const int error = Look(top, &info); error != 0) return Answered(error);
  if (IsMountRoot(info)) return Answered(EBUSY);
  if (const int error = MountOn(source, place, options); error != 0) return Answered(error);
  close(top);
  top = OpenDirectory(entry, O_PATH);
  if (top < 0) return Answered(errno);
  if (const int error = Look(top, &info); error != 0) return Answered(error);
  return SayMounted(info, true, guard);
}

int MountPathAt(const Entry& entry, int source, const struct statx& ours, const PathOptions& options) {
  bool made = false;
  int place = OpenDirectory(entry, O_PATH);
  if (place < 0 && errno == ENOENT) {
    umask(022);
    if (mkdirat(entry.parent, entry.name, 0755) != 0) return Answered(errno);
    made = true;
    place = OpenDirectory(entry, O_PATH);
  }
  if (place < 0) {
    if (errno == ELOOP) return Say("symlink");
    return errno == ENOTDIR ? Say("notdirectory") : Answered(errno);
  }
  struct statx info{};
  if (const int error = Look(place, &info); error != 0) return Answered(error);
  if (IsMountRoot(info)) return SameRoot(info, ours) ? SayMounted(info, false, -1) : Say("foreign");
  return MountOnDirectory(entry, place, source, made, options);
}

bool IsMissing(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

}  // namespace

int MountPath(int argc, char** argv) {
  unsigned long parent = 0;
  if (argc < 6 || !Number(argv[2], 10, INT_MAX, &parent) || argv[3][0] != '/' || argv[4][0] != '/' ||
      argv[5][0] != '/') {
    return Usage();
  }
  PathOptions options;
  options.path = argv[4];
  options.locks = argv[5];
  options.parent = static_cast<pid_t>(parent);
  for (int i = 6; i < argc; ++i) {
    if (std::strcmp(argv[i], "--readonly") == 0) {
      options.readonly = true;
    } else if (std::strcmp(argv[i], "--suid") == 0) {
      options.suid = true;
    } else if (std::strcmp(argv[i], "--dev") == 0) {
      options.dev = true;
    } else {
      return Usage();
    }
  }
  const int source = OpenAt(AT_FDCWD, argv[3], O_PATH | O_DIRECTORY, kNoSymlinks);
  if (source < 0) return Answered(errno);
  struct statx ours{};
  if (const int error = Look(source, &ours); error != 0) return Answered(error);
  if (!IsMountRoot(ours)) return Answered(EINVAL);
  const Entry entry = OpenParent(argv[4]);
  if (entry.error == ELOOP) return Say("symlink");
  if (entry.error == ENOENT) return Say("noparent");
  if (entry.error == ENOTDIR) return Say("notdirectory");
  if (entry.error != 0) return Answered(entry.error);
  return MountPathAt(entry, source, ours, options);
}

int UnmountPath(int argc, char** argv) {
  unsigned long id = 0;
  if (argc < 5 || argv[2][0] != '/' || argv[3][0] != '/' || !Number(argv[4], 10, ULONG_MAX, &id))
    return Usage();
  const Entry entry = OpenParent(argv[2]);
  if (entry.error != 0) return IsMissing(entry.error) ? Say("ok") : Answered(entry.error);
  struct statx info{};
  for (int look = 0; look < 2; ++look) {
    const int place = OpenDirectory(entry, O_PATH);
    if (place < 0) return IsMissing(errno) ? Say("ok") : Answered(errno);
    if (const int error = Look(place, &info); error != 0) return Answered(error);
    // An open descriptor would keep it busy.
    close(place);
    if (IsMountRoot(info) || look == 1) break;
    // One that is just mounting there ends first.
    if (const int error = Lock(argv[3], argv[2]); error != 0) return Answered(error);
  }
  if (!IsMountRoot(info)) return Say("ok");
  int flags = UMOUNT_NOFOLLOW;
  bool ours = id != 0 && info.stx_mnt_id == id;
  for (int i = 5; i < argc; ++i) {
    if (std::strcmp(argv[i], "--lazy") == 0) {
      flags |= MNT_DETACH;
      continue;
    }
    const int source = OpenAt(AT_FDCWD, argv[i], O_PATH | O_DIRECTORY, kNoSymlinks);
    if (source < 0) continue;
    struct statx there{};
    ours = ours || (Look(source, &there) == 0 && SameRoot(there, info));
    close(source);
  }
  if (!ours) return Say("foreign");
  // From the parent that was looked at: its own path may lead elsewhere by now.
  if (fchdir(entry.parent) != 0) return Answered(errno);
  return Answered(umount2(entry.name, flags) == 0 ? 0 : errno);
}

int FreePath(const char* path) {
  if (path[0] != '/') return Usage();
  const Entry entry = OpenParent(path);
  if (entry.error != 0) return IsMissing(entry.error) ? Say("ok") : Answered(entry.error);
  const int directory = OpenDirectory(entry, O_RDONLY);
  if (directory < 0) return IsMissing(errno) ? Say("ok") : Answered(errno);
  struct statx info{};
  if (const int error = Look(directory, &info); error != 0) return Answered(error);
  // It has another user by now.
  if (IsMountRoot(info)) return Say("ok");
  char mark = 0;
  if (fgetxattr(directory, kGuardMark, &mark, 1) != 1) return Say("ok");
  if (const int error = ClearImmutable(directory); error != 0) return Answered(error);
  if (fremovexattr(directory, kGuardMark) != 0) return Answered(errno);
  close(directory);
  // One that holds something by now stays.
  if (mark == kMade && unlinkat(entry.parent, entry.name, AT_REMOVEDIR) != 0 && errno != ENOTEMPTY) {
    return Answered(errno);
  }
  return Say("ok");
}

}  // namespace berth::mount_helper
