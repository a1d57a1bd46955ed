// The scheduler's gRPC server: one for nodes and users, on all addresses of the settings.
//
// Owned by Scheduler; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/server_call.h"
#include "berth/v1/scheduler.grpc.pb.h"
#include "scheduler/links/node_links.h"

namespace berth::scheduler {

// berth.v1.SchedulerLink on gRPC's callback API.
class LinkService final : public v1::SchedulerLink::CallbackService {
 public:
  LinkService(asio::any_io_executor executor, NodeLinks& links);

  grpc::ServerBidiReactor<v1::NodeMessage, v1::SchedulerMessage>* Connect(
      grpc::CallbackServerContext* context) override;
  [[nodiscard]] CallScope& calls() { return calls_; }

 private:
  NodeLinks& links_;
  CallScope calls_;
};

class Server {
 public:
  // Begins to serve; creates the directories of Unix sockets. FAILED_PRECONDITION: another process serves one
  // of the addresses. UNAVAILABLE: gRPC cannot listen on them.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Server>> Start(
      const std::vector<std::string>& addresses, const std::vector<grpc::Service*>& services);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Ends `calls` (UNAVAILABLE), then the connections. Bounded: a few seconds.
  [[nodiscard]] Awaitable<void> Stop(std::vector<CallScope*> calls);

 private:
  explicit Server(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}

  std::shared_ptr<grpc::Server> server_;
};

}  // namespace berth::scheduler
