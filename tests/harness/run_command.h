// A shell command of a test, with what it printed and its exit status. For tests.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace berth {

struct Ended {
  int exit_code = -1;
  std::string said;  // on both
};

// Ends after a minute. `exit_code` is -1 after a signal.
inline Ended RunCommand(const std::string& command) {
  FILE* const pipe = popen(fmt::format("timeout 60 {} 2>&1", command).c_str(), "re");
  Ended ended;
  std::array<char, 4096> buffer{};
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.said.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

}  // namespace berth
