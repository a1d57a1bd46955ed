// Of the uplink: what the scheduler asks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/testing/from_text.h"
#include "rpc/uplink/testing/uplink_fixture.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(UplinkTest, ANodesRuntimesAreToldAndUsedByTheirNames) {
  control_.Add("p");
  api_.volumes.SetRuntimes(
      {FromText<RuntimeAbility>("name: 'podman' mount: true block: true readonly: true"),
       FromText<RuntimeAbility>("name: 'vm' block: true fs_types: 'ext4' readonly: true")});
  Start();
  Greet();
  const auto objects = Objects();
  const auto node = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_node(); });
  ASSERT_EQ(node->node().runtimes_size(), 2);
  EXPECT_EQ(node->node().runtimes(0).name(), "podman");
  EXPECT_TRUE(node->node().runtimes(0).mount());
  EXPECT_EQ(node->node().runtimes(1).name(), "vm");
  EXPECT_FALSE(node->node().runtimes(1).mount());
  EXPECT_EQ(node->node().runtimes(1).fs_types(0), "ext4");

  v1::Operation known = Publish(1);
  known.mutable_publish()->set_runtime("vm");
  Say(known);
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_DONE);
  EXPECT_EQ(ResultOf(1)->boot_id(), BootId());
  const auto vm = FromText<RuntimeAbility>("name: 'vm' block: true fs_types: 'ext4' readonly: true");
  EXPECT_EQ(mounter_.last_runtime, vm);

  v1::Operation unknown = Publish(2, "w");
  unknown.mutable_publish()->set_runtime("docker");
  Say(unknown);
  EXPECT_EQ(AwaitResult(2).outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(ResultOf(2)->message(), "publish.runtime: no runtime of this node is called docker");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, APublishIsDoneForTheSchedulerAndItsResultIsWrittenDownBeforeItIsTold) {
  control_.Add("p");
  Start();
  Greet();
  rows_.fails = absl::UnavailableError("the disk");
  Say(Publish(7));
  Until([this] { return rows_.failed > 0; }, "an attempt to write it down");
  EXPECT_EQ(ResultOf(7), nullptr);
  EXPECT_EQ(uplink_->Status()->operations_running(), 1);
  rows_.fails = absl::OkStatus();
  const v1::OperationResult result = AwaitResult(7);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  EXPECT_EQ(result.publish().target_path(), "/volumes/v");
  EXPECT_EQ(mounter_.volumes.back().publications[0].consumer, "jobs/web");
  ASSERT_THAT(rows_.rows, Contains(Key("result/7")));
  for (const auto& [key, row] : rows_.rows) EXPECT_THAT(row, Not(HasSubstr("hunter22"))) << key;
}

TEST_F(UplinkTest, ARepeatedOperationHasItsFirstResultAlsoAfterARestart) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result again");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
  Stop();
  Start();
  Greet(2);
  EXPECT_EQ(AwaitResult(7).publish().target_path(), "/volumes/v");
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result once more");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, AnAcknowledgedOperationIsNotRunAgainNotEvenAfterARestart) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  SayAcknowledged({7});
  Until([this] { return !rows_.rows.contains("result/7"); }, "the row to go");
  Stop();
  Start();
  Greet(2);
  Say(Publish(7));
  const v1::OperationResult result = AwaitResult(7);
  EXPECT_EQ(result.refusal(), v1::SETTLED);
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
  SayAcknowledged({}, 8);
  Until([this] { return rows_.rows.contains("settled"); }, "the row");
  EXPECT_THAT(rows_.rows, Not(Contains(Key("acknowledged/7"))));
}

TEST_F(UplinkTest, Fault31OperationsThatOvertakeEachOtherAreEachDoneOnce) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(8, "w"));
  Say(Publish(7, "v"));
  Until([this] { return mounter_.publishing == 2; }, "both");
  SayAcknowledged({7});  // It has no result.
  mounter_.Release();
  EXPECT_EQ(AwaitResult(7).outcome(), v1::OUTCOME_DONE);
  EXPECT_EQ(AwaitResult(8).outcome(), v1::OUTCOME_DONE);
  EXPECT_THAT(mounter_.volumes, SizeIs(2));
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  EXPECT_EQ(AwaitResult(7).outcome(), v1::OUTCOME_DONE) << "it was not acknowledged";
}

TEST_F(UplinkTest, Fault31WhatIsSettledBeforeItArrivesIsNotDone) {
  control_.Add("p");
  Start();
  Greet();
  SayAcknowledged({}, 10);
  Say(Publish(9));
  EXPECT_EQ(AwaitResult(9).refusal(), v1::SETTLED);
  EXPECT_THAT(mounter_.volumes, IsEmpty());
}

