#include "bench/small_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

using berth::v1::GivenUp;
using berth::v1::HeartbeatAnswer;
using berth::v1::Hello;
using berth::v1::NodeMessage;
using StateObject = berth::v1::Object;
using berth::v1::Removed;
using berth::v1::SchedulerMessage;
using berth::v1::State;
using berth::v1::VolumeName;
using berth::v1::Welcome;

constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 0;

google::protobuf::Duration ToProto(Duration duration) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(duration);
  google::protobuf::Duration proto;
  proto.set_seconds(seconds.count());
  proto.set_nanos(static_cast<int32_t>((duration - seconds) / std::chrono::nanoseconds(1)));
  return proto;
}

std::string PluginKey(const std::string& plugin_id) { return "plugin/" + plugin_id; }

// Both ids are any text: the first one's length keeps them apart.
std::string VolumeKey(const std::string& plugin_id, const std::string& volume_id) {
  return fmt::format("volume/{}/{}{}", plugin_id.size(), plugin_id, volume_id);
}

std::string KeyOf(const Removed& removed) {
  if (removed.has_plugin_id()) return PluginKey(removed.plugin_id());
  const VolumeName& volume = removed.volume();
  return VolumeKey(volume.plugin_id(), volume.volume_id());
}

// Empty: it is not kept.
std::string KeyOf(const StateObject& object) {
  switch (object.object_case()) {
    case StateObject::kNode:
      return "node";
    case StateObject::kPlugin:
      return PluginKey(object.plugin().id());
    case StateObject::kVolume:
      return VolumeKey(object.volume().plugin_id(), object.volume().volume_id());
    case StateObject::kEndedConsumer:
    case StateObject::kGivenUp:
    case StateObject::kRemoved:
    case StateObject::OBJECT_NOT_SET:
      return "";
  }
  return "";
}

// What the node repeats until it is told that it has been heard.
void AcknowledgeNews(const State& state, SchedulerMessage* answer) {
  for (const StateObject& object : state.objects()) {
    if (object.has_ended_consumer()) {
      answer->mutable_acknowledge()->add_ended_consumers(object.ended_consumer().number());
    } else if (object.has_given_up() && object.given_up().progress() == GivenUp::RELEASED) {
      answer->mutable_acknowledge()->add_given_up(object.given_up().number());
    }
  }
}

}  // namespace

struct SmallScheduler::KnownNode {
  mutable std::mutex mutex;
  const NodeLink* link = nullptr;  // its newest stream; null: none is open
  std::string instance_id;
  std::string run_id;
  Objects objects;
  uint64_t revision = 0;   // that `objects` has whole; 0: none of this run
  bool beginning = false;  // a full state has begun, and goes to `begun` until it is synced
  Objects begun;
  TimePoint lease_ends = TimePoint::min();
};

SmallScheduler::SmallScheduler(const SchedulerTerms& terms) : terms_(terms) {}

SmallScheduler::~SmallScheduler() = default;

std::optional<SmallScheduler::Objects> SmallScheduler::StateOf(const std::string& node_id) const {
  const std::shared_ptr<KnownNode> node = Find(node_id);
  if (node == nullptr) return std::nullopt;
  const std::lock_guard lock(node->mutex);
  return node->objects;
}

bool SmallScheduler::LeaseMayHold(const std::string& node_id, TimePoint now) const {
  const std::shared_ptr<KnownNode> node = Find(node_id);
  if (node == nullptr) return false;
  const std::lock_guard lock(node->mutex);
  return now < node->lease_ends;
}

std::shared_ptr<SmallScheduler::KnownNode> SmallScheduler::Find(const std::string& node_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(node_id);
  return found == nodes_.end() ? nullptr : found->second;
}

std::shared_ptr<SmallScheduler::KnownNode> SmallScheduler::FindOrAdd(const std::string& node_id) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<KnownNode>& node = nodes_[node_id];
  if (node == nullptr) node = std::make_shared<KnownNode>();
  return node;
}

NodeLink::NodeLink(SmallScheduler& scheduler) : scheduler_(scheduler) {}

NodeLink::~NodeLink() {
  if (node_ == nullptr) return;
  const std::lock_guard lock(node_->mutex);
  if (node_->link == this) node_->link = nullptr;
}

