// For tests: a process that does nothing until it is killed.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {

class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      execl("/bin/sleep", "sleep", "1000", nullptr);
      _exit(127);
    }
  }
  ~Sleeper() { End(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Not reaped: it is a zombie then, and has ended nevertheless.
  void Kill() const { kill(pid_, SIGKILL); }
  void End() {
    if (pid_ <= 0) return;
    Kill();
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

}  // namespace berth
