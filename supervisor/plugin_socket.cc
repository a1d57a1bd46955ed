#include "supervisor/plugin_socket.h"

#include <fmt/format.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// The kernel tells of bind(), but not of the listen() that follows: usually microseconds later.
constexpr Duration kFirstRetry = std::chrono::microseconds(500);
constexpr Duration kLongestRetry = std::chrono::milliseconds(20);

std::string_view WhatIsThere(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symlink";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

enum class Answer {
  kAccepted,
  kSoon,    // bound, and nobody listens yet
  kAbsent,  // the directory's watch will tell
};

Answer Connect(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) return Answer::kAbsent;
  std::copy(socket_path.begin(), socket_path.end(), address.sun_path);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Answer::kSoon;  // out of descriptors for now
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return Answer::kAccepted;
  }
  if (errno == EAGAIN) return Answer::kAccepted;  // it listens, and its queue is full
  return errno == ECONNREFUSED || errno == EINTR ? Answer::kSoon : Answer::kAbsent;
}

}  // namespace

absl::Status PrepareSocket(const std::string& socket_path) {
  const std::string directory = std::filesystem::path(socket_path).parent_path().string();
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0750));
  if (chmod(directory.c_str(), 0750) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", directory));
  struct stat info{};
  if (lstat(socket_path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("stat {}", socket_path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{} is {}, where the plugin's socket is to be; it is left alone: move it away",
                    socket_path, WhatIsThere(info.st_mode)));
  }
  if (unlink(socket_path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, fmt::format("remove the stale socket {}", socket_path));
  }
  return absl::OkStatus();
}

Awaitable<absl::Status> WaitForSocket(std::string socket_path) {
  const auto executor = co_await asio::this_coro::executor;
  const std::string directory = std::filesystem::path(socket_path).parent_path().string();
  UniqueFd inotify(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!inotify.valid()) co_return ErrnoStatus(errno, "watch a directory: inotify_init1");
  // Before the first look, so that nothing falls between the two.
  if (inotify_add_watch(inotify.get(), directory.c_str(), IN_CREATE | IN_MOVED_TO | IN_ATTRIB) < 0) {
    co_return ErrnoStatus(errno, fmt::format("watch {}", directory));
  }
  asio::posix::stream_descriptor changes(executor, inotify.Release());
  Duration retry = kFirstRetry;
  while (true) {
    switch (Connect(socket_path)) {
      case Answer::kAccepted:
        co_return absl::OkStatus();
      case Answer::kSoon:
        co_await SleepUntil(Clock::now() + retry);
        retry = std::min(retry * 2, kLongestRetry);
        break;
      case Answer::kAbsent: {
        co_await changes.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
        // What changed does not matter: the next look tells.
        std::array<char, 4096> events{};
        while (read(changes.native_handle(), events.data(), events.size()) > 0) {
        }
        retry = kFirstRetry;
        break;
      }
    }
  }
}

}  // namespace berth
