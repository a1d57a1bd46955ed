// For tests only: runs the built berthctl, as a shell would, and keeps what it says.
#pragma once

#include <string>
#include <vector>

namespace berth::cli {

struct Ended {
  int exit_code = -1;  // 128 + the signal, where one ended it
  std::string out;
  std::string err;
};

struct RunOptions {
  std::vector<std::string> environment;  // "NAME=value", all that it gets
  std::string input;                     // what it reads on standard input
};

// Fails the test where it has not ended within half a minute.
[[nodiscard]] Ended RunBerthctl(std::vector<std::string> arguments, RunOptions options = {});

// A berthctl that runs on: `events -f`, and one with a terminal for its standard error.
class RunningBerthctl {
 public:
  // kTerminalWithInput: standard input is that terminal, too.
  enum class Stderr { kNull, kTerminal, kTerminalWithInput };
  RunningBerthctl(std::vector<std::string> arguments, Stderr where);
  ~RunningBerthctl();
  RunningBerthctl(const RunningBerthctl&) = delete;
  RunningBerthctl& operator=(const RunningBerthctl&) = delete;

  // The next line of its standard output, within half a minute.
  [[nodiscard]] std::string ReadLine();
  // Reads its terminal until `text` has come, within half a minute; whether it has.
  [[nodiscard]] bool TerminalShows(const std::string& text);

  // As a person at the terminal.
  void Type(const std::string& text) const;
  void Interrupt() const;
  // Its exit code, as in Ended.
  [[nodiscard]] int Wait();

 private:
  int pid_ = -1;
  int out_ = -1;
  int terminal_ = -1;
  std::string shown_;
};

}  // namespace berth::cli
