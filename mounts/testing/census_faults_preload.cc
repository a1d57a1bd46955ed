// For tests: what berth-mount-helper is loaded with where its census is to lose an answer. Stands between it
// and the C library, and fails the calls that BERTH_TEST_LOST_ANSWER names: "CALL TEXT", with EBADF where
// the path holds the text.
//
//   openat TEXT, readlinkat TEXT, statx TEXT, faccessat TEXT
//   loop kill, loop stop     the process that asks a loop device is killed, or stopped
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsLost(const char* call, const char* path) {
  const char* const fault = getenv("BERTH_TEST_LOST_ANSWER");
  const size_t length = std::strlen(call);
  if (fault == nullptr || std::strncmp(fault, call, length) != 0 || fault[length] != ' ') return false;
  if (std::strstr(path, fault + length + 1) == nullptr) return false;
  errno = EBADF;
  return true;
}

}  // namespace

extern "C" {

int openat(int directory, const char* path, int flags, ...) {
  static auto* const real = Real<int(int, const char*, int, ...)>("openat");
  if (IsLost("openat", path)) return -1;
  va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  return real(directory, path, flags, mode);
}

int openat64(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  return openat(directory, path, flags, mode);
}

ssize_t readlinkat(int directory, const char* path, char* target, size_t size) {
  static auto* const real = Real<ssize_t(int, const char*, char*, size_t)>("readlinkat");
  return IsLost("readlinkat", path) ? -1 : real(directory, path, target, size);
}

int statx(int directory, const char* path, int flags, unsigned mask, struct statx* info) {
  static auto* const real = Real<int(int, const char*, int, unsigned, struct statx*)>("statx");
  return IsLost("statx", path) ? -1 : real(directory, path, flags, mask, info);
}

int faccessat(int directory, const char* path, int mode, int flags) {
  static auto* const real = Real<int(int, const char*, int, int)>("faccessat");
  return IsLost("faccessat", path) ? -1 : real(directory, path, mode, flags);
}

int ioctl(int fd, unsigned long request, ...) {
  static auto* const real = Real<int(int, unsigned long, ...)>("ioctl");
  if (request == LOOP_GET_STATUS64 && IsLost("loop", "kill")) raise(SIGKILL);
  if (request == LOOP_GET_STATUS64 && IsLost("loop", "stop")) raise(SIGSTOP);
  va_list more;
  va_start(more, request);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return real(fd, request, argument);
}
}
