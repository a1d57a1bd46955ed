#include "rpc/uplink/operation_runner.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/testing/from_text.h"
#include "rpc/testing/node_api_fixture.h"
#include "rpc/uplink/operation_check.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using NodeRpc = ::csi::v1::NodeServiceCapability::RPC;

class OperationRunnerTest : public NodeApiTest {
 protected:
  OperationRunnerTest() {
    AddPlugin({}, {NodeRpc::GET_VOLUME_STATS, NodeRpc::EXPAND_VOLUME});
    control_.plugins_by_id["p"].pid = 4711;
  }

  // Prepared as whatever a scheduler sends, and run to its end.
  v1::OperationResult Run(const std::string& text, const std::vector<RuntimeAbility>& runtimes = {}) {
    v1::Operation operation;
    operation.set_id(1);
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &operation)) << text;
    EXPECT_EQ(PrepareOperation(runtimes, &operation), absl::OkStatus()) << text;
    return RunOn(loop_, runner_.Run(operation, deadline_));
  }

  Awaitable<ControllerCalls::Result> Controller(v1::ControllerCall call, TimePoint deadline) {
    controller_calls_.emplace_back(std::move(call), deadline);
    co_return controller_result_;
  }

  const TimePoint deadline_ = Clock::now() + std::chrono::seconds(20);
  std::vector<std::pair<v1::ControllerCall, TimePoint>> controller_calls_;
  ControllerCalls::Result controller_result_{
      .status = absl::OkStatus(), .outcome = v1::OUTCOME_DONE, .answer = {}};
  OperationRunner runner_{
      api_, [this](v1::ControllerCall call, TimePoint at) { return Controller(std::move(call), at); }};
};

TEST_F(OperationRunnerTest, APublishIsTheSchedulersAndTellsNeitherVolumeNorFlags) {
  mounter_.mounts.push_back({.plugin_id = "p",
                             .volume_id = "v",
                             .consumer = "jobs/web",
                             .name = "logs",
                             .source_path = "/volumes/v",
                             .mount_flags = {"hunter22"}});
  const v1::OperationResult result =
      Run("publish { namespace: 'jobs' runtime: 'vm' request { plugin_id: 'p' volume_id: 'v' consumer: 'web'"
          " name: 'logs' secrets { key: 'k' value: 's' } } }",
          {FromText<RuntimeAbility>("name: 'vm' mount: true readonly: true")});
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  ASSERT_TRUE(result.has_publish());
  EXPECT_EQ(result.publish().target_path(), "/volumes/v");
  EXPECT_EQ(result.publish().mount().source_path(), "/volumes/v");
  EXPECT_FALSE(result.publish().has_volume());
  EXPECT_THAT(result.DebugString(), Not(HasSubstr("hunter22")));
  ASSERT_THAT(mounter_.volumes, SizeIs(1));
  EXPECT_EQ(mounter_.volumes[0].publications[0].consumer, "jobs/web");
  EXPECT_EQ(mounter_.volumes[0].publications[0].origin, Origin::kScheduler);
  EXPECT_THAT(mounter_.last_secrets, ElementsAre(Pair("k", "s")));
  EXPECT_EQ(mounter_.last_runtime, FromText<RuntimeAbility>("name: 'vm' mount: true readonly: true"));
  EXPECT_EQ(mounter_.last_deadline, deadline_);
}

TEST_F(OperationRunnerTest, AnUnpublishHasItsLevers) {
  mounter_.Add("p", "v", "jobs/web");
  const v1::OperationResult result = Run(
      "unpublish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' all_names: true"
      " wait: true force: true lazy: true } }");
  ASSERT_TRUE(result.has_unpublish()) << result.message();
  EXPECT_TRUE(result.unpublish().was_published());
  EXPECT_EQ(mounter_.last_unpublish.consumer, "jobs/web");
  EXPECT_TRUE(mounter_.last_unpublish.all_names && mounter_.last_unpublish.wait_for_consumer &&
              mounter_.last_unpublish.force && mounter_.last_unpublish.lazy);
  EXPECT_EQ(mounter_.last_deadline, deadline_);
}

