// The connections that are open to berthd's socket: how many there may be, whose they are, and when they end.
//
// gRPC owns a connection's descriptor and tells nobody when it closes it. So a duplicate of each is kept here
// and watched for hang-up, by an epoll of our own that asks for nothing else and so is silent while bytes
// flow. gRPC shuts a socket down before it closes it, so a hang-up is seen whichever side ends it.
//
// Of a peer that may not change, what gRPC owns is the inner end of a pipe (peer_pipe.h): such a connection
// counts until both ends have ended.
//
// Loop thread only.
#pragma once

#include <absl/status/status.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "rpc/access.h"
#include "rpc/peer_pipe.h"

namespace berth {

// Each open connection takes two descriptors and some 50 KiB; behind a pipe four, and 90 KiB.
struct ConnectionLimits {
  size_t total = 256;
  size_t per_user = 64;
  // Of `total`, kept free for those who may change: however many others connect, an operator gets in.
  size_t reserved = 32;
};

class Connections {
 public:
  // FAILED_PRECONDITION/RESOURCE_EXHAUSTED: no epoll.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Connections>> Make(
      const asio::any_io_executor& executor, ConnectionLimits limits);

  // Whether one more connection may be taken from `peer`. RESOURCE_EXHAUSTED names the limit.
  [[nodiscard]] absl::Status Admit(const PeerCredentials& peer, Rights rights) const;

  // Begins to count the connection behind `fd`, before it is handed to gRPC (which will call it "fd:<fd>").
  // `pipe`, where there is one, leads from there to the peer, and begins to work.
  [[nodiscard]] absl::Status Add(int fd, PeerCredentials peer, std::unique_ptr<PeerPipe> pipe);

  // Told who was cut off by their pipe, and why.
  using CutTold = std::function<void(const PeerCredentials& peer, const absl::Status& why)>;
  void OnCut(CutTold told) { cut_told_ = std::move(told); }

  // Notices connections that end. Runs until it is cancelled.
  [[nodiscard]] Awaitable<void> Watch();

  // Who is behind gRPC's name of a connection; nullopt once it has ended. Only within a call on it: gRPC
  // keeps its descriptor open as long as a call on it exists, so until then the number cannot be somebody
  // else's.
  [[nodiscard]] std::optional<PeerCredentials> PeerOf(const std::string& grpc_peer) const;

  // Something that was asked on that connection is refused: whether it is the first, which the log is told.
  // True as well of a connection that has ended already.
  [[nodiscard]] bool FirstRefusal(const std::string& grpc_peer);

  // Breaks every connection off.
  void ShutdownAll();
  // After ShutdownAll: waits until the pipes have told what gRPC said last, for a second at most.
  [[nodiscard]] Awaitable<void> PipesEnded();

  [[nodiscard]] size_t size() const { return open_.size(); }

 private:
  struct Connection {
    UniqueFd duplicate;
    int grpc_fd = -1;
    PeerCredentials peer;
    bool refused = false;  // something, and the log was told
    std::unique_ptr<PeerPipe> pipe;
  };

  Connections(const asio::any_io_executor& executor, ConnectionLimits limits, UniqueFd epoll);
  // gRPC has ended its side of it.
  void OnHangUp(uint64_t id);
  void StopWatching(uint64_t id, const Connection& connection);
  void Forget(uint64_t id);
  // From the pipe's beginning to its end.
  Awaitable<void> Carry(uint64_t id);
  // Its id; nullopt once it has ended.
  [[nodiscard]] std::optional<uint64_t> Find(const std::string& grpc_peer) const;

  ConnectionLimits limits_;
  asio::posix::stream_descriptor epoll_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Connection> open_;
  std::map<uid_t, size_t> per_user_;
  std::map<int, uint64_t> by_grpc_fd_;  // the newest of each number
  CutTold cut_told_;
  TaskScope pipes_;
};

}  // namespace berth
