// Serves berth.v1.Node on one Unix socket, with file permissions that decide who may connect (access.h).
//
//   peer ── connect ──▶ kernel (owner, group, mode) ──▶ Connections (uid, limits) ──▶ gRPC ──▶ NodeService
//                                                                                     NodeApi, on the loop
//
// Connections are accepted on the loop, where the kernel names the user of each; the descriptor then goes to
// the gRPC server of this socket. Connections and calls are limited for each user, memory for the socket;
// gRPC's own limits apply to what a peer sends on a connection.
//
// Owned by NodeServers; loop thread only.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "rpc/access.h"
#include "rpc/connections.h"
#include "rpc/listen_socket.h"
#include "rpc/node_api.h"
#include "rpc/node_service.h"

namespace berth {

struct NodeServerOptions {
  // Where the socket is made, under its name.
  std::string directory;
  SocketAccess access;

  UserLimits connections{.total = 256, .per_user = 64};
  ServiceLimits calls;
  size_t memory = 64U << 20;  // gRPC's buffers, all connections together
  int message = 4 << 20;      // the longest request
  // A connection that carries no call is closed after `idle`; one that does not answer a ping, sent when
  // nothing was heard for `ping_after`, after `ping_timeout`.
  Duration idle = std::chrono::minutes(5);
  Duration ping_after = std::chrono::minutes(1);
  Duration ping_timeout = std::chrono::seconds(20);
};

class NodeServer {
 public:
  // Begins to serve: on `adopted`, else on a socket that is made. `api` outlives it. Errors: ListenSocket's;
  // INTERNAL if gRPC does not start.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeServer>> Start(
      asio::any_io_executor executor, NodeServerOptions options, NodeApi& api,
      std::optional<ListenSocket> adopted = std::nullopt);
  // After Shutdown.
  ~NodeServer();
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Stops accepting, ends watches, lets calls that run finish until `grace`, cancels the rest (UNAVAILABLE),
  // closes every connection, and removes the socket file. Bounded: `grace` and a few seconds.
  [[nodiscard]] Awaitable<void> Shutdown(TimePoint grace);

  // Gives the socket to another group, or to none, and ends the connections of others than root: who may
  // still connect does so again. Nothing where `group` is the present one.
  [[nodiscard]] absl::Status SetGroup(std::optional<gid_t> group);

  // Listens at its path again if its socket file was removed; connections stay. True: it did.
  // FAILED_PRECONDITION: something else is there.
  [[nodiscard]] absl::StatusOr<bool> RepairPath();
  [[nodiscard]] std::string path() const { return socket_.path(); }

  [[nodiscard]] const SocketAccess& access() const { return access_; }
  [[nodiscard]] size_t connections() const { return connections_->size(); }

 private:
  // gRPC's server with its service. Left behind if gRPC does not shut down in time.
  struct Backend;

  NodeServer(asio::any_io_executor executor, SocketAccess access, ListenSocket socket,
             std::unique_ptr<Connections> connections);

  absl::Status StartBackend(const NodeServerOptions& options, NodeApi& api);
  Awaitable<void> AcceptLoop();
  void HandOver(UniqueFd connection);
  // Logs what a user can cause as often as he likes: one line for each user and ten minutes.
  void WarnOf(const PeerCredentials& peer, std::string_view text);
  // Shuts gRPC's server down on a thread of its own; says whether it was done in time.
  Awaitable<bool> ShutdownBackend(TimePoint deadline);

  asio::any_io_executor executor_;
  SocketAccess access_;
  ListenSocket socket_;
  asio::posix::stream_descriptor listener_;  // a duplicate of socket_'s, for waiting
  std::unique_ptr<Connections> connections_;
  std::map<uid_t, TimePoint> warned_;
  std::shared_ptr<Backend> backend_;
  TaskScope tasks_;
};

}  // namespace berth
