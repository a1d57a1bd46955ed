// One connection to a gRPC server on a Unix socket: berthd's or a plugin's.
//
// The socket is connected by connect(2) before gRPC hears of it, so that a missing one is told at once and in
// the kernel's words, and so that a connection that broke can be told from an UNAVAILABLE that was answered.
// Confined to its owner; the channel may be used by several threads.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace berth::cli {

class Connection {
 public:
  // Never waits. The errors are connect(2)'s (base/status.h's ErrnoOf tells which); the message begins with
  // the path.
  [[nodiscard]] static absl::StatusOr<Connection> Open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Whether the other side, or gRPC for a violation of its protocol, has closed the connection.
  [[nodiscard]] bool Broken() const;

 private:
  Connection(std::string path, UniqueFd watched, std::shared_ptr<grpc::Channel> channel)
      : path_(std::move(path)), watched_(std::move(watched)), channel_(std::move(channel)) {}

  std::string path_;
  UniqueFd watched_;  // a duplicate of what the channel owns, only ever looked at
  std::shared_ptr<grpc::Channel> channel_;
};

// "unix:///run/x.sock", "unix:/run/x.sock" and "/run/x.sock" all name "/run/x.sock". UsageError for what is
// not a Unix socket: CSI knows no other. Pure.
[[nodiscard]] absl::StatusOr<std::string> SocketPathOf(const std::string& endpoint);

}  // namespace berth::cli
