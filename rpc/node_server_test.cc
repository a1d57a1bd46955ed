#include "rpc/node_server.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <random>

#include "rpc/testing/node_server_fixture.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(NodeServerTest, MistakesComeBackAsOneLine) {
  Start();
  Call call;
  v1::PublishVolumeRequest request;
  request.mutable_capability()->set_access_type(v1::BLOCK);
  request.mutable_capability()->add_mount_flags("ro");
  v1::PublishVolumeResponse response;
  const grpc::Status status = node_.Root()->PublishVolume(&call.context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("volume_id: must not be empty; "),
                                            HasSubstr("capability.mount_flags: not with BLOCK")));
}

TEST_F(NodeServerTest, AnErrorOfAnyLengthAndBytesArrives) {
  Start();
  const auto root = node_.Root();
  node_.OnLoop([this] {
    node_.mounter().next_error = absl::AbortedError(std::string(100'000, '\xff') + "\n");
    return true;
  });
  const grpc::Status status = Publish(*root, "v");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("\\xff\\xff"));
}

TEST_F(NodeServerTest, ABugInOneCallEndsThatCallAlone) {
  Start();
  const auto root = node_.Root();
  node_.OnLoop([this] { return node_.mounter().throws = true; });
  EXPECT_EQ(Publish(*root, "v").error_code(), grpc::StatusCode::INTERNAL);
  node_.OnLoop([this] { return node_.mounter().throws = false; });
  EXPECT_TRUE(Publish(*root, "v").ok());
}

TEST_F(NodeServerTest, ACallersCancellationReachesTheHandler) {
  Start();
  const auto root = node_.Root();
  Call call;
  auto hanging = HangingPublish(*root, &call.context);
  call.context.TryCancel();
  EXPECT_EQ(hanging.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(node_.Eventually([this] { return node_.mounter().cancelled == 1; }));
}

TEST_F(NodeServerTest, ACallersEndReachesTheHandler) {
  Start();
  UniqueFd connection = ConnectTo(node_.path());
  const int raw = connection.get();
  auto client = ServedNode::Client(std::move(connection));
  Call call;
  auto hanging = HangingPublish(*client, &call.context);
  shutdown(raw, SHUT_RDWR);  // As when its process is killed.
  EXPECT_EQ(hanging.get().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(node_.Eventually([this] { return node_.mounter().cancelled == 1; }));
  EXPECT_TRUE(node_.Eventually([this] { return node_.connections() == 0; }));
}

TEST_F(NodeServerTest, TheCallersDeadlineIsTheHandlersWithinABound) {
  Start({.calls = {.longest_call = hours(1)}});
  const auto root = node_.Root();
  const auto left_for = [&](std::optional<seconds> deadline) {
    grpc::ClientContext context;
    if (deadline) context.set_deadline(std::chrono::system_clock::now() + *deadline);
    v1::PublishVolumeResponse response;
    EXPECT_TRUE(root->PublishVolume(&context, PublishOf("v"), &response).ok());
    return node_.OnLoop([this] { return node_.mounter().last_deadline - Clock::now(); });
  };
  const auto own = left_for(seconds(600));
  EXPECT_LE(own, seconds(607)) << "gRPC rounds a little up on the wire";
  EXPECT_GT(own, seconds(540));
  EXPECT_LT(left_for(seconds(40)), seconds(40)) << "there is time left to answer";
  for (const std::optional<seconds> far : {std::optional<seconds>(), std::optional<seconds>(hours(30))}) {
    const auto capped = left_for(far);
    EXPECT_LE(capped, hours(1));
    EXPECT_GT(capped, hours(1) - seconds(60));
  }
}

TEST_F(NodeServerTest, CallsBeyondTheLimitAreRefused) {
  Start({.calls = {.calls = {.total = 1, .per_user = 1}}});
  const auto root = node_.Root();
  Call call;
  auto hanging = HangingPublish(*root, &call.context);
  EXPECT_EQ(GetStatus(*root).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(GetStatus(*node_.Reader()).ok()) << "others have a limit of their own";
  node_.OnLoop([this] {
    node_.mounter().Release();
    return true;
  });
  EXPECT_TRUE(hanging.get().ok());
  EXPECT_TRUE(GetStatus(*root).ok());
}

TEST_F(NodeServerTest, ARequestBeyondTheLimitIsRefused) {
  Start({.message = 100'000});
  const auto root = node_.Root();
  EXPECT_EQ(Publish(*root, std::string(200'000, 'v')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(GetStatus(*root).ok());
}

TEST_F(NodeServerTest, OneUsersConnectionsAreLimited) {
  Start({.connections = {.total = 10, .per_user = 2}});
  const auto connect = [this] { return ConnectAs(node_.path(Right::kRead), kNobody, ServedNode::kReaders); };
  const UniqueFd first = connect();
  const UniqueFd second = connect();
  ASSERT_TRUE(node_.Eventually([this] { return node_.connections() == 2; }));
  const UniqueFd third = connect();
  EXPECT_TRUE(IsClosedWithin(third.get(), 20'000));
  EXPECT_TRUE(GetStatus(*node_.Root()).ok());
}

TEST_F(NodeServerTest, AnOperatorGetsInHoweverManyOthersConnect) {
  Start({.connections = {.total = 3, .per_user = 100}});
  std::vector<UniqueFd> crowd;
  crowd.reserve(3);
  for (int i = 0; i < 3; ++i) crowd.push_back(ConnectAs(node_.path(), kNobody, ServedNode::kChangers));
  ASSERT_TRUE(node_.Eventually([this] { return node_.connections() == 3; }));
  const UniqueFd refused = ConnectAs(node_.path(), kNobody, ServedNode::kChangers);
  EXPECT_TRUE(IsClosedWithin(refused.get(), 20'000));
  EXPECT_TRUE(GetStatus(*node_.Root()).ok());
}

TEST_F(NodeServerTest, ConnectionsThatEndAreNoLongerCounted) {
  Start({.connections = {.total = 3, .per_user = 3}});
  for (int i = 0; i < 20; ++i) {
    {
      const auto root = node_.Root();
      ASSERT_TRUE(GetStatus(*root).ok()) << i;
    }
    ASSERT_TRUE(node_.Eventually([this] { return node_.connections() == 0; }));
  }
}

TEST_F(NodeServerTest, GarbageHarmsNobodyElse) {
  Start();
  const auto root = node_.Root();
  ASSERT_TRUE(GetStatus(*root).ok());
  std::mt19937 random(20240607);  // NOLINT: the same garbage each time
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int i = 0; i < 60; ++i) {
    const UniqueFd fd = ConnectAs(node_.path(Right::kRead), kNobody, ServedNode::kReaders);
    ASSERT_TRUE(fd.valid());
    std::string bytes = i % 3 == 0 ? "" : preface;
    for (int byte = 0; byte < 1 + i * 40; ++byte) bytes += static_cast<char>(random());
    [[maybe_unused]] const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(GetStatus(*root).ok());
  EXPECT_TRUE(node_.Eventually([this] { return node_.connections() == 1; }));
}

TEST_F(NodeServerTest, ASilentConnectionIsClosed) {
  Start({.idle = seconds(1), .ping_after = milliseconds(200), .ping_timeout = milliseconds(200)});
  const UniqueFd silent = ConnectTo(node_.path());
  const UniqueFd half = ConnectTo(node_.path());
  ASSERT_EQ(send(half.get(), "PRI * HT", 8, MSG_NOSIGNAL), 8);
  EXPECT_TRUE(IsClosedWithin(silent.get(), 20'000));
  EXPECT_TRUE(IsClosedWithin(half.get(), 20'000));
  EXPECT_TRUE(node_.Eventually([this] { return node_.connections() == 0; }));
}

TEST_F(NodeServerTest, AWatchResumesAndFollows) {
  Start();
  Append(2);
  const auto reader = node_.Reader();
  Call call;
  v1::WatchEventsRequest request;
  request.set_after_sequence(1);
  request.set_follow(true);
  const auto watch = reader->WatchEvents(&call.context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.event().sequence(), 2U);
  Append(1, "new");
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.event().sequence(), 3U);
  EXPECT_EQ(response.event().message(), "new");
}

TEST_F(NodeServerTest, AWatchWithoutFollowEnds) {
  Start();
  Append(3);
  const auto reader = node_.Reader();
  Call call;
  const auto watch = reader->WatchEvents(&call.context, {});
  v1::WatchEventsResponse response;
  int count = 0;
  while (watch->Read(&response)) ++count;
  EXPECT_TRUE(watch->Finish().ok());
  EXPECT_EQ(count, 3);
}

TEST_F(NodeServerTest, AWatchThatIsCancelledMakesRoomForTheNext) {
  Start({.calls = {.watches = {.total = 1, .per_user = 1}}});
  Append(1);
  const auto reader = node_.Reader();
  v1::WatchEventsRequest request;
  request.set_follow(true);
  v1::WatchEventsResponse response;
  Call first;
  const auto watch = reader->WatchEvents(&first.context, request);
  ASSERT_TRUE(watch->Read(&response));
  {
    Call second;
    const auto refused = reader->WatchEvents(&second.context, request);
    EXPECT_FALSE(refused->Read(&response));
    EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  first.context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  bool again = false;
  for (const TimePoint until = Clock::now() + seconds(20); !again && Clock::now() < until;) {
    Call next;
    const auto third = reader->WatchEvents(&next.context, request);
    again = third->Read(&response);
    next.context.TryCancel();
    EXPECT_FALSE(third->Finish().ok());
  }
  EXPECT_TRUE(again);
}

TEST_F(NodeServerTest, ASlowReaderMissesEventsAndIsToldHowMany) {
  Start();
  const auto reader = node_.Reader();
  Append(1);
  Call call;
  v1::WatchEventsRequest request;
  request.set_follow(true);
  const auto watch = reader->WatchEvents(&call.context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  // Far more than what fits into the flow-control windows, in rounds, so that what can be sent is.
  constexpr int kRounds = 100;
  constexpr int kPerRound = 200;
  for (int i = 0; i < kRounds; ++i) Append(kPerRound, std::string(4000, 'x'));
  uint64_t received = 0;
  uint64_t missed = 0;
  uint64_t last = response.event().sequence();
  while (last < 1 + kRounds * kPerRound) {
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.event().sequence(), last + response.missed() + 1)
        << "each is sent, or counted as missed";
    last = response.event().sequence();
    missed += response.missed();
    ++received;
  }
  EXPECT_EQ(received + missed, uint64_t{kRounds} * kPerRound);
  EXPECT_GT(missed, 0U);
  EXPECT_LT(received, 5000U) << "what was not read must not have been kept";
}

TEST_F(NodeServerTest, ShutdownLetsARunningCallFinish) {
  Start();
  const auto root = node_.Root();
  Call call;
  auto hanging = HangingPublish(*root, &call.context);
  auto down = std::async(std::launch::async, [this] { return node_.Shutdown(Clock::now() + seconds(20)); });
  // A new connection is refused at once; the old one still works, and hears that berthd is stopping.
  EXPECT_TRUE(node_.Eventually([this] { return !ConnectTo(node_.path()).valid(); }));
  EXPECT_EQ(GetStatus(*root).error_code(), grpc::StatusCode::UNAVAILABLE);
  node_.OnLoop([this] {
    node_.mounter().Release();
    return true;
  });
  EXPECT_TRUE(hanging.get().ok());
  EXPECT_LT(down.get(), seconds(15));
}

TEST_F(NodeServerTest, ShutdownEndsAHangingCallInBoundedTime) {
  Start();
  const auto root = node_.Root();
  Call call;
  auto hanging = HangingPublish(*root, &call.context);
  EXPECT_LT(node_.Shutdown(Clock::now() + milliseconds(50)), seconds(10));
  const grpc::Status status = hanging.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "berthd is stopping");
  EXPECT_NE(access(node_.path().c_str(), F_OK), 0) << "its socket is gone";
}

TEST_F(NodeServerTest, ShutdownEndsWatchesAlsoOfAReaderThatDoesNotRead) {
  Start();
  const auto root = node_.Root();
  const auto stalled = node_.Reader();
  v1::WatchEventsRequest request;
  request.set_follow(true);
  Call one;
  Call two;
  const auto watch = root->WatchEvents(&one.context, request);
  const auto unread = stalled->WatchEvents(&two.context, request);
  v1::WatchEventsResponse response;
  Append(1);
  ASSERT_TRUE(watch->Read(&response));
  for (int i = 0; i < 50; ++i) Append(100, std::string(4000, 'x'));
  auto last = std::async(std::launch::async, [&] {
    while (watch->Read(&response)) {
    }
    return watch->Finish();
  });
  EXPECT_LT(node_.Shutdown(Clock::now() + hours(1)), seconds(10));
  EXPECT_EQ(last.get().error_code(), grpc::StatusCode::UNAVAILABLE);
  while (unread->Read(&response)) {
  }
  EXPECT_FALSE(unread->Finish().ok());
}

TEST_F(NodeServerTest, StartsAgainWhereADeadOneLeftItsSocket) {
  {
    const auto dead = ListenSocket::Bind(node_.path(Right::kRead), std::nullopt, 0600);
    ASSERT_TRUE(dead.ok()) << dead.status();
  }
  Start();
  EXPECT_TRUE(GetStatus(*node_.Reader()).ok());
}

TEST_F(NodeServerTest, AnotherGroupEndsTheConnectionsOfOthersThanRoot) {
  Start();
  const auto root = ServedNode::Client(ConnectTo(node_.path(Right::kRead)));
  const UniqueFd reader = ConnectAs(node_.path(Right::kRead), kNobody, ServedNode::kReaders);
  ASSERT_TRUE(GetStatus(*root).ok());
  ASSERT_TRUE(node_.Eventually([this] { return node_.connections() == 2; }));
  EXPECT_EQ(node_.OnLoop([this] { return node_.server(Right::kRead).SetGroup(gid_t{77}); }),
            absl::OkStatus());
  EXPECT_TRUE(IsClosedWithin(reader.get(), 20'000));
  EXPECT_FALSE(ConnectAs(node_.path(Right::kRead), kNobody, ServedNode::kReaders).valid());
  EXPECT_TRUE(ConnectAs(node_.path(Right::kRead), kNobody, 77).valid());
  EXPECT_TRUE(GetStatus(*root).ok());
}

TEST_F(NodeServerTest, OneUserCannotTakeAllWatches) {
  Start({.calls = {.watches = {.total = 4, .per_user = 2}}});
  Append(1);
  v1::WatchEventsRequest request;
  request.set_follow(true);
  struct Watch {
    Call call;
    std::unique_ptr<v1::Node::Stub> stub;
    std::unique_ptr<grpc::ClientReader<v1::WatchEventsResponse>> reader;
  };
  std::vector<std::unique_ptr<Watch>> watches;
  const auto begins = [&](uid_t uid) {
    auto watch = std::make_unique<Watch>();
    watch->stub = ServedNode::Client(ConnectAs(node_.path(Right::kRead), uid, ServedNode::kReaders));
    watch->reader = watch->stub->WatchEvents(&watch->call.context, request);
    v1::WatchEventsResponse response;
    const bool began = watch->reader->Read(&response);
    watches.push_back(std::move(watch));
    return began;
  };
  EXPECT_TRUE(begins(kNobody));
  EXPECT_TRUE(begins(kNobody));
  EXPECT_FALSE(begins(kNobody)) << "one user's share";
  EXPECT_TRUE(begins(kNobody - 1));
  EXPECT_TRUE(begins(0)) << "root's are not counted with others'";
  for (auto& watch : watches) watch->call.context.TryCancel();
}

TEST_F(NodeServerTest, ServesASocketThatWasHandedOver) {
  auto made = ListenSocket::Bind(node_.path(), std::nullopt, 0600);
  ASSERT_TRUE(made.ok()) << made.status();
  auto adopted = ListenSocket::Adopt(UniqueFd(fcntl(made->fd(), F_DUPFD_CLOEXEC, 3)));
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_EQ(node_.Start({}, *std::move(adopted)), absl::OkStatus());
  EXPECT_TRUE(GetStatus(*node_.Root()).ok());
  node_.Shutdown(Clock::now());
  EXPECT_EQ(access(node_.path().c_str(), F_OK), 0) << "its file is its maker's";
  made->Remove();
}

TEST_F(NodeServerTest, ShutsDownWithManyCallsInFlight) {
  Start();
  const auto root = node_.Root();
  node_.OnLoop([this] { return node_.mounter().hang = true; });
  std::vector<std::future<grpc::Status>> calls;
  std::vector<std::unique_ptr<Call>> contexts;
  for (int i = 0; i < 40; ++i) {
    contexts.push_back(std::make_unique<Call>());
    calls.push_back(std::async(std::launch::async, [&root, &call = *contexts.back()] {
      v1::PublishVolumeResponse response;
      return root->PublishVolume(&call.context, PublishOf("v"), &response);
    }));
  }
  ASSERT_TRUE(node_.Eventually([this] { return node_.mounter().publishing == 40; }));
  for (size_t i = 0; i < 20; ++i) contexts[i]->context.TryCancel();  // Some leave at the same moment.
  EXPECT_LT(node_.Shutdown(Clock::now()), seconds(10));
  for (auto& call : calls) EXPECT_FALSE(call.get().ok());
}

}  // namespace
}  // namespace berth
