#include "rpc/listen_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

constexpr int kBacklog = 128;

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

}  // namespace

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat there{};
  if (lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, fmt::format("stat {}", path));
  }
  if (!S_ISSOCK(there.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("socket {}: something that is not a socket is there; remove it by hand", path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("unlink {}", path));
  return absl::OkStatus();
}

absl::StatusOr<ListenSocket> ListenSocket::Bind(const std::string& path, std::optional<gid_t> group,
                                                mode_t mode) {
  BERTH_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  BERTH_RETURN_IF_ERROR(RemoveStaleSocket(path));

  ListenSocket made;
  made.path_ = path;
  made.fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.fd_.valid()) return ErrnoStatus(errno, fmt::format("socket {}", path));
  // The cast is how the sockets API spells inheritance.
  if (bind(made.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno, fmt::format("bind {}", path));
  }
  struct stat file{};
  if (lstat(path.c_str(), &file) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  made.device_ = file.st_dev;
  made.inode_ = file.st_ino;
  // No peer can connect before listen(), so the mode that the umask left does no harm.
  absl::Status status = made.SetAccess(group, mode);
  if (status.ok() && listen(made.fd_.get(), kBacklog) != 0) {
    status = ErrnoStatus(errno, fmt::format("listen on {}", path));
  }
  if (status.ok()) return made;
  made.Remove();
  return status;
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

absl::Status ListenSocket::SetAccess(std::optional<gid_t> group, mode_t mode) {
  constexpr mode_t kOwnerAlone = 0600;
  if (inode_ == 0) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is systemd's: SocketGroup= and SocketMode= of its unit decide who may connect", path_));
  }
  if (!IsOurs())
    return absl::FailedPreconditionError(fmt::format("{} is not berthd's socket any more", path_));
  if (chmod(path_.c_str(), kOwnerAlone) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", path_));
  if (lchown(path_.c_str(), getuid(), group.value_or(getgid())) != 0) {
    return ErrnoStatus(errno, fmt::format("give {} to the group {}", path_, group.value_or(getgid())));
  }
  if (chmod(path_.c_str(), mode) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", path_));
  return absl::OkStatus();
}

bool ListenSocket::IsOurs() const {
  struct stat file{};
  return fd_.valid() && lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
}

void ListenSocket::Remove() {
  if (IsOurs() && unlink(path_.c_str()) != 0) {
    SPDLOG_WARN("{}", std::string(ErrnoStatus(errno, fmt::format("unlink {}", path_)).message()));
  }
  fd_.Reset();
}

}  // namespace berth