TEST_F(OperationRunnerTest, StatsAreThePluginsFigures) {
  mounter_.Add("p", "v", "jobs/web");
  auto& usage = *mounter_.stats.add_usage();
  usage.set_unit(::csi::v1::VolumeUsage::BYTES);
  usage.set_total(100);
  usage.set_used(30);
  // By its driver's name, too.
  for (const char* plugin : {"p", "driver.test"}) {
    const v1::OperationResult result =
        Run("stats { plugin_id: '" + std::string(plugin) + "' volume_id: 'v' }");
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE);
    ASSERT_EQ(result.stats().usage_size(), 1) << result.message();
    EXPECT_EQ(result.stats().usage(0).total(), 100);
    EXPECT_EQ(result.stats().usage(0).used(), 30);
  }
  EXPECT_EQ(mounter_.stats_calls["v"], 2);
  EXPECT_EQ(mounter_.last_deadline, deadline_);
}

TEST_F(OperationRunnerTest, AnExpansionIsDoneWhereTheVolumeIsAndNotedWhereItIsNot) {
  mounter_.Add("p", "here", "jobs/web");
  mounter_.node_capacity = 8;
  const v1::OperationResult done =
      Run("expand { plugin_id: 'p' volume_id: 'here' required_bytes: 7 limit_bytes: 9"
          " secrets { key: 'k' value: 's' } }");
  ASSERT_TRUE(done.has_expand()) << done.message();
  EXPECT_EQ(done.expand().capacity_bytes(), 8);
  EXPECT_FALSE(done.expand().noted());
  EXPECT_EQ(mounter_.last_range.required_bytes(), 7);
  EXPECT_EQ(mounter_.last_range.limit_bytes(), 9);
  EXPECT_THAT(mounter_.last_secrets, ElementsAre(Pair("k", "s")));
  EXPECT_EQ(mounter_.last_deadline, deadline_);
  EXPECT_THAT(mounter_.steps, ElementsAre("note here", "expand here"));

  const v1::OperationResult noted = Run("expand { plugin_id: 'p' volume_id: 'there' required_bytes: 7 }");
  ASSERT_TRUE(noted.has_expand()) << noted.message();
  EXPECT_TRUE(noted.expand().noted());
  EXPECT_THAT(mounter_.owed_elsewhere, ElementsAre(Pair(Pair("p", "there"), 7)));
}

TEST_F(OperationRunnerTest, AConfirmationNamesThoseForWhichItIsNotEnough) {
  mounter_.Add("p", "v", "jobs/web");
  const std::string list =
      "confirm { publications { plugin_id: 'p' volume_id: 'v' namespace: 'jobs' consumer: 'web' }"
      " publications { plugin_id: 'gone' volume_id: 'v' namespace: 'jobs' consumer: 'web' name: 'logs' } }";
  const v1::OperationResult result = Run(list);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  ASSERT_EQ(result.confirm().not_confirmed_size(), 1);
  EXPECT_EQ(result.confirm().not_confirmed(0).plugin_id(), "gone");
  EXPECT_EQ(result.confirm().not_confirmed(0).consumer(), "web");
  EXPECT_EQ(result.confirm().not_confirmed(0).name(), "logs");
  EXPECT_THAT(mounter_.confirmed, ElementsAre(PublicationRef{"p", "v", "jobs/web", ""}));
  EXPECT_EQ(mounter_.last_deadline, deadline_);
  mounter_.next_error = absl::UnavailableError("no valid lease");
  EXPECT_EQ(Run(list).outcome(), v1::OUTCOME_RETRY);
}

TEST_F(OperationRunnerTest, AnExplanationHidesMountOptions) {
  mounter_.Add("p", "v", "jobs/web").use.mount_flags = {"hunter22"};
  mounter_.explanation.journal_key = "key";
  mounter_.explanation.mounts.push_back({.target = "/volumes/v", .options = "hunter22"});
  const v1::OperationResult result = Run("explain { plugin_id: 'p' volume_id: 'v' }");
  ASSERT_TRUE(result.has_explain()) << result.message();
  EXPECT_EQ(result.explain().journal_key(), "key");
  EXPECT_EQ(result.explain().volume().volume_id(), "v");
  EXPECT_EQ(result.explain().mounts(0).target(), "/volumes/v");
  EXPECT_THAT(result.DebugString(), Not(HasSubstr("hunter22")));
  EXPECT_EQ(mounter_.last_deadline, deadline_);
}

TEST_F(OperationRunnerTest, AConsumersEndSaysWhoSaidIt) {
  mounter_.Add("p", "v", "jobs/web");
  mounter_.Add("p", "w", "web");
  const v1::OperationResult result = Run("end_consumer { namespace: 'jobs' request { consumer: 'web' } }");
  ASSERT_TRUE(result.has_end_consumer()) << result.message();
  EXPECT_EQ(result.end_consumer().released(), 1);
  EXPECT_THAT(mounter_.ended_causes, ElementsAre("said by the scheduler"));
  ASSERT_THAT(mounter_.volumes, SizeIs(1)) << "one of the same name without a namespace";
  EXPECT_EQ(mounter_.volumes[0].volume_id, "w");
  EXPECT_EQ(mounter_.last_deadline, deadline_);
}

