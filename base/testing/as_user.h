// For tests that run as root: what a user without rights finds.
#pragma once

#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace berth {

inline constexpr int kNotRun = 255;

// Runs `act` in a process of that user and group, without any other rights, and returns what it returns;
// kNotRun where that cannot be.
inline int As(uid_t uid, gid_t gid, const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    const bool dropped =
        setgroups(0, nullptr) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0;
    _exit(dropped ? act() : kNotRun);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kNotRun;
  return WEXITSTATUS(status);
}

}  // namespace berth
