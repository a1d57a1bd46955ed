// The uplink: what it says of the node, and what it asks the scheduler for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rpc/uplink/testing/uplink_fixture.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(UplinkTest, ANodeSaysWhoItIsAndHowEverythingOnItStands) {
  control_.Add("p");
  mounter_.Add("p", "v", "jobs/web");
  Start();
  AwaitHello();
  const v1::Hello hello = wire().sent.front().hello();
  EXPECT_EQ(hello.node_id(), "n1");
  EXPECT_EQ(hello.protocol().major(), 1U);
  EXPECT_THAT(hello.instance_id(), SizeIs(32));
  EXPECT_EQ(hello.lease_epoch(), 1U);
  Greet();
  EXPECT_TRUE(wire().sent[1].state().full() || wire().sent[2].state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kNode), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kPlugin), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 1U);
  EXPECT_EQ(uplink_->Status()->state(), v1::LinkStatus::SYNCED);
  EXPECT_EQ(uplink_->Status()->peer(), "scheduler.test");
  EXPECT_THAT(EventTypes(), Contains("scheduler.connected"));
}

TEST_F(UplinkTest, WhatChangesIsToldOnceItLooksDifferent) {
  mounter_.Add("p", "v", "jobs/web");
  Start();
  Greet();
  const size_t before = Count(Message::kState);
  uplink_->OnVolumeChanged("p", "v", true);  // as it was
  mounter_.Add("p", "w", "jobs/db");
  uplink_->OnVolumeChanged("p", "w", true);
  Until([this] { return ObjectsOf(v1::Object::kVolume) == 2; }, "the new volume");
  mounter_.volumes.erase(mounter_.volumes.begin());
  uplink_->OnVolumeChanged("p", "v", false);
  Until([this] { return ObjectsOf(v1::Object::kRemoved) == 1; }, "the removal");
  EXPECT_GT(Count(Message::kState), before);
  const auto objects = Objects();
  const auto removed = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_removed(); });
  EXPECT_EQ(removed->removed().volume().volume_id(), "v");
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 2U);
}

TEST_F(UplinkTest, APluginThatIsReadyBeforeItWasLookedAtTwiceIsToldAtOnce) {
  ChangingPlugins plugins(loop_.get_executor(), control_);
  directory_ = &plugins;
  control_.Add("p").state = PluginState::kStarting;
  Start();
  Greet();
  control_.Add("p");
  plugins.Change();
  Until([this] { return ObjectsOf(v1::Object::kPlugin) == 2; }, "the plugin to be reported as ready");
  EXPECT_EQ(Objects().back().plugin().state(), v1::READY);
  Stop();
}

TEST_F(UplinkTest, AfterABreakOnlyWhatChangedIsToldAgain) {
  mounter_.Add("p", "v", "jobs/web");
  mounter_.Add("p", "w", "jobs/db");
  Start();
  Greet();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  wire().Break(absl::UnavailableError("cut"));
  AwaitHello(2);
  for (int i = 0; i < 100; ++i) uplink_->OnVolumeChanged("p", "w", true);
  Greet(2, welcome);
  EXPECT_FALSE(Last(Message::kState)->state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 1U);
  EXPECT_THAT(EventTypes(), Contains("scheduler.lost"));
}

// Ten thousand changes without a stream: of fifty volumes that stay, and of thousands that come and go.
TEST_F(UplinkTest, ANodeThatWasAwayForAWeekComesBackWithOneStateOfEachObject) {
  control_.Add("p");
  for (int i = 0; i < 50; ++i) mounter_.Add("p", "v" + std::to_string(i), "jobs/web");
  Start();
  Greet();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  dialer_.next.assign(3, absl::UnavailableError("no answer"));
  wire().Break(absl::UnavailableError("cut"));
  Until([this] { return dialer_.next.size() < 3; }, "the link to be gone");
  for (int i = 0; i < 10'000; ++i) {
    uplink_->OnVolumeChanged("p", "v" + std::to_string(i % 50), true);
    uplink_->OnVolumeChanged("p", "short-lived" + std::to_string(i), true);
    uplink_->OnVolumeChanged("p", "short-lived" + std::to_string(i), false);
    uplink_->OnConsumerEnded("jobs/" + std::to_string(i), "its process has ended", Origin::kScheduler);
  }
  Greet(2, welcome);
  EXPECT_TRUE(wire().sent[1].state().full() || wire().sent[2].state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 50U);
  EXPECT_EQ(ObjectsOf(v1::Object::kRemoved), 0U);
  EXPECT_LE(ObjectsOf(v1::Object::kEndedConsumer), 4096U);
  EXPECT_LE(rows_.rows.size(), 4096U + 10);
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.untold"), 1);
}

