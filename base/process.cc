#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/file.h"
#include "base/status.h"

namespace berth {
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

// Failures for want of a resource carry one code, whatever the errno.
absl::Status LaunchStatus(int error, std::string_view what) {
  if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(ErrnoStatus(error, what).message());
  }
  return ErrnoStatus(error, what);
}

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

// A duplicate above the standard descriptors, so that setting those up in the child cannot overwrite it.
absl::StatusOr<UniqueFd> DuplicateHigh(int fd, std::string_view what) {
  UniqueFd high(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!high.valid()) return LaunchStatus(errno, what);
  return high;
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe(int flags) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | flags) != 0) return LaunchStatus(errno, "make a pipe");
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

struct Launched {
  pid_t pid = -1;
  UniqueFd pidfd;
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

void Reap(int pidfd) {
  siginfo_t info{};
  while (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED) < 0 &&
         errno == EINTR) {
  }
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

  BERTH_ASSIGN_OR_RETURN(Pipe errors, MakePipe(0));
  plan.error_pipe = errors.write.get();
  Pipe gate;
  if (spec.before_exec) {
    BERTH_ASSIGN_OR_RETURN(gate, MakePipe(0));
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

// --- What /proc says ------------------------------------------------------------------------------------

constexpr size_t kProcFileLimit = 64 * size_t{1024};

// Of /proc/pid/stat.
struct ProcStat {
  char state = 0;           // field 3
  uint64_t start_time = 0;  // field 22
  // Field 52: how a zombie ended, as wait() tells. 0 as well where the kernel does not want to say.
  int wait_status = 0;
};

// `stat` is "pid (comm) state ppid …". The command may hold anything, blanks and parentheses too: fields
// are counted from the last parenthesis.
std::optional<ProcStat> ParseProcStat(std::string_view stat) {
  const size_t end_of_command = stat.rfind(')');
  if (end_of_command == std::string_view::npos) return std::nullopt;
  stat.remove_prefix(end_of_command + 1);
  ProcStat result;
  for (int field = 3; field <= 52; ++field) {
    const size_t begin = stat.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    stat.remove_prefix(begin);
    const std::string_view word = stat.substr(0, stat.find_first_of(" \n"));
    stat.remove_prefix(word.size());
    if (field == 3) result.state = word.front();
    const auto parse = [word](auto& value) {
      return std::from_chars(std::to_address(word.begin()), std::to_address(word.end()), value).ec ==
             std::errc();
    };
    if (field == 22 && !parse(result.start_time)) return std::nullopt;
    if (field == 52 && !parse(result.wait_status)) return std::nullopt;
  }
  return result;
}

// --- Watching -------------------------------------------------------------------------------------------

ExitStatus FromWaitStatus(int status) {
  ExitStatus exit;
  exit.known = true;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
    exit.core_dumped = WCOREDUMP(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  return exit;
}

absl::Status SendSignal(int pidfd, pid_t pid, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return absl::OkStatus();
  const std::string what = fmt::format("send signal {} to process {}", signal, pid);
  return errno == ESRCH ? absl::NotFoundError(what + ": it has ended") : ErrnoStatus(errno, what);
}

absl::Status SendSignalToGroup(int pidfd, pid_t pid, int signal) {
  constexpr unsigned kSignalProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, kSignalProcessGroup) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL) {
    // An older kernel. The number names this group for as long as its leader is not reaped, which the
    // process's own pidfd tells.
    BERTH_RETURN_IF_ERROR(SendSignal(pidfd, pid, 0));
    if (kill(-pid, signal) == 0) return absl::OkStatus();
  }
  const std::string what = fmt::format("send signal {} to the process group {}", signal, pid);
  return errno == ESRCH ? absl::NotFoundError(what + ": it has ended") : ErrnoStatus(errno, what);
}

// Waits until the process of `pidfd` has ended. Asio may wake a waiter without cause (an event of a
// descriptor that was closed meanwhile, whose place a new one has taken), hence the second look.
Awaitable<void> WaitEnded(asio::posix::stream_descriptor& pidfd) {
  while (true) {
    pollfd ended{.fd = pidfd.native_handle(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, 0) > 0) co_return;
    co_await pidfd.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
  }
}

// Our own child, held by Boost.Process. Its async_wait is not used: woken without cause, it would block the
// loop in waitpid until the process ends.
class ChildProcess final : public Process {
 public:
  ChildProcess(const asio::any_io_executor& executor, pid_t pid, UniqueFd pidfd, UniqueFd watched)
      : process_(executor, pid, pidfd.Release()), pidfd_(executor, watched.Release()), pid_(pid) {}
  // Boost's own destructor would kill the process and wait for it.
  ~ChildProcess() override { process_.detach(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const override { return pid_; }
  [[nodiscard]] absl::Status Signal(int signal) override {
    return SendSignal(pidfd_.native_handle(), pid_, signal);
  }
  [[nodiscard]] absl::Status SignalGroup(int signal) override {
    return SendSignalToGroup(pidfd_.native_handle(), pid_, signal);
  }

  [[nodiscard]] Awaitable<ExitStatus> Wait() override {
    if (exit_.has_value()) co_return *exit_;
    co_await WaitEnded(pidfd_);
    boost::system::error_code error;
    if (process_.running(error) || error) {
      // Somebody else has reaped our child: it has ended, how nobody can say.
      SPDLOG_ERROR("wait for process {}: {}", pid_, error.message());
      exit_ = ExitStatus{};
    } else {
      exit_ = FromWaitStatus(process_.native_exit_code());
    }
    co_return *exit_;
  }

 private:
  boost::process::v2::basic_process<asio::any_io_executor> process_;
  asio::posix::stream_descriptor pidfd_;
  pid_t pid_;
  std::optional<ExitStatus> exit_;
};

// The kernel's struct pidfd_info in its first version, newer than the headers that we build with.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t cgroup_id = 0;
  uint32_t pid = 0;
  uint32_t tgid = 0;
  uint32_t ppid = 0;
  std::array<uint32_t, 8> credentials{};
  int32_t exit_code = 0;
  uint32_t reserved[2] = {};
};
static_assert(sizeof(PidfdInfo) == 72);
constexpr uint64_t kPidfdInfoExit = 1U << 3;

enum class HowEnded { kTold, kNotYet, kUnsupported };

// Leaves `exit` as it is unless told.
HowEnded AskHowEnded(int pidfd, ExitStatus* exit) {
  PidfdInfo info{.mask = kPidfdInfoExit};
  if (ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) != 0) {
    return errno == ESRCH ? HowEnded::kNotYet : HowEnded::kUnsupported;
  }
  if ((info.mask & kPidfdInfoExit) == 0) return HowEnded::kNotYet;
  *exit = FromWaitStatus(info.exit_code);
  return HowEnded::kTold;
}

// How a process ended that nobody has reaped yet: /proc tells, of a zombie.
std::optional<ExitStatus> ReadZombie(int pidfd, pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(fmt::format("/proc/{}/stat", pid), kProcFileLimit);
  if (!text.ok()) return std::nullopt;
  const std::optional<ProcStat> stat = ParseProcStat(*text);
  if (!stat.has_value() || stat->state != 'Z') return std::nullopt;
  // It was of this process if this one has kept its number until now.
  if (!SendSignal(pidfd, pid, 0).ok()) return std::nullopt;
  return FromWaitStatus(stat->wait_status);
}

// A process that an earlier run launched.
class AdoptedProcess final : public Process {
 public:
  AdoptedProcess(const asio::any_io_executor& executor, pid_t pid, UniqueFd pidfd)
      : pidfd_(executor, pidfd.Release()), pid_(pid) {}