TEST_F(OperationRunnerTest, EachLeverOfAPluginIsPulledAndAnsweredWithThePlugin) {
  const std::vector<std::pair<std::string, std::string>> levers = {
      {"restart_plugin { id: 'p' }", "restart p"},
      {"restart_plugin { id: 'p' force: true }", "restart p force"},
      {"drain_plugin { id: 'p' }", "drain p"},
      {"swap_plugin { id: 'p' command: '/bin/new' arguments: '-v' accept_changes: true }", "swap p /bin/new"},
      {"start_plugin { id: 'p' }", "start p"},
      {"stop_plugin { id: 'p' force: true }", "stop p force"},
      {"place_plugin { id: 'p' file: 'kind' }", "place p kind"},
  };
  for (const auto& [operation, lever] : levers) {
    control_.pulled.clear();
    control_.last_deadline = {};
    const v1::OperationResult result = Run(operation);
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << operation;
    ASSERT_TRUE(result.has_plugin()) << operation;
    EXPECT_EQ(result.plugin().id(), "p");
    EXPECT_EQ(result.plugin().pid(), 4711);
    EXPECT_THAT(control_.pulled, ElementsAre(lever));
    EXPECT_EQ(control_.last_deadline, deadline_) << operation;
  }
  EXPECT_THAT(control_.last_swap.arguments, ElementsAre("-v"));
  EXPECT_TRUE(control_.last_swap.accept_changes);
}

TEST_F(OperationRunnerTest, WhatConcernsTheWholeNodeHasItsAnswer) {
  const v1::OperationResult removed = Run("remove_plugin { id: 'q' }");
  EXPECT_EQ(removed.outcome(), v1::OUTCOME_DONE) << removed.message();
  EXPECT_EQ(removed.answer_case(), v1::OperationResult::ANSWER_NOT_SET);
  EXPECT_THAT(control_.pulled, ElementsAre("remove q"));
  control_.reload.plugins.broken = {"q: wrong"};
  EXPECT_EQ(Run("reload {}").reload().broken(0), "q: wrong");
  EXPECT_TRUE(Run("examine {}").has_examine());
  mounter_.Add("p", "v", "jobs/web").publications[0].state = PublicationState::kPublished;
  mounter_.Add("p", "w", "jobs/db").publications[0].state = PublicationState::kPublishing;
  const v1::OperationResult usage = Run("usage {}");
  ASSERT_EQ(usage.usage().volumes_size(), 1) << usage.message();
  EXPECT_EQ(usage.usage().volumes(0).volume_id(), "v");
  EXPECT_EQ(Run("usage { consumer: 'jobs/none' }").code(), static_cast<int>(absl::StatusCode::kNotFound));
}

TEST_F(OperationRunnerTest, AControllersCallHasTheOperationsDeadlineAndItsOwnOutcome) {
  const std::string create =
      "controller { plugin_id: 'p' create { name: 'new' volume_capabilities { mount {} "
      "access_mode { mode: SINGLE_NODE_WRITER } } } }";
  controller_result_.answer.mutable_create()->mutable_volume()->set_volume_id("new");
  const v1::OperationResult done = Run(create);
  EXPECT_EQ(done.outcome(), v1::OUTCOME_DONE);
  EXPECT_EQ(done.controller().create().volume().volume_id(), "new");
  ASSERT_THAT(controller_calls_, SizeIs(1));
  EXPECT_EQ(controller_calls_[0].first.create().name(), "new");
  EXPECT_EQ(controller_calls_[0].second, deadline_);
  // What follows from the same code depends on the call.
  controller_result_.status = absl::NotFoundError("not found\x1b");
  for (const v1::Outcome outcome : {v1::OUTCOME_REFUSED, v1::OUTCOME_FAILED, v1::OUTCOME_UNCERTAIN}) {
    controller_result_.outcome = outcome;
    const v1::OperationResult failed = Run(create);
    EXPECT_EQ(failed.outcome(), outcome);
    EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kNotFound));
    EXPECT_EQ(failed.answer_case(), v1::OperationResult::ANSWER_NOT_SET);
    EXPECT_THAT(failed.message(), Not(HasSubstr("\x1b")));
  }
}

