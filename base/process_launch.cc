#include "base/process_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace berth::process_internal {
namespace {

// --- The child's half of a launch -----------------------------------------------------------------------

// Where in the child a launch failed: told through the error pipe.
enum class Step : int { kSession, kDescriptors, kDirectory, kExecute };

struct ChildError {
  Step step = Step::kSession;
  int error = 0;
};

// All that the child needs, prepared before the clone: the child allocates nothing.
struct ChildPlan {
  const char* executable = nullptr;
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const char* directory = nullptr;
  int stdio[3] = {-1, -1, -1};  // all above 2
  int gate_read = -1;           // -1: no gate
  int gate_write = -1;          // the parent's end, closed here: else the gate could not see the parent die
  int error_pipe = -1;
  mode_t umask = 0;
  bool new_session = true;
};

[[noreturn]] void FailChild(const ChildPlan& plan, Step step) {
  const ChildError report{step, errno};
  [[maybe_unused]] const ssize_t told = write(plan.error_pipe, &report, sizeof report);
  _exit(127);
}

// Runs in the child, with all signals blocked, on a copy of the parent's memory in which other threads may
// have held locks: system calls only.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  if (plan.new_session && setsid() < 0) FailChild(plan, Step::kSession);

  // CLONE_CLEAR_SIGHAND resets handlers, but what the parent ignores would stay ignored.
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);

  if (plan.gate_read >= 0) {
    close(plan.gate_write);
    char go = 0;
    ssize_t count = 0;
    do {
      count = read(plan.gate_read, &go, 1);
    } while (count < 0 && errno == EINTR);
    if (count != 1) _exit(127);  // the parent refused, or is no more
  }

  for (int target = 0; target < 3; ++target) {
    if (dup2(plan.stdio[target], target) < 0) FailChild(plan, Step::kDescriptors);
  }
  if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) < 0) FailChild(plan, Step::kDescriptors);

  umask(plan.umask);
  if (chdir(plan.directory) != 0) FailChild(plan, Step::kDirectory);

  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.executable, plan.argv, plan.envp);
  FailChild(plan, Step::kExecute);
}

// --- The parent's half ----------------------------------------------------------------------------------

absl::Status StepStatus(const ChildError& report, const ProcessSpec& spec) {
  switch (report.step) {
    case Step::kSession:
      return LaunchStatus(report.error, fmt::format("launch {}: make a session", spec.executable));
    case Step::kDescriptors:
      return LaunchStatus(report.error, fmt::format("launch {}: set up descriptors", spec.executable));
    case Step::kDirectory:
      return LaunchStatus(report.error,
                          fmt::format("launch {}: enter {}", spec.executable, spec.working_directory));
    case Step::kExecute:
      // The kernel says ENOENT of the program's interpreter too.
      if (report.error == ENOENT && access(spec.executable.c_str(), F_OK) == 0) {
        return absl::NotFoundError(
            fmt::format("execute {}: its interpreter (the program after \"#!\", or "
                        "the dynamic linker) does not exist",
                        spec.executable));
      }
      if (report.error == ENOEXEC) {
        return absl::FailedPreconditionError(
            fmt::format("execute {}: neither a program for this machine nor a script that begins with "
                        "\"#!\"",
                        spec.executable));
      }
      return LaunchStatus(report.error, fmt::format("execute {}", spec.executable));
  }
  return absl::InternalError("unknown step of a launch");
}

// Every signal blocked while this lives, so that no handler of ours can run in the child.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

absl::StatusOr<Launched> CloneChild(const ChildPlan& plan) {
  int pidfd = -1;
  clone_args arguments{};
  arguments.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
  // Without a gate the parent may as well stop until the program runs: it is spared the page faults of a
  // memory that both share meanwhile.
  if (plan.gate_read < 0) arguments.flags |= CLONE_VFORK;
  arguments.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  const AllSignalsBlocked blocked;
  const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) RunChild(plan);
  if (pid < 0) return LaunchStatus(errno, fmt::format("launch {}: clone", plan.executable));
  return Launched{static_cast<pid_t>(pid), UniqueFd(pidfd)};
}

