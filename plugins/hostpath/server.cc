#include "plugins/hostpath/server.h"

#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

// CSI's messages are a few KiB.
constexpr int kLargestRequest = 1 << 20;
constexpr int kThreads = 64;
constexpr size_t kMemory = size_t{64} << 20;

// Another name in the same directory, no longer than the first: what a socket's address can hold is scarce.
std::string NameBefore(const std::string& path) {
  std::string other = path;
  char& first = other[other.rfind('/') + 1];
  first = first == '.' ? '_' : '.';
  return other;
}

absl::StatusOr<bool> SomebodyAnswers(const std::string& path) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  // A full queue has an owner.
  if (errno == EAGAIN) return true;
  if (errno == ECONNREFUSED || errno == ENOENT) return false;
  return ErrnoStatus(errno, fmt::format("connect to {}", path));
}

}  // namespace

absl::Status ClearStaleSocket(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("stat {}", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{} is there and is not a socket; it is left alone", path));
  }
  bool answered = false;
  BERTH_ASSIGN_OR_RETURN(answered, SomebodyAnswers(path));
  if (answered) return absl::FailedPreconditionError(fmt::format("another program answers on {}", path));
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("remove {}", path));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& path,
                                                      const std::vector<grpc::Service*>& services) {
  const std::string before = NameBefore(path);
  BERTH_RETURN_IF_ERROR(ClearStaleSocket(path));
  BERTH_RETURN_IF_ERROR(ClearStaleSocket(before));
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("berth-hostpath");
  quota.SetMaxThreads(kThreads);
  quota.Resize(kMemory);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kLargestRequest);
  builder.AddListeningPort("unix:" + before, grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  const mode_t mask = umask(0177);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  umask(mask);
  if (server == nullptr)
    return absl::InternalError(fmt::format("listen on {}: gRPC refused; see above", before));
  std::unique_ptr<Server> result(new Server(path, std::move(server)));
  if (rename(before.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(before.c_str());
    result->Stop();
    return ErrnoStatus(error, fmt::format("rename {} to {}", before, path));
  }
  return result;
}

void Server::Hide() { unlink(path_.c_str()); }

void Server::Stop() {
  Hide();
  // Without a deadline it would wait for idle clients to go away as well.
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace berth::hostpath
