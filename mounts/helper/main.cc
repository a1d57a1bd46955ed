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
//   berth-mount-helper census < QUESTION
//       looks for who has file systems and block devices, everywhere on the node. Question and answer are
//       bytes (mounts/census_question.h); mounts/census_pass.cc does the work
//   berth-mount-helper exclusive DEVICE
//       opens the block device, for reading, as its only exclusive user (O_EXCL): "errno 16" (EBUSY) where it
//       is mounted, swap, or part of another device; "ok" also where it is gone or does not answer
//   berth-mount-helper flush DEVICE DISKSEQ
//       writes what the kernel has still to write to a block device and its partitions, and waits until no
//       write is on its way. "failed E" comes before "ok" if the disk has refused some of it. Nothing is to
//       be done where the device has gone, or has another disk than that of this number (0: not known)
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
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/program_start.h"
#include "mounts/census_host.h"
#include "mounts/census_pass.h"
#include "mounts/census_question.h"
#include "mounts/helper/operations.h"

namespace berth::mount_helper {
namespace {

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

constexpr unsigned long kReadLimit = 1UL << 20;

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

int Census() {
  const auto question = DecodeQuestion(CensusHost().Text("proc/self/fd/0"));
  if (!question.has_value()) return Usage();
  TakeCensus(*question, [](const CensusAnswer& part) {
    // At once: what is found before a process hangs counts.
    const std::string bytes = EncodeAnswer(part);
    if (write(STDOUT_FILENO, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) _exit(1);
  });
  return 0;
}

int Run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "census") == 0) return Census();
  if (argc < 3) return Usage();
  const char* const operation = argv[1];
  if (std::strcmp(operation, "umount") == 0) return Umount(argc, argv);
  if (std::strcmp(operation, "statvfs") == 0) return argc == 3 ? Statvfs(argv[2]) : Usage();
  if (std::strcmp(operation, "read") == 0) return argc == 4 ? Read(argv[2], argv[3]) : Usage();
  if (std::strcmp(operation, "probe") == 0) return Probe(argc, argv);
  if (std::strcmp(operation, "permissions") == 0) return SetPermissions(argc, argv);
  if (std::strcmp(operation, "superblock") == 0) return Superblock(argc, argv);
  if (std::strcmp(operation, "exclusive") == 0) return argc == 3 ? Exclusive(argv[2]) : Usage();
  if (std::strcmp(operation, "flush") == 0) return argc == 4 ? Flush(argv[2], argv[3]) : Usage();
  if (std::strcmp(operation, "mount-path") == 0) return MountPath(argc, argv);
  if (std::strcmp(operation, "unmount-path") == 0) return UnmountPath(argc, argv);
  if (std::strcmp(operation, "free-path") == 0) return argc == 3 ? FreePath(argv[2]) : Usage();
  return Usage();
}

}  // namespace
}  // namespace berth::mount_helper

int main(int argc, char** argv) {
  // It reads files of secrets.
  berth::LeaveNoCore();
  return berth::mount_helper::Run(argc, argv);
}