TEST_F(UplinkTest, Fault37AVolumeThatTheKernelStillHasIsReportedAndNotRemoved) {
  mounter_.Add("p", "v", "jobs/web");
  Start();
  Greet();
  mounter_.volumes.front().publications.clear();
  mounter_.volumes.front().still_in_use = true;
  uplink_->OnVolumeChanged("p", "v", true);
  const auto reported = [this] {
    const auto objects = Objects();
    return std::ranges::any_of(objects, [](const v1::Object& o) { return o.volume().still_in_use(); });
  };
  Until(reported, "the volume that is in use");
  EXPECT_EQ(ObjectsOf(v1::Object::kRemoved), 0U);
  mounter_.volumes.clear();
  uplink_->OnVolumeChanged("p", "v", false);
  Until([this] { return ObjectsOf(v1::Object::kRemoved) == 1; }, "the removal");
}

TEST_F(UplinkTest, AnEndedConsumerIsToldUntilItIsAcknowledged) {
  Start();
  Greet();
  uplink_->OnConsumerEnded("another's", "its process has ended", Origin::kCaller);
  uplink_->OnConsumerEnded("jobs/web", "its process has ended", Origin::kScheduler);
  Until([this] { return ObjectsOf(v1::Object::kEndedConsumer) == 1; }, "the consumer");
  Stop();
  Start();
  Greet(2);
  ASSERT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 1U);
  const auto objects = Objects();
  const v1::EndedConsumer ended = std::ranges::find_if(objects, [](const v1::Object& o) {
                                    return o.has_ended_consumer();
                                  })->ended_consumer();
  EXPECT_EQ(ended.namespace_(), "jobs");
  EXPECT_EQ(ended.consumer(), "web");
  EXPECT_EQ(ended.cause(), "its process has ended");
  v1::SchedulerMessage acknowledge;
  acknowledge.mutable_acknowledge()->add_ended_consumers(ended.number());
  wire().Say(acknowledge);
  Until([this] { return !rows_.rows.contains("ended/1"); }, "the row to go");
  wire().Break(absl::UnavailableError("cut"));
  Greet(3);
  EXPECT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 0U);
}

TEST_F(UplinkTest, AnOrderlyEndIsSaidWithWhatStaysMounted) {
  mounter_.Add("p", "v", "jobs/web");
  Start();
  Greet();
  const auto wire_then = dialer_.wires.back();
  RunOn(loop_, uplink_->Shutdown(/*machine_stops=*/true));
  ASSERT_EQ(wire_then->sent.back().message_case(), Message::kGoodbye);
  EXPECT_EQ(wire_then->sent.back().goodbye().reason(), v1::Goodbye::SHUTTING_DOWN);
  EXPECT_EQ(wire_then->sent.back().goodbye().publications_mounted(), 1);
}

TEST_F(UplinkTest, ASchedulerThatTakesNothingDoesNotHoldUpTheEnd) {
  Start();
  Greet();
  wire().takes = false;
  const TimePoint began = Clock::now();
  RunOn(loop_, uplink_->Shutdown());
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
}

TEST_F(UplinkTest, TheConnectionNumberRisesAlsoOverARestartAndAClockThatWasPutBack) {
  Start();
  Greet();
  const uint64_t first = wire().sent.front().hello().connection_number();
  EXPECT_GT(first, 0U);
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  const uint64_t second = wire().sent.front().hello().connection_number();
  EXPECT_GT(second, first);
  Stop();
  // The clock was put back meanwhile.
  rows_.rows["connection"] = std::to_string(second + 1'000'000'000'000);
  Start();
  Greet(3);
  EXPECT_EQ(wire().sent.front().hello().connection_number(), second + 1'000'000'000'001);
}

TEST_F(UplinkTest, TheNodeIsDrainedFromAfar) {
  Start();
  Greet();
  v1::Operation drain;
  drain.set_id(1);
  drain.set_lease_epoch(1);
  drain.mutable_drain_node()->set_reason("a new disk");
  Say(drain);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  EXPECT_EQ(result.drain_node().drain().reason(), "a new disk");
  drain.set_id(2);
  drain.mutable_drain_node()->set_end(true);
  Say(drain);
  EXPECT_FALSE(AwaitResult(2).drain_node().has_drain());
}