  [[nodiscard]] pid_t pid() const override { return pid_; }
  [[nodiscard]] absl::Status Signal(int signal) override {
    // The kernel would still take one for a zombie.
    if (exit_.has_value()) return absl::NotFoundError(fmt::format("process {} has ended", pid_));
    return SendSignal(pidfd_.native_handle(), pid_, signal);
  }
  [[nodiscard]] absl::Status SignalGroup(int signal) override {
    return SendSignalToGroup(pidfd_.native_handle(), pid_, signal);
  }

  [[nodiscard]] Awaitable<ExitStatus> Wait() override {
    if (exit_.has_value()) co_return *exit_;
    co_await WaitEnded(pidfd_);

    // It is our child after all if the run that launched it was an object in this very process.
    siginfo_t info{};
    if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.native_handle()), &info,
               WEXITED | WNOHANG) == 0 &&
        info.si_pid == pid_) {
      exit_ = FromSigInfo(info);
      co_return *exit_;
    }

    if (const std::optional<ExitStatus> zombie = ReadZombie(pidfd_.native_handle(), pid_)) {
      exit_ = zombie;
      co_return *exit_;
    }

    // Its parent is reaping it, or has: then the kernel tells how it ended.
    ExitStatus exit;
    using boost::asio::experimental::awaitable_operators::operator||;
    const TimePoint deadline = Clock::now() + kReapedWithin;
    asio::steady_timer bound(pidfd_.get_executor(), deadline);
    while (AskHowEnded(pidfd_.native_handle(), &exit) == HowEnded::kNotYet && Clock::now() < deadline) {
      co_await (pidfd_.async_wait(asio::posix::stream_descriptor::wait_error, asio::use_awaitable) ||
                bound.async_wait(asio::use_awaitable));
    }
    exit_ = exit;
    co_return exit;
  }

 private:
  static constexpr Duration kReapedWithin = std::chrono::milliseconds(100);

  static ExitStatus FromSigInfo(const siginfo_t& info) {
    ExitStatus exit;
    exit.known = true;
    if (info.si_code == CLD_EXITED) {
      exit.code = info.si_status;
    } else {
      exit.signal = info.si_status;
      exit.core_dumped = info.si_code == CLD_DUMPED;
    }
    return exit;
  }

  asio::posix::stream_descriptor pidfd_;
  pid_t pid_;
  std::optional<ExitStatus> exit_;
};

}  // namespace

