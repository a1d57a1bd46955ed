// For tests: a process that holds something for as long as it is there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace berth {

// Does what `grip` says in a new process, which keeps what it has got: a file, a directory, a namespace.
class Holder {
 public:
  template <class Grip>
  explicit Holder(const Grip& grip) {
    int ready[2] = {-1, -1};
    if (pipe2(ready, O_CLOEXEC) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      const bool held = grip();
      if (write(ready[1], held ? "y" : "n", 1) != 1) _exit(1);
      while (true) pause();
    }
    char held = 0;
    EXPECT_EQ(read(ready[0], &held, 1), 1);
    EXPECT_EQ(held, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace berth
