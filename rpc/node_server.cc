#include "rpc/node_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <thread>

#include "base/status.h"

namespace berth {
namespace {

constexpr mode_t kSocketMode = 0666;
constexpr int kAcceptBatch = 32;
constexpr int kMaxStreams = 64;  // per connection
constexpr int kMaxMetadata = 16 * 1024;
// How long to let the kernel recover when it has no descriptor or memory left for a connection.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// How much the log is told of peers that are refused: anybody may connect, as often as they like.
constexpr size_t kWarnings = 60;
constexpr auto kWarningsWindow = std::chrono::minutes(1);
// For what takes no time once every call has been answered.
constexpr auto kEndTime = std::chrono::seconds(5);

// Every set of rights that AccessPolicy gives; the last is that of strangers.
constexpr std::array<Rights, 5> kEveryRights = {{
    {.read = true, .change = true, .claim = true},
    {.read = true, .change = false, .claim = true},
    {.read = true, .change = false, .claim = false},
    {.read = false, .change = false, .claim = true},
    {},
}};

int Millis(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(count, 1, INT_MAX));
}

}  // namespace

struct NodeServer::Backend {
  Backend(asio::any_io_executor executor, NodeApi& api, Rights its_rights, NodeService::PeerLookup peers,
          NodeService::RefusalTold refused, ServiceLimits limits)
      : rights(its_rights),
        service(std::move(executor), api, its_rights, std::move(peers), std::move(refused), limits) {}

  Rights rights;
  NodeService service;
  std::unique_ptr<grpc::Server> server;  // goes before the service that it calls
};

absl::StatusOr<std::unique_ptr<NodeServer>> NodeServer::Start(asio::any_io_executor executor,
                                                              NodeServerOptions options, AccessPolicy policy,
                                                              NodeApi& api) {
  BERTH_ASSIGN_OR_RETURN(auto connections, Connections::Make(executor, options.connections));
  auto socket = options.listening.valid() ? ListenSocket::Adopt(std::move(options.listening))
                                          : ListenSocket::Bind(options.socket_path, kSocketMode);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<NodeServer> server(
      new NodeServer(std::move(executor), std::move(policy), *std::move(socket), std::move(connections)));
  absl::Status started = server->StartBackends(options, api);
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

NodeServer::NodeServer(asio::any_io_executor executor, AccessPolicy policy, ListenSocket socket,
                       std::unique_ptr<Connections> connections)
    : executor_(executor),
      policy_(std::move(policy)),
      socket_(std::move(socket)),
      listener_(executor),
      connections_(std::move(connections)),
      warnings_(kWarnings, kWarningsWindow),
      tasks_(std::move(executor), "node server") {}

NodeServer::~NodeServer() = default;

absl::Status NodeServer::StartBackends(const NodeServerOptions& options, NodeApi& api) {
  grpc::ResourceQuota quota("berth.v1.Node");
  quota.Resize(options.memory);
  const auto peers = [this](const std::string& peer) { return connections_->PeerOf(peer); };
  connections_->OnCut([this](const PeerCredentials& peer, const absl::Status& why) {
    WarnOfPeer(fmt::format("connection of {} cut: {}", peer.Describe(), std::string(why.message())));
  });
  const auto refused = [this](const std::string& peer, const absl::Status& why) { TellRefusal(peer, why); };
  for (const Rights rights : kEveryRights) {
    auto backend = std::make_shared<Backend>(executor_, api, rights, peers, refused, options.calls);
    grpc::ServerBuilder builder;
    builder.RegisterService(&backend->service);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(options.message);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadata);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Millis(options.idle));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.ping_after));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.ping_timeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    backend->server = builder.BuildAndStart();
    if (!backend->server) return absl::InternalError("start a gRPC server: it says no more than this");
    backends_.push_back(std::move(backend));
  }
  return absl::OkStatus();
}