TEST_F(UplinkTest, WhatTheOperatorDoesNotAllowIsRefusedAndTheSettingNamed) {
  UplinkOptions options = Options();
  options.may = {v1::NodeState::VOLUMES};
  control_.Add("p");
  Start(std::move(options));
  Greet();
  const auto objects = Objects();
  const auto node = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_node(); });
  EXPECT_THAT(node->node().may(), ElementsAre(v1::NodeState::VOLUMES));
  std::vector<v1::Operation> refused(5);
  for (v1::Operation& operation : refused) operation.set_lease_epoch(1);
  refused[0].mutable_swap_plugin()->set_id("p");
  refused[1].mutable_restart_plugin()->set_id("p");
  refused[2].mutable_drain_plugin()->set_id("p");
  refused[3].mutable_start_plugin()->set_id("p");
  refused[4].mutable_drain_node();
  for (uint64_t id = 1; id <= refused.size(); ++id) {
    refused[id - 1].set_id(id);
    Say(refused[id - 1]);
    const v1::OperationResult result = AwaitResult(id);
    EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kPermissionDenied)) << id;
    EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
    EXPECT_THAT(result.message(),
                HasSubstr(id < 5 ? "\"plugins\" in [scheduler] may" : "\"node\" in [scheduler] may"));
  }
}

TEST_F(UplinkTest, AnEndedConsumersNumberIsOnTheDiskBeforeItIsTold) {
  Start();
  Greet();
  rows_.fails = absl::UnavailableError("the disk");
  uplink_->OnConsumerEnded("jobs/web", "its process has ended", Origin::kScheduler);
  Until([this] { return rows_.failed > 0; }, "an attempt to write it");
  EXPECT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 0U);
  rows_.fails = absl::OkStatus();
  Until([this] { return ObjectsOf(v1::Object::kEndedConsumer) == 1; }, "the consumer");
  EXPECT_TRUE(rows_.rows.contains("ended_next"));
}

TEST_F(UplinkTest, TheInstanceIdIsOnTheDiskBeforeTheNodeSaysIt) {
  rows_.fails = absl::UnavailableError("the disk");
  Start();
  Until([this] { return rows_.failed > 0; }, "an attempt to write it");
  EXPECT_FALSE(rows_.rows.contains("instance"));
  rows_.fails = absl::OkStatus();
  AwaitHello();
  EXPECT_EQ(wire().sent.front().hello().instance_id(), rows_.rows.at("instance"));
}

TEST_F(UplinkTest, AForcedReleaseIsReportedUntilItIsAcknowledged) {
  Start();
  Greet();
  v1::ForcedRelease forced_release;
  forced_release.set_number(1);
  lease_.forced_releases = {forced_release};
  uplink_->OnForcedReleasesChanged();
  Until([this] { return ObjectsOf(v1::Object::kForcedRelease) == 1; }, "it to be reported");
  lease_.forced_releases[0].set_progress(v1::ForcedRelease::RELEASED);
  uplink_->OnForcedReleasesChanged();
  Until([this] { return ObjectsOf(v1::Object::kForcedRelease) == 2; }, "its change to be reported");
  uplink_->OnForcedReleasesChanged();  // as it was
  v1::SchedulerMessage acknowledge;
  acknowledge.mutable_acknowledge()->add_forced_releases(1);
  wire().Say(acknowledge);
  Until([this] { return lease_.forced_releases.empty(); }, "the acknowledgement");
  uplink_->OnForcedReleasesChanged();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  EXPECT_EQ(ObjectsOf(v1::Object::kForcedRelease), 2U);
  wire().Break(absl::UnavailableError("cut"));
  Greet(2, welcome);
  EXPECT_EQ(ObjectsOf(v1::Object::kForcedRelease), 0U);
}

// A scheduler that took the message and died before it did anything about it.
TEST_F(UplinkTest, WhatIsNotAcknowledgedIsToldAgainOnAStreamThatGoesOn) {
  Start();
  Greet();
  v1::ForcedRelease forced_release;
  forced_release.set_number(1);
  lease_.forced_releases = {forced_release};
  uplink_->OnForcedReleasesChanged();
  uplink_->OnConsumerEnded("jobs/web", "its process has ended", Origin::kScheduler);
  Until([this] { return ObjectsOf(v1::Object::kEndedConsumer) + ObjectsOf(v1::Object::kForcedRelease) == 2; },
        "both");
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  wire().Break(absl::UnavailableError("cut"));
  Greet(2, welcome);
  EXPECT_FALSE(Last(Message::kState)->state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kForcedRelease), 1U);
}

