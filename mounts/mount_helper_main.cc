// berth-mount-helper: does one thing to paths that may lie on a dead file system, in a process of its own.
// berthd runs it with a deadline and walks away from it if it hangs; it holds nothing of berthd's.
//
//   berth-mount-helper umount [--force] [--lazy] PATH
//       takes one mount away, never through a symlink; --force fails what waits for the file system
//       (MNT_FORCE), --lazy leaves it to those who still use it (MNT_DETACH)
//   berth-mount-helper statvfs PATH
//       prints "readonly 0" or "readonly 1"
//   berth-mount-helper read PATH LIMIT
//       opens a file, never through a symlink, and prints "mode OCTAL owner UID" and a line's end: its type
//       and rights as stat(2) has them. If it is a regular file, its first LIMIT bytes follow. "errno E"
//       where it cannot be read. Ends with 0 in each case.
//   berth-mount-helper probe PATH...
//       asks each file system for its root's attributes, in a child each, so that one that hangs hides no
//       other. A line each, as they come, PATHs numbered from 0: "N pid P" (the child), then one of "N ok",
//       "N errno E", "N nochild E" (it could not be asked). Ends once all have been answered.
//   berth-mount-helper permissions PATH [--owner UID] [--group GID] [--mode OCTAL] [--label TEXT]
//                                  [--recursive]
//       the root of the mount at PATH, or a block device there; --recursive: owner and group of everything
//       beneath, too, through no mount and no symlink. What is so already is not touched.
//   berth-mount-helper superblock DEVICE [DISK]
//       asks the kernel for a mounted file system with this device number, as "MAJOR:MINOR", wherever it is
//       mounted (ustat(2)): prints "alive 1" or "alive 0". Waits while the kernel ends the file system, and
//       while that keeps the block device DISK to itself: its last data is written in between. Where the
//       kernel has no ustat(2), DISK alone says it.
//   berth-mount-helper census WORD...
//       looks for who has file systems and block devices, everywhere on the node: WORDs and answer are those
//       of census_question.h, the work is done in census_pass.cc
//   berth-mount-helper exclusive DEVICE
//       opens the block device, for reading, as its only exclusive user (O_EXCL): "errno 16" (EBUSY) where it
//       is mounted, swap, or part of another device; "ok" also where it is gone or does not answer
//   berth-mount-helper mount-path PARENT SOURCE PATH LOCKS [--readonly] [--suid] [--dev]
//       for the berthd whose pid PARENT is, and not after its death: mounts the mount at SOURCE at the
//       directory PATH too, nosuid and nodev unless it says otherwise. PATH is made where it is missing, and
//       made immutable first. Prints one of
//         "mounted ID FRESH GUARD"  ID: the kernel's of the mount. FRESH: 0 if it was there already.
//                                   GUARD: 0 if PATH is immutable, else the errno why not; -1: not looked at
//         "occupied MORE"           and a line's end: PATH holds files; the first names follow, each with a
//                                   NUL, and MORE are not named
//         "foreign"                 something else is mounted there
//         "symlink", "noparent", "notdirectory": so is PATH
//       and ends with 0
//   berth-mount-helper unmount-path PATH LOCKS ID [--lazy] [SOURCE...]
//       unmounts PATH if the mount there has that ID, or the same root as one of the mounts at SOURCE. Prints
//       "ok" (also where nothing is mounted) or "foreign", and ends with 0
//   berth-mount-helper free-path PATH
//       undoes what mount-path made of the directory PATH itself: the immutable flag, and the directory
//
// umount, statvfs, permissions and exclusive print their answer, or "ok", and end with 0, else "errno E"
// and 1. Usage mistakes end with 2. Nothing but libc and a static libstdc++, so that it starts in a
// millisecond. libmount's own umount would read the whole mount table first; what berthd unmounts here it
// knows by its path.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/mount_calls.h"
#include "base/program_start.h"
#include "mounts/census_pass.h"
#include "mounts/census_question.h"

