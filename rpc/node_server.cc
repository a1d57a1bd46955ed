#include "rpc/node_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <thread>

#include "base/status.h"

namespace berth {
namespace {

constexpr int kAcceptBatch = 32;
constexpr int kMaxStreams = 64;  // per connection
constexpr int kMaxMetadata = 16 * 1024;
// A user who connects and closes in a loop must not keep the loop busy.
constexpr auto kBatchPause = std::chrono::milliseconds(20);
// How long to let the kernel recover when it has no descriptor or memory left for a connection.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr auto kWarnAgainAfter = std::chrono::minutes(10);
constexpr size_t kUsersWarned = 256;
// For what takes no time once every call has been answered.
constexpr auto kEndTime = std::chrono::seconds(5);

int Millis(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(count, 1, INT_MAX));
}

}  // namespace

struct NodeServer::Backend {
  Backend(asio::any_io_executor executor, NodeApi& api, Right right, std::string directory,
          NodeService::PeerLookup peers, NodeService::OnRefused refused, ServiceLimits limits)
      : service(std::move(executor), api, right, std::move(directory), std::move(peers), std::move(refused),
                limits) {}

  NodeService service;
  std::unique_ptr<grpc::Server> server;  // ends before the service that it calls
};

absl::StatusOr<std::unique_ptr<NodeServer>> NodeServer::Start(asio::any_io_executor executor,
                                                              NodeServerOptions options, NodeApi& api,
                                                              std::optional<ListenSocket> adopted) {
  BERTH_ASSIGN_OR_RETURN(auto connections, Connections::Make(executor, options.connections));
  const SocketAccess access = options.access;
  absl::StatusOr<ListenSocket> socket =
      adopted ? *std::move(adopted)
              : ListenSocket::Bind(fmt::format("{}/{}", options.directory, SocketName(access.right)),
                                   access.group, access.mode());
  if (!socket.ok()) return socket.status();
  std::unique_ptr<NodeServer> server(
      new NodeServer(std::move(executor), access, *std::move(socket), std::move(connections)));
  absl::Status started = server->StartBackend(options, api);
  const int listener = started.ok() ? fcntl(server->socket_.fd(), F_DUPFD_CLOEXEC, 3) : -1;
  if (started.ok() && listener < 0) started = ErrnoStatus(errno, "duplicate the listening socket");
  if (!started.ok()) {
    server->socket_.Remove();
    return started;
  }
  server->listener_.assign(listener);
  server->tasks_.Spawn("connections", server->connections_->Watch());
  server->tasks_.Spawn("accept", server->AcceptLoop());
  SPDLOG_INFO("serving berth.v1.Node on {}", server->socket_.path());
  return server;
}

NodeServer::NodeServer(asio::any_io_executor executor, SocketAccess access, ListenSocket socket,
                       std::unique_ptr<Connections> connections)
    : executor_(executor),
      access_(access),
      socket_(std::move(socket)),
      listener_(executor),
      connections_(std::move(connections)),
      tasks_(std::move(executor), "node server") {}

NodeServer::~NodeServer() = default;

absl::Status NodeServer::StartBackend(const NodeServerOptions& options, NodeApi& api) {
  // Of its own, so that one socket's peers cannot use up another's.
  grpc::ResourceQuota quota(std::string(SocketName(access_.right)));
  quota.Resize(options.memory);
  backend_ = std::make_shared<Backend>(
      executor_, api, access_.right, options.directory,
      [this](const std::string& peer) { return connections_->PeerOf(peer); },
      [this](const PeerCredentials& peer, const absl::Status& why) { WarnOf(peer, MessageOf(why)); },
      options.calls);
  grpc::ServerBuilder builder;
  builder.RegisterService(&backend_->service);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(options.message);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadata);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Millis(options.idle));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.ping_after));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.ping_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A client may ping as often as it likes: grpc-go measures its bandwidth so, others keep a quiet watch
  // alive. gRPC stops reading from one that does not read the answers.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  backend_->server = builder.BuildAndStart();
  if (!backend_->server) return absl::InternalError("start a gRPC server: it gives no reason");
  return absl::OkStatus();
}

absl::Status NodeServer::SetGroup(std::optional<gid_t> group) {
  if (group == access_.group) return absl::OkStatus();
  SocketAccess wanted = access_;
  wanted.group = group;
  BERTH_RETURN_IF_ERROR(socket_.SetAccess(wanted.group, wanted.mode()));
  access_ = wanted;
  connections_->ShutdownOthers();
  return absl::OkStatus();
}

