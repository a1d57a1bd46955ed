// What berthd is loaded with where its host is to fail (host_faults.h): stands between it and the C library
// in the calls that reach the disk, that make a process and that watch files. Does nothing but what the file
// that BERTH_TEST_HOST_FAULTS names says at the moment of the call:
//
//   sync      each sync of the journal's files fails with EIO
//   launch    each process that is made with clone3 is one too many: ENOMEM
//   inotify   there is no inotify instance left: EMFILE (fs.inotify.max_user_instances)
//   kill N    SIGKILL in place of the N-th write or sync of the journal's files from now on
//
// And the wall clock: it is off by the nanoseconds that stand in the file that BERTH_TEST_HOST_CLOCK names.
// What waits in the kernel for a time of that clock waits as if it had never jumped.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// What is found before main, since it may not be looked for at the call: a sanitizer's allocator asks for the
// time while it holds its lock, and both dlsym and the guard of a static variable may want memory; the guard
// also waits with syscall().
constinit int (*real_clock_gettime)(clockid_t, timespec*) = nullptr;
constinit long (*real_syscall)(long, ...) = nullptr;
// Where the wall clock's error stands, mapped: the clock is asked for too often for a file to be read.
constinit const std::atomic<int64_t>* shift = nullptr;

__attribute__((constructor)) void Prepare() {
  real_syscall = Real<long(long, ...)>("syscall");
  const char* const path = getenv("BERTH_TEST_HOST_CLOCK");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    void* const mapped = mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) shift = static_cast<const std::atomic<int64_t>*>(mapped);
    close(fd);
  }
  real_clock_gettime = Real<int(clockid_t, timespec*)>("clock_gettime");
}

// The name in the file, and the number after it.
struct Fault {
  char word[16] = {};
  int number = 0;
};

Fault Present() {
  Fault fault;
  const int before = errno;
  const char* const path = getenv("BERTH_TEST_HOST_FAULTS");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    char text[64] = {};
    if (read(fd, text, sizeof text - 1) > 0) sscanf(text, "%15s %d", fault.word, &fault.number);
    close(fd);
  }
  errno = before;
  return fault;
}

bool IsJournal(int fd) {
  char link[64];
  char path[4096] = {};
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const int before = errno;
  const ssize_t size = readlink(link, path, sizeof path - 1);
  errno = before;
  return size > 0 && strstr(path, "/journal.db") != nullptr;
}

// Before a write or a sync of `fd`. True: it is to fail.
bool Meets(int fd, bool sync) {
  static std::atomic<int> count = 0;
  const Fault fault = Present();
  if (fault.word[0] == 0 || !IsJournal(fd)) return false;
  if (strcmp(fault.word, "kill") == 0 && ++count == fault.number) kill(getpid(), SIGKILL);
  return sync && strcmp(fault.word, "sync") == 0;
}

int Sync(int fd, const char* name) {
  if (Meets(fd, true)) {
    errno = EIO;
    return -1;
  }
  return Real<int(int)>(name)(fd);
}

int64_t Shift() { return shift == nullptr ? 0 : shift->load(); }

timespec Moved(timespec time, int64_t nanoseconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  time.tv_sec += nanoseconds / kSecond;
  time.tv_nsec += nanoseconds % kSecond;
  if (time.tv_nsec >= kSecond) {
    time.tv_nsec -= kSecond;
    ++time.tv_sec;
  }
  if (time.tv_nsec < 0) {
    time.tv_nsec += kSecond;
    --time.tv_sec;
  }
  return time;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (real_clock_gettime == nullptr) {
    *time = {};  // No clock runs yet.
    return 0;
  }
  const int result = real_clock_gettime(clock, time);
  const bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && wall) *time = Moved(*time, Shift());
  return result;
}
int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}
time_t time(time_t* seconds) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != nullptr) *seconds = now.tv_sec;
  return now.tv_sec;
}

int fsync(int fd) { return Sync(fd, "fsync"); }
int fdatasync(int fd) { return Sync(fd, "fdatasync"); }

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  Meets(fd, false);
  return Real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, size, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  Meets(fd, false);
  return Real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, bytes, size, offset);
}

int inotify_init1(int flags) noexcept {
  if (strcmp(Present().word, "inotify") == 0) {
    errno = EMFILE;
    return -1;
  }
  return Real<int(int)>("inotify_init1")(flags);
}

long syscall(long number, ...) noexcept {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_clone3 && strcmp(Present().word, "launch") == 0) {
    errno = ENOMEM;
    return -1;
  }
  timespec until{};
  if (number == SYS_futex && (arguments[1] & FUTEX_CLOCK_REALTIME) != 0 && arguments[3] != 0) {
    until = Moved(*reinterpret_cast<const timespec*>(arguments[3]), -Shift());
    arguments[3] = reinterpret_cast<long>(&until);
  }
  if (real_syscall == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                      arguments[5]);
}
}
