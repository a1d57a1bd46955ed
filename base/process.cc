#include "base/process.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/proc_stat.h"
#include "base/process_launch.h"
#include "base/status.h"

namespace berth {
namespace {

using process_internal::CloneAndExecute;
using process_internal::DuplicateHigh;
using process_internal::KillAndReapLater;
using process_internal::Launched;
using process_internal::LaunchStatus;
using process_internal::ProcStat;
using process_internal::ReadProcStat;
using process_internal::WaitReadable;

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
    // An older kernel. The number names this group as long as its leader is not reaped, which the process's
    // own pidfd shows.
    BERTH_RETURN_IF_ERROR(SendSignal(pidfd, pid, 0));
    if (kill(-pid, signal) == 0) return absl::OkStatus();
  }
  const std::string what = fmt::format("send signal {} to the process group {}", signal, pid);
  return errno == ESRCH ? absl::NotFoundError(what + ": it has ended") : ErrnoStatus(errno, what);
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
    co_await WaitReadable(pidfd_, TimePoint::max());
    boost::system::error_code error;
    if (process_.running(error) || error) {
      // Our child was reaped elsewhere: it has ended, and it is not known how.
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

// Leaves `exit` as it is if it is not known.
HowEnded AskHowEnded(int pidfd, ExitStatus* exit) {
  PidfdInfo info{.mask = kPidfdInfoExit};
  if (ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) != 0) {
    return errno == ESRCH ? HowEnded::kNotYet : HowEnded::kUnsupported;
  }
  if ((info.mask & kPidfdInfoExit) == 0) return HowEnded::kNotYet;
  *exit = FromWaitStatus(info.exit_code);
  return HowEnded::kTold;
}

// How a process ended that was not reaped yet: /proc shows it for a zombie.
std::optional<ExitStatus> ReadZombie(int pidfd, pid_t pid) {
  const absl::StatusOr<ProcStat> stat = ReadProcStat(pid);
  if (!stat.ok() || stat->state != 'Z') return std::nullopt;
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
    co_await WaitReadable(pidfd_, TimePoint::max());

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

    // Its parent is reaping it, or has: then the kernel says how it ended.
    ExitStatus exit;
    asio::steady_timer bound(pidfd_.get_executor(), Clock::now() + kReapedWithin);
    bool waiting = true;
    while (waiting && AskHowEnded(pidfd_.native_handle(), &exit) == HowEnded::kNotYet) {
      waiting = co_await WaitReaped(bound);
    }
    exit_ = exit;
    co_return exit;
  }

 private:
  static constexpr Duration kReapedWithin = std::chrono::milliseconds(100);

  // Waits until its parent has reaped it; false once `bound` has passed.
  Awaitable<bool> WaitReaped(asio::steady_timer& bound) {
    using boost::asio::experimental::awaitable_operators::operator||;
    // As tuples: two exceptions at once would not look like a cancellation.
    constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
    [[maybe_unused]] const auto woken = co_await (
        pidfd_.async_wait(asio::posix::stream_descriptor::wait_error, kToken) || bound.async_wait(kToken));
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      throw boost::system::system_error(asio::error::operation_aborted);
    }
    co_return Clock::now() < bound.expiry();
  }

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

Awaitable<absl::StatusOr<std::unique_ptr<Process>>> Process::Launch(asio::any_io_executor executor,
                                                                    ProcessSpec spec, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(Launched child, co_await CloneAndExecute(std::move(spec), deadline));
  // One descriptor for Boost, which owns and closes it, and one to wait on.
  absl::StatusOr<UniqueFd> watched = DuplicateHigh(child.pidfd.get(), "duplicate a pidfd");
  if (!watched.ok()) {
    KillAndReapLater(std::move(child.pidfd));
    co_return watched.status();
  }
  co_return std::make_unique<ChildProcess>(executor, child.pid, std::move(child.pidfd), *std::move(watched));
}

Awaitable<absl::Status> Process::Try(ProcessSpec spec, TimePoint deadline) {
  co_return (co_await CloneAndExecute(std::move(spec), deadline, process_internal::Execute::kNothing))
      .status();
}

absl::StatusOr<std::unique_ptr<Process>> Process::Adopt(const asio::any_io_executor& executor, pid_t pid) {
  if (pid <= 0) return absl::InvalidArgumentError(fmt::format("open process {}: no such number", pid));
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const std::string what = fmt::format("open process {}", pid);
    return errno == ESRCH ? absl::NotFoundError(what + ": no such process") : LaunchStatus(errno, what);
  }
  return std::make_unique<AdoptedProcess>(executor, pid, std::move(pidfd));
}

}  // namespace berth
