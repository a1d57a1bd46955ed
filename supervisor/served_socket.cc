#include "supervisor/served_socket.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
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
#include <system_error>
#include <thread>
#include <utility>

#include "base/descriptor_wait.h"
#include "base/process.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr Duration kFirstRetry = std::chrono::microseconds(500);
// How often a directory that cannot be watched is looked at.
constexpr Duration kUnwatchedRetry = std::chrono::milliseconds(200);

enum class Answer {
  kAccepted,
  kSoon,    // bound, and its server does not listen yet, or no more
  kAbsent,  // the directory's watch will report it
};

Answer Connect(const std::string& path, ServedSocket* served) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Answer::kAbsent;
  std::copy(path.begin(), path.end(), address.sun_path);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Answer::kSoon;  // out of descriptors for now
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN) return Answer::kAccepted;  // it listens, and its queue is full
    return errno == ECONNREFUSED || errno == EINTR ? Answer::kSoon : Answer::kAbsent;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
    served->pid = peer.pid;
    served->uid = peer.uid;
  }
  if (const auto server = IdentifyProcess(served->pid); server.ok()) served->start_time = server->start_time;
  served->connection = std::move(fd);
  return Answer::kAccepted;
}

std::string WhyNot(const std::string& path, Answer answer) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return fmt::format("there is no {}", path);
    return std::string(MessageOf(ErrnoStatus(errno, path)));
  }
  if (!S_ISSOCK(info.st_mode) && !S_ISLNK(info.st_mode)) return fmt::format("{} is no socket", path);
  return answer == Answer::kSoon ? fmt::format("nothing listens at {}", path)
                                 : fmt::format("{} does not take connections", path);
}

// The directory of `path`, or the nearest one above it that is there.
std::string NearestDirectory(const std::string& path) {
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  while (directory.has_relative_path() && !std::filesystem::is_directory(directory, error)) {
    directory = directory.parent_path();
  }
  return directory.string();
}

// Watches the directory in which the next thing on the way to a socket will appear.
class Watch {
 public:
  explicit Watch(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  ~Watch() { Close(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Watches the directory that is there now. True: another one than before, or one that was not watched. The
  // kernel gives the descriptor of a watch to no other directory, so a directory that was replaced is noticed
  // here whatever was reported of it. Where the limits of inotify are reached nothing is watched.
  absl::StatusOr<bool> Follow(const std::string& path) {
    const std::string directory = NearestDirectory(path);
    if (!changes_.has_value()) {
      UniqueFd inotify(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
      if (!inotify.valid()) return Unwatched(errno, directory);
      changes_.emplace(executor_, inotify.Release());
    }
    constexpr uint32_t kChanges =
        IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_ONLYDIR;
    const int inotify = changes_->native_handle();
    const int watched = inotify_add_watch(inotify, directory.c_str(), kChanges);
    // It went just now: the caller tries again.
    if (watched < 0 && (errno == ENOENT || errno == ENOTDIR)) return true;
    if (watched < 0) return Unwatched(errno, directory);
    const int before = std::exchange(watched_, watched);
    if (before == watched) return false;
    if (before >= 0) (void)inotify_rm_watch(inotify, before);
    return true;
  }

  [[nodiscard]] bool watches() const { return watched_ >= 0; }

  // Returns at the latest after `longest`.
  Awaitable<void> WaitForChange(Duration longest) {
    co_await WaitDescriptor(*changes_, asio::posix::stream_descriptor::wait_read, Clock::now() + longest);
    // What changed does not matter: the next attempt finds out.
    std::array<char, 4096> events{};
    while (read(changes_->native_handle(), events.data(), events.size()) > 0) {
    }
  }

 private:
  // Closing an inotify descriptor waits until the kernel has no reader of any mark: 5 to 15 ms, which the
  // loop does not have, and on which the first Probe would wait.
  void Close() {
    watched_ = -1;
    if (!changes_.has_value()) return;
    const int inotify = changes_->release();
    changes_.reset();
    try {
      std::thread([inotify] { close(inotify); }).detach();
    } catch (const std::system_error&) {  // no thread to be had
      close(inotify);
    }
  }

  absl::StatusOr<bool> Unwatched(int error, const std::string& directory) {
    const absl::Status status = ErrnoStatus(error, fmt::format("watch {}", directory));
    // The user's instances or watches, which other programs of root use, too; or descriptors and memory.
    if (error != EMFILE && error != ENFILE && error != ENOSPC && error != ENOMEM) return status;
    Close();
    if (!std::exchange(warned_, true)) {
      SPDLOG_WARN("{}: it is looked at every {} ms instead (fs.inotify.max_user_instances, max_user_watches)",
                  MessageOf(status), kUnwatchedRetry / std::chrono::milliseconds(1));
    }
    return false;
  }

  asio::any_io_executor executor_;
  std::optional<asio::posix::stream_descriptor> changes_;
  int watched_ = -1;
  bool warned_ = false;
};

}  // namespace

Awaitable<absl::StatusOr<ServedSocket>> WaitForServer(std::string path, WaitForServerOptions options) {
  Watch watch(co_await asio::this_coro::executor);
  Duration retry = kFirstRetry;
  std::string told;
  while (true) {
    // Watched before it is looked at, so that nothing falls between the two.
    BERTH_CO_ASSIGN_OR_RETURN(const bool moved, watch.Follow(path));
    ServedSocket served;
    const Answer answer = Connect(path, &served);
    if (answer == Answer::kAccepted) co_return served;
    if (options.waiting) {
      std::string why = WhyNot(path, answer);
      if (why != told) options.waiting(why);
      told = std::move(why);
    }
    if (answer == Answer::kSoon || (!moved && !watch.watches())) {
      co_await SleepUntil(Clock::now() + retry);
      retry = std::min(retry * 2, answer == Answer::kSoon ? options.longest_retry : kUnwatchedRetry);
    } else if (!moved) {
      co_await watch.WaitForChange(options.check_interval);
      retry = kFirstRetry;
    }
  }
}

std::optional<ServedSocket> TryConnect(const std::string& path) {
  ServedSocket served;
  if (Connect(path, &served) != Answer::kAccepted) return std::nullopt;
  return served;
}

SocketFile SocketFile::At(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return {};
  return {.device = info.st_dev, .inode = info.st_ino};
}

void SocketPath::Keep(std::string path, const ServedSocket& server) {
  path_ = std::move(path);
  file_ = SocketFile::At(path_);
  server_ = server.pid;
}

bool SocketPath::Replaced() const {
  const SocketFile now = SocketFile::At(path_);
  return file_.inode != 0 && now.inode != 0 && now != file_;
}

std::string SocketPath::Trouble() {
  if (file_.inode == 0) return "";
  const SocketFile now = SocketFile::At(path_);
  if (now == file_) return "";
  if (now.inode == 0)
    return fmt::format("its socket {} was removed, so that nothing can connect to it", path_);
  const std::optional<ServedSocket> served = TryConnect(path_);
  if (served.has_value() && served->pid != 0 && served->pid == server_) {
    file_ = now;
    return "";
  }
  return fmt::format("its socket {} is another file now, which it does not serve", path_);
}

Awaitable<void> WaitForEnd(UniqueFd connection) {
  asio::posix::stream_descriptor stream(co_await asio::this_coro::executor, connection.Release());
  std::array<char, 4096> said{};
  while (true) {
    co_await stream.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
    const ssize_t got = read(stream.native_handle(), said.data(), said.size());
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) co_return;
  }
}

}  // namespace berth
