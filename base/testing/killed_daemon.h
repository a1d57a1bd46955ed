// For tests: a process that holds a lock, as berthd holds its journal's, and is killed while something of it
// hangs.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <string>

namespace berth {

// Runs `hang` in a new process that holds a lock on the file `lock`; once it reports a number, and hangs or
// has what hangs in its scope, the process is killed. Returns that number. Fails the test if the process, or
// its lock, outlives that.
using Tell = std::function<void(pid_t)>;  // does not return
pid_t KillADaemon(const std::string& lock, const std::function<void(const Tell& tell)>& hang);

}  // namespace berth
