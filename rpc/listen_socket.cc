#include "rpc/listen_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "rpc/access.h"

namespace berth {
namespace {

constexpr int kBacklog = 128;

const sockaddr* Generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);  // How the sockets API spells inheritance.
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(fmt::format("socket {}: the path must be absolute", path));
  }
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        fmt::format("socket {}: the path is {} bytes long, a socket's has at most {}", path, path.size(),
                    sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> MakeSocket(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("socket {}", path));
  return fd;
}

// Two that start at the same moment must not both find the old socket dead, and the second unlink the first
// one's new socket. The lock is on the directory, leaves nothing behind, and ends with the descriptor.
absl::StatusOr<UniqueFd> LockDirectoryOf(const std::string& path) {
  const std::string directory = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", directory));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, fmt::format("lock {}", directory));
  return absl::UnavailableError(
      fmt::format("socket {}: another process is making its own there: try again", path));
}

// OK: nothing is at `path` any more.
absl::Status ClearStale(const std::string& path, const sockaddr_un& address) {
  struct stat there{};
  if (lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, fmt::format("look at {}", path));
  }
  if (!S_ISSOCK(there.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("socket {}: something that is not a socket is there; remove it by hand", path));
  }
  BERTH_ASSIGN_OR_RETURN(const UniqueFd probe, MakeSocket(path));
  if (connect(probe.get(), Generic(address), sizeof address) == 0) {
    const auto peer = ReadPeerCredentials(probe.get());
    return absl::FailedPreconditionError(fmt::format(
        "another berthd serves {}: {}", path, peer.ok() ? fmt::format("pid {}", peer->pid) : "unknown"));
  }
  // Its queue is full: somebody listens, though slowly.
  if (errno == EAGAIN) return absl::FailedPreconditionError(fmt::format("another berthd serves {}", path));
  if (errno != ECONNREFUSED) return ErrnoStatus(errno, fmt::format("connect to {}", path));
  SPDLOG_INFO("socket {}: nobody serves it, replacing it", path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("unlink {}", path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ListenSocket> ListenSocket::Bind(const std::string& path, mode_t mode) {
  BERTH_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectoryOf(path));
  BERTH_RETURN_IF_ERROR(ClearStale(path, address));

  ListenSocket made;
  made.path_ = path;
  BERTH_ASSIGN_OR_RETURN(made.fd_, MakeSocket(path));
  if (bind(made.fd_.get(), Generic(address), sizeof address) != 0) {
    return ErrnoStatus(errno, fmt::format("bind {}", path));
  }
  struct stat file{};
  if (lstat(path.c_str(), &file) != 0) return ErrnoStatus(errno, fmt::format("look at {}", path));
  made.ours_ = true;
  made.device_ = file.st_dev;
  made.inode_ = file.st_ino;
  // Nobody can connect before listen(), so none sees the mode that the umask left.
  if (chmod(path.c_str(), mode) != 0 || listen(made.fd_.get(), kBacklog) != 0) {
    absl::Status status = ErrnoStatus(errno, fmt::format("listen on {}", path));
    made.Remove();
    return status;
  }
  return made;
}

absl::StatusOr<ListenSocket> ListenSocket::Adopt(UniqueFd fd) {
  const auto option = [&fd](int name) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd.get(), SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_STREAM || option(SO_ACCEPTCONN) != 1) {
    return absl::InvalidArgumentError(fmt::format(
        "descriptor {} is not a listening Unix stream socket: check the unit's ListenStream=", fd.get()));
  }
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoStatus(errno, fmt::format("set up descriptor {}", fd.get()));
  }
  ListenSocket adopted;
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      length > offsetof(sockaddr_un, sun_path) && address.sun_path[0] == '/') {
    const size_t longest = length - offsetof(sockaddr_un, sun_path);
    adopted.path_.assign(address.sun_path, strnlen(address.sun_path, longest));
  }
  adopted.fd_ = std::move(fd);
  return adopted;
}

void ListenSocket::Remove() {
  struct stat file{};
  if (ours_ && lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_) {
    if (unlink(path_.c_str()) != 0) {
      SPDLOG_WARN("{}", std::string(ErrnoStatus(errno, fmt::format("unlink {}", path_)).message()));
    }
  }
  ours_ = false;
  fd_.Reset();
}

}  // namespace berth
