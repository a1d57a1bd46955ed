#include "cli/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

// A node with tens of thousands of volumes answers with more than gRPC's default of 4 MiB.
constexpr int kAnswerLimit = 256 << 20;

}  // namespace

absl::StatusOr<Connection> Connection::Open(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string shown = Printable(path);
  if (path.empty() || path.size() >= sizeof address.sun_path) return ErrnoStatus(ENAMETOOLONG, shown);
  std::memcpy(static_cast<void*>(address.sun_path), path.data(), path.size());

  // Not blocking, as gRPC wants it: a listener with a full queue gives EAGAIN rather than a wait.
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "make a Unix socket");
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno, shown);
  }
  UniqueFd watched(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched.valid()) return ErrnoStatus(errno, "duplicate a descriptor");

  grpc::ChannelArguments arguments;
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  arguments.SetMaxReceiveMessageSize(kAnswerLimit);
  auto channel = grpc::CreateCustomInsecureChannelFromFd("unix", fd.Release(), arguments);
  return Connection(path, std::move(watched), std::move(channel));
}

bool Connection::Broken() const {
  char byte = 0;
  const ssize_t count = recv(watched_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

absl::StatusOr<std::string> SocketPathOf(const std::string& endpoint) {
  std::string path = endpoint;
  for (const std::string_view scheme : {"unix://", "unix:"}) {
    if (endpoint.starts_with(scheme)) {
      path = endpoint.substr(scheme.size());
      break;
    }
  }
  if (path.starts_with('/')) return path;
  return UsageError(
      fmt::format("the endpoint '{}' is not the absolute path of a Unix socket", Printable(endpoint, 200)),
      "Write --endpoint unix:///run/plugin/csi.sock, or set CSI_ENDPOINT");
}

}  // namespace berth::cli
