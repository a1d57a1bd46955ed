#include "scheduler/links/server.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/time_util.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "base/grpc_stream.h"
#include "base/status.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "scheduler/store/memory_store.h"

namespace berth::scheduler {
namespace {

using google::protobuf::util::TimeUtil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using NodeStream = ClientStream<v1::NodeMessage, v1::SchedulerMessage>;
using std::chrono::milliseconds;
using std::chrono::seconds;

v1::NodeMessage HelloOf(const std::string& instance, const std::string& boot = "b", uint64_t connection = 1) {
  v1::NodeMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.mutable_protocol()->set_major(1);
  hello.set_node_id("n1");
  hello.set_instance_id(instance);
  hello.set_boot_id(boot);
  hello.set_run_id("r");
  hello.set_version("0.1");
  hello.set_connection_number(connection);
  return message;
}
v1::NodeMessage Heartbeat(uint64_t number) {
  v1::NodeMessage message;
  message.mutable_heartbeat()->set_number(number);
  return message;
}

// A node that sends heartbeats, and reads nothing.
class DeafNode : public NodeLinks::Stream {
 public:
  explicit DeafNode(const asio::any_io_executor& executor) : never_(executor) {}
  [[nodiscard]] size_t sent() const { return sent_; }
  Awaitable<absl::StatusOr<std::optional<v1::NodeMessage>>> Read(TimePoint /*deadline*/) override {
    ++sent_;
    co_return std::optional(sent_ == 1 ? HelloOf("i") : Heartbeat(sent_));
  }
  Awaitable<absl::Status> Write(v1::SchedulerMessage /*message*/, TimePoint deadline) override {
    co_await never_.WaitUntil([] { return false; }, deadline);
    co_return absl::DeadlineExceededError("the message was not taken in time");
  }

 private:
  size_t sent_ = 0;
  Condition never_;
};

// A real server, and nodes that use the protos alone.
class LinkServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve({.heartbeat_interval = seconds(5), .duration = seconds(30)}); }
  void TearDown() override {
    Stop();
    Drain(loop_);
  }