absl::StatusOr<bool> NodeServer::RepairPath() {
  if (socket_.AtItsPath()) return false;
  struct stat there{};
  if (lstat(socket_.path().c_str(), &there) == 0) {
    return absl::FailedPreconditionError(
        fmt::format("{}: something else is in the place of berthd's socket: remove it", socket_.path()));
  }
  BERTH_ASSIGN_OR_RETURN(ListenSocket made,
                         ListenSocket::Bind(socket_.path(), access_.group, access_.mode()));
  UniqueFd listener(fcntl(made.fd(), F_DUPFD_CLOEXEC, 3));
  if (!listener.valid()) return ErrnoStatus(errno, "duplicate the listening socket");
  socket_ = std::move(made);
  // Callers that wait there are woken, and wait for the new one.
  listener_.close();
  listener_.assign(listener.Release());
  return true;
}

Awaitable<void> NodeServer::AcceptLoop() {
  while (true) {
    const auto [moved] = co_await listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                                                       asio::as_tuple(asio::use_awaitable));
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
      co_return;
    if (moved) continue;  // RepairPath
    for (int i = 0; i < kAcceptBatch; ++i) {
      UniqueFd connection(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (connection.valid()) {
        HandOver(std::move(connection));
        if (i + 1 == kAcceptBatch) co_await SleepUntil(Clock::now() + kBatchPause);
        continue;
      }
      const int error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (error == EAGAIN) break;
      // The connection stays queued and the socket readable: waiting for it would spin.
      SPDLOG_WARN("{}", std::string(ErrnoStatus(error, "accept a connection").message()));
      co_await SleepUntil(Clock::now() + kAcceptPause);
      break;
    }
  }
}

void NodeServer::HandOver(UniqueFd connection) {
  const auto peer = ReadPeerCredentials(connection.get());
  if (!peer.ok()) return;
  if (const absl::Status added = connections_->Add(connection.get(), *peer); !added.ok()) {
    WarnOf(*peer, fmt::format("connection closed: {}", MessageOf(added)));
    return;
  }
  grpc::AddInsecureChannelFromFd(backend_->server.get(), connection.Release());
}

void NodeServer::WarnOf(const PeerCredentials& peer, std::string_view text) {
  const TimePoint now = Clock::now();
  const auto known = warned_.find(peer.uid);
  if (known != warned_.end() && now - known->second < kWarnAgainAfter) return;
  if (warned_.size() >= kUsersWarned) {
    std::erase_if(warned_, [&](const auto& user) { return now - user.second >= kWarnAgainAfter; });
    if (warned_.size() >= kUsersWarned) return;
  }
  warned_[peer.uid] = now;
  SPDLOG_WARN("{}: {}, refused: {} (more of this user is not logged for ten minutes)",
              SocketName(access_.right), peer.Describe(), text);
}

Awaitable<void> NodeServer::Shutdown(TimePoint grace) {
  // The kernel refuses who connects from now on, and there is no socket once it is removed.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  backend_->service.StopAdmitting();
  socket_.Remove();
  co_await tasks_.Join();
  listener_.close();
  co_await backend_->service.Stop(grace);

  bool ended = co_await ShutdownBackend(Clock::now() + kEndTime);
  connections_->ShutdownAll();
  if (ended) ended = co_await backend_->service.WaitGone(Clock::now() + kEndTime);
  if (!ended) {
    // Every call has been answered, so gRPC should have ended; but berthd must end. What gRPC may still touch
    // is left to it.
    SPDLOG_ERROR("gRPC did not shut down in time; going on without it");
    new std::shared_ptr<Backend>(std::move(backend_));
  }
  backend_.reset();
}

Awaitable<bool> NodeServer::ShutdownBackend(TimePoint deadline) {
  // Shared with the thread, which may outlive this if gRPC hangs.
  struct Progress {
    explicit Progress(asio::any_io_executor executor) : bell(std::move(executor)) {}
    bool done = false;
    Condition bell;
  };
  auto progress = std::make_shared<Progress>(executor_);
  // grpc::Server::Shutdown blocks until the last call has ended, and so must not run on the loop, which ends
  // those calls. Its own deadline only says when it begins to cancel them.
  std::thread helper([backend = backend_, progress, executor = executor_] {
    const auto cancel_after =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(500, GPR_TIMESPAN));
    backend->server->Shutdown(cancel_after);
    asio::post(executor, [progress] {
      progress->done = true;
      progress->bell.NotifyAll();
    });
  });
  const bool done = co_await progress->bell.WaitUntil([progress] { return progress->done; }, deadline);
  if (done) {
    helper.join();
  } else {
    helper.detach();
  }
  co_return done;
}

}  // namespace berth
