#include "scheduler/links/node_links.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/race.h"
#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr Duration kHelloWithin = std::chrono::seconds(10);
// A node waits 10 s for Welcome.
constexpr Duration kDecideWithin = std::chrono::seconds(5);
constexpr Duration kLeastSilence = std::chrono::seconds(2);
constexpr int kHeartbeatsMissed = 4;

google::protobuf::Duration ToProto(Duration duration) {
  return google::protobuf::util::TimeUtil::NanosecondsToDuration(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

// One stream. It may be ended by another one while its own coroutines run.
struct NodeLinks::Link {
  explicit Link(const asio::any_io_executor& executor) : changed(executor) {}

  v1::Hello hello;
  bool other_machine = false;
  uint64_t stream = 0;
  bool has_lease = false;
  NodeFacts facts;
  WallTime since = WallClock::now();
  TimePoint last_heartbeat = Clock::now();
  std::deque<v1::SchedulerMessage> waiting;
  std::optional<absl::Status> ended;
  Condition changed;

  [[nodiscard]] std::string Name() const { return Printable(hello.node_id(), 192); }
};

struct NodeLinks::Node {
  explicit Node(uint64_t epoch) : operations(epoch) {}

  std::optional<NodeRecord> record;
  NodeOperations operations;                                    // the recorded machine's
  std::shared_ptr<Link> link;                                   // the recorded machine's
  std::map<std::string, std::shared_ptr<Link>> other_machines;  // by instance
  std::optional<WallTime> gone_at;
  bool deciding = false;  // what a Hello means is being written
};

NodeLinks::NodeLinks(asio::any_io_executor executor, LinkSettings settings, LeaseClock leases,
                     NodeRecords& records, OperationIds& ids, const std::vector<NodeRecord>& known)
    : executor_(std::move(executor)),
      settings_(std::move(settings)),
      leases_(std::move(leases)),
      records_(records),
      ids_(ids),
      decided_(executor_) {
  for (const NodeRecord& record : known) Of(record.name).record = record;
}

NodeLinks::~NodeLinks() = default;

NodeLinks::Node& NodeLinks::Of(const std::string& name) {
  return nodes_.try_emplace(name, settings_.epoch).first->second;
}

MachineNow NodeLinks::Now(const std::string& name) const {
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return {};
  MachineNow now;
  if (node->second.record.has_value()) now.record = &*node->second.record;
  if (const std::shared_ptr<Link>& link = node->second.link; link != nullptr && !link->ended.has_value()) {
    now.run_id = link->hello.run_id();
    now.synced = link->facts.synced();
    now.ready = now.synced && link->has_lease;
    now.stream = link->stream;
    now.facts = &link->facts;
  }
  return now;
}

void NodeLinks::AcknowledgeNotices(const std::string& node, const std::vector<uint64_t>& ended_consumers,
                                   const std::vector<uint64_t>& forced_releases) {
  const std::shared_ptr<Link>& link = Of(node).link;
  if (link == nullptr || (ended_consumers.empty() && forced_releases.empty())) return;
  v1::SchedulerMessage message;
  v1::Acknowledge& acknowledge = *message.mutable_acknowledge();
  *acknowledge.mutable_ended_consumers() = {ended_consumers.begin(), ended_consumers.end()};
  *acknowledge.mutable_forced_releases() = {forced_releases.begin(), forced_releases.end()};
  link->facts.Acknowledged(acknowledge);
  Say(*link, std::move(message));
}

Awaitable<absl::StatusOr<uint64_t>> NodeLinks::OpenOperation(std::string node) {
  while (ids_.Empty()) BERTH_CO_RETURN_IF_ERROR(co_await ids_.Reserve());
  const uint64_t id = ids_.Take();
  Of(node).operations.Open(id);
  co_return id;
}

void NodeLinks::Add(const std::string& node, NodeOperations::Pending pending) {
  Node& its = Of(node);
  Say(its, its.operations.Add(std::move(pending)));
}

void NodeLinks::Close(const std::string& node, uint64_t id) {
  Node& its = Of(node);
  Say(its, its.operations.Close(id));
}

Duration NodeLinks::Silence() const {
  return std::max(kLeastSilence, kHeartbeatsMissed * settings_.lease.heartbeat_interval);
}

v1::SchedulerMessage NodeLinks::Welcome() const {
  v1::SchedulerMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.mutable_protocol()->set_major(1);
  welcome.set_cluster_id(settings_.cluster_id);
  *welcome.mutable_heartbeat_interval() = ToProto(settings_.lease.heartbeat_interval);
  welcome.set_lease_epoch(settings_.epoch);
  return message;
}

Awaitable<absl::Status> NodeLinks::Serve(Stream& stream) {
  if (links_ >= kMostLinks)
    co_return absl::ResourceExhaustedError(fmt::format("{} nodes are connected already", kMostLinks));
  struct Counted {
    size_t* links;
    explicit Counted(size_t* counted) : links(counted) { ++*links; }
    ~Counted() { --*links; }
  } counted(&links_);

  const auto link = std::make_shared<Link>(executor_);
  if (const absl::Status admitted = co_await Admit(stream, link); !admitted.ok()) {
    SPDLOG_DEBUG("a node was not admitted: {}", MessageOf(admitted));
    co_return admitted;
  }
  struct Registered {
    NodeLinks* links;
    std::shared_ptr<Link> link;
    ~Registered() { links->Gone(link); }
  } registered{this, link};
  SPDLOG_INFO("node {} is connected: berthd {}", link->Name(), Printable(link->hello.version(), 64));
  co_return co_await Run(stream, link);
}

// One after another: each decides by what the one before has written.
class NodeLinks::Turn {
 public:
  Turn(Node& node, Condition& decided) : node_(node), decided_(decided) { node_.deciding = true; }
  ~Turn() {
    node_.deciding = false;
    decided_.NotifyAll();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Node& node_;
  Condition& decided_;
};

Awaitable<bool> NodeLinks::MayDecide(const Node& node) {
  return decided_.WaitUntil([&node] { return !node.deciding; }, Clock::now() + kDecideWithin);
}

Awaitable<absl::StatusOr<bool>> NodeLinks::Forget(std::string name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) co_return false;
  Node& node = found->second;
  if (!co_await MayDecide(node)) co_return absl::UnavailableError("a Hello of this node is being recorded");
  const Turn turn(node, decided_);
  if (node.link != nullptr) {
    co_return absl::FailedPreconditionError(
        fmt::format("node {} is connected: stop its berthd first", Printable(name, 192)));
  }
  if (!node.record.has_value()) co_return false;
  BERTH_CO_RETURN_IF_ERROR(co_await records_.Delete(name));
  // The entry stays: others may hold it.
  node.record.reset();
  node.gone_at.reset();
  SPDLOG_WARN("node {} is forgotten: whichever machine connects under this name next is recorded",
              Printable(name, 192));
  co_return true;
}

Awaitable<absl::Status> NodeLinks::Admit(Stream& stream, std::shared_ptr<Link> link) {
  auto first = co_await stream.Read(Clock::now() + kHelloWithin);
  if (!first.ok()) co_return absl::DeadlineExceededError("no Hello came within 10 s");
  if (!first->has_value()) co_return absl::CancelledError("the node has hung up");
  if (!(*first)->has_hello()) co_return absl::InvalidArgumentError("the first message must be Hello");
  link->hello = std::move(*(*first)->mutable_hello());
  const v1::Hello& hello = link->hello;
  BERTH_CO_RETURN_IF_ERROR(CheckHello(hello));
  if (hello.lease_epoch() > settings_.epoch) {
    co_return absl::UnavailableError(fmt::format("this node has seen the scheduler of a later term ({} > {})",
                                                 hello.lease_epoch(), settings_.epoch));
  }
  if (const absl::Status above = ids_.Above(hello.highest_operation_id()); !above.ok()) {
    co_return absl::FailedPreconditionError(fmt::format("hello.highest_operation_id: {}", MessageOf(above)));
  }

  if (nodes_.size() >= kMostNodes && !nodes_.contains(hello.node_id()))
    co_return absl::ResourceExhaustedError(fmt::format("{} nodes are known already", nodes_.size()));
  Node& node = Of(hello.node_id());
  if (!co_await MayDecide(node))
    co_return absl::UnavailableError("another Hello of this node is being recorded");
  const Turn turn(node, decided_);
  const v1::Hello* const current = node.link == nullptr ? nullptr : &node.link->hello;
  const HelloDecision decision = DecideHello(node.record, current, hello);
  if (!decision.note.empty()) SPDLOG_WARN("{}", decision.note);
  // Also if it is not known how an earlier write ended.
  if (decision.record.has_value() || !records_.Holds(hello.node_id()).has_value()) {
    const NodeRecord record = decision.record.has_value() ? *decision.record : *node.record;
    if (const absl::Status written = co_await records_.Write(record); !written.ok()) {
      SPDLOG_ERROR("{}", MessageOf(written));
      co_return absl::UnavailableError("the scheduler cannot record this node now");
    }
    node.record = record;
  }
  if (decision.kind == HelloDecision::Kind::kRefuse) {
    if (node.record->two_machines && node.link != nullptr) End(*node.link, decision.why);
    co_return decision.why;
  }
  link->other_machine = decision.kind == HelloDecision::Kind::kOtherMachine;
  std::shared_ptr<Link>& place = link->other_machine ? node.other_machines[hello.instance_id()] : node.link;
  if (place != nullptr) End(*place, absl::UnavailableError("this node has opened another stream"));
  link->last_heartbeat = Clock::now();
  link->stream = ++streams_;
  place = link;
  if (!link->other_machine) node.operations.StreamBegins(hello.run_id());
  Say(*link, Welcome());
  co_return absl::OkStatus();
}

Awaitable<absl::Status> NodeLinks::Run(Stream& stream, std::shared_ptr<Link> link) {
  const auto ended = [link] { return link->ended.has_value(); };
  const auto read = co_await Race(Race(ReadAll(stream, link), WriteAll(stream, link)),
                                  link->changed.WaitUntil(ended, TimePoint::max()));
  if (link->ended.has_value()) co_return *link->ended;
  co_return read.has_value() && read->has_value() ? **read : absl::OkStatus();
}

// Until there is nothing more to be read.
Awaitable<absl::Status> NodeLinks::ReadAll(Stream& stream, std::shared_ptr<Link> link) {
  while (true) {
    auto message = co_await stream.Read(link->last_heartbeat + Silence());
    if (!message.ok()) co_return absl::DeadlineExceededError("no heartbeat came in time");
    if (!message->has_value()) co_return absl::OkStatus();
    // A newer stream may have ended it while this one was read.
    if (!link->ended.has_value()) Take(*link, **message);
    if (link->ended.has_value()) co_return *link->ended;
    // A peer that sends all the time, and no heartbeat.
    if (Clock::now() > link->last_heartbeat + Silence())
      co_return absl::DeadlineExceededError("no heartbeat came in time");
  }
}

// Until something cannot be written: then the link has ended.
Awaitable<bool> NodeLinks::WriteAll(Stream& stream, std::shared_ptr<Link> link) {
  while (true) {
    const auto something = [link] { return !link->waiting.empty(); };
    [[maybe_unused]] const bool there = co_await link->changed.WaitUntil(something, TimePoint::max());
    v1::SchedulerMessage message = std::move(link->waiting.front());
    link->waiting.pop_front();
    absl::Status written = co_await stream.Write(std::move(message), Clock::now() + Silence());
    if (written.ok()) continue;
    End(*link, std::move(written));
    co_return true;
  }
}

void NodeLinks::Say(Link& link, v1::SchedulerMessage message) {
  if (link.waiting.size() >= kMostWaiting)
    return End(link, absl::ResourceExhaustedError("the node does not read what is sent to it"));
  link.waiting.push_back(std::move(message));
  link.changed.NotifyAll();
}

void NodeLinks::Say(Node& node, NodeOperations::Messages messages) {
  if (node.link == nullptr) return;
  for (v1::SchedulerMessage& message : messages) Say(*node.link, std::move(message));
}

void NodeLinks::End(Link& link, absl::Status why) {
  if (!link.ended.has_value()) link.ended = std::move(why);
  link.changed.NotifyAll();
}

void NodeLinks::Gone(const std::shared_ptr<Link>& link) {
  SPDLOG_INFO("node {} is not connected any more", link->Name());
  Node& node = Of(link->hello.node_id());
  if (node.link == link) {
    node.link = nullptr;
    node.operations.StreamEnds();
    node.gone_at = WallClock::now();
  }
  const auto other = node.other_machines.find(link->hello.instance_id());
  if (other != node.other_machines.end() && other->second == link) node.other_machines.erase(other);
}

void NodeLinks::Take(Link& link, const v1::NodeMessage& message) {
  Node& node = Of(link.hello.node_id());
  v1::SchedulerMessage answer;
  switch (message.message_case()) {
    case v1::NodeMessage::kHeartbeat: {
      link.last_heartbeat = Clock::now();
      v1::HeartbeatAnswer& heartbeat = *answer.mutable_heartbeat_answer();
      heartbeat.set_number(message.heartbeat().number());
      if (!link.other_machine) {
        leases_.Granted(link.hello.node_id(), BootClock::now(), settings_.lease.duration);
        heartbeat.mutable_lease()->set_epoch(settings_.epoch);
        *heartbeat.mutable_lease()->mutable_duration() = ToProto(settings_.lease.duration);
      }
      const bool first = !std::exchange(link.has_lease, true);
      Say(link, std::move(answer));
      if (link.other_machine) return;
      Say(node, node.operations.HeartbeatAnswered(link.facts.synced()));
      if (first && observer_ != nullptr) observer_->MachineChanged(link.hello.node_id(), false);
      return;
    }
    case v1::NodeMessage::kResult:
      if (!link.other_machine) Say(node, node.operations.Take(message.result()));
      return;
    case v1::NodeMessage::kAsk:
      answer.mutable_answer()->set_number(message.ask().number());
      answer.mutable_answer()->set_code(static_cast<int>(absl::StatusCode::kUnimplemented));
      answer.mutable_answer()->set_message(
          "this scheduler takes no claims from nodes: claim the volume there");
      return Say(link, std::move(answer));
    case v1::NodeMessage::kGoodbye:
      SPDLOG_INFO("node {} {}", link.Name(),
                  message.goodbye().reason() == v1::Goodbye::SHUTTING_DOWN ? "is being shut down"
                                                                           : "stops its berthd");
      return;
    case v1::NodeMessage::kHello:
      return End(link, absl::InvalidArgumentError("Hello came twice"));
    case v1::NodeMessage::kState: {
      const bool was_synced = link.facts.synced();
      if (absl::Status taken = link.facts.Apply(message.state()); !taken.ok())
        return End(link, std::move(taken));
      if (link.other_machine || !link.facts.synced()) return;
      if (!was_synced && link.has_lease) Say(node, node.operations.HeartbeatAnswered(true));
      if (observer_ == nullptr) return;
      if (was_synced) return observer_->StateChanged(link.hello.node_id(), message.state());
      return observer_->MachineChanged(link.hello.node_id(), true);
    }
    case v1::NodeMessage::kEvents:
    case v1::NodeMessage::kLogLines:
    case v1::NodeMessage::kAskWithdrawn:
    case v1::NodeMessage::MESSAGE_NOT_SET:
      return;
  }
}

std::vector<NodeView> NodeLinks::List() const {
  std::vector<NodeView> views;
  const auto view = [](const Link& link) {
    return NodeView{.name = link.hello.node_id(),
                    .instance_id = link.hello.instance_id(),
                    .boot_id = link.hello.boot_id(),
                    .version = link.hello.version(),
                    .connected = true,
                    .other_machine = link.other_machine,
                    .since = link.since,
                    .facts = &link.facts};
  };
  for (const auto& [name, node] : nodes_) {
    if (node.link != nullptr) {
      views.push_back(view(*node.link));
    } else if (node.record.has_value()) {
      views.push_back({.name = name,
                       .instance_id = node.record->instance_id,
                       .boot_id = node.record->boot_id,
                       .version = "",
                       .two_machines = node.record->two_machines,
                       .since = node.gone_at});
    }
    for (const auto& [instance, link] : node.other_machines) views.push_back(view(*link));
  }
  return views;
}

}  // namespace berth::scheduler