std::string ExitStatus::Describe() const {
  if (!known) return "ended, cause unknown";
  if (signal == 0) return fmt::format("exit code {}", code);
  const char* name = sigdescr_np(signal);
  return fmt::format("signal {} ({}){}", signal, name == nullptr ? "unnamed" : name,
                     core_dumped ? ", core dumped" : "");
}

absl::StatusOr<std::unique_ptr<Process>> Process::Launch(const asio::any_io_executor& executor,
                                                         ProcessSpec spec) {
  if (!spec.executable.starts_with('/')) {
    return absl::InvalidArgumentError(
        fmt::format("launch \"{}\": the path of the executable must be absolute", spec.executable));
  }
  BERTH_ASSIGN_OR_RETURN(Launched child, CloneAndExecute(spec));
  // One descriptor for Boost, which owns and closes it, and one to wait on.
  absl::StatusOr<UniqueFd> watched = DuplicateHigh(child.pidfd.get(), "duplicate a pidfd");
  if (!watched.ok()) {
    [[maybe_unused]] const absl::Status killed = SendSignal(child.pidfd.get(), child.pid, SIGKILL);
    Reap(child.pidfd.get());
    return watched.status();
  }
  return std::make_unique<ChildProcess>(executor, child.pid, std::move(child.pidfd), *std::move(watched));
}

absl::StatusOr<std::unique_ptr<Process>> Process::Adopt(const asio::any_io_executor& executor, pid_t pid) {
  if (pid <= 0) return absl::InvalidArgumentError(fmt::format("open process {}: no such number", pid));
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const std::string what = fmt::format("open process {}", pid);
    return errno == ESRCH ? absl::NotFoundError(what + ": there is none") : LaunchStatus(errno, what);
  }
  return std::make_unique<AdoptedProcess>(executor, pid, std::move(pidfd));
}

// --- Run to the end -------------------------------------------------------------------------------------

