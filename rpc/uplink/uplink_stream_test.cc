// Of the uplink: how streams begin and end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rpc/uplink/testing/uplink_fixture.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(UplinkTest, ALinkThatBreaksWhileALogIsFollowedBeginsAnew) {
  control_.Add("p");
  int reading = 0;
  control_.read_log = [&reading](std::string, LogQuery query,
                                 TimePoint deadline) -> Awaitable<absl::StatusOr<LogBatch>> {
    return [](int* count, LogQuery asked, TimePoint until) -> Awaitable<absl::StatusOr<LogBatch>> {
      ++*count;
      const LogCursor next{.position = 0, .number = 0};
      if (!asked.after) co_return LogBatch{.next = next, .at_end = true};
      co_await SleepUntil(until);
      co_return LogBatch{.next = next, .at_end = true};
    }(&reading, std::move(query), deadline);
  };
  Start();
  Greet();
  v1::SchedulerMessage follow;
  follow.mutable_log_request()->set_number(1);
  follow.mutable_log_request()->mutable_plugin()->set_id("p");
  follow.mutable_log_request()->mutable_plugin()->set_follow(true);
  follow.mutable_log_request()->set_credit(10);
  wire().Say(follow);
  Until([&] { return reading == 2; }, "the reader to wait for lines");
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  EXPECT_EQ(Count(Message::kLogLines), 0U) << "a stream's logs end with it";
}

TEST_F(UplinkTest, ASilentSchedulerIsTakenForDead) {
  UplinkOptions options = Options();
  options.times.least_silence = std::chrono::milliseconds(50);
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Start(options);
  AwaitHello();
  Say(welcome);
  AwaitHello(2);
  EXPECT_TRUE(dialer_.wires[0]->closed);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("has not been heard"));
  EXPECT_GE(lease_.heartbeats.size(), 2U);
}

TEST_F(UplinkTest, ASchedulerThatDoesNotGreetIsLeft) {
  UplinkOptions options = Options();
  options.times.greet_within = std::chrono::milliseconds(20);
  Start(options);
  AwaitHello(3);
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "two:2", "one:1"));
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("did not say Welcome"));
}

TEST_F(UplinkTest, ItIsAwaySinceTheLastLinkHoweverOftenAStreamIsTakenAndNotGreeted) {
  UplinkOptions options = Options();
  options.times.greet_within = std::chrono::milliseconds(200);
  Start(options);
  Greet();
  const auto since = [this] {
    const auto status = uplink_->Status();
    return std::pair(status->since().seconds(), status->since().nanos());
  };
  const auto linked = since();
  wire().Break(absl::UnavailableError("cut"));
  Until([this] { return uplink_->Status()->state() == v1::LinkStatus::DIALLING; }, "the loss of the link");
  const auto lost = since();
  EXPECT_GT(lost, linked);
  AwaitHello(4);
  EXPECT_EQ(since(), lost);
  Greet(4);
  EXPECT_GT(since(), lost);
}

TEST_F(UplinkTest, ASchedulerOfAnotherClusterIsRefusedAndToldOnce) {
  Start();
  Greet();
  wire().Break(absl::UnavailableError("cut"));
  for (size_t n = 2; n <= 4; ++n) {
    AwaitHello(n);
    v1::Welcome other = MakeWelcome();
    other.set_cluster_id("other");
    Say(other);
    Until([&] { return dialer_.wires.size() > n; }, "another attempt");
  }
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("belongs to cluster \"c\""));
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.lost"), 1);
  EXPECT_LE(std::ranges::count(EventTypes(), "scheduler.refused"), 2);  // of each address
}

TEST_F(UplinkTest, ASchedulerThatIsRefusedFromTheBeginningIsToldOnce) {
  for (int i = 0; i < 6; ++i) dialer_.next.push_back(absl::UnauthenticatedError("not believed"));
  Start();
  Greet();
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.refused"), 2);  // of each address
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.lost"), 0);
}

TEST_F(UplinkTest, ASchedulerThatAnotherOneHasTakenOverFromIsRefused) {
  lease_.current_epoch = 8;
  Start();
  AwaitHello();
  v1::Welcome welcome = MakeWelcome();
  welcome.set_lease_epoch(7);
  Say(welcome);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("of lease epoch 7, and 8 is obeyed"));
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "two:2"));
  EXPECT_EQ(wire().sent.size(), 1U) << "nothing is sent to it";
  welcome.set_lease_epoch(8);
  Greet(2, welcome);
}

TEST_F(UplinkTest, ASchedulerThatGrantsALeaseOfALowerEpochIsLeft) {
  Start();
  Greet();
  lease_.answered = absl::FailedPreconditionError("overtaken");
  v1::SchedulerMessage answer;
  answer.mutable_heartbeat_answer()->set_number(1);
  wire().Say(answer);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("overtaken"));
}

// Every node of a scheduler that has died would come to the next one at once.
TEST_F(UplinkTest, OnlyASchedulerThatSaysSoIsLeftForTheNextAddressAtOnce) {
  UplinkOptions options = Options();
  options.dial.stable_after = Duration(0);
  Start(options);
  Greet();
  wire().Break(absl::UnavailableError("connection reset"));
  Greet(2);
  wire().said = true;
  wire().Break(absl::UnavailableError("try another"));
  AwaitHello(3);
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "one:1", "two:2"));
}

TEST_F(UplinkTest, ASchedulerOfAnotherProtocolIsRefused) {
  Start();
  AwaitHello();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_protocol()->set_major(2);
  Say(welcome);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("version 2.0"));
}

TEST_F(UplinkTest, APeerThatIsNotAcceptedAnyMoreIsLeft) {
  UplinkOptions options = Options();
  options.times.recheck_every = std::chrono::milliseconds(10);
  Start(options);
  Greet();
  wire().recheck = absl::UnauthenticatedError("its certificate is revoked");
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("revoked"));
}

TEST_F(UplinkTest, WhoIsHeardOftenIsLookedAtOften) {
  Start();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Greet(1, welcome);
  wire().recheck = absl::UnauthenticatedError("its certificate is revoked");
  Until([&] { return uplink_->Status()->last_error().find("revoked") != std::string::npos; }, "its end");
}

TEST_F(UplinkTest, AStreamThatTakesNothingIsLeft) {
  UplinkOptions options = Options();
  options.times.least_silence = std::chrono::milliseconds(50);
  options.times.greet_within = std::chrono::milliseconds(50);
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Start(options);
  Greet(1, welcome);
  wire().takes = false;
  AwaitHello(2);
}

}  // namespace
}  // namespace berth