namespace {

// How deep a tree may be: each level costs a descriptor.
constexpr int kDepthLimit = 4096;
constexpr uid_t kUnchanged = static_cast<uid_t>(-1);

int Usage() {
  std::fputs(
      "usage: berth-mount-helper umount [--force] [--lazy] PATH\n"
      "       berth-mount-helper statvfs PATH\n"
      "       berth-mount-helper read PATH LIMIT\n"
      "       berth-mount-helper probe PATH...\n"
      "       berth-mount-helper permissions PATH [--owner UID] [--group GID] [--mode OCTAL]\n"
      "                                           [--label TEXT] [--recursive]\n"
      "       berth-mount-helper superblock MAJOR:MINOR [MAJOR:MINOR]\n"
      "       berth-mount-helper census WORD...\n"
      "       berth-mount-helper exclusive MAJOR:MINOR\n"
      "       berth-mount-helper mount-path PARENT SOURCE PATH LOCKS [--readonly] [--suid] [--dev]\n"
      "       berth-mount-helper unmount-path PATH LOCKS ID [--lazy] [SOURCE...]\n"
      "       berth-mount-helper free-path PATH\n",
      stderr);
  return 2;
}

int Answered(int error) {
  if (error == 0) {
    std::puts("ok");
    return 0;
  }
  std::printf("errno %d\n", error);
  return 1;
}

int Umount(int argc, char** argv) {
  int flags = UMOUNT_NOFOLLOW;
  const char* path = nullptr;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--force") == 0) {
      flags |= MNT_FORCE;
    } else if (std::strcmp(argv[i], "--lazy") == 0) {
      flags |= MNT_DETACH;
    } else if (path != nullptr || argv[i][0] != '/') {
      return Usage();
    } else {
      path = argv[i];
    }
  }
  if (path == nullptr) return Usage();
  return Answered(umount2(path, flags) == 0 ? 0 : errno);
}

int Statvfs(const char* path) {
  struct statvfs info{};
  if (statvfs(path, &info) != 0) return Answered(errno);
  std::printf("readonly %d\n", (info.f_flag & ST_RDONLY) != 0 ? 1 : 0);
  return 0;
}

// --- read ---

constexpr unsigned long kReadLimit = 1UL << 20;

bool Number(const char* text, int base, unsigned long limit, unsigned long* value) {
  if (*text < '0' || *text > '9') return false;
  char* end = nullptr;
  errno = 0;
  *value = std::strtoul(text, &end, base);
  return errno == 0 && *end == '\0' && *value <= limit;
}

int CannotRead(int error) {
  std::printf("errno %d\n", error);
  return 0;
}

