#include "bench/process_usage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

// The sum of the lines "Name:   123 kB" of a file of /proc with one of these names, in bytes.
absl::StatusOr<double> ReadSizes(const std::string& path, std::string_view name) {
  std::ifstream in(path);
  if (!in) return ErrnoStatus(errno == 0 ? ENOENT : errno, fmt::format("open {}", path));
  double sum = 0;
  bool found = false;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    sum += std::stod(line.substr(name.size() + 1)) * 1024;
    found = true;
  }
  if (!found) return absl::NotFoundError(fmt::format("{} has no {}", path, name));
  return sum;
}

// True: it has ended. False: `duration` has passed.
absl::StatusOr<bool> EndsWithin(pid_t pid, Duration duration) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return ErrnoStatus(errno, fmt::format("pidfd_open {}", pid));
  const TimePoint deadline = Clock::now() + duration;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wait{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    const int count = poll(&wait, 1, std::max(0, static_cast<int>(left.count())));
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (count > 0) return true;
    if (count == 0) return false;
  }
}

}  // namespace

absl::StatusOr<PrivateMemory> ReadPrivateMemory(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/smaps_rollup", pid);
  PrivateMemory memory;
  BERTH_ASSIGN_OR_RETURN(memory.dirty, ReadSizes(path, "Private_Dirty"));
  BERTH_ASSIGN_OR_RETURN(memory.clean, ReadSizes(path, "Private_Clean"));
  return memory;
}

absl::StatusOr<double> PeakResident(pid_t pid) {
  return ReadSizes(fmt::format("/proc/{}/status", pid), "VmHWM");
}

absl::Status ResetPeak(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/clear_refs", pid);
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || write(fd.get(), "5", 1) != 1) return ErrnoStatus(errno, fmt::format("write {}", path));
  return absl::OkStatus();
}

absl::StatusOr<double> CpuTime(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  const int error = clock_getcpuclockid(pid, &clock);
  if (error != 0) return ErrnoStatus(error, fmt::format("the CPU clock of process {}", pid));
  if (clock_gettime(clock, &time) != 0)
    return ErrnoStatus(errno, fmt::format("the CPU time of process {}", pid));
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

absl::Status LetRun(pid_t pid, Duration duration) {
  BERTH_ASSIGN_OR_RETURN(const bool ended, EndsWithin(pid, duration));
  if (ended) return absl::UnavailableError(fmt::format("process {} ended while it was measured", pid));
  return absl::OkStatus();
}

absl::Status LetSettle(pid_t pid, Duration bound) {
  constexpr Duration kLook = std::chrono::milliseconds(200);
  constexpr double kNextToNone = 0.01;
  const TimePoint deadline = Clock::now() + bound;
  BERTH_ASSIGN_OR_RETURN(double before, CpuTime(pid));
  while (Clock::now() < deadline) {
    BERTH_RETURN_IF_ERROR(LetRun(pid, kLook));
    BERTH_ASSIGN_OR_RETURN(const double now, CpuTime(pid));
    if (now - before < kNextToNone) return absl::OkStatus();
    before = now;
  }
  return absl::DeadlineExceededError(fmt::format("process {} does not come to rest", pid));
}

absl::StatusOr<Child> Child::Start(std::vector<std::string> command, int stdin_fd, int output_fd) {
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const int in = stdin_fd < 0 ? null.get() : stdin_fd;
  const int out = output_fd < 0 ? null.get() : output_fd;
  // The cheapest way from the decision to the exec, however much memory this process has.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, out, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, fmt::format("start {}", command.front()));
  return Child(pid);
}

Child::~Child() { Kill(); }

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

absl::StatusOr<int> Child::Wait(Duration bound) {
  BERTH_ASSIGN_OR_RETURN(const bool ended, EndsWithin(pid_, bound));
  if (!ended) return absl::DeadlineExceededError(fmt::format("process {} does not end", pid_));
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return ErrnoStatus(errno, fmt::format("wait for process {}", pid_));
  pid_ = -1;
  return status;
}

void Child::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace berth
