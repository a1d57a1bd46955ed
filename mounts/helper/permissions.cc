// The owner, group, mode and label of a mount's root, and of what lies beneath it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "mounts/helper/operations.h"

namespace berth::mount_helper {
namespace {

// How deep a tree may be: each level costs a descriptor.
constexpr int kDepthLimit = 4096;
constexpr uid_t kUnchanged = static_cast<uid_t>(-1);

struct Permissions {
  uid_t owner = kUnchanged;
  gid_t group = kUnchanged;
  bool set_mode = false;
  mode_t mode = 0;
  const char* label = nullptr;
  bool recursive = false;
};

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
  const int fd = OpenAt(AT_FDCWD, path, O_PATH | O_NOFOLLOW, kNoSymlinks);
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

}  // namespace

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

}  // namespace berth::mount_helper
