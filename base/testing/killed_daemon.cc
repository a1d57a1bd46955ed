#include "base/testing/killed_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/unique_fd.h"

namespace berth {

pid_t KillADaemon(const std::string& lock, const std::function<void(const Tell& tell)>& hang) {
  int told[2] = {-1, -1};
  EXPECT_EQ(pipe2(told, O_CLOEXEC), 0);
  const UniqueFd reading(told[0]);
  UniqueFd writing(told[1]);
  const pid_t daemon = fork();
  if (daemon == 0) {
    const int file = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0) _exit(3);
    hang([&writing](pid_t number) {
      if (write(writing.get(), &number, sizeof number) != sizeof number) _exit(4);
      pause();
      _exit(5);
    });
    _exit(6);
  }
  writing = UniqueFd();
  pid_t result = -1;
  EXPECT_EQ(read(reading.get(), &result, sizeof result), static_cast<ssize_t>(sizeof result));
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, daemon, 0)));
  EXPECT_EQ(kill(daemon, SIGKILL), 0);
  // A thread that is in the kernel's hands would keep the whole process, and its locks.
  pollfd ended{.fd = handle.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 20'000), 1) << "it was killed, and is there";
  EXPECT_EQ(waitpid(daemon, nullptr, WNOHANG), daemon);
  const UniqueFd file(open(lock.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(flock(file.get(), LOCK_EX | LOCK_NB), 0) << "something has its lock still";
  return result;
}

}  // namespace berth