// What the child says of its launch: nothing once the program runs.
std::optional<ChildError> ReadReport(int fd) {
  ChildError report;
  ssize_t count = 0;
  do {
    count = read(fd, &report, sizeof report);
  } while (count < 0 && errno == EINTR);
  if (count != sizeof report) return std::nullopt;
  return report;
}

// Lets the child go on. One that was killed at the gate is seen by its exit, not by a SIGPIPE here.
void OpenGate(int fd) {
  const AllSignalsBlocked blocked;
  if (write(fd, "g", 1) == 1) return;
  sigset_t raised;
  sigemptyset(&raised);
  sigaddset(&raised, SIGPIPE);
  const timespec at_once{};
  sigtimedwait(&raised, nullptr, &at_once);
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::Status LaunchStatus(int error, std::string_view what) {
  if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(ErrnoStatus(error, what).message());
  }
  return ErrnoStatus(error, what);
}

absl::StatusOr<UniqueFd> DuplicateHigh(int fd, std::string_view what) {
  UniqueFd high(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!high.valid()) return LaunchStatus(errno, what);
  return high;
}

absl::StatusOr<Pipe> MakePipe() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return LaunchStatus(errno, "make a pipe");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // Low numbers are free only in a process that was started without its standard descriptors.
  if (pipe.read.get() < 3) {
    BERTH_ASSIGN_OR_RETURN(pipe.read, DuplicateHigh(pipe.read.get(), "make a pipe"));
  }
  if (pipe.write.get() < 3) {
    BERTH_ASSIGN_OR_RETURN(pipe.write, DuplicateHigh(pipe.write.get(), "make a pipe"));
  }
  return pipe;
}

void Reap(int pidfd) {
  siginfo_t info{};
  while (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED) < 0 &&
         errno == EINTR) {
  }
}

absl::StatusOr<Launched> CloneAndExecute(const ProcessSpec& spec) {
  std::vector<std::string> arguments = spec.arguments;
  arguments.insert(arguments.begin(), spec.executable);
  std::vector<std::string> environment = spec.environment;
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);

  ChildPlan plan;
  plan.executable = spec.executable.c_str();
  plan.argv = argv.data();
  plan.envp = envp.data();
  plan.directory = spec.working_directory.c_str();
  plan.umask = spec.umask;
  plan.new_session = spec.new_session;

  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return LaunchStatus(errno, "open /dev/null");
  const int given[3] = {spec.stdin_fd, spec.stdout_fd, spec.stderr_fd};
  UniqueFd stdio[3];
  for (int i = 0; i < 3; ++i) {
    BERTH_ASSIGN_OR_RETURN(stdio[i], DuplicateHigh(given[i] < 0 ? null.get() : given[i],
                                                   fmt::format("launch {}: descriptor {} given for its "
                                                               "standard descriptor {}",
                                                               spec.executable, given[i], i)));
    plan.stdio[i] = stdio[i].get();
  }

  BERTH_ASSIGN_OR_RETURN(Pipe errors, MakePipe());
  plan.error_pipe = errors.write.get();
  Pipe gate;
  if (spec.before_exec) {
    BERTH_ASSIGN_OR_RETURN(gate, MakePipe());
    plan.gate_read = gate.read.get();
    plan.gate_write = gate.write.get();
  }

  BERTH_ASSIGN_OR_RETURN(Launched child, CloneChild(plan));
  errors.write.Reset();
  gate.read.Reset();
  if (spec.before_exec) {
    const absl::Status allowed = spec.before_exec(child.pid);
    if (!allowed.ok()) {
      gate.write.Reset();
      Reap(child.pidfd.get());
      return Annotate(allowed, fmt::format("launch {}", spec.executable));
    }
    OpenGate(gate.write.get());
  }
  if (const std::optional<ChildError> report = ReadReport(errors.read.get()); report.has_value()) {
    Reap(child.pidfd.get());
    return StepStatus(*report, spec);
  }
  return child;
}

}  // namespace berth::process_internal