namespace {

// One stream of a running child, collected up to a limit and read to its end beyond it.
class Collector {
 public:
  Collector(const asio::any_io_executor& executor, UniqueFd fd, size_t limit)
      : descriptor_(executor, fd.Release()), limit_(limit) {}

  // Takes what is there now. Says whether there may be more later.
  bool Drain() {
    if (!descriptor_.is_open()) return false;
    std::array<char, 16384> buffer{};
    while (true) {
      const ssize_t count = read(descriptor_.native_handle(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN;
      if (count == 0) return false;
      text_.append(buffer.data(), std::min(static_cast<size_t>(count), limit_ - text_.size()));
    }
  }

  Awaitable<void> Run() {
    while (Drain()) {
      const auto [error] = co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                                                           asio::as_tuple(asio::use_awaitable));
      if (error) break;
    }
  }

  void Close() {
    boost::system::error_code ignored;
    [[maybe_unused]] const auto closed = descriptor_.close(ignored);
  }
  [[nodiscard]] std::string TakeText() { return std::move(text_); }

 private:
  asio::posix::stream_descriptor descriptor_;
  size_t limit_;
  std::string text_;
};

// Shared by the caller and the tasks in the reaper, whichever lives longest.
struct Running {
  Running(const asio::any_io_executor& executor, UniqueFd out_fd, UniqueFd err_fd, size_t limit)
      : out(executor, std::move(out_fd), limit), err(executor, std::move(err_fd), limit), changed(executor) {}

  Collector out;
  Collector err;
  std::unique_ptr<Process> process;
  std::optional<ExitStatus> exit;
  Condition changed;
};

Awaitable<void> CollectOut(std::shared_ptr<Running> running) { co_await running->out.Run(); }
Awaitable<void> CollectErr(std::shared_ptr<Running> running) { co_await running->err.Run(); }
Awaitable<void> ReapRunning(std::shared_ptr<Running> running) {
  running->exit = co_await running->process->Wait();
  running->changed.NotifyAll();
}

// Ends what is still running when the caller leaves, in whichever way.
class KillOnLeave {
 public:
  explicit KillOnLeave(Running& running) : running_(running) {}
  ~KillOnLeave() {
    running_.out.Close();
    running_.err.Close();
    if (running_.exit.has_value()) return;
    if (!running_.process->SignalGroup(SIGKILL).ok()) {
      [[maybe_unused]] const absl::Status killed = running_.process->Signal(SIGKILL);
    }
  }
  KillOnLeave(const KillOnLeave&) = delete;
  KillOnLeave& operator=(const KillOnLeave&) = delete;

 private:
  Running& running_;
};

// A file in memory rather than a pipe: nothing has to be pumped, and a child that does not read cannot
// raise SIGPIPE here.
absl::StatusOr<UniqueFd> InputFile(std::string_view input) {
  UniqueFd fd(memfd_create("stdin", MFD_CLOEXEC));
  if (!fd.valid()) return LaunchStatus(errno, "make a file in memory");
  BERTH_RETURN_IF_ERROR(WriteAll(fd.get(), input, "write a file in memory"));
  if (lseek(fd.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, "rewind a file in memory");
  return fd;
}

}  // namespace

Awaitable<absl::StatusOr<RunResult>> RunProcess(TaskScope& reaper, ProcessSpec spec, std::string input,
                                                size_t output_limit, TimePoint deadline) {
  if (reaper.cancelled())
    co_return absl::CancelledError(fmt::format("run {}: shutting down", spec.executable));
  const std::string executable = spec.executable;
  const auto executor = co_await asio::this_coro::executor;
  BERTH_CO_ASSIGN_OR_RETURN(Pipe out, MakePipe(0));
  BERTH_CO_ASSIGN_OR_RETURN(Pipe err, MakePipe(0));
  for (const int fd : {out.read.get(), err.read.get()}) {
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) co_return ErrnoStatus(errno, "set up a pipe");
  }
  UniqueFd in;
  if (!input.empty()) {
    BERTH_CO_ASSIGN_OR_RETURN(in, InputFile(input));
  }
  spec.stdin_fd = in.get();
  spec.stdout_fd = out.write.get();
  spec.stderr_fd = err.write.get();
  spec.new_session = true;

