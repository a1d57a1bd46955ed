// berth-mount-helper: does one thing to one path that may lie on a dead file system, in a process of its own.
// berthd runs it with a deadline and walks away from it if it hangs; it holds nothing of berthd's.
//
//   berth-mount-helper umount PATH     takes one mount away (never lazily, never through a symlink)
//   berth-mount-helper statvfs PATH    prints "readonly 0" or "readonly 1"
//
// On success it prints its answer, or "ok", and ends with 0; else it prints "errno N" and ends with 1.
// Usage mistakes end with 2. Nothing but libc, so that it starts in a millisecond. libmount's own umount
// would read the whole mount table first; what berthd unmounts here it knows by its path.
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

int Failed(int error) {
  std::printf("errno %d\n", error);
  return 1;
}

int Umount(const char* path) {
  if (umount2(path, UMOUNT_NOFOLLOW) != 0) return Failed(errno);
  std::puts("ok");
  return 0;
}

int Statvfs(const char* path) {
  struct statvfs info{};
  if (statvfs(path, &info) != 0) return Failed(errno);
  std::printf("readonly %d\n", (info.f_flag & ST_RDONLY) != 0 ? 1 : 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "umount") == 0) return Umount(argv[2]);
  if (argc == 3 && std::strcmp(argv[1], "statvfs") == 0) return Statvfs(argv[2]);
  std::fputs("usage: berth-mount-helper umount|statvfs PATH\n", stderr);
  return 2;
}
