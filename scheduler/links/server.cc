#include "scheduler/links/server.h"

#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/blocking.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::scheduler {
namespace {

constexpr int kMessageLimit = 4 << 20;
constexpr size_t kMemory = size_t{1} << 30;  // gRPC's buffers, all connections together
constexpr int kPingAfterMs = 30'000;
constexpr int kPingTimeoutMs = 20'000;
constexpr Duration kEndTime = std::chrono::seconds(5);

// Makes the socket's directory. gRPC replaces a socket file without a listener, so this looks for one.
absl::Status Prepare(const std::string& path) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(path.substr(0, std::max<size_t>(path.rfind('/'), 1)), 0755));
  struct stat there{};
  if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();
  if (!S_ISSOCK(there.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("listen on {}: there is a file that is no socket: remove it", Printable(path)));
  }
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (error == ECONNREFUSED) return absl::OkStatus();
  // EAGAIN: its queue of connections is full.
  if (error != 0 && error != EAGAIN) return ErrnoStatus(error, fmt::format("listen on {}", Printable(path)));
  return absl::FailedPreconditionError(
      fmt::format("listen on {}: another process serves there", Printable(path)));
}

}  // namespace

LinkService::LinkService(asio::any_io_executor executor, NodeLinks& links)
    : links_(links), calls_(std::move(executor), "links", "berth-scheduler") {}

grpc::ServerBidiReactor<v1::NodeMessage, v1::SchedulerMessage>* LinkService::Connect(
    grpc::CallbackServerContext* context) {
  return DuplexReactor<v1::NodeMessage, v1::SchedulerMessage>::Start(
      calls_, "Connect", context, [this](NodeLinks::Stream& stream) { return links_.Serve(stream); });
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::vector<std::string>& addresses,
                                                      const std::vector<grpc::Service*>& services) {
  constexpr std::string_view kUnix = "unix:";
  grpc::ServerBuilder builder;
  std::vector<int> ports(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].starts_with(kUnix)) BERTH_RETURN_IF_ERROR(Prepare(addresses[i].substr(kUnix.size())));
    builder.AddListeningPort(addresses[i], grpc::InsecureServerCredentials(), &ports[i]);
  }
  for (grpc::Service* const service : services) builder.RegisterService(service);
  grpc::ResourceQuota quota("berth-scheduler");
  quota.Resize(kMemory);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMessageLimit);
  // Two schedulers on one port would each get a part of the nodes.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (server == nullptr || ports[i] == 0) {
      return absl::UnavailableError(
          fmt::format("listen on {}: it is taken, or not an address of this machine", addresses[i]));
    }
    SPDLOG_INFO("serving nodes and users on {}, without access control", addresses[i]);
  }
  return std::unique_ptr<Server>(new Server(std::move(server)));
}

Server::~Server() = default;

Awaitable<void> Server::Stop(std::vector<CallScope*> calls) {
  for (CallScope* const scope : calls) co_await scope->Stop(Clock::now());
  // It blocks until the last reactor is gone, which needs this loop.
  const auto down = co_await RunBlocking(
      "end the gRPC server",
      [server = server_] {
        server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
        return absl::OkStatus();
      },
      Clock::now() + kEndTime);
  if (!down.ok()) SPDLOG_WARN("{}", MessageOf(down));
  for (CallScope* const scope : calls) [[maybe_unused]]
    const bool gone = co_await scope->WaitReactorsGone(Clock::now() + kEndTime);
}

}  // namespace berth::scheduler