  auto running = std::make_shared<Running>(executor, std::move(out.read), std::move(err.read), output_limit);
  BERTH_CO_ASSIGN_OR_RETURN(running->process, Process::Launch(executor, std::move(spec)));
  out.write.Reset();
  err.write.Reset();
  const KillOnLeave kill_on_leave(*running);
  reaper.Spawn("collect output of " + executable, CollectOut(running));
  reaper.Spawn("collect errors of " + executable, CollectErr(running));
  reaper.Spawn("reap " + executable, ReapRunning(running));

  auto ended = [running] { return running->exit.has_value(); };
  if (!co_await running->changed.WaitUntil(std::move(ended), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format("run {}: not done in time, killed", executable));
  }
  // What it wrote itself is all in the pipes now; grandchildren may keep them open, which is not waited for.
  running->out.Drain();
  running->err.Drain();
  co_return RunResult{*running->exit, running->out.TakeText(), running->err.TakeText()};
}

// --- Identity -------------------------------------------------------------------------------------------

namespace {

absl::Status NoProcess(pid_t pid) {
  return absl::NotFoundError(fmt::format("identify process {}: there is none", pid));
}

// Failures to read of a process that is no more come as ENOENT or ESRCH, depending on when it ended.
absl::Status ProcFailure(pid_t pid, const absl::Status& status) {
  const std::optional<int> error = ErrnoOf(status);
  if (error == ENOENT || error == ESRCH) return NoProcess(pid);
  return status;
}

absl::StatusOr<ProcStat> ReadProcStat(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(fmt::format("/proc/{}/stat", pid), kProcFileLimit);
  if (!text.ok()) return ProcFailure(pid, text.status());
  const std::optional<ProcStat> stat = ParseProcStat(*text);
  if (!stat.has_value()) {
    return absl::InternalError(fmt::format("read /proc/{}/stat: not in the form that is known", pid));
  }
  if (stat->state == 'Z' || stat->state == 'X') return NoProcess(pid);
  return *stat;
}

absl::StatusOr<std::string> ReadExecutable(pid_t pid) {
  const std::string link = fmt::format("/proc/{}/exe", pid);
  std::array<char, 4097> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return ProcFailure(pid, ErrnoStatus(errno, fmt::format("read {}", link)));
  std::string executable(target.data(), static_cast<size_t>(length));
  constexpr std::string_view kDeleted = " (deleted)";
  if (executable.ends_with(kDeleted)) executable.resize(executable.size() - kDeleted.size());
  return executable;
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  ProcessIdentity identity;
  identity.boot_id = BootId();
  if (identity.boot_id.empty()) return absl::UnavailableError("the kernel's boot id cannot be read");
  identity.pid = pid;
  BERTH_ASSIGN_OR_RETURN(const ProcStat before, ReadProcStat(pid));
  identity.start_time = before.start_time;
  BERTH_ASSIGN_OR_RETURN(identity.executable, ReadExecutable(pid));
  absl::StatusOr<std::string> cgroup = ReadFile(fmt::format("/proc/{}/cgroup", pid), kProcFileLimit);
  if (!cgroup.ok()) return ProcFailure(pid, cgroup.status());
  identity.cgroup = *std::move(cgroup);
  // All of it was of one process only if that one is still there.
  BERTH_ASSIGN_OR_RETURN(const ProcStat after, ReadProcStat(pid));
  if (after.start_time != before.start_time) return NoProcess(pid);
  return identity;
}

const std::string& BootId() {
  static const std::string boot_id = [] {
    absl::StatusOr<std::string> text = ReadFile("/proc/sys/kernel/random/boot_id", 256);
    if (!text.ok()) {
      SPDLOG_ERROR("{}", text.status().ToString());
      return std::string();
    }
    while (!text->empty() && text->back() == '\n') text->pop_back();
    return *std::move(text);
  }();
  return boot_id;
}

}  // namespace berth