TEST_F(OperationRunnerTest, WhatFailsHasNoAnswerAndSaysWhatFollows) {
  control_.next = {absl::FailedPreconditionError("volumes are in use through it"),
                   absl::AbortedError("another one works on it")};
  const v1::OperationResult refused = Run("restart_plugin { id: 'p' }");
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(refused.message(), "volumes are in use through it");
  EXPECT_EQ(refused.outcome(), v1::OUTCOME_FAILED);
  EXPECT_EQ(refused.answer_case(), v1::OperationResult::ANSWER_NOT_SET);
  EXPECT_EQ(Run("restart_plugin { id: 'p' }").outcome(), v1::OUTCOME_RETRY);
  const v1::OperationResult unknown = Run("drain_plugin { id: 'missing' }");
  EXPECT_EQ(unknown.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(Run("stats { plugin_id: 'missing' volume_id: 'v' }").outcome(), v1::OUTCOME_FAILED);
  EXPECT_EQ(Run("explain { plugin_id: 'p' volume_id: 'v' }").code(),
            static_cast<int>(absl::StatusCode::kNotFound));
}

// After a failed publish the scheduler must know whether only an unpublish makes the volume absent.
TEST_F(OperationRunnerTest, AFailedPublishIsUncertainWhereSomethingIsLeftOfIt) {
  const std::string publish =
      "publish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' } }";
  mounter_.next_error = absl::UnavailableError("not now");
  EXPECT_EQ(Run(publish).outcome(), v1::OUTCOME_RETRY);
  mounter_.next_error = absl::InvalidArgumentError("no such file system");
  EXPECT_EQ(Run(publish).outcome(), v1::OUTCOME_REFUSED) << "nothing is there";
  mounter_.Add("p", "v", "jobs/web").publications[0].state = PublicationState::kPublishing;
  mounter_.next_error = absl::UnavailableError("not now");
  EXPECT_EQ(Run(publish).outcome(), v1::OUTCOME_UNCERTAIN);
  mounter_.next_error = absl::InvalidArgumentError("no such file system");
  EXPECT_EQ(Run(publish).outcome(), v1::OUTCOME_UNCERTAIN);
}

TEST_F(OperationRunnerTest, AKindThatIsNotKnownIsRefused) {
  const v1::OperationResult result = RunOn(loop_, runner_.Run({}, deadline_));
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
}

TEST(OutcomeOfTest, EveryCodeSaysWhatFollows) {
  using Code = absl::StatusCode;
  const std::vector<std::pair<Code, v1::Outcome>> outcomes = {
      {Code::kOk, v1::OUTCOME_DONE},
      {Code::kCancelled, v1::OUTCOME_UNCERTAIN},
      {Code::kUnknown, v1::OUTCOME_UNCERTAIN},
      {Code::kInvalidArgument, v1::OUTCOME_FAILED},
      {Code::kDeadlineExceeded, v1::OUTCOME_UNCERTAIN},
      {Code::kNotFound, v1::OUTCOME_FAILED},
      {Code::kAlreadyExists, v1::OUTCOME_FAILED},
      {Code::kPermissionDenied, v1::OUTCOME_FAILED},
      {Code::kResourceExhausted, v1::OUTCOME_RETRY},
      {Code::kFailedPrecondition, v1::OUTCOME_FAILED},
      {Code::kAborted, v1::OUTCOME_RETRY},
      {Code::kOutOfRange, v1::OUTCOME_FAILED},
      {Code::kUnimplemented, v1::OUTCOME_FAILED},
      {Code::kInternal, v1::OUTCOME_UNCERTAIN},
      {Code::kUnavailable, v1::OUTCOME_RETRY},
      {Code::kDataLoss, v1::OUTCOME_FAILED},
      {Code::kUnauthenticated, v1::OUTCOME_FAILED},
  };
  ASSERT_THAT(outcomes, SizeIs(17));
  for (const auto& [code, outcome] : outcomes) {
    EXPECT_EQ(OutcomeOf(absl::Status(code, "why")), outcome) << code;
    const v1::Outcome absent_publish = outcome == v1::OUTCOME_FAILED ? v1::OUTCOME_REFUSED : outcome;
    EXPECT_EQ(OutcomeOfPublish(absl::Status(code, "why"), /*may_be_there=*/false), absent_publish) << code;
    const v1::Outcome there = code == Code::kOk ? v1::OUTCOME_DONE : v1::OUTCOME_UNCERTAIN;
    EXPECT_EQ(OutcomeOfPublish(absl::Status(code, "why"), /*may_be_there=*/true), there) << code;
  }
}

}  // namespace
}  // namespace berth
