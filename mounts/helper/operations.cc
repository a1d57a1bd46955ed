#include "mounts/helper/operations.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/open_at2.h"

namespace berth::mount_helper {

int Usage() {
  std::fputs(
      "usage: berth-mount-helper umount [--force] [--lazy] PATH\n"
      "       berth-mount-helper statvfs PATH\n"
      "       berth-mount-helper read PATH LIMIT\n"
      "       berth-mount-helper probe PATH...\n"
      "       berth-mount-helper permissions PATH [--owner UID] [--group GID] [--mode OCTAL]\n"
      "                                           [--label TEXT] [--recursive]\n"
      "       berth-mount-helper superblock MAJOR:MINOR [MAJOR:MINOR]\n"
      "       berth-mount-helper census < QUESTION\n"
      "       berth-mount-helper exclusive MAJOR:MINOR\n"
      "       berth-mount-helper flush MAJOR:MINOR DISKSEQ\n"
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

int Say(const char* word) {
  std::puts(word);
  return 0;
}

bool Number(const char* text, int base, unsigned long limit, unsigned long* value) {
  if (*text < '0' || *text > '9') return false;
  char* end = nullptr;
  errno = 0;
  *value = std::strtoul(text, &end, base);
  return errno == 0 && *end == '\0' && *value <= limit;
}

int OpenAt(int directory, const char* name, int flags, unsigned long long resolve) {
  return OpenAt2(directory, name, flags, resolve).Release();
}

}  // namespace berth::mount_helper
