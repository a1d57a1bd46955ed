// The node's sockets as [access] wants them: one NodeServer for each.
//
// Owned by main; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "rpc/access.h"
#include "rpc/listen_socket.h"
#include "rpc/node_server.h"

namespace berth {

class NodeServers {
 public:
  // Serves `sockets` in `directory`, which the caller has locked, and removes those that an earlier berthd
  // left. `adopted`: those that systemd listens on. `api` outlives this. Errors: NodeServer's;
  // INVALID_ARGUMENT: an adopted one is not in `sockets`. Then nothing is served.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::unique_ptr<NodeServers>>> Start(
      asio::any_io_executor executor, std::string directory, std::vector<SocketAccess> sockets,
      std::vector<ListenSocket> adopted, NodeApi& api);

  // From now on these: changes groups, closes a socket that is not among them, opens one that was not there.
  // What could not be done, one line each.
  [[nodiscard]] Awaitable<std::vector<std::string>> Apply(std::vector<SocketAccess> sockets);

  // NodeServer::Shutdown of all, at once.
  [[nodiscard]] Awaitable<void> Shutdown(TimePoint grace);

 private:
  NodeServers(asio::any_io_executor executor, std::string directory, NodeApi& api);

  // Sees to it that each socket is where it was made.
  Awaitable<void> Watch();
  absl::Status Open(const SocketAccess& access, std::optional<ListenSocket> adopted = std::nullopt);
  Awaitable<void> Close(Right right, TimePoint grace);

  asio::any_io_executor executor_;
  std::string directory_;
  NodeApi& api_;
  std::map<Right, std::unique_ptr<NodeServer>> servers_;
  TaskScope tasks_;
};

}  // namespace berth