TEST_F(UplinkTest, AnOperationThatIsSettledWhileItRunsLeavesNoResultOnTheDisk) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(7));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  SayAcknowledged({}, 8);
  Until([this] { return rows_.rows.contains("settled"); }, "the row");
  mounter_.Release();
  Until([this] { return uplink_->Status()->operations_running() == 0; }, "its end");
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/7"))));
  EXPECT_EQ(ResultOf(7), nullptr);
}

TEST_F(UplinkTest, AnOperationOfAnOlderEpochIsRefusedAndMayComeAgain) {
  control_.Add("p");
  lease_.current_epoch = 2;
  Start();
  Greet();
  Say(Publish(7));
  const v1::OperationResult refused = AwaitResult(7);
  EXPECT_EQ(refused.refusal(), v1::LEASE_EPOCH);
  EXPECT_THAT(refused.message(), HasSubstr("epoch 1, and the node's is 2"));
  EXPECT_THAT(mounter_.volumes, IsEmpty());
  v1::Operation again = Publish(7);
  again.set_lease_epoch(2);
  Say(again);
  Until([this] { return ResultOf(7)->outcome() == v1::OUTCOME_DONE; }, "the result");
}

TEST_F(UplinkTest, WithoutAValidLeaseNothingIsPublishedAndWhatIsHereMayLeave) {
  control_.Add("p");
  mounter_.Add("p", "v", "jobs/web");
  lease_.now = v1::LEASE_EXPIRED;
  Start();
  Greet();
  Say(Publish(1, "w"));
  EXPECT_EQ(AwaitResult(1).refusal(), v1::LEASE_NOT_VALID);
  v1::Operation unpublish;
  unpublish.set_id(2);
  unpublish.set_lease_epoch(1);
  unpublish.mutable_unpublish()->set_namespace_("jobs");
  unpublish.mutable_unpublish()->mutable_request()->set_plugin_id("p");
  unpublish.mutable_unpublish()->mutable_request()->set_volume_id("v");
  unpublish.mutable_unpublish()->mutable_request()->set_consumer("web");
  Say(unpublish);
  EXPECT_TRUE(AwaitResult(2).unpublish().was_published());
}

// "Nothing was begun" would be a lie.
TEST_F(UplinkTest, ARepeatIsAnsweredUnderWhateverEpochItWasFirstAskedFor) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(7));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  lease_.current_epoch = 2;
  Say(Publish(7));
  v1::Operation other = Publish(8, "w");
  Say(other);
  EXPECT_EQ(AwaitResult(8).refusal(), v1::LEASE_EPOCH);
  EXPECT_EQ(ResultOf(7), nullptr);
  mounter_.Release();
  EXPECT_EQ(AwaitResult(7).outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, AResultThatWasSettledWhenBerthdWasKilledDoesNotComeBack) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  Stop();
  rows_.rows["settled"] = "8";
  rows_.rows["acknowledged/6"] = "1";
  Start();
  Greet(2);
  EXPECT_EQ(ResultOf(7), nullptr);
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/7"))));
  EXPECT_THAT(rows_.rows, Not(Contains(Key("acknowledged/6"))));
  Say(Publish(7));
  EXPECT_EQ(AwaitResult(7).refusal(), v1::SETTLED);
}

// It would end this stream and every one after it.
TEST_F(UplinkTest, AResultThatFitsIntoNoMessageIsToldWithoutItsAnswer) {
  Start();
  Greet();
  (*controller_result_.answer.mutable_attach()->mutable_publish_context())["k"] = std::string(5 << 20, 'x');
  Say(Attach(3));
  const v1::OperationResult result = AwaitResult(3);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
  EXPECT_THAT(result.message(), HasSubstr("done, but the answer has 5242"));
}

TEST_F(UplinkTest, WithoutAValidLeaseARepeatedOperationStillHasItsResult) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  lease_.now = v1::LEASE_EXPIRED;
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result again");
  EXPECT_EQ(ResultOf(7)->outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, AVolumeThatIsBeingForcedReleaseIsNotPublishedAnew) {
  control_.Add("p");
  lease_.gives_up = true;
  Start();
  Greet();
  Say(Publish(1));
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_RETRY);
  EXPECT_THAT(mounter_.volumes, IsEmpty());
}

TEST_F(UplinkTest, EveryMistakeOfARequestIsNamed) {
  control_.Add("p");
  Start();
  Greet();
  v1::Operation operation = Publish(1);
  operation.mutable_publish()->set_namespace_("a/b");
  operation.mutable_publish()->mutable_request()->clear_volume_id();
  operation.mutable_publish()->set_runtime("podman");
  operation.mutable_timeout()->set_seconds(-1);
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  for (const char* mistake :
       {"publish.namespace: must not hold a slash", "publish.request.volume_id: must not be empty",
        "publish.runtime: no runtime", "timeout: "}) {
    EXPECT_THAT(result.message(), HasSubstr(mistake));
  }
}

