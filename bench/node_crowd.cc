#include "bench/node_crowd.h"

#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "bench/simulated_node.h"

namespace berth {
namespace {

using berth::v1::NodeMessage;
using berth::v1::SchedulerMessage;

// At once, so that no server's queue of new connections overflows.
constexpr int kDiallingAtOnce = 64;
constexpr Duration kAnswersWithin = std::chrono::seconds(60);

// A node's steps: Hello, State, and heartbeats from then on, the first of them number 1.
constexpr uint64_t kHelloStep = 0;
constexpr uint64_t kStateStep = 1;
constexpr uint64_t kFirstBeatStep = 2;

grpc::ByteBuffer NoBytes() {
  const grpc::Slice none;
  return {&none, 1};
}

grpc::ByteBuffer BytesOf(const NodeMessage& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return {&bytes, 1};
}

grpc::ByteBuffer WordsOf(LinkService service, int node, uint64_t step) {
  if (service == LinkService::kEmpty) return NoBytes();
  if (step == kHelloStep) return BytesOf(SimulatedHello(node));
  if (step == kStateStep) return BytesOf(SimulatedState(node));
  return BytesOf(SimulatedHeartbeat(step - kStateStep));
}

bool IsAnswered(LinkService service, uint64_t step) {
  return service == LinkService::kEmpty || step != kStateStep;
}

bool IsRight(LinkService service, uint64_t step, grpc::ByteBuffer& answer) {
  if (service == LinkService::kEmpty) return answer.Length() == 0;
  SchedulerMessage message;
  if (!grpc::SerializationTraits<SchedulerMessage>::Deserialize(&answer, &message).ok()) return false;
  if (step == kHelloStep) return message.welcome().protocol().major() == 1;
  return message.heartbeat_answer().number() == step - kStateStep && message.heartbeat_answer().has_lease();
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  // As each node has: a connection of its own, and nothing that retries.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return grpc::CreateCustomChannel("ipv4:" + address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// What the nodes tell the thread that waits for them.
struct NodeCrowd::Progress {
  std::mutex mutex;
  std::condition_variable changed;
  int done = 0;  // nodes that have ended what was last begun
  int gone = 0;  // nodes of which gRPC has let go
  absl::Status trouble;

  void NodeDone() {
    const std::lock_guard lock(mutex);
    ++done;
    changed.notify_one();
  }
  void NodeInTrouble(const absl::Status& status) {
    const std::lock_guard lock(mutex);
    if (trouble.ok()) trouble = status;
    changed.notify_one();
  }
  void NodeGone() {
    const std::lock_guard lock(mutex);
    ++gone;
    changed.notify_one();  // under the lock: the waiting thread destroys all of this afterwards
  }

  // Until at least `count` are done.
  absl::Status AwaitDone(int count, TimePoint deadline) {
    std::unique_lock lock(mutex);
    const bool in_time = changed.wait_until(lock, deadline, [&] { return done >= count || !trouble.ok(); });
    if (!trouble.ok()) return trouble;
    if (in_time) return absl::OkStatus();
    return absl::DeadlineExceededError(
        fmt::format("{} of {} nodes were not answered in time", count - done, count));
  }
  // Lets time pass; trouble ends it at once.
  absl::Status AwaitTime(TimePoint due) {
    std::unique_lock lock(mutex);
    changed.wait_until(lock, due, [&] { return !trouble.ok(); });
    return trouble;
  }
  void AwaitGone(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return gone >= count; });
  }
  void Reset() {
    const std::lock_guard lock(mutex);
    done = 0;
  }
};

// One node. A step is a write and, where it is answered, a read; the next one begins when both have ended,
// on whichever of gRPC's threads that is.
class NodeCrowd::Node final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Node(int number, const std::string& address, LinkService service, Progress& progress)
      : number_(number), service_(service), progress_(progress), stub_(Dial(address)) {
    stub_.PrepareBidiStreamingCall(&context_, kConnectMethod, {}, this);
    // Else gRPC would end the call between two steps.
    AddHold();
    StartCall();
    BeginStep();
  }

  // A heartbeat. The previous one has been answered.
  void Beat() { BeginStep(); }

  // Ends the stream; Progress::NodeGone follows.
  void End() {
    context_.TryCancel();
    LetGo();
  }

 private:
  void BeginStep() {
    const bool answered = IsAnswered(service_, step_);
    words_ = WordsOf(service_, number_, step_);
    parts_left_ = answered ? 2 : 1;
    StartWrite(&words_);
    if (answered) StartRead(&answer_);
  }
  void OnWriteDone(bool ok) override { EndPart(ok); }
  void OnReadDone(bool ok) override { EndPart(ok); }
  void EndPart(bool ok) {
    if (!ok) failed_ = true;
    if (--parts_left_ == 0) EndStep();
  }
  void EndStep() {
    if (failed_) {
      LetGo();  // so that OnDone says why
    } else if (IsAnswered(service_, step_) && !IsRight(service_, step_, answer_)) {
      progress_.NodeInTrouble(
          absl::InternalError(fmt::format("{} has a wrong answer", SimulatedName(number_))));
    } else if (step_++ < kFirstBeatStep) {
      BeginStep();
    } else {
      progress_.NodeDone();
    }
  }
  void LetGo() {
    if (held_.exchange(false)) RemoveHold();
  }
  void OnDone(const grpc::Status& status) override {
    const absl::Status why = status.ok() ? absl::UnavailableError("the stream has ended") : FromGrpc(status);
    if (failed_) progress_.NodeInTrouble(Annotate(why, SimulatedName(number_)));
    progress_.NodeGone();
  }

  const int number_;
  const LinkService service_;
  Progress& progress_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  uint64_t step_ = kHelloStep;
  grpc::ByteBuffer words_;
  grpc::ByteBuffer answer_;
  std::atomic<int> parts_left_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> held_ = true;
};

NodeCrowd::NodeCrowd() : progress_(std::make_unique<Progress>()) {}

absl::StatusOr<std::unique_ptr<NodeCrowd>> NodeCrowd::Connect(const std::string& address, LinkService service,
                                                              int size) {
  // When its last channel goes gRPC may wait ten seconds for a poller of its own. Kept for ever.
  static const auto* const kept = new std::shared_ptr<grpc::Channel>(Dial("127.0.0.1:1"));
  (void)kept;
  // Not make_unique: the constructor is private.
  std::unique_ptr<NodeCrowd> crowd(new NodeCrowd());
  for (int i = 0; i < size; ++i) {
    BERTH_RETURN_IF_ERROR(crowd->progress_->AwaitDone(i - kDiallingAtOnce, Clock::now() + kAnswersWithin));
    crowd->nodes_.push_back(std::make_unique<Node>(i, address, service, *crowd->progress_));
  }
  BERTH_RETURN_IF_ERROR(crowd->progress_->AwaitDone(size, Clock::now() + kAnswersWithin));
  return crowd;
}

NodeCrowd::~NodeCrowd() {
  for (const std::unique_ptr<Node>& node : nodes_) node->End();
  progress_->AwaitGone(static_cast<int>(nodes_.size()));
}

absl::Status NodeCrowd::BeatAll(Duration gap) {
  progress_->Reset();
  TimePoint due = Clock::now();
  for (const std::unique_ptr<Node>& node : nodes_) {
    BERTH_RETURN_IF_ERROR(progress_->AwaitTime(due));
    node->Beat();
    due += gap;
  }
  return progress_->AwaitDone(static_cast<int>(nodes_.size()), Clock::now() + kAnswersWithin);
}

}  // namespace berth