absl::StatusOr<bool> NodeLink::Take(NodeMessage& message, TimePoint now, SchedulerMessage* answer) {
  if (node_ == nullptr) {
    if (!message.has_hello()) return absl::FailedPreconditionError("a node's first message is Hello");
    if (const absl::Status status = Greet(message.hello(), answer->mutable_welcome()); !status.ok()) {
      return status;
    }
    return true;
  }
  const std::lock_guard lock(node_->mutex);
  if (node_->link != this) return absl::AbortedError("this node has dialled anew");
  switch (message.message_case()) {
    case NodeMessage::kHello:
      return absl::InvalidArgumentError("Hello is said once");
    case NodeMessage::kState:
      TakeState(*message.mutable_state(), answer);
      break;
    case NodeMessage::kHeartbeat:
      GrantLease(message.heartbeat().number(), now, answer->mutable_heartbeat_answer());
      break;
    case NodeMessage::kResult:
      // Of an operation of an earlier scheduler's: this one has none.
      answer->mutable_acknowledge()->add_operation_ids(message.result().id());
      break;
    case NodeMessage::kAsk:
      answer->mutable_answer()->set_number(message.ask().number());
      answer->mutable_answer()->set_code(static_cast<int32_t>(absl::StatusCode::kUnimplemented));
      break;
    case NodeMessage::kEvents:
    case NodeMessage::kLogLines:
    case NodeMessage::kAskWithdrawn:
    case NodeMessage::MESSAGE_NOT_SET:
      break;
  }
  return answer->message_case() != SchedulerMessage::MESSAGE_NOT_SET;
}

absl::Status NodeLink::Greet(const Hello& hello, Welcome* welcome) {
  if (hello.protocol().major() != kMajor) {
    return absl::FailedPreconditionError(fmt::format("this scheduler speaks protocol {}.{}, the node {}.{}",
                                                     kMajor, kMinor, hello.protocol().major(),
                                                     hello.protocol().minor()));
  }
  std::shared_ptr<SmallScheduler::KnownNode> node = scheduler_.FindOrAdd(hello.node_id());
  const std::lock_guard lock(node->mutex);
  if (node->link != nullptr && node->instance_id != hello.instance_id()) {
    return absl::AlreadyExistsError(fmt::format("another node named {} is connected", hello.node_id()));
  }
  node->link = this;
  node->instance_id = hello.instance_id();
  node->beginning = false;
  node->begun.clear();
  // Revisions are of one run of berthd: of another one everything is sent.
  if (std::exchange(node->run_id, hello.run_id()) != hello.run_id()) node->revision = 0;
  welcome->mutable_protocol()->set_major(kMajor);
  welcome->mutable_protocol()->set_minor(kMinor);
  welcome->set_cluster_id("berth-bench");
  *welcome->mutable_heartbeat_interval() = ToProto(scheduler_.terms_.heartbeat_interval);
  if (node->revision != 0) {
    welcome->mutable_have()->set_run_id(node->run_id);
    welcome->mutable_have()->set_revision(node->revision);
  }
  node_ = std::move(node);
  return absl::OkStatus();
}

void NodeLink::TakeState(State& state, SchedulerMessage* answer) {
  AcknowledgeNews(state, answer);
  if (state.full()) {
    node_->beginning = true;
    node_->begun.clear();
  }
  SmallScheduler::Objects& objects = node_->beginning ? node_->begun : node_->objects;
  for (StateObject& object : *state.mutable_objects()) {
    if (object.has_removed()) {
      objects.erase(KeyOf(object.removed()));
    } else if (std::string key = KeyOf(object); !key.empty()) {
      objects[std::move(key)] = std::move(object);
    }
  }
  if (node_->beginning) {
    if (!state.synced()) return;
    node_->objects = std::exchange(node_->begun, {});
    node_->beginning = false;
  }
  node_->revision = state.revision();
}

void NodeLink::GrantLease(uint64_t heartbeat, TimePoint now, HeartbeatAnswer* answer) {
  const SchedulerTerms& terms = scheduler_.terms_;
  answer->set_number(heartbeat);
  answer->mutable_lease()->set_epoch(terms.lease_epoch);
  *answer->mutable_lease()->mutable_duration() = ToProto(terms.lease);
  node_->lease_ends = std::max(node_->lease_ends, now + terms.lease);
}

}  // namespace berth
