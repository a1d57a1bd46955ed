#include "cli/testing/run_berthctl.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstdlib>

#include "base/process.h"
#include "base/testing/run_on.h"
#include "base/testing/run_process.h"

namespace berth::cli {
namespace {

constexpr auto kBound = std::chrono::seconds(30);
constexpr size_t kOutputLimit = size_t{4} << 20;

int ExitCode(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

bool Readable(int fd) {
  pollfd wait{.fd = fd, .events = POLLIN};
  return poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kBound).count())) == 1;
}

Awaitable<absl::StatusOr<RunResult>> Go(asio::any_io_executor executor, ProcessSpec spec, std::string input) {
  TaskScope reaper(executor, "berthctl");
  absl::StatusOr<RunResult> result =
      co_await RunProcess(reaper, std::move(spec), std::move(input), kOutputLimit, Clock::now() + kBound);
  co_await reaper.Join();
  co_return result;
}

}  // namespace

Ended RunBerthctl(std::vector<std::string> arguments, RunOptions options) {
  asio::io_context loop;
  ProcessSpec spec{.executable = BERTHCTL,
                   .arguments = std::move(arguments),
                   .environment = std::move(options.environment)};
  const absl::StatusOr<RunResult> result = RunOn<absl::StatusOr<RunResult>>(
      loop, Go(loop.get_executor(), std::move(spec), std::move(options.input)),
      kBound + std::chrono::seconds(5));
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return {};
  }
  const int code = result->exit.signal != 0 ? 128 + result->exit.signal : result->exit.code;
  return {.exit_code = code, .out = result->out, .err = result->err};
}

RunningBerthctl::RunningBerthctl(std::vector<std::string> arguments, Stderr where) {
  std::array<int, 2> pipe_fds{};
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) std::abort();
  out_ = pipe_fds[0];
  std::string stderr_path = "/dev/null";
  if (where != Stderr::kNull) {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    std::array<char, 64> name{};
    if (grantpt(terminal_) != 0 || unlockpt(terminal_) != 0 ||
        ptsname_r(terminal_, name.data(), name.size()) != 0) {
      std::abort();
    }
    stderr_path = name.data();
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const char* input = where == Stderr::kTerminalWithInput ? stderr_path.c_str() : "/dev/null";
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input, O_RDONLY | O_NOCTTY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_path.c_str(), O_WRONLY | O_NOCTTY, 0);
  std::string program = BERTHCTL;
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<char*, 1> environment = {nullptr};
  const int error = posix_spawn(&pid_, BERTHCTL, &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  if (error != 0) std::abort();
}

RunningBerthctl::~RunningBerthctl() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  if (terminal_ >= 0) close(terminal_);
}

std::string RunningBerthctl::ReadLine() {
  std::string line;
  char c = 0;
  while (Readable(out_) && read(out_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

bool RunningBerthctl::TerminalShows(const std::string& text) {
  std::array<char, 256> buffer{};
  while (shown_.find(text) == std::string::npos) {
    if (!Readable(terminal_)) return false;
    const ssize_t count = read(terminal_, buffer.data(), buffer.size());
    if (count <= 0) return false;
    shown_.append(buffer.data(), static_cast<size_t>(count));
  }
  return true;
}

void RunningBerthctl::Type(const std::string& text) const {
  EXPECT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void RunningBerthctl::Interrupt() const { kill(pid_, SIGINT); }

int RunningBerthctl::Wait() {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  const bool ended = Readable(pidfd);
  close(pidfd);
  if (!ended) {
    ADD_FAILURE() << "berthctl did not end in time";
    return -1;
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return ExitCode(status);
}

}  // namespace berth::cli
