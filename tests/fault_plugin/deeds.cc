#include "tests/fault_plugin/deeds.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::fault {
namespace {

constexpr int64_t kChunk = 64 * 1024;

// fork without what libraries have hung on it: gRPC's handlers would wait for threads that the child has not.
pid_t Fork() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }

// In a child: only raw system calls from here on. It can be asked to end, and holds no lock of ours.
[[noreturn]] void PauseForEver() {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  for (;;) pause();
}

[[noreturn]] void BeTheChild(int report, bool hold_fuse) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_getpid));
  const ssize_t written = write(report, &self, sizeof self);
  if (written != static_cast<ssize_t>(sizeof self)) _exit(1);
  close_range(3, ~0U, 0);
  if (hold_fuse) (void)open("/dev/fuse", O_RDWR);
  PauseForEver();
}

[[noreturn]] void MultiplyForEver() {
  close_range(3, ~0U, 0);
  for (;;) {
    // Refused by a limit: wait for room. Nothing can wake this poll but its end.
    if (Fork() < 0) poll(nullptr, 0, 10);
  }
}

}  // namespace

absl::StatusOr<std::vector<pid_t>> LeaveChildren(int64_t count, bool hold_fuse) {
  std::vector<pid_t> pids;
  for (int64_t i = 0; i < count; ++i) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t first = Fork();
    if (first < 0) return ErrnoStatus(errno, "fork");
    if (first == 0) {
      setsid();
      const pid_t second = Fork();
      if (second == 0) BeTheChild(write_end.get(), hold_fuse && i == 0);
      _exit(second < 0 ? 1 : 0);
    }
    write_end.Reset();
    waitpid(first, nullptr, 0);
    pid_t pid = 0;
    if (read(read_end.get(), &pid, sizeof pid) != static_cast<ssize_t>(sizeof pid)) {
      return absl::InternalError("the child that was to be left behind did not come to be");
    }
    pids.push_back(pid);
  }
  return pids;
}

absl::StatusOr<int64_t> ForkBomb(int64_t count) {
  for (int64_t i = 0; i < std::max<int64_t>(count, 1); ++i) {
    const pid_t pid = Fork();
    if (pid < 0) {
      if (i == 0) return ErrnoStatus(errno, "fork");
      return i;
    }
    if (pid > 0) continue;
    if (count == 0) MultiplyForEver();
    if (i % 2 == 1) setsid();
    close_range(3, ~0U, 0);
    PauseForEver();
  }
  return std::max<int64_t>(count, 1);
}

void TakeMemory(int64_t bytes) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<char[]>> taken;
  auto memory = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(bytes));
  std::memset(memory.get(), 1, static_cast<size_t>(bytes));
  const std::lock_guard lock(mutex);
  taken.push_back(std::move(memory));
}

std::string NumberedLine(int64_t number, int64_t length) {
  std::string line = fmt::format("line {} ", number);
  const auto full = static_cast<size_t>(std::max<int64_t>(length - 1, 0));
  if (line.size() < full) line.append(full - line.size(), 'x');
  line += '\n';
  return line;
}

absl::Status Write(const Output& output, const std::atomic<bool>& stopping) {
  if (!output.text.empty()) return WriteAll(STDOUT_FILENO, output.text, "standard output");
  if (output.binary || !output.line_ends) {
    std::string chunk(kChunk, 'x');
    for (size_t i = 0; output.binary && i < chunk.size(); ++i) chunk[i] = static_cast<char>(i * 167 % 256);
    for (int64_t left = output.bytes; left > 0 && !stopping; left -= kChunk) {
      BERTH_RETURN_IF_ERROR(WriteAll(
          STDOUT_FILENO, std::string_view(chunk).substr(0, static_cast<size_t>(std::min(left, kChunk))),
          "standard output"));
    }
    return absl::OkStatus();
  }
  // Either so many lines, or lines until there are so many bytes.
  const int64_t at_once = output.per_second > 0 ? std::max<int64_t>(1, output.per_second / 100) : INT64_MAX;
  int64_t written = 0;
  for (int64_t number = 1; !stopping;) {
    std::string chunk;
    for (int64_t n = 0; n < at_once && static_cast<int64_t>(chunk.size()) < kChunk; ++n) {
      const bool done = output.bytes > 0 ? written + static_cast<int64_t>(chunk.size()) >= output.bytes
                                         : number > output.lines;
      if (done) break;
      chunk += NumberedLine(number++, output.length);
    }
    if (chunk.empty()) break;
    BERTH_RETURN_IF_ERROR(WriteAll(STDOUT_FILENO, chunk, "standard output"));
    written += static_cast<int64_t>(chunk.size());
    if (output.per_second > 0) poll(nullptr, 0, 10);  // The rate is what is asked for.
  }
  return absl::OkStatus();
}

}  // namespace berth::fault
