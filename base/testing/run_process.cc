#include "base/testing/run_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>
#include <optional>

#include "base/file.h"
#include "base/process_launch.h"
#include "base/status.h"

namespace berth {
namespace {

using process_internal::LaunchStatus;
using process_internal::MakePipe;
using process_internal::Pipe;

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
  BERTH_CO_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  BERTH_CO_ASSIGN_OR_RETURN(Pipe err, MakePipe());
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
  BERTH_CO_ASSIGN_OR_RETURN(running->process, co_await Process::Launch(executor, std::move(spec), deadline));
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

}  // namespace berth