TEST_F(UplinkTest, EveryMistakeOfAControllersCallIsNamedToo) {
  Start();
  Greet();
  v1::Operation operation = Attach(1);
  operation.mutable_timeout()->set_seconds(-1);
  operation.mutable_controller()->mutable_attach()->clear_volume_id();
  operation.mutable_controller()->mutable_attach()->clear_node_id();
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  for (const char* mistake : {"timeout: ", "controller.attach.volume_id: ", "controller.attach.node_id: "}) {
    EXPECT_THAT(result.message(), HasSubstr(mistake));
  }
  EXPECT_THAT(controller_calls_, IsEmpty());
}

TEST_F(UplinkTest, AnOperationsTimeoutEndsTheWaitAndANewIdWaitsOn) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  v1::Operation hasty = Publish(1);
  hasty.mutable_timeout()->set_nanos(50'000'000);
  const TimePoint began = Clock::now();
  Say(hasty);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(50));
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
  EXPECT_EQ(result.answer_case(), v1::OperationResult::ANSWER_NOT_SET);
  EXPECT_EQ(mounter_.cancelled, 0) << "the wait has ended, and nothing was called off";
  // The same id would have the same result.
  Say(Publish(2));
  Until([this] { return mounter_.publishing == 1; }, "the publish again");
  EXPECT_EQ(ResultOf(2), nullptr);
  mounter_.Release();
  EXPECT_EQ(AwaitResult(2).outcome(), v1::OUTCOME_DONE);
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, AnOperationHasTenMinutesWhereItSaysNothing) {
  control_.Add("p");
  Start();
  Greet();
  const TimePoint before = Clock::now();
  Say(Publish(1));
  AwaitResult(1);
  EXPECT_GE(mounter_.last_deadline, before + std::chrono::minutes(10));
  EXPECT_LE(mounter_.last_deadline, Clock::now() + std::chrono::minutes(10));
}

TEST_F(UplinkTest, ATimeoutBeyondADayIsRefusedBeforeAnythingIsDone) {
  control_.Add("p");
  Start();
  Greet();
  v1::Operation operation = Publish(1);
  operation.mutable_timeout()->set_seconds(24 * 3600 + 1);
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(result.message(), "timeout: must be above zero, and 24 h at most");
  EXPECT_THAT(mounter_.volumes, IsEmpty());
}

TEST_F(UplinkTest, AnOperationThatIsCancelledIsUncertain) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  v1::SchedulerMessage cancel;
  cancel.mutable_cancel()->set_operation_id(1);
  wire().Say(cancel);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
}

TEST_F(UplinkTest, AnOperationGoesOnWhileTheLinkIsDown) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  wire().Break(absl::UnavailableError("cut"));
  AwaitHello(2);
  mounter_.Release();
  Greet(2);
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, ANodeThatEndsWhileAnOperationRunsEndsInOrder) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  Stop();
  EXPECT_EQ(mounter_.publishing, 0);
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/1")))) << "nothing is known of it";
}

TEST_F(UplinkTest, AControllersCallIsHandedOnWithItsSecrets) {
  Start();
  Greet();
  controller_result_.answer.mutable_attach();
  v1::Operation operation = Attach(3);
  (*operation.mutable_controller()->mutable_attach()->mutable_secrets())["password"] = "hunter22";
  Say(operation);
  EXPECT_TRUE(AwaitResult(3).controller().has_attach());
  ASSERT_THAT(controller_calls_, SizeIs(1));
  EXPECT_EQ(controller_calls_[0].attach().secrets().at("password"), "hunter22");
  for (const auto& [key, row] : rows_.rows) EXPECT_THAT(row, Not(HasSubstr("hunter22"))) << key;
}

TEST_F(UplinkTest, AControllersCallHasTheDeadlineOfItsOperation) {
  Start();
  Greet();
  v1::Operation operation;
  operation.set_lease_epoch(1);
  operation.mutable_controller()->set_plugin_id("p");
  operation.mutable_controller()->mutable_list();
  const std::vector<std::pair<int64_t, Duration>> timeouts = {{3, std::chrono::seconds(3)},
                                                              {24 * 3600, std::chrono::hours(24)}};
  for (const auto& [seconds, timeout] : timeouts) {
    operation.set_id(operation.id() + 1);
    operation.mutable_timeout()->set_seconds(seconds);
    const TimePoint before = Clock::now();
    Say(operation);
    AwaitResult(operation.id());
    EXPECT_GE(controller_deadline_, before + timeout);
    EXPECT_LE(controller_deadline_, Clock::now() + timeout);
  }
}

TEST_F(UplinkTest, AnOperationOfAnUnknownKindIsUnimplemented) {
  Start();
  Greet();
  v1::Operation operation;
  operation.set_id(3);
  operation.set_lease_epoch(1);
  Say(operation);
  EXPECT_EQ(AwaitResult(3).code(), static_cast<int>(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace berth