// Nothing is printed before all has been read: what is cut off by an error is no file's content.
int ReadOpen(int fd, unsigned long limit) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return CannotRead(errno);
  static char content[kReadLimit];
  size_t size = 0;
  while (S_ISREG(info.st_mode) && size < limit) {
    const ssize_t count = read(fd, content + size, limit - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotRead(errno);
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  std::printf("mode %o owner %u\n", info.st_mode, info.st_uid);
  std::fwrite(content, 1, size, stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int Read(const char* path, const char* limit) {
  unsigned long bytes = 0;
  if (path[0] != '/' || !Number(limit, 10, kReadLimit, &bytes)) return Usage();
  // Not through a symlink: its owner could name any file of root's. O_NONBLOCK: it may be a pipe.
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
  return fd < 0 ? CannotRead(errno) : ReadOpen(fd, bytes);
}

// --- probe ---

// One write a line: the children and we share the file.
void Tell(int number, const char* word, int value, bool with_value) {
  char line[64];
  const int length = with_value ? std::snprintf(line, sizeof line, "%d %s %d\n", number, word, value)
                                : std::snprintf(line, sizeof line, "%d %s\n", number, word);
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(1);
}

[[noreturn]] void ProbeOne(int number, const char* path) {
  // First: once it asks, it may not say anything any more.
  Tell(number, "pid", getpid(), true);
  struct statx info{};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_FORCE_SYNC;
  if (statx(AT_FDCWD, path, kFlags, STATX_BASIC_STATS, &info) == 0) {
    Tell(number, "ok", 0, false);
  } else {
    Tell(number, "errno", errno, true);
  }
  _exit(0);
}

int Probe(int argc, char** argv) {
  if (argc < 3) return Usage();
  // Lines are appended, also if several processes write them.
  fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_APPEND);
  for (int i = 2; i < argc; ++i) {
    const int number = i - 2;
    const pid_t child = fork();
    if (child == 0) ProbeOne(number, argv[i]);
    if (child < 0) Tell(number, "nochild", errno, true);
  }
  while (wait(nullptr) > 0 || errno == EINTR) {
  }
  return 0;
}

// --- permissions ---

struct Permissions {
  uid_t owner = kUnchanged;
  gid_t group = kUnchanged;
  bool set_mode = false;
  mode_t mode = 0;
  const char* label = nullptr;
  bool recursive = false;
};

int OpenAt(int directory, const char* name, int flags, unsigned long long resolve) {
  open_how how{};
  how.flags = static_cast<unsigned long long>(flags) | O_CLOEXEC;
  how.resolve = resolve;
  while (true) {
    const long fd = syscall(SYS_openat2, directory, name, &how, sizeof how);
    // EAGAIN: a rename elsewhere raced with the walk; the kernel asks for another try.
    if (fd < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return static_cast<int>(fd);
  }
}

// `fd` was opened with O_PATH: this opens nothing, wakes no device, and the name cannot be swapped.
int Chown(int fd, const struct stat& is, const Permissions& want) {
  const bool owner_differs = want.owner != kUnchanged && want.owner != is.st_uid;
  const bool group_differs = want.group != kUnchanged && want.group != is.st_gid;
  if (!owner_differs && !group_differs) return 0;
  return fchownat(fd, "", owner_differs ? want.owner : kUnchanged, group_differs ? want.group : kUnchanged,
                  AT_EMPTY_PATH) == 0
             ? 0
             : errno;
}

int Beneath(int directory, const Permissions& want, int depth);

int ChownEntry(int directory, const char* name, const Permissions& want, int depth) {
  constexpr unsigned long long kResolve =
      RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  const int fd = OpenAt(directory, name, O_PATH | O_NOFOLLOW, kResolve);
  // EXDEV: something else is mounted there. ENOENT: it has gone meanwhile.
  if (fd < 0) return errno == EXDEV || errno == ENOENT ? 0 : errno;
  struct stat is{};
  int error = fstat(fd, &is) == 0 ? Chown(fd, is, want) : errno;
  if (error == 0 && S_ISDIR(is.st_mode)) {
    const int inner = OpenAt(fd, ".", O_RDONLY | O_DIRECTORY, kResolve);
    if (inner < 0) error = errno;
    close(fd);
    return error != 0 ? error : Beneath(inner, want, depth + 1);
  }
  close(fd);
  return error;
}

// Closes `directory`.
int Beneath(int directory, const Permissions& want, int depth) {
  if (depth > kDepthLimit) {
    close(directory);
    return ELOOP;
  }
  DIR* const entries = fdopendir(directory);
  if (entries == nullptr) {
    const int error = errno;
    close(directory);
    return error;
  }
  int error = 0;
  while (error == 0) {
    errno = 0;
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) {
      error = errno;
      break;
    }
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    error = ChownEntry(directory, entry->d_name, want, depth);
  }
  closedir(entries);
  return error;
}

int Apply(const char* path, const Permissions& want) {
  const int fd = OpenAt(AT_FDCWD, path, O_PATH | O_NOFOLLOW, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
  if (fd < 0) return errno;
  struct statx info{};
  if (statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_TYPE, &info) != 0) return errno;
  const bool mounted = (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0 && S_ISDIR(info.stx_mode);
  if (!mounted && !S_ISBLK(info.stx_mode)) return EINVAL;

  struct stat is{};
  if (fstat(fd, &is) != 0) return errno;
  if (const int error = Chown(fd, is, want); error != 0) return error;
  // Through the descriptor's own name: chmod and xattrs take none that was opened with O_PATH.
  char self[64];
  std::snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  // After the owner: a change of owner clears the set-id bits.
  if (fstat(fd, &is) != 0) return errno;
  if (want.set_mode && (is.st_mode & 07777) != want.mode && chmod(self, want.mode) != 0) return errno;
  if (want.label != nullptr &&
      setxattr(self, "security.selinux", want.label, std::strlen(want.label) + 1, 0) != 0) {
    return errno;
  }
  if (!want.recursive || !S_ISDIR(is.st_mode)) return 0;
  const int directory = OpenAt(fd, ".", O_RDONLY | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
  if (directory < 0) return errno;
  return Beneath(directory, want, 0);
}

int SetPermissions(int argc, char** argv) {
  if (argc < 3 || argv[2][0] != '/') return Usage();
  constexpr unsigned long kIdLimit = 0xFFFFFFFEUL;
  Permissions want;
  for (int i = 3; i < argc; ++i) {
    const char* const option = argv[i];
    if (std::strcmp(option, "--recursive") == 0) {
      want.recursive = true;
      continue;
    }
    if (i + 1 == argc) return Usage();
    const char* const text = argv[++i];
    unsigned long number = 0;
    if (std::strcmp(option, "--owner") == 0 && Number(text, 10, kIdLimit, &number)) {
      want.owner = static_cast<uid_t>(number);
    } else if (std::strcmp(option, "--group") == 0 && Number(text, 10, kIdLimit, &number)) {
      want.group = static_cast<gid_t>(number);
    } else if (std::strcmp(option, "--mode") == 0 && Number(text, 8, 07777, &number)) {
      want.set_mode = true;
      want.mode = static_cast<mode_t>(number);
    } else if (std::strcmp(option, "--label") == 0) {
      want.label = text;
    } else {
      return Usage();
    }
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  return Answered(Apply(argv[2], want));
}

// --- superblock, census, exclusive ---

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

int Exclusive(const char* text) {
  dev_t device = 0;
  if (!Device(text, &device)) return Usage();
  return Answered(Claimed(device));
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

int Census(int argc, char** argv) {
  const auto question = berth::DecodeQuestion({argv + 2, argv + argc});
  if (!question.has_value()) return Usage();
  berth::TakeCensus(*question, [](std::string_view line) {
    // At once: what is found before a process hangs counts.
    if (write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(1);
  });
  return 0;
}

// --- mount-path, unmount-path, free-path ---

constexpr unsigned long long kNoSymlinks = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
// Says what mount-path did to a directory: kFlagged, or kMade where it made the directory, too. Only where it
// is there free-path undoes that. An immutable flag that an operator has set stays his.
constexpr const char* kGuardMark = "trusted.berth.path";
constexpr char kFlagged = 'f';
constexpr char kMade = 'm';
constexpr int kNamesShown = 5;

int Say(const char* word) {
  std::puts(word);
  return 0;
}

// What is at `fd`, without waking its file system.
int Look(int fd, struct statx* info) {
  constexpr int kFlags = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  constexpr unsigned kWanted = STATX_TYPE | STATX_INO | STATX_MNT_ID | berth::kStatxMountIdUnique;
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

bool IsMissing(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

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

}  // namespace

int main(int argc, char** argv) {
  // It reads files of secrets.
  berth::LeaveNoCore();
  if (argc < 3) return Usage();
  const char* const operation = argv[1];
  if (std::strcmp(operation, "umount") == 0) return Umount(argc, argv);
  if (std::strcmp(operation, "statvfs") == 0) return argc == 3 ? Statvfs(argv[2]) : Usage();
  if (std::strcmp(operation, "read") == 0) return argc == 4 ? Read(argv[2], argv[3]) : Usage();
  if (std::strcmp(operation, "probe") == 0) return Probe(argc, argv);
  if (std::strcmp(operation, "permissions") == 0) return SetPermissions(argc, argv);
  if (std::strcmp(operation, "superblock") == 0) return Superblock(argc, argv);
  if (std::strcmp(operation, "census") == 0) return Census(argc, argv);
  if (std::strcmp(operation, "exclusive") == 0) return argc == 3 ? Exclusive(argv[2]) : Usage();
  if (std::strcmp(operation, "mount-path") == 0) return MountPath(argc, argv);
  if (std::strcmp(operation, "unmount-path") == 0) return UnmountPath(argc, argv);
  if (std::strcmp(operation, "free-path") == 0) return argc == 3 ? FreePath(argv[2]) : Usage();
  return Usage();
}
