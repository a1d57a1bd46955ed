// Serves berth.v1.Node on a Unix socket, to peers that the kernel names.
//
// Connections are accepted on the loop, where the peer's credentials are read; the descriptor is then handed
// to the gRPC server of the peer's rights: one for each set of them that there can be, down to none (which
// answers every method with PERMISSION_DENIED and what would be needed). A connection cannot leave its
// server, so rights need no look-up per call and no race can mix them up.
//
//   peer ── connect ──▶ ListenSocket ──▶ credentials ──▶ Connections (limits) ──▶ gRPC server of its rights
//                                             │                                        │ NodeService
//                                        AccessPolicy                               NodeApi, on the loop
//
// What peers say that may not change goes through a pipe, which holds it to a pace and to limits that gRPC
// does not have (peer_pipe.h).
//
// Owned by main; loop thread only. Memory, connections, calls, streams and message sizes are bounded; a peer
// that goes silent or sends nothing sensible is disconnected, and costs no more than its connection until
// then.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "rpc/access.h"
#include "rpc/connections.h"
#include "rpc/listen_socket.h"
#include "rpc/log_pace.h"
#include "rpc/node_api.h"
#include "rpc/node_service.h"

namespace berth {

struct NodeServerOptions {
  // Where to listen; made with mode 0666, as rights come from credentials.
  std::string socket_path;
  // If valid: a socket that listens already (systemd's), used in place of one at socket_path.
  UniqueFd listening;

  ConnectionLimits connections;
  ServiceLimits calls;        // of each server
  size_t memory = 64U << 20;  // gRPC's buffers, all connections together
  int message = 4 << 20;      // the longest request; of a peer that may not change: FrameLimits
  // A connection that carries no call is closed after `idle`; one that does not answer a ping, sent when
  // nothing was heard for `ping_after`, after `ping_timeout`.
  Duration idle = std::chrono::minutes(5);
  Duration ping_after = std::chrono::minutes(1);
  Duration ping_timeout = std::chrono::seconds(20);
};

class NodeServer {
 public:
  // Begins to serve. `api` outlives it. Errors: ListenSocket's; INTERNAL if gRPC does not start.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeServer>> Start(asio::any_io_executor executor,
                                                                         NodeServerOptions options,
                                                                         AccessPolicy policy, NodeApi& api);
  // After Shutdown.
  ~NodeServer();
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Stops accepting, ends watches, lets calls that run finish until `grace`, cancels the rest (UNAVAILABLE),
  // closes every connection, and removes the socket file if it is ours. Bounded: `grace` and a few seconds.
  [[nodiscard]] Awaitable<void> Shutdown(TimePoint grace);

  // For those who connect from now on.
  void SetPolicy(AccessPolicy policy) { policy_ = std::move(policy); }

  [[nodiscard]] size_t connections() const { return connections_->size(); }

 private:
  // One gRPC server with its service, for the peers of equal rights.
  struct Backend;

  NodeServer(asio::any_io_executor executor, AccessPolicy policy, ListenSocket socket,
             std::unique_ptr<Connections> connections);

  absl::Status StartBackends(const NodeServerOptions& options, NodeApi& api);
  [[nodiscard]] Backend& BackendOf(Rights rights) const;
  Awaitable<void> AcceptLoop();
  void HandOver(UniqueFd connection);
  // Behind a pipe where its rights do not let it change: `connection` is then the pipe's end for gRPC.
  absl::Status Take(UniqueFd* connection, const PeerCredentials& peer, Rights rights);
  // Logs that a call was refused, once for each connection.
  void TellRefusal(const std::string& grpc_peer, const absl::Status& why);
  // Logs what any local user can bring about, and so no more of it than a log can bear.
  void WarnOfPeer(const std::string& text);
  // Shuts gRPC's servers down on a thread of their own; says whether they were done in time.
  Awaitable<bool> ShutdownBackends(TimePoint deadline);

  asio::any_io_executor executor_;
  AccessPolicy policy_;
  ListenSocket socket_;
  asio::posix::stream_descriptor listener_;  // a duplicate of socket_'s, for waiting
  std::unique_ptr<Connections> connections_;
  LogPace warnings_;
  std::vector<std::shared_ptr<Backend>> backends_;
  TaskScope tasks_;
};

}  // namespace berth