  void Serve(const LeaseSettings& lease) {
    links_ = std::make_unique<NodeLinks>(loop_.get_executor(),
                                         LinkSettings{.cluster_id = "c", .epoch = 7, .lease = lease},
                                         LeaseClock(BootClock::now(), seconds(0)), records_, ids_, Known());
    service_ = std::make_unique<LinkService>(loop_.get_executor(), *links_);
    auto server = Server::Start({address_}, {service_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  Term Begin() {
    const auto term =
        RunOn(loop_, BeginTerm(store_, {.cluster_id = "c", .now = WallClock::now(), .holder = "test"}));
    EXPECT_TRUE(term.ok()) << term.status();
    return term.value_or(Term());
  }
  std::vector<NodeRecord> Known() {
    const auto known = RunOn(loop_, records_.Load());
    EXPECT_TRUE(known.ok()) << known.status();
    return known.value_or(std::vector<NodeRecord>());
  }
  void Stop() {
    if (server_ != nullptr) RunOn(loop_, server_->Stop({&service_->calls()}));
    server_ = nullptr;
    service_ = nullptr;
    links_ = nullptr;
  }

  std::unique_ptr<NodeStream> Dial() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
    return NodeStream::Open(loop_.get_executor(), channel, "/berth.v1.SchedulerLink/Connect");
  }
  std::unique_ptr<NodeStream> Dial(const v1::NodeMessage& hello) {
    auto stream = Dial();
    Say(*stream, hello);
    return stream;
  }
  // Welcome was heard.
  std::unique_ptr<NodeStream> Connect(const v1::NodeMessage& hello) {
    auto stream = Dial(hello);
    EXPECT_TRUE(Hear(*stream).has_welcome());
    return stream;
  }
  void Say(NodeStream& stream, const v1::NodeMessage& message) {
    EXPECT_TRUE(RunOn(loop_, stream.Write(message, Clock::now() + kLimit)).ok());
  }
  v1::SchedulerMessage Hear(NodeStream& stream) {
    auto message = RunOn(loop_, stream.Read(Clock::now() + kLimit));
    EXPECT_TRUE(message.ok() && message->has_value()) << message.status();
    return message.ok() && message->has_value() ? **message : v1::SchedulerMessage();
  }
  // Ends the connection of node "n1". Returns when the scheduler knows: until then it refuses the name to
  // another machine.
  void HangUp(NodeStream& stream) {
    stream.Cancel();
    EXPECT_FALSE(EndOf(stream).ok());
    const TimePoint deadline = Clock::now() + kLimit;
    loop_.restart();
    while (links_->List().at(0).connected && Clock::now() < deadline) loop_.run_one_for(milliseconds(10));
    EXPECT_FALSE(links_->List().at(0).connected);
  }
  absl::Status EndOf(NodeStream& stream) { return RunOn(loop_, stream.Finish(Clock::now() + kLimit)); }

  static constexpr Duration kLimit = seconds(20);
  TempDir directory_;
  std::string address_ = "unix:" + directory_.path() + "/s.sock";
  asio::io_context loop_;
  MemoryStore store_{loop_.get_executor()};
  Term term_ = Begin();
  NodeRecords records_{store_, term_};
  OperationIds ids_{store_, term_};
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<LinkService> service_;
  std::unique_ptr<Server> server_;
};

TEST_F(LinkServerTest, ANodeIsWelcomedAndGetsALeaseForEachHeartbeat) {
  const auto node = Dial(HelloOf("i"));
  const v1::Welcome welcome = Hear(*node).welcome();
  EXPECT_EQ(welcome.protocol().major(), 1U);
  EXPECT_EQ(welcome.cluster_id(), "c");
  EXPECT_EQ(welcome.lease_epoch(), 7U);
  EXPECT_EQ(welcome.heartbeat_interval(), TimeUtil::SecondsToDuration(5));
  for (uint64_t number = 1; number <= 3; ++number) {
    Say(*node, Heartbeat(number));
    const v1::HeartbeatAnswer answer = Hear(*node).heartbeat_answer();
    EXPECT_EQ(answer.number(), number);
    EXPECT_EQ(answer.lease().epoch(), 7U);
    EXPECT_EQ(answer.lease().duration(), TimeUtil::SecondsToDuration(30));
  }
  EXPECT_GT(links_->leases().EndOf("n1"), BootClock::now() + seconds(29));
  const auto nodes = links_->List();
  ASSERT_THAT(nodes, SizeIs(1));
  EXPECT_TRUE(nodes[0].connected);
  EXPECT_EQ(nodes[0].version, "0.1");
}

TEST_F(LinkServerTest, WhatIsNoHelloIsRefused) {
  auto node = Dial(Heartbeat(1));
  EXPECT_EQ(EndOf(*node).code(), absl::StatusCode::kInvalidArgument);
  v1::NodeMessage other = HelloOf("i");
  other.mutable_hello()->mutable_protocol()->set_major(9);
  EXPECT_EQ(EndOf(*Dial(other)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(EndOf(*Dial(HelloOf(""))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(links_->List(), IsEmpty());
  node = Connect(HelloOf("i"));
  Say(*node, HelloOf("i"));
  EXPECT_EQ(EndOf(*node).code(), absl::StatusCode::kInvalidArgument) << "Hello comes once";
}

TEST_F(LinkServerTest, OfTwoStreamsOfOneNodeTheNewerIsServed) {
  const auto first = Connect(HelloOf("i", "b", 5));
  const auto second = Connect(HelloOf("i", "b", 6));
  EXPECT_EQ(EndOf(*first).code(), absl::StatusCode::kUnavailable);
  // One that was delayed on its way.
  EXPECT_EQ(EndOf(*Dial(HelloOf("i", "b", 4))).code(), absl::StatusCode::kUnavailable);
  Say(*second, Heartbeat(1));
  EXPECT_TRUE(Hear(*second).heartbeat_answer().has_lease());
  EXPECT_THAT(links_->List(), SizeIs(1));
}

TEST_F(LinkServerTest, AnotherMachineIsRefusedWhileTheFirstIsThereAndGetsNoLeaseAfterwards) {
  auto first = Connect(HelloOf("i", "b"));
  EXPECT_EQ(EndOf(*Dial(HelloOf("other", "b2"))).code(), absl::StatusCode::kAlreadyExists);
  HangUp(*first);
  const auto other = Connect(HelloOf("other", "b2"));
  Say(*other, Heartbeat(1));
  EXPECT_FALSE(Hear(*other).heartbeat_answer().has_lease());
  const auto nodes = links_->List();
  ASSERT_THAT(nodes, SizeIs(2));
  EXPECT_FALSE(nodes[0].connected);
  EXPECT_TRUE(nodes[1].other_machine);
  // The machine of the record comes back.
  first = Connect(HelloOf("i", "b"));
  Say(*first, Heartbeat(1));
  EXPECT_TRUE(Hear(*first).heartbeat_answer().has_lease());
}

TEST_F(LinkServerTest, TwoMachinesFromOneImageAreBothHungUpOn) {
  const auto first = Connect(HelloOf("i", "b1"));
  const auto second = Connect(HelloOf("i", "b2"));
  EXPECT_EQ(EndOf(*first).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(EndOf(*Dial(HelloOf("i", "b1"))).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(EndOf(*second).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(links_->List().at(0).two_machines);
}

TEST_F(LinkServerTest, ANodeWithoutHeartbeatsIsHungUpOn) {
  Stop();
  Serve({.heartbeat_interval = milliseconds(100), .duration = seconds(1)});
  const auto silent = Connect(HelloOf("i"));
  EXPECT_EQ(EndOf(*silent).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(links_->List().at(0).connected);
}

TEST_F(LinkServerTest, WhatIsRecordedOfANodeOutlivesTheScheduler) {
  {
    const auto node = Connect(HelloOf("i", "b"));
  }
  Stop();
  SetUp();
  ASSERT_THAT(links_->List(), SizeIs(1));
  EXPECT_FALSE(links_->List()[0].connected);
  const auto other = Connect(HelloOf("other", "b2"));
  EXPECT_THAT(links_->List(), SizeIs(2)) << "the name is the recorded machine's still";
}

// A claim compares the record, so it has to be there.
TEST_F(LinkServerTest, ARecordWhoseLastWriteIsNotKnownIsWrittenAgainAtTheNextHello) {
  {
    const auto node = Connect(HelloOf("i", "b", 1));
  }
  EXPECT_TRUE(RunOn(loop_, records_.Delete("n1")).ok());
  EXPECT_FALSE(records_.Holds("n1").has_value());
  const auto node = Connect(HelloOf("i", "b", 2));
  EXPECT_TRUE(records_.Holds("n1").has_value());
  EXPECT_THAT(Known(), SizeIs(1));
}

// A scheduler that another one has taken over from.
TEST_F(LinkServerTest, WhatCannotBeRecordedIsNotWelcomed) {
  Begin();
  DeafNode node(loop_.get_executor());
  EXPECT_TRUE(absl::IsUnavailable(RunOn(loop_, links_->Serve(node))));
  EXPECT_THAT(links_->List(), IsEmpty());
}

TEST_F(LinkServerTest, ANodeThatDoesNotReadIsHungUpOn) {
  DeafNode node(loop_.get_executor());
  EXPECT_EQ(RunOn(loop_, links_->Serve(node)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(node.sent(), kMostWaiting + 10);
  EXPECT_FALSE(links_->List().at(0).connected);
}

TEST_F(LinkServerTest, WhatAnEarlierSchedulerAskedForIsAcknowledged) {
  const auto node = Connect(HelloOf("i"));
  v1::NodeMessage result;
  result.mutable_result()->set_id(41);
  Say(*node, result);
  EXPECT_THAT(Hear(*node).acknowledge().operation_ids(), ElementsAre(41));
}

TEST_F(LinkServerTest, AnOperationIsSentUntilItHasAResult) {
  uint64_t id = 0;
  std::vector<v1::OperationResult> answers;
  {
    const auto opened = RunOn(loop_, links_->OpenOperation("n1"));
    ASSERT_TRUE(opened.ok()) << opened.status();
    id = *opened;
    v1::Operation operation;
    operation.set_id(id);
    operation.mutable_publish()->set_namespace_("ns");
    links_->Add("n1", {.operation = operation, .answered = [&answers](const v1::OperationResult& result) {
                         answers.push_back(result);
                       }});
  }
  const auto begin = [this](const v1::NodeMessage& hello) {
    auto node = Connect(hello);
    v1::NodeMessage synced;
    synced.mutable_state()->set_full(true);
    synced.mutable_state()->set_synced(true);
    Say(*node, synced);
    Say(*node, Heartbeat(1));
    EXPECT_TRUE(Hear(*node).has_heartbeat_answer());
    return node;
  };
  auto node = begin(HelloOf("i"));
  EXPECT_EQ(Hear(*node).operation().id(), id);
  // Another machine with the name is asked for nothing.
  HangUp(*node);
  const auto other = begin(HelloOf("other", "b2"));
  Say(*other, Heartbeat(2));
  EXPECT_TRUE(Hear(*other).has_heartbeat_answer());

  node = begin(HelloOf("i", "b", 2));
  const v1::Operation again = Hear(*node).operation();
  EXPECT_EQ(again.id(), id);
  EXPECT_EQ(again.lease_epoch(), 7U);
  v1::NodeMessage result;
  result.mutable_result()->set_id(id);
  Say(*node, result);
  Say(*node, Heartbeat(2));
  EXPECT_TRUE(Hear(*node).has_heartbeat_answer());
  ASSERT_THAT(answers, SizeIs(1));
  links_->Close("n1", id);
  const v1::Acknowledge acknowledge = Hear(*node).acknowledge();
  EXPECT_THAT(acknowledge.operation_ids(), ElementsAre(id));
  EXPECT_EQ(acknowledge.settled_below(), id + 1);
}

TEST_F(LinkServerTest, ANodeThatHasSeenALaterTermIsNotServed) {
  v1::NodeMessage hello = HelloOf("i");
  hello.mutable_hello()->set_lease_epoch(8);
  EXPECT_EQ(EndOf(*Dial(hello)).code(), absl::StatusCode::kUnavailable);
  hello.mutable_hello()->set_lease_epoch(7);
  hello.mutable_hello()->set_highest_operation_id(UINT64_MAX);
  EXPECT_EQ(EndOf(*Dial(hello)).code(), absl::StatusCode::kFailedPrecondition);
  hello.mutable_hello()->set_highest_operation_id(uint64_t{1} << 60);
  EXPECT_NE(Connect(hello), nullptr);
  EXPECT_EQ(RunOn(loop_, links_->OpenOperation("n1")).value(), (uint64_t{1} << 60) + 1);
}

TEST_F(LinkServerTest, AStopIsToldToTheNodes) {
  const auto node = Connect(HelloOf("i"));
  Stop();
  const absl::Status end = EndOf(*node);
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(end), HasSubstr("berth-scheduler is stopping"));
}

TEST_F(LinkServerTest, AnAddressThatIsTakenIsNamed) {
  const auto second = Server::Start({address_}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(second.status()), HasSubstr("s.sock: another process serves there"));
  const std::string file = directory_.path() + "/file";
  std::ofstream(file) << "precious";
  EXPECT_THAT(MessageOf(Server::Start({"unix:" + file}, {}).status()), HasSubstr("a file that is no socket"));
}

TEST_F(LinkServerTest, TheDirectoryOfASocketIsMade) {
  Stop();
  address_ = "unix:" + directory_.path() + "/run/berth-scheduler/s.sock";
  SetUp();
  EXPECT_NE(Connect(HelloOf("i")), nullptr);
}

TEST_F(LinkServerTest, ASocketThatAnEarlierSchedulerLeftIsReplaced) {
  Stop();
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un where{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = address_.substr(5);
  path.copy(where.sun_path, path.size());
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  ASSERT_EQ(close(left), 0);
  SetUp();
  EXPECT_NE(Connect(HelloOf("i")), nullptr);
}

}  // namespace
}  // namespace berth::scheduler
