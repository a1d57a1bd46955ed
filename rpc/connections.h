// The connections that are open to one of berthd's sockets: how many there may be, their users, and when they
// end.
//
// gRPC owns a connection's descriptor and does not report when it closes it. So a duplicate of each is kept
// here and watched for hang-up, by an epoll of our own that asks for nothing else and so is silent while
// bytes flow. gRPC shuts a socket down before it closes it, so a hang-up is seen whichever side ends it.
//
// Loop thread only.
#pragma once

#include <absl/status/status.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "rpc/access.h"
#include "rpc/user_limits.h"

namespace berth {

class Connections {
 public:
  // Each open connection takes two descriptors and some 50 KiB. FAILED_PRECONDITION/RESOURCE_EXHAUSTED: no
  // epoll.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Connections>> Make(
      const asio::any_io_executor& executor, UserLimits limits);

  // Counts the connection behind `fd` from now on, before it is handed to gRPC (which will call it
  // "fd:<fd>"). RESOURCE_EXHAUSTED names the limit.
  [[nodiscard]] absl::Status Add(int fd, const PeerCredentials& peer);

  // Notices connections that end. Runs until it is cancelled.
  [[nodiscard]] Awaitable<void> Watch();

  // Who is behind gRPC's name of a connection; nullopt once it has ended. Only within a call on it: gRPC
  // keeps its descriptor open as long as a call on it exists, so until then the number cannot be another
  // connection's.
  [[nodiscard]] std::optional<PeerCredentials> PeerOf(const std::string& grpc_peer) const;

  // Ends every connection; of others than root and berthd's own user.
  void ShutdownAll();
  void ShutdownOthers();

  [[nodiscard]] size_t size() const { return open_.size(); }

 private:
  struct Connection {
    UniqueFd duplicate;
    int grpc_fd = -1;
    PeerCredentials peer;
    UserCounter::Use use;
  };

  Connections(const asio::any_io_executor& executor, UserLimits limits, UniqueFd epoll);
  void OnHangUp(uint64_t id);

  asio::posix::stream_descriptor epoll_;
  UserCounter counter_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Connection> open_;
  std::map<int, uint64_t> by_grpc_fd_;  // the newest of each number
};

}  // namespace berth
