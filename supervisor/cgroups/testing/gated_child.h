// For tests only: a shell that waits at a gate before it runs its script.
#pragma once

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "base/file.h"
#include "base/unique_fd.h"

namespace berth {

// Goes on when it is let, and is ended and reaped at the latest with this object.
class GatedChild {
 public:
  // `into`: a group to be cloned into, or -1.
  explicit GatedChild(const char* script, int into = -1) {
    int gate[2];
    int input[2];
    if (pipe(gate) != 0 || pipe(input) != 0) abort();
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    if (into >= 0) {
      arguments.flags = CLONE_INTO_CGROUP;
      arguments.cgroup = static_cast<uint64_t>(into);
    }
    pid_ = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
    if (pid_ == 0) {
      close(gate[1]);
      char go = 0;
      if (read(gate[0], &go, 1) != 1) _exit(1);
      dup2(input[0], STDIN_FILENO);
      syscall(SYS_close_range, 3U, ~0U, 0);
      execl("/bin/sh", "sh", "-c", script, nullptr);
      _exit(127);
    }
    close(gate[0]);
    close(input[0]);
    gate_ = UniqueFd(gate[1]);
    input_ = UniqueFd(input[1]);
  }
  ~GatedChild() {
    if (pid_ <= 0 || reaped_) return;
    kill(pid_, SIGKILL);
    Reap();
  }
  GatedChild(const GatedChild&) = delete;
  GatedChild& operator=(const GatedChild&) = delete;

  void Go() const { ASSERT_EQ(write(gate_.get(), "g", 1), 1); }
  void Say(const std::string& text) const {
    ASSERT_TRUE(WriteAll(input_.get(), text, "write to a child").ok());
  }

  // Waits for its end, under a bound. The signal that ended it; 0: it exited by itself.
  int Reap() {
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, 60'000) != 1) {
      ADD_FAILURE() << "process " << pid_ << " does not end";
      kill(pid_, SIGKILL);
    }
    waitpid(pid_, &status_, 0);
    reaped_ = true;
    return WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
  }
  [[nodiscard]] int exit_code() const { return WEXITSTATUS(status_); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string Cgroup() const {
    return ReadFile("/proc/" + std::to_string(pid_) + "/cgroup", 65536).value_or("");
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
  UniqueFd gate_;
  UniqueFd input_;
};

}  // namespace berth
