// One connection to a gRPC server on a Unix socket: berthd's or a plugin's.
//
// connect(2) opens the socket before gRPC gets it, so that a missing socket is reported at once with the
// kernel's error, and a broken connection differs from an UNAVAILABLE of the server. Confined to its owner;
// the channel may be used by several threads.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace berth::cli {

class Connection {
 public:
  // Never waits. The errors are from connect(2) (see ErrnoOf in base/status.h); the message begins with the
  // path.
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
