#include "plugins/hostpath/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

constexpr size_t kOutputKept = 2048;

// What follows fork in the child: nothing here allocates or takes a lock. Does not return.
[[noreturn]] void Become(char* const* argv, char* const* environment, int output, pid_t parent) {
  // The kernel sends this when the thread that forked us ends; it may have ended before the call.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(output, STDERR_FILENO) < 0) {
    _exit(127);
  }
  close_range(3, ~0U, 0);
  execve(argv[0], argv, environment);
  const char* reason = strerrordesc_np(errno);
  if (write(STDERR_FILENO, reason, strlen(reason)) < 0) _exit(126);
  _exit(127);
}

// Milliseconds for poll, at least 0.
int Remaining(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(std::string_view program) {
  for (const std::string_view directory : {"/usr/sbin", "/usr/bin", "/sbin", "/bin"}) {
    std::string path = fmt::format("{}/{}", directory, program);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::FailedPreconditionError(fmt::format("the program {} is not installed", program));
}

namespace {

struct ChildEnd {
  std::string output;
  bool killed = false;  // its time was over
};

// Reads what the child `pid` says until it ends, or kills it at the deadline. Its end is seen by the pidfd,
// not by the end of the output: a grandchild may hold the pipe open.
ChildEnd WaitForChild(pid_t pid, const UniqueFd& process, const UniqueFd& reader, TimePoint deadline) {
  ChildEnd end;
  bool ended = false;
  while (!ended) {
    pollfd waits[] = {{process.get(), POLLIN, 0}, {reader.get(), POLLIN, 0}};
    const int ready = poll(waits, 2, end.killed ? -1 : Remaining(deadline));
    if (ready < 0 && errno != EINTR) break;
    if (ready == 0 && Clock::now() >= deadline) {
      kill(pid, SIGKILL);
      end.killed = true;
      continue;
    }
    char buffer[4096];
    if ((waits[1].revents & POLLIN) != 0) {
      const ssize_t count = read(reader.get(), buffer, sizeof buffer);
      if (count > 0) end.output.append(buffer, static_cast<size_t>(count));
      if (end.output.size() > 2 * kOutputKept) end.output.erase(0, end.output.size() - kOutputKept);
      continue;
    }
    ended = (waits[0].revents & POLLIN) != 0;
    if (!ended && (waits[1].revents & POLLHUP) != 0) {
      pollfd wait{process.get(), POLLIN, 0};
      ended = poll(&wait, 1, end.killed ? -1 : Remaining(deadline)) > 0;
    }
  }
  if (end.output.size() > kOutputKept) end.output.erase(0, end.output.size() - kOutputKept);
  return end;
}

}  // namespace

absl::Status RunCommand(std::string_view program, const std::vector<std::string>& arguments,
                        Duration patience, int highest_good_code) {
  std::string path;
  BERTH_ASSIGN_OR_RETURN(path, FindProgram(program));
  std::vector<char*> argv = {path.data()};
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::string search = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
  std::string locale = "LC_ALL=C";
  std::vector<char*> environment = {search.data(), locale.data(), nullptr};

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const TimePoint deadline = Clock::now() + patience;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, fmt::format("start {}", program));
  if (child == 0) Become(argv.data(), environment.data(), writer.get(), parent);
  writer.Reset();
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));

  const ChildEnd end = WaitForChild(child, process, reader, deadline);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (end.killed) {
    return absl::DeadlineExceededError(
        fmt::format("{} took longer than {} s and was killed", program,
                    std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) <= highest_good_code) return absl::OkStatus();
  const std::string ending = WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                               : fmt::format("signal {}", WTERMSIG(status));
  return absl::InternalError(
      fmt::format("{} {}: {}: {}", program, fmt::join(arguments, " "), ending, Printable(end.output)));
}

}  // namespace berth::hostpath