NodeServer::Backend& NodeServer::BackendOf(Rights rights) const {
  const auto backend = std::find_if(backends_.begin(), backends_.end(),
                                    [rights](const auto& candidate) { return candidate->rights == rights; });
  return backend == backends_.end() ? *backends_.back() : **backend;
}

Awaitable<void> NodeServer::AcceptLoop() {
  while (true) {
    co_await listener_.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
    for (int i = 0; i < kAcceptBatch; ++i) {
      UniqueFd connection(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (connection.valid()) {
        HandOver(std::move(connection));
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
  absl::Status taken = peer.status();
  Rights rights;
  if (taken.ok()) {
    rights = policy_.RightsOf(*peer);
    taken = connections_->Admit(*peer, rights);
  }
  if (taken.ok()) taken = Take(&connection, *peer, rights);
  if (!taken.ok()) {
    WarnOfPeer(fmt::format("connection of {} closed: {}", peer.ok() ? peer->Describe() : "an unknown peer",
                           std::string(taken.message())));
    return;
  }
  grpc::AddInsecureChannelFromFd(BackendOf(rights).server.get(), connection.Release());
}

absl::Status NodeServer::Take(UniqueFd* connection, const PeerCredentials& peer, Rights rights) {
  std::unique_ptr<PeerPipe> pipe;
  if (!rights.change) {
    UniqueFd grpcs;
    BERTH_ASSIGN_OR_RETURN(pipe, PeerPipe::Make(executor_, std::move(*connection), &grpcs));
    *connection = std::move(grpcs);
  }
  return connections_->Add(connection->get(), peer, std::move(pipe));
}

void NodeServer::TellRefusal(const std::string& grpc_peer, const absl::Status& why) {
  if (!connections_->FirstRefusal(grpc_peer)) return;
  WarnOfPeer(fmt::format("refused, and not told again of this connection: {}", std::string(why.message())));
}

void NodeServer::WarnOfPeer(const std::string& text) {
  const auto left_out = warnings_.Take(Clock::now());
  if (!left_out) return;
  if (*left_out > 0) SPDLOG_WARN("lines like the next that were left out: {}", *left_out);
  SPDLOG_WARN("{}", text);
}

Awaitable<void> NodeServer::Shutdown(TimePoint grace) {
  // Whoever connects from now on is refused by the kernel, and finds no socket once it is removed.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  for (const auto& backend : backends_) backend->service.StopAdmitting();
  socket_.Remove();
  co_await tasks_.Join();
  listener_.close();
  for (const auto& backend : backends_) co_await backend->service.Stop(grace);

  const bool down = co_await ShutdownBackends(Clock::now() + kEndTime);
  connections_->ShutdownAll();
  co_await connections_->PipesEnded();
  bool gone = down;
  for (const auto& backend : backends_) {
    if (gone) gone = co_await backend->service.WaitGone(Clock::now() + kEndTime);
  }
  if (!gone) {
    // Every call has been answered, so gRPC owes us this; but berthd must end. What gRPC may still touch is
    // left to it.
    SPDLOG_ERROR("gRPC did not shut down in time; going on without it");
    for (auto& backend : backends_) new std::shared_ptr<Backend>(std::move(backend));
  }
  backends_.clear();
}

Awaitable<bool> NodeServer::ShutdownBackends(TimePoint deadline) {
  // Shared with the thread, which may outlive this if gRPC hangs.
  struct Progress {
    explicit Progress(asio::any_io_executor executor) : bell(std::move(executor)) {}
    bool done = false;
    Condition bell;
  };
  auto progress = std::make_shared<Progress>(executor_);
  // grpc::Server::Shutdown blocks until the last call is gone, and so must not run on the loop, which ends
  // those calls. Its own deadline only says when it begins to cancel them.
  std::thread helper([backends = backends_, progress, executor = executor_] {
    const auto cancel_after =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(500, GPR_TIMESPAN));
    for (const auto& backend : backends) backend->server->Shutdown(cancel_after);
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
