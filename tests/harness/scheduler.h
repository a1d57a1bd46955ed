// A scheduler for tests: serves berth.v1.SchedulerLink for real, keeps what nodes report, and asks for what
// a test wants. It answers heartbeats with leases, asks again after a break, and acknowledges results, as
// scheduler.proto says a scheduler should; each of these can be turned off.
//
// Any thread; waits end the test with what was waited for.
#pragma once

#include <grpcpp/server.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_bound.h"
#include "berth/v1/scheduler.grpc.pb.h"

namespace berth {

class TestScheduler final : public v1::SchedulerLink::Service {
 public:
  struct Options {
    // Where it listens: "unix:/path", or "127.0.0.1:0". What it serves there can be reached at address().
    std::string address;
    std::shared_ptr<grpc::ServerCredentials> credentials;  // null: none
    uint64_t epoch = 1;
    std::chrono::milliseconds lease = std::chrono::seconds(30);
    std::chrono::milliseconds heartbeat = std::chrono::milliseconds(200);
    std::string cluster = "test";
    bool announces_epoch = false;  // in its Welcome
  };

  // What one node has reported, over all its streams.
  struct Node {
    v1::Hello hello;
    size_t streams = 0;
    bool connected = false;
    bool synced = false;  // on the present stream
    size_t full = 0;      // how often it reported everything
    std::optional<v1::StatePosition> have;
    v1::NodeState state;
    std::map<std::string, v1::Plugin> plugins;
    std::map<std::pair<std::string, std::string>, v1::Volume> volumes;
    std::map<uint64_t, v1::EndedConsumer> ended_consumers;
    std::map<uint64_t, v1::ForcedRelease> forced_release;
    std::optional<v1::Goodbye> goodbye;  // the last one
    std::vector<v1::Event> events;
    std::map<uint64_t, v1::OperationResult> results;  // the first of each operation
    std::map<uint64_t, size_t> results_seen;          // how often each came
    std::map<uint64_t, v1::Ask> asks;
    std::set<uint64_t> withdrawn;
    std::vector<v1::LogLines> logs;
    uint64_t heartbeats = 0;
    size_t messages = 0;
    size_t state_bytes = 0;  // of State messages
  };

  explicit TestScheduler(Options options);
  ~TestScheduler() override;

  // "unix:/path" or "127.0.0.1:PORT": for berthd.toml.
  [[nodiscard]] const std::string& address() const { return address_; }

  // A copy of what is known of the node; nothing where it never came.
  [[nodiscard]] std::optional<Node> Find(const std::string& node_id);
  // Waits until `predicate` holds of the node.
  Node WaitNode(const std::string& node_id, const std::string& what,
                const std::function<bool(const Node&)>& predicate, std::chrono::seconds bound = kTestBound);
  // It is connected, everything has been reported, and it has answered a heartbeat: operations may come.
  Node WaitSynced(const std::string& node_id);

  // Asks for it under the present epoch, and again after each break, until there is a result. The id.
  uint64_t Ask(const std::string& node_id, v1::Operation operation);
  v1::OperationResult WaitResult(const std::string& node_id, uint64_t id);
  v1::OperationResult Run(const std::string& node_id, v1::Operation operation) {
    return WaitResult(node_id, Ask(node_id, std::move(operation)));
  }
  // An operation that confirms these publications, each as plugin, volume, namespace and consumer.
  [[nodiscard]] static v1::Operation Confirming(const std::vector<std::array<std::string, 4>>& publications);
  // As it is, once, if the node is connected.
  void Send(const std::string& node_id, const v1::SchedulerMessage& message);

  // Ends every stream. Nodes may come back, unless refused: then with this status.
  void Cut();
  void Refuse(std::optional<grpc::Status> with);

  void SetEpoch(uint64_t epoch);
  void GrantLeases(bool grant);
  void AnswerHeartbeats(bool answer);
  void AcknowledgeResults(bool acknowledge);
  // What a claim or a token is answered with; null: nothing.
  void OnAsk(std::function<std::optional<v1::Answer>(const v1::Ask&)> answer);

 private:
  using Stream = grpc::ServerReaderWriter<v1::SchedulerMessage, v1::NodeMessage>;
  struct Link;

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override;
  void Take(Node& node, Link& link, const v1::NodeMessage& message);
  void TakeState(Node& node, Link& link, const v1::State& state);
  static void Say(Link& link, v1::SchedulerMessage message);

  Options options_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, std::shared_ptr<Link>> links_;  // of those that are connected
  std::map<std::string, std::map<uint64_t, v1::Operation>> asked_;
  uint64_t next_id_ = 1;
  std::optional<grpc::Status> refuse_;
  bool grant_ = true;
  bool answer_heartbeats_ = true;
  bool acknowledge_ = true;
  std::function<std::optional<v1::Answer>(const v1::Ask&)> on_ask_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth
