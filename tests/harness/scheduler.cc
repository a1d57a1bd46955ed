#include "tests/harness/scheduler.h"

#include <google/protobuf/util/time_util.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <stdexcept>
#include <thread>

namespace berth {

using google::protobuf::util::TimeUtil;

// What is to be said on one stream.
struct TestScheduler::Link {
  std::deque<v1::SchedulerMessage> outgoing;
  bool ended = false;
  bool full = false;  // everything is being reported
  std::set<std::string> stale_plugins;
  std::set<std::pair<std::string, std::string>> stale_volumes;
  grpc::ServerContext* context = nullptr;
};

TestScheduler::TestScheduler(Options options) : options_(std::move(options)) {
  grpc::ServerBuilder builder;
  int port = 0;
  const auto credentials = options_.credentials ? options_.credentials : grpc::InsecureServerCredentials();
  builder.AddListeningPort(options_.address, credentials, &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (!server_) throw std::runtime_error("the scheduler cannot listen at " + options_.address);
  address_ = options_.address.starts_with("unix:") ? options_.address : "127.0.0.1:" + std::to_string(port);
}

TestScheduler::~TestScheduler() {
  Refuse(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the scheduler ends"));
  Cut();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

grpc::Status TestScheduler::Connect(grpc::ServerContext* context, Stream* stream) {
  v1::NodeMessage first;
  if (!stream->Read(&first) || !first.has_hello()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not Hello"};
  }
  const std::string id = first.hello().node_id();
  const auto link = std::make_shared<Link>();
  link->context = context;
  {
    const std::lock_guard lock(mutex_);
    if (refuse_) return *refuse_;
    Node& node = nodes_[id];
    if (const auto other = links_.find(id); other != links_.end()) {
      if (node.hello.instance_id() != first.hello().instance_id()) {
        return {grpc::StatusCode::ALREADY_EXISTS, "another node with this name is connected"};
      }
      other->second->ended = true;
      other->second->context->TryCancel();
    }
    links_[id] = link;
    node.hello = first.hello();
    ++node.streams;
    node.connected = true;
    node.synced = false;
    v1::SchedulerMessage message;
    v1::Welcome& welcome = *message.mutable_welcome();
    welcome.mutable_protocol()->set_major(1);
    welcome.set_cluster_id(options_.cluster);
    if (options_.announces_epoch) welcome.set_lease_epoch(options_.epoch);
    *welcome.mutable_heartbeat_interval() = TimeUtil::MillisecondsToDuration(options_.heartbeat.count());
    if (node.have) *welcome.mutable_have() = *node.have;
    welcome.mutable_events()->set_after_sequence(node.events.empty() ? 0 : node.events.back().sequence());
    link->outgoing.push_back(std::move(message));
    changed_.notify_all();
  }
  std::thread writer([this, link, stream] {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return link->ended || !link->outgoing.empty(); });
      if (link->ended) return;
      const v1::SchedulerMessage message = std::move(link->outgoing.front());
      link->outgoing.pop_front();
      lock.unlock();
      const bool written = stream->Write(message);
      lock.lock();
      if (!written) return;
    }
  });
  v1::NodeMessage message;
  while (stream->Read(&message)) {
    const std::lock_guard lock(mutex_);
    Take(nodes_[id], *link, message);
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    link->ended = true;
    // A newer stream may have replaced this one, and have ended before it.
    if (const auto current = links_.find(id); current != links_.end() && current->second == link) {
      links_.erase(current);
      nodes_[id].connected = false;
    }
    changed_.notify_all();
  }
  writer.join();
  return {grpc::StatusCode::UNAVAILABLE, "the scheduler ends the stream"};
}

void TestScheduler::Say(Link& link, v1::SchedulerMessage message) {
  link.outgoing.push_back(std::move(message));
}

void TestScheduler::Take(Node& node, Link& link, const v1::NodeMessage& message) {
  ++node.messages;
  v1::SchedulerMessage reply;
  switch (message.message_case()) {
    case v1::NodeMessage::kGoodbye:
      node.goodbye = message.goodbye();
      break;
    case v1::NodeMessage::kState:
      TakeState(node, link, message.state());
      break;
    case v1::NodeMessage::kResult: {
      const v1::OperationResult& result = message.result();
      ++node.results_seen[result.id()];
      node.results.try_emplace(result.id(), result);
      asked_[node.hello.node_id()].erase(result.id());
      if (!acknowledge_ || result.refusal() != v1::REFUSAL_NONE) break;
      reply.mutable_acknowledge()->add_operation_ids(result.id());
      Say(link, reply);
      break;
    }
    case v1::NodeMessage::kHeartbeat: {
      ++node.heartbeats;
      if (!answer_heartbeats_) break;
      v1::HeartbeatAnswer& answer = *reply.mutable_heartbeat_answer();
      answer.set_number(message.heartbeat().number());
      if (grant_) {
        answer.mutable_lease()->set_epoch(options_.epoch);
        *answer.mutable_lease()->mutable_duration() =
            TimeUtil::MillisecondsToDuration(options_.lease.count());
      }
      Say(link, reply);
      if (message.heartbeat().number() > 1) break;
      for (const auto& [id, operation] : asked_[node.hello.node_id()]) {
        v1::SchedulerMessage again;
        *again.mutable_operation() = operation;
        Say(link, std::move(again));
      }
      break;
    }
    case v1::NodeMessage::kEvents:
      node.events.insert(node.events.end(), message.events().events().begin(),
                         message.events().events().end());
      break;
    case v1::NodeMessage::kLogLines:
      node.logs.push_back(message.log_lines());
      break;
    case v1::NodeMessage::kAsk:
      node.asks[message.ask().number()] = message.ask();
      if (!on_ask_) break;
      if (auto answer = on_ask_(message.ask())) {
        answer->set_number(message.ask().number());
        *reply.mutable_answer() = *std::move(answer);
        Say(link, std::move(reply));
      }
      break;
    case v1::NodeMessage::kAskWithdrawn:
      node.withdrawn.insert(message.ask_withdrawn().number());
      break;
    case v1::NodeMessage::kHello:
    case v1::NodeMessage::MESSAGE_NOT_SET:
      break;
  }
}

void TestScheduler::TakeState(Node& node, Link& link, const v1::State& state) {
  node.state_bytes += state.ByteSizeLong();
  if (state.full()) {
    ++node.full;
    link.full = true;
    node.have.reset();
    for (const auto& [id, plugin] : node.plugins) link.stale_plugins.insert(id);
    for (const auto& [id, volume] : node.volumes) link.stale_volumes.insert(id);
  }
  for (const v1::Object& object : state.objects()) {
    if (object.has_node()) node.state = object.node();
    if (object.has_plugin()) {
      node.plugins[object.plugin().id()] = object.plugin();
      link.stale_plugins.erase(object.plugin().id());
    }
    if (object.has_volume()) {
      const std::pair key(object.volume().plugin_id(), object.volume().volume_id());
      node.volumes[key] = object.volume();
      link.stale_volumes.erase(key);
    }
    if (object.has_ended_consumer())
      node.ended_consumers[object.ended_consumer().number()] = object.ended_consumer();
    if (object.has_forced_release())
      node.forced_release[object.forced_release().number()] = object.forced_release();
    if (!object.removed().plugin_id().empty()) node.plugins.erase(object.removed().plugin_id());
    if (object.removed().has_volume()) {
      node.volumes.erase({object.removed().volume().plugin_id(), object.removed().volume().volume_id()});
    }
  }
  if (state.synced()) {
    for (const auto& id : link.stale_plugins) node.plugins.erase(id);
    for (const auto& id : link.stale_volumes) node.volumes.erase(id);
    link.stale_plugins.clear();
    link.stale_volumes.clear();
    link.full = false;
    node.synced = true;
  }
  if (link.full) return;
  node.have.emplace();
  node.have->set_run_id(node.hello.run_id());
  node.have->set_revision(state.revision());
}

std::optional<TestScheduler::Node> TestScheduler::Find(const std::string& node_id) {
  const std::lock_guard lock(mutex_);
  const auto node = nodes_.find(node_id);
  return node == nodes_.end() ? std::nullopt : std::optional(node->second);
}

TestScheduler::Node TestScheduler::WaitNode(const std::string& node_id, const std::string& what,
                                            const std::function<bool(const Node&)>& predicate,
                                            std::chrono::seconds bound) {
  std::unique_lock lock(mutex_);
  const auto holds = [&] {
    const auto node = nodes_.find(node_id);
    return node != nodes_.end() && predicate(node->second);
  };
  if (!changed_.wait_for(lock, bound, holds)) throw std::runtime_error("waited in vain for " + what);
  return nodes_.at(node_id);
}

TestScheduler::Node TestScheduler::WaitSynced(const std::string& node_id) {
  return WaitNode(node_id, "node " + node_id + " to be connected and synced", [](const Node& node) {
    return node.connected && node.synced && node.state.lease() == v1::LEASE_VALID;
  });
}

uint64_t TestScheduler::Ask(const std::string& node_id, v1::Operation operation) {
  const std::lock_guard lock(mutex_);
  if (operation.id() == 0) operation.set_id(next_id_++);
  if (operation.lease_epoch() == 0) operation.set_lease_epoch(options_.epoch);
  const uint64_t id = operation.id();
  if (const auto link = links_.find(node_id); link != links_.end()) {
    v1::SchedulerMessage message;
    *message.mutable_operation() = operation;
    Say(*link->second, std::move(message));
  }
  asked_[node_id][id] = std::move(operation);
  changed_.notify_all();
  return id;
}

v1::Operation TestScheduler::Confirming(const std::vector<std::array<std::string, 4>>& publications) {
  v1::Operation operation;
  operation.mutable_confirm();
  for (const auto& [plugin, volume, name_space, consumer] : publications) {
    v1::PublicationName& name = *operation.mutable_confirm()->add_publications();
    name.set_plugin_id(plugin);
    name.set_volume_id(volume);
    name.set_namespace_(name_space);
    name.set_consumer(consumer);
  }
  return operation;
}

v1::OperationResult TestScheduler::WaitResult(const std::string& node_id, uint64_t id) {
  const Node node = WaitNode(node_id, "the result of operation " + std::to_string(id),
                             [id](const Node& known) { return known.results.contains(id); });
  return node.results.at(id);
}

void TestScheduler::Send(const std::string& node_id, const v1::SchedulerMessage& message) {
  const std::lock_guard lock(mutex_);
  if (const auto link = links_.find(node_id); link != links_.end()) Say(*link->second, message);
  changed_.notify_all();
}

void TestScheduler::Cut() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, link] : links_) {
    link->ended = true;
    link->context->TryCancel();
  }
  changed_.notify_all();
}

void TestScheduler::Refuse(std::optional<grpc::Status> with) {
  const std::lock_guard lock(mutex_);
  refuse_ = std::move(with);
}

void TestScheduler::SetEpoch(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  options_.epoch = epoch;
}

void TestScheduler::GrantLeases(bool grant) {
  const std::lock_guard lock(mutex_);
  grant_ = grant;
}

void TestScheduler::AnswerHeartbeats(bool answer) {
  const std::lock_guard lock(mutex_);
  answer_heartbeats_ = answer;
}

void TestScheduler::AcknowledgeResults(bool acknowledge) {
  const std::lock_guard lock(mutex_);
  acknowledge_ = acknowledge;
}

void TestScheduler::OnAsk(std::function<std::optional<v1::Answer>(const v1::Ask&)> answer) {
  const std::lock_guard lock(mutex_);
  on_ask_ = std::move(answer);
}

}  // namespace berth
