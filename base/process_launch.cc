#include "base/process_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "base/process_child.h"
#include "base/status.h"

namespace berth::process_internal {
namespace {

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

absl::StatusOr<Launched> CloneChild(const ChildPlan& plan, int cgroup_fd) {
  int pidfd = -1;
  clone_args arguments{};
  arguments.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
  if (cgroup_fd >= 0) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = static_cast<uint64_t>(cgroup_fd);
  }
  arguments.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  const AllSignalsBlocked blocked;
  const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) RunChild(plan);
  if (pid < 0)
    return LaunchStatus(
        errno, fmt::format("launch {}: clone{}", plan.executable, cgroup_fd >= 0 ? " into its cgroup" : ""));
  return Launched{static_cast<pid_t>(pid), UniqueFd(pidfd)};
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

// A child that has not executed its program yet: it ends with this.
class Unfinished {
 public:
  Unfinished(const asio::any_io_executor& executor, Launched child)
      : pid_(child.pid), pidfd_(executor, child.pidfd.Release()) {}
  ~Unfinished() {
    if (pidfd_.is_open()) KillAndReapLater(UniqueFd(pidfd_.release()));
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Kills it, and reaps it if it ends in time.
  Awaitable<void> End(TimePoint deadline) {
    syscall(SYS_pidfd_send_signal, pidfd_.native_handle(), SIGKILL, nullptr, 0);
    if (!co_await WaitReadable(pidfd_, deadline)) co_return;
    siginfo_t info{};
    waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.native_handle()), &info,
           WEXITED | WNOHANG);
    pidfd_.close();
  }

  Launched Release() { return Launched{pid_, UniqueFd(pidfd_.release())}; }

 private:
  pid_t pid_;
  asio::posix::stream_descriptor pidfd_;
};

// What the parent has of a child at its beginning.
struct Beginning {
  Launched child;
  UniqueFd errors;  // to be read from, not blocking
  UniqueFd gate;    // to be written to, if there is one
};

absl::StatusOr<Beginning> Begin(const ProcessSpec& spec, Execute execute) {
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
  plan.limits = spec.resource_limits.data();
  plan.limit_count = spec.resource_limits.size();
  fmt::format_to_n(plan.oom_score_adjust, sizeof plan.oom_score_adjust - 1, "{}",
                   spec.oom_score_adjust.value_or(0));
  plan.oom_score_required = spec.oom_score_adjust.has_value();
  plan.drop_from_bounding_set = spec.capability_bounding_set.has_value();
  plan.bounding_set = spec.capability_bounding_set.value_or(~uint64_t{0});
  if (spec.user.has_value()) {
    plan.change_user = true;
    plan.uid = spec.user->uid;
    plan.gid = spec.user->gid;
    plan.groups = spec.user->groups.data();
    plan.group_count = spec.user->groups.size();
  }
  plan.ambient = spec.ambient_capabilities;
  plan.no_new_privileges = spec.no_new_privileges;
  plan.try_only = execute == Execute::kNothing;

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
  if (fcntl(errors.read.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "set up a pipe");
  plan.error_pipe = errors.write.get();
  Pipe gate;
  if (spec.before_exec) {
    BERTH_ASSIGN_OR_RETURN(gate, MakePipe());
    plan.gate_read = gate.read.get();
    plan.gate_write = gate.write.get();
  }
  BERTH_ASSIGN_OR_RETURN(Launched child, CloneChild(plan, spec.cgroup_fd));
  return Beginning{std::move(child), std::move(errors.read), std::move(gate.write)};
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

Awaitable<bool> WaitReadable(asio::posix::stream_descriptor& descriptor, TimePoint deadline) {
  using boost::asio::experimental::awaitable_operators::operator||;
  asio::steady_timer timer(descriptor.get_executor(), deadline);
  while (true) {
    // Asio may wake a waiter without cause (an event of a descriptor that was closed meanwhile, with its
    // number reused), so check.
    pollfd ready{.fd = descriptor.native_handle(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 0) > 0) co_return true;
    if (Clock::now() >= deadline) co_return false;
    // As tuples: two exceptions at once would not look like a cancellation.
    constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
    [[maybe_unused]] const auto woken = co_await (
        descriptor.async_wait(asio::posix::stream_descriptor::wait_read, kToken) || timer.async_wait(kToken));
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      throw boost::system::system_error(asio::error::operation_aborted);
    }
  }
}

Awaitable<absl::StatusOr<Launched>> CloneAndExecute(ProcessSpec spec, TimePoint deadline, Execute execute) {
  if (!spec.executable.starts_with('/')) {
    co_return absl::InvalidArgumentError(
        fmt::format("launch \"{}\": the path of the executable must be absolute", spec.executable));
  }
  const auto executor = co_await asio::this_coro::executor;
  BERTH_CO_ASSIGN_OR_RETURN(Beginning beginning, Begin(spec, execute));
  Unfinished child(executor, std::move(beginning.child));

  if (spec.before_exec) {
    const absl::Status allowed = co_await spec.before_exec(child.pid());
    if (!allowed.ok()) {
      co_await child.End(deadline);
      co_return Annotate(allowed, fmt::format("launch {}", spec.executable));
    }
    OpenGate(beginning.gate.get());
    beginning.gate.Reset();
  }

  asio::posix::stream_descriptor errors(executor, beginning.errors.Release());
  if (!co_await WaitReadable(errors, deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("launch {}: the program could not be executed in time", spec.executable));
  }
  ChildError report;
  if (read(errors.native_handle(), &report, sizeof report) == sizeof report) {
    co_await child.End(deadline);
    co_return StepStatus(report, spec);
  }
  if (execute == Execute::kNothing) {
    co_await child.End(deadline);
    co_return Launched{};
  }
  co_return child.Release();
}

}  // namespace berth::process_internal
