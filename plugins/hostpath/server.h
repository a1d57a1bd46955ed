// The socket that the plugin is served on.
//
// It appears only once a call can be answered: the server listens on another name in the same directory,
// which is then renamed. Only root may connect.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

namespace berth::hostpath {

// Removes a socket without a server. FAILED_PRECONDITION if a server answers on it, or if it is no socket.
[[nodiscard]] absl::Status ClearStaleSocket(const std::string& path);

class Server {
 public:
  // Serves `services` on `path` from when this returns. Before any other thread is made: it sets the umask
  // for a moment.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Server>> Start(
      const std::string& path, const std::vector<grpc::Service*>& services);

  // Removes the socket: no new client can connect.
  void Hide();
  // Ends the server. Calls that are being answered are waited for, connections are not.
  void Stop();

 private:
  Server(std::string path, std::unique_ptr<grpc::Server> server)
      : path_(std::move(path)), server_(std::move(server)) {}

  std::string path_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth::hostpath