TEST_F(UplinkTest, AClaimWaitsForTheSchedulersAnswerAcrossABreak) {
  Start();
  Greet();
  std::optional<absl::StatusOr<v1::Answer>> answer;
  std::vector<std::string> heard;
  const auto hear = [&](std::string text) -> Awaitable<bool> {
    heard.push_back(std::move(text));
    co_return true;
  };
  v1::Ask ask;
  ask.mutable_claim()->set_namespace_("jobs");
  ask.mutable_claim()->set_volume("data");
  asio::co_spawn(loop_, uplink_->Ask(ask, true, Clock::now() + std::chrono::seconds(20), hear),
                 [&](std::exception_ptr, absl::StatusOr<v1::Answer> came) { answer = std::move(came); });
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask");
  v1::SchedulerMessage waits;
  waits.mutable_ask_progress()->set_number(Last(Message::kAsk)->ask().number());
  waits.mutable_ask_progress()->set_text("web has it");
  wire().Say(waits);
  Until([&] { return !heard.empty(); }, "the progress");
  wire().Break(absl::UnavailableError("cut"));
  Until([&] { return heard.size() == 2; }, "the break");
  Greet(2);
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask again");
  v1::SchedulerMessage message;
  message.mutable_answer()->set_number(Last(Message::kAsk)->ask().number());
  message.mutable_answer()->mutable_claim()->set_volume_id("vol-1");
  wire().Say(message);
  Until([&] { return answer.has_value(); }, "the answer");
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_EQ((*answer)->claim().volume_id(), "vol-1");
  EXPECT_THAT(heard, ElementsAre("web has it", "the scheduler is not connected"));
}

TEST_F(UplinkTest, AnAnswerOfAnotherKindIsNone) {
  Start();
  Greet();
  std::optional<absl::StatusOr<v1::Answer>> answer;
  v1::Ask ask;
  ask.mutable_release()->set_volume("data");
  asio::co_spawn(loop_, uplink_->Ask(ask, false, Clock::now() + std::chrono::seconds(20), {}),
                 [&](std::exception_ptr, absl::StatusOr<v1::Answer> came) { answer = std::move(came); });
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask");
  v1::SchedulerMessage message;
  message.mutable_answer()->set_number(Last(Message::kAsk)->ask().number());
  message.mutable_answer()->mutable_claim()->set_volume_id("vol-1");
  wire().Say(message);
  Until([&] { return answer.has_value(); }, "the answer");
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kInternal);
}

TEST_F(UplinkTest, AClaimIsRefusedInTheSchedulersWords) {
  Start();
  Greet();
  std::optional<absl::StatusOr<v1::Answer>> answer;
  asio::co_spawn(loop_, uplink_->Ask({}, false, Clock::now() + std::chrono::seconds(20), {}),
                 [&](std::exception_ptr, absl::StatusOr<v1::Answer> came) { answer = std::move(came); });
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask");
  v1::SchedulerMessage message;
  message.mutable_answer()->set_number(Last(Message::kAsk)->ask().number());
  message.mutable_answer()->set_code(static_cast<int>(absl::StatusCode::kPermissionDenied));
  message.mutable_answer()->set_message("not for you");
  wire().Say(message);
  Until([&] { return answer.has_value(); }, "the answer");
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(berth::Message(answer->status()), HasSubstr("not for you"));
}

TEST_F(UplinkTest, AClaimIsRefusedAtOnceWhereNobodyIsConnectedAndNobodyWaits) {
  dialer_.next = {absl::UnavailableError("no answer"), absl::UnavailableError("no answer")};
  Start();
  const auto answer = RunOn(loop_, uplink_->Ask({}, false, Clock::now() + std::chrono::seconds(20), {}));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(UplinkTest, EventsAreToldFromWhereTheSchedulerStands) {
  events_.Append({.type = "one"});
  events_.Append({.type = "two"});
  Start();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_events()->set_after_sequence(1);
  Greet(1, welcome);
  Until([this] { return Last(Message::kEvents) != nullptr; }, "events");
  EXPECT_EQ(Last(Message::kEvents)->events().events(0).type(), "two");
  events_.Append({.type = "three"});
  Until(
      [this] {
        const auto& told = Last(Message::kEvents)->events().events();
        return told.rbegin()->type() == "three";
      },
      "the new event");
}

}  // namespace
}  // namespace berth
