#include "mounter/volume_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const PublicationKey kWeb{.consumer = "web", .name = ""};
const PublicationKey kDb{.consumer = "db", .name = "data"};
constexpr WallTime kNow{std::chrono::seconds(1'000'000)};

VolumeRecord Record(bool stages = true) {
  VolumeRecord record;
  record.plugin_id = "hp";
  record.volume_id = "v1";
  record.stages = stages;
  return record;
}

PublicationRecord Publication(const PublicationKey& key, bool secrets = false) {
  PublicationRecord publication;
  publication.key = key;
  publication.had_secrets = secrets;
  publication.secrets_at_hand = secrets;
  return publication;
}

absl::Status Failure() { return absl::InternalError("no luck"); }

FollowUp Outcome(VolumeMachine& machine, CallOutcome outcome, const Step& step, bool time_left = true) {
  machine.OnSent(step);
  const bool fine = outcome == CallOutcome::kDone || outcome == CallOutcome::kAbsent;
  return machine.OnOutcome(step, outcome, fine ? absl::OkStatus() : Failure(), time_left, kNow);
}

std::string Show(StageState state) {
  switch (state) {
    case StageState::kAbsent:
      return "absent";
    case StageState::kStaging:
      return "staging";
    case StageState::kStaged:
      return "staged";
    case StageState::kUnstaging:
      return "unstaging";
  }
  return "";
}

std::string Show(PublicationState state) {
  switch (state) {
    case PublicationState::kPublishing:
      return "publishing";
    case PublicationState::kPublished:
      return "published";
    case PublicationState::kUnpublishing:
      return "unpublishing";
  }
  return "";
}

std::string Show(StepKind kind) {
  switch (kind) {
    case StepKind::kNone:
      return "-";
    case StepKind::kStage:
      return "stage";
    case StepKind::kPublish:
      return "publish";
    case StepKind::kExpand:
      return "expand";
    case StepKind::kRenew:
      return "renew";
    case StepKind::kMountPath:
      return "mount path";
    case StepKind::kUnpublish:
      return "unpublish";
    case StepKind::kUnstage:
      return "unstage";
    case StepKind::kForget:
      return "forget";
  }
  return "";
}

std::string Show(FollowUp follow_up) {
  switch (follow_up) {
    case FollowUp::kNext:
      return "next";
    case FollowUp::kRepeat:
      return "repeat";
    case FollowUp::kPause:
      return "pause";
  }
  return "";
}

// "staged, web publishing?": the question mark stands for uncertain.
std::string Show(const VolumeMachine& machine) {
  if (!machine.present()) return "gone";
  std::string text = Show(machine.record().stage_state) + (machine.record().stage_uncertain ? "?" : "");
  for (const PublicationRecord& p : machine.record().publications) {
    text += ", " + p.key.consumer + " " + Show(p.state) + (p.uncertain ? "?" : "");
  }
  return text;
}

VolumeMachine Wanted(bool stages = true) {
  VolumeMachine machine = VolumeMachine::Fresh(Record(stages));
  machine.RequestPublish(Publication(kWeb));
  return machine;
}

VolumeMachine Staged() {
  VolumeMachine machine = Wanted();
  Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
  return machine;
}

VolumeMachine Published() {
  VolumeMachine machine = Staged();
  Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
  return machine;
}

VolumeMachine Unpublishing() {
  VolumeMachine machine = Published();
  machine.RequestUnpublish(kWeb);
  return machine;
}

VolumeMachine Unstaging() {
  VolumeMachine machine = Unpublishing();
  Outcome(machine, CallOutcome::kDone, {StepKind::kUnpublish, kWeb});
  return machine;
}

VolumeMachine Emptied() {
  VolumeMachine machine = Unstaging();
  Outcome(machine, CallOutcome::kDone, {StepKind::kUnstage, {}});
  return machine;
}

// Every outcome of the step that is due, in every state that has one; with and without time left.
struct Row {
  const char* name;
  VolumeMachine (*start)();
  CallOutcome outcome;
  bool time_left;
  const char* follow_up;
  const char* state;
  const char* next;
};
// CTest names each case by this.
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

VolumeMachine Start() { return Wanted(); }

class VolumeMachineTable : public ::testing::TestWithParam<Row> {};

TEST_P(VolumeMachineTable, FollowsTheDrawing) {
  const Row& row = GetParam();
  VolumeMachine machine = row.start();
  const FollowUp follow_up = Outcome(machine, row.outcome, machine.plan().NextFor(kWeb), row.time_left);
  EXPECT_EQ(Show(follow_up), row.follow_up);
  EXPECT_EQ(Show(machine), row.state);
  EXPECT_EQ(Show(machine.plan().NextFor(kWeb).kind), row.next);
}

INSTANTIATE_TEST_SUITE_P(
    Stage, VolumeMachineTable,
    ::testing::Values(
        Row{"Done", Start, CallOutcome::kDone, true, "next", "staged, web publishing", "publish"},
        // Never published, so only the staging is reversed.
        Row{"Final", Start, CallOutcome::kFinal, true, "next", "staging", "unstage"},
        Row{"Absent", Start, CallOutcome::kAbsent, true, "next", "staging", "unstage"},
        Row{"Retry", Start, CallOutcome::kRetry, true, "repeat", "staging, web publishing", "stage"},
        Row{"Uncertain", Start, CallOutcome::kUncertain, true, "repeat", "staging?, web publishing", "stage"},
        Row{"RetryLate", Start, CallOutcome::kRetry, false, "pause", "staging?, web publishing", "stage"},
        Row{"UncertainLate", Start, CallOutcome::kUncertain, false, "pause", "staging?, web publishing",
            "stage"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Publish, VolumeMachineTable,
    ::testing::Values(
        Row{"Done", Staged, CallOutcome::kDone, true, "next", "staged, web published", "-"},
        Row{"Final", Staged, CallOutcome::kFinal, true, "next", "staged, web unpublishing", "unpublish"},
        Row{"Absent", Staged, CallOutcome::kAbsent, true, "next", "staged, web unpublishing", "unpublish"},
        Row{"Retry", Staged, CallOutcome::kRetry, true, "repeat", "staged, web publishing", "publish"},
        Row{"Uncertain", Staged, CallOutcome::kUncertain, true, "repeat", "staged, web publishing?",
            "publish"},
        Row{"RetryLate", Staged, CallOutcome::kRetry, false, "pause", "staged, web publishing?", "publish"},
        Row{"UncertainLate", Staged, CallOutcome::kUncertain, false, "pause", "staged, web publishing?",
            "publish"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Unpublish, VolumeMachineTable,
    ::testing::Values(Row{"Done", Unpublishing, CallOutcome::kDone, true, "next", "staged", "unstage"},
                      Row{"Absent", Unpublishing, CallOutcome::kAbsent, true, "next", "staged", "unstage"},
                      Row{"Final", Unpublishing, CallOutcome::kFinal, true, "pause",
                          "staged, web unpublishing", "unpublish"},
                      Row{"Retry", Unpublishing, CallOutcome::kRetry, true, "repeat",
                          "staged, web unpublishing", "unpublish"},
                      Row{"Uncertain", Unpublishing, CallOutcome::kUncertain, true, "repeat",
                          "staged, web unpublishing?", "unpublish"},
                      Row{"RetryLate", Unpublishing, CallOutcome::kRetry, false, "pause",
                          "staged, web unpublishing", "unpublish"},
                      Row{"UncertainLate", Unpublishing, CallOutcome::kUncertain, false, "pause",
                          "staged, web unpublishing?", "unpublish"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Unstage, VolumeMachineTable,
    ::testing::Values(
        Row{"Done", Unstaging, CallOutcome::kDone, true, "next", "absent", "forget"},
        Row{"Absent", Unstaging, CallOutcome::kAbsent, true, "next", "absent", "forget"},
        Row{"Final", Unstaging, CallOutcome::kFinal, true, "pause", "unstaging", "unstage"},
        Row{"Retry", Unstaging, CallOutcome::kRetry, true, "repeat", "unstaging", "unstage"},
        Row{"Uncertain", Unstaging, CallOutcome::kUncertain, true, "repeat", "unstaging?", "unstage"},
        Row{"RetryLate", Unstaging, CallOutcome::kRetry, false, "pause", "unstaging", "unstage"},
        Row{"UncertainLate", Unstaging, CallOutcome::kUncertain, false, "pause", "unstaging?", "unstage"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Forget, VolumeMachineTable,
    ::testing::Values(Row{"Done", Emptied, CallOutcome::kDone, true, "next", "gone", "-"},
                      Row{"Uncertain", Emptied, CallOutcome::kUncertain, true, "pause", "absent", "forget"},
                      Row{"Retry", Emptied, CallOutcome::kRetry, true, "pause", "absent", "forget"},
                      Row{"Final", Emptied, CallOutcome::kFinal, true, "pause", "absent", "forget"},
                      Row{"Absent", Emptied, CallOutcome::kAbsent, true, "pause", "absent", "forget"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(VolumeMachineTest, UnwantInEveryState) {
  const std::vector<std::pair<VolumeMachine, std::string>> rows = {
      // Nothing was sent: nothing to reverse, only directories and row to remove.
      {Wanted(), "absent"},
      {Staged(), "staged"},
      {Published(), "staged, web unpublishing"},
      {Unpublishing(), "staged, web unpublishing"},
  };
  for (const auto& [start, expected] : rows) {
    VolumeMachine machine = start;
    EXPECT_TRUE(machine.RequestUnpublish(kWeb)) << Show(start);
    EXPECT_EQ(Show(machine), expected) << Show(start);
  }
  VolumeMachine unstaging = Unstaging();
  EXPECT_FALSE(unstaging.RequestUnpublish(kWeb));
}

TEST(VolumeMachineTest, SentButUncertainPublishIsReversedBeforeAbsent) {
  VolumeMachine machine = Staged();
  Outcome(machine, CallOutcome::kUncertain, {StepKind::kPublish, kWeb}, false);
  machine.RequestUnpublish(kWeb);
  EXPECT_EQ(machine.plan().NextFor(kWeb), (Step{StepKind::kUnpublish, kWeb}));
}

TEST(VolumeMachineTest, SentButUncertainStageIsReversedBeforeAbsent) {
  VolumeMachine machine = Wanted();
  Outcome(machine, CallOutcome::kUncertain, {StepKind::kStage, kWeb}, false);
  machine.RequestUnpublish(kWeb);
  EXPECT_EQ(Show(machine), "staging?");
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kUnstage);
}

TEST(VolumeMachineTest, FinalFailureOfTheFirstPublicationLeadsBackToAbsentWithTheFirstError) {
  VolumeMachine machine = Staged();
  Outcome(machine, CallOutcome::kFinal, machine.plan().NextFor(kWeb));
  std::vector<std::string> steps;
  for (Step step = machine.plan().NextFor(kWeb); step.kind != StepKind::kNone;
       step = machine.plan().NextFor(kWeb)) {
    steps.push_back(Show(step.kind));
    Outcome(machine, CallOutcome::kDone, step);
  }
  EXPECT_THAT(steps, ElementsAre("unpublish", "unstage", "forget"));
  EXPECT_FALSE(machine.present());
  EXPECT_EQ(machine.TakeFailure(kWeb), Failure());
  EXPECT_EQ(machine.TakeFailure(kWeb), std::nullopt);
}

TEST(VolumeMachineTest, FinalFailureOfTheSecondPublicationLeavesTheFirst) {
  VolumeMachine machine = Published();
  machine.RequestPublish(Publication(kDb));
  Outcome(machine, CallOutcome::kFinal, machine.plan().NextFor(kDb));
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kDb));
  EXPECT_EQ(Show(machine), "staged, web published");
  EXPECT_EQ(machine.plan().NextFor(kDb).kind, StepKind::kNone);
}

TEST(VolumeMachineTest, UnstagesOnlyAfterTheLastPublication) {
  VolumeMachine machine = Published();
  machine.RequestPublish(Publication(kDb));
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kDb));
  machine.RequestUnpublish(kWeb);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kNone);
  machine.RequestUnpublish(kDb);
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kNone)
      << "one that is being unpublished still counts";
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kDb));
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kUnstage);
}

TEST(VolumeMachineTest, AllThatWaitForAStagingFailWithIt) {
  VolumeMachine machine = Wanted();
  machine.RequestPublish(Publication(kDb));
  Outcome(machine, CallOutcome::kFinal, {StepKind::kStage, kWeb});
  EXPECT_EQ(Show(machine), "staging");
  EXPECT_TRUE(machine.TakeFailure(kWeb).has_value());
  EXPECT_TRUE(machine.TakeFailure(kDb).has_value());
}

TEST(VolumeMachineTest, WithoutStagingItPublishesAtOnceAndNeverUnstages) {
  VolumeMachine machine = Wanted(/*stages=*/false);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  machine.RequestUnpublish(kWeb);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kForget);
}

TEST(VolumeMachineTest, RecoveredIntentIsUncertainAndGoesForward) {
  const VolumeMachine machine = VolumeMachine::Recovered(Wanted().record(), false);
  EXPECT_EQ(Show(machine), "staging?, web publishing?");
  EXPECT_THAT(machine.plan().Movable(), ElementsAre(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kStage);
}

TEST(VolumeMachineTest, RecoveredIntentThatIsNotWantedAnyMoreIsUnpublishedAndUnstaged) {
  VolumeMachine machine = VolumeMachine::Recovered(Wanted().record(), false);
  machine.RequestUnpublish(kWeb);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
}

TEST(VolumeMachineTest, RecoveredTeardownGoesOn) {
  VolumeMachine machine = VolumeMachine::Recovered(Unpublishing().record(), false);
  EXPECT_EQ(Show(machine), "staged, web unpublishing?");
  EXPECT_THAT(machine.plan().Movable(), ElementsAre(kWeb));
  machine = VolumeMachine::Recovered(Unstaging().record(), false);
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kUnstage);
  EXPECT_TRUE(machine.plan().Unsettled());
}

TEST(VolumeMachineTest, RecoveredPublishedIsSettled) {
  const VolumeMachine machine = VolumeMachine::Recovered(Published().record(), false);
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, AfterAReboot) {
  // A blocked one moves at a caller's request.
  VolumeMachine forward = VolumeMachine::Recovered(Wanted().record(), true);
  forward.Block(kWeb, "the node was restarted");
  EXPECT_THAT(forward.plan().Movable(), IsEmpty());
  EXPECT_FALSE(forward.plan().Unsettled());
  forward.RequestPublish(Publication(kWeb));
  EXPECT_THAT(forward.plan().Movable(), ElementsAre(kWeb));

  // The reverse call is still pending.
  const VolumeMachine back = VolumeMachine::Recovered(Unpublishing().record(), true);
  EXPECT_THAT(back.plan().Movable(), ElementsAre(kWeb));

  // Staged is void, so the next publication stages again; and the obligation to unstage stays.
  VolumeMachine published = VolumeMachine::Recovered(Published().record(), true);
  published.RequestPublish(Publication(kDb));
  EXPECT_EQ(published.plan().NextFor(kDb).kind, StepKind::kStage);

  // What is mounted again is undone first: the plugin's books may have outlived its mounts.
  VolumeMachine resumed = VolumeMachine::Recovered(Published().record(), true);
  resumed.Resume(kWeb, "the node was restarted");
  std::vector<std::string> steps;
  for (Step step = resumed.plan().NextFor(kWeb); step.kind != StepKind::kNone;
       step = resumed.plan().NextFor(kWeb)) {
    steps.push_back(Show(step.kind));
    Outcome(resumed, CallOutcome::kDone, step);
  }
  EXPECT_THAT(steps, ElementsAre("unpublish", "unstage", "stage", "publish"));
}

constexpr BootTime kEarly{std::chrono::hours(1)};
constexpr BootTime kLeaseAnew{std::chrono::hours(2)};
constexpr BootTime kLate{std::chrono::hours(3)};

TEST(VolumeMachineTest, Fault38AConfirmationMovesOnePublicationOfTheScheduler) {
  VolumeMachine machine = Staged();
  machine.RequestPublish(Publication(kDb));
  Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
  VolumeRecord record = machine.record();
  record.Find(kWeb)->origin = Origin::kScheduler;
  machine = VolumeMachine::Recovered(record, true);
  machine.Block(kWeb, "its scheduler");
  machine.Block(kDb, "its caller");
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_FALSE(machine.UnblockForward(Origin::kScheduler, BootTime{})) << "a lease alone is not enough";
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_FALSE(machine.Confirm(kDb, kLate)) << "it is not the scheduler's";
  EXPECT_FALSE(machine.Confirm({.consumer = "unknown", .name = ""}, kLate));
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_TRUE(machine.Confirm(kWeb, kLate));
  EXPECT_THAT(machine.plan().Movable(), ElementsAre(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  EXPECT_FALSE(machine.record().Find(kDb)->blocked.empty());
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kStage)
      << "not unstaged: db may hold it, for the plugin";
}

// As a scheduler requested it, at kEarly, under a lease that holds.
VolumeMachine OfAScheduler(VolumeMachine machine) {
  VolumeRecord record = machine.record();
  for (PublicationRecord& p : record.publications) {
    p.origin = Origin::kScheduler;
    p.confirmed_at = kEarly;
  }
  machine = VolumeMachine::Recovered(record, false);
  machine.UnblockForward(Origin::kScheduler, BootTime{});
  return machine;
}

std::optional<Blocked> BlockedOf(const VolumeMachine& machine) {
  return machine.record().Find(kWeb)->BlockedBecause();
}

TEST(VolumeMachineTest, WhatIsBlockedGoesBackAndNotForward) {
  VolumeMachine machine = OfAScheduler(Staged());
  ASSERT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  machine.BlockForward(Origin::kCaller, "another's");
  ASSERT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  machine.BlockForward(Origin::kScheduler, "no valid lease");
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_EQ(BlockedOf(machine)->text, "no valid lease");
  EXPECT_EQ(BlockedOf(machine)->reason, Blocked::Reason::kNoLease);
  VolumeMachine undone = machine;
  undone.RequestUnpublish(kWeb);
  EXPECT_EQ(undone.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  EXPECT_FALSE(BlockedOf(undone).has_value());
  VolumeMachine asked = machine;
  PublicationRecord again = *machine.record().Find(kWeb);
  asked.RequestPublish(again);
  EXPECT_EQ(asked.plan().NextFor(kWeb).kind, StepKind::kPublish) << "it was requested again";
  EXPECT_TRUE(machine.UnblockForward(Origin::kScheduler, kEarly));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish) << "not undone first: it is the same boot";
  EXPECT_FALSE(machine.UnblockForward(Origin::kScheduler, kEarly)) << "nothing waits any more";
}

TEST(VolumeMachineTest, Fault38ALeaseThatBeganAnewResumesNothingThatIsOlder) {
  VolumeMachine machine = OfAScheduler(Staged());
  machine.BlockForward(Origin::kScheduler, "no valid lease");
  EXPECT_FALSE(machine.UnblockForward(Origin::kScheduler, kLeaseAnew));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  EXPECT_THAT(BlockedOf(machine)->text, HasSubstr("has not confirmed it"));
  EXPECT_EQ(BlockedOf(machine)->reason, Blocked::Reason::kUnconfirmed);
  // Also over another berthd, for which that lease holds.
  machine = VolumeMachine::Recovered(machine.record(), false);
  EXPECT_FALSE(machine.UnblockForward(Origin::kScheduler, kLeaseAnew));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  VolumeMachine undone = machine;
  EXPECT_TRUE(undone.RequestUnpublish(kWeb));
  EXPECT_EQ(undone.plan().NextFor(kWeb).kind, StepKind::kUnpublish) << "reverse steps need no confirmation";
  EXPECT_FALSE(undone.Confirm(kWeb, kLate)) << "it is being unpublished";
  VolumeMachine requested = machine;
  PublicationRecord again = *machine.record().Find(kWeb);
  again.confirmed_at = kLate;
  requested.RequestPublish(again);
  EXPECT_EQ(requested.plan().NextFor(kWeb).kind, StepKind::kPublish);
  requested.UnblockForward(Origin::kScheduler, kLeaseAnew);
  EXPECT_EQ(requested.plan().NextFor(kWeb).kind, StepKind::kPublish) << "the same lease goes on";
  EXPECT_TRUE(machine.Confirm(kWeb, kLate));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  machine = VolumeMachine::Recovered(machine.record(), false);
  EXPECT_TRUE(machine.UnblockForward(Origin::kScheduler, kLeaseAnew)) << "a confirmation outlives berthd";
  machine = VolumeMachine::Recovered(machine.record(), true);
  EXPECT_FALSE(machine.UnblockForward(Origin::kScheduler, kLeaseAnew)) << "and not the boot";
}

TEST(VolumeMachineTest, WhatIsConfirmedWithoutALeaseStillWaitsForOne) {
  VolumeMachine machine = OfAScheduler(Staged());
  machine.BlockForward(Origin::kScheduler, "no valid lease");
  EXPECT_TRUE(machine.Confirm(kWeb, kLate));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  EXPECT_TRUE(machine.UnblockForward(Origin::kScheduler, kLeaseAnew));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
}

TEST(VolumeMachineTest, WhatIsPublishedAndBlockedStaysAsItIs) {
  VolumeMachine machine = OfAScheduler(Published());
  machine.BlockForward(Origin::kScheduler, "no valid lease");
  EXPECT_FALSE(BlockedOf(machine).has_value()) << "it waits for nothing";
  EXPECT_FALSE(machine.Repair(kWeb, "lost"));
  EXPECT_FALSE(machine.RepairStaging("dead"));
  EXPECT_EQ(Show(machine), "staged, web published");
  machine.SetPendingExpansion(10);
  EXPECT_EQ(machine.plan().NextExpansion().kind, StepKind::kNone);
  machine.MarkLost(kWeb, "lost");
  EXPECT_EQ(BlockedOf(machine)->text, "no valid lease");
  machine.UnblockForward(Origin::kScheduler, kLeaseAnew);
  EXPECT_FALSE(machine.Repair(kWeb, "lost")) << "another node may have it";
  EXPECT_EQ(machine.plan().NextExpansion().kind, StepKind::kNone);
  EXPECT_TRUE(machine.Confirm(kWeb, kLate));
  EXPECT_TRUE(machine.Repair(kWeb, "lost"));
}

TEST(VolumeMachineTest, WhatIsPublishedAndUnconfirmedSaysSoAndTakesNewTokens) {
  VolumeMachine machine = OfAScheduler(Published());
  ASSERT_TRUE(machine.plan().MayRenew(kWeb));
  machine.BlockForward(Origin::kScheduler, "no valid lease");
  EXPECT_FALSE(machine.plan().MayRenew(kWeb));
  machine.UnblockForward(Origin::kScheduler, kLeaseAnew);
  EXPECT_TRUE(machine.plan().MayRenew(kWeb)) << "a token is no forward step";
  EXPECT_THAT(BlockedOf(machine)->text, HasSubstr("has not confirmed it"));
  EXPECT_TRUE(machine.Confirm(kWeb, kLate));
  EXPECT_FALSE(BlockedOf(machine).has_value());
}

TEST(VolumeMachineTest, ARestartBlocksWhatAScheduledPublishLeftUntilItsLeaseIsKnown) {
  VolumeMachine machine = OfAScheduler(Staged());
  machine = VolumeMachine::Recovered(machine.record(), false);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  EXPECT_TRUE(BlockedOf(machine).has_value());
  EXPECT_TRUE(machine.UnblockForward(Origin::kScheduler, BootTime{}));
  EXPECT_NE(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
}

TEST(VolumeMachineTest, ARepairUndoesAndMountsAgain) {
  VolumeMachine machine = Published();
  ASSERT_TRUE(machine.Repair(kWeb, "not mounted any more"));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  // Also when berthd ends in the middle.
  machine = VolumeMachine::Recovered(machine.record(), false);
  Outcome(machine, CallOutcome::kAbsent, machine.plan().NextFor(kWeb));
  EXPECT_EQ(Show(machine), "staged, web publishing");
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, AnEphemeralOneIsRepairedForwardAlone) {
  VolumeMachine machine = VolumeMachine::Fresh(Record());
  PublicationRecord ephemeral = Publication(kWeb);
  ephemeral.ephemeral = true;
  ephemeral.remount = true;
  machine.RequestPublish(ephemeral);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish) << "it is not staged";
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  ASSERT_TRUE(machine.Repair(kWeb, "not mounted any more"));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  EXPECT_EQ(Outcome(machine, CallOutcome::kFinal, machine.plan().NextFor(kWeb)), FollowUp::kPause);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish) << "undoing it would delete it";
  EXPECT_TRUE(machine.TakeFailure(kWeb).has_value());
  machine.RequestUnpublish(kWeb);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kForget);
}

TEST(VolumeMachineTest, ADeadStagingIsMadeAnewOnceEverythingIsUndone) {
  VolumeMachine machine = Wanted();
  PublicationRecord db = Publication(kDb);
  db.remount = true;
  PublicationRecord web = Publication(kWeb);
  web.remount = true;
  machine.RequestPublish(web);
  machine.RequestPublish(db);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  for (const auto& key : {kWeb, kDb}) Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(key));
  ASSERT_TRUE(machine.RepairStaging("ENOTCONN"));
  std::vector<std::string> steps;
  for (int i = 0; i < 20 && !machine.plan().Movable().empty(); ++i) {
    const Step step = machine.plan().NextFor(machine.plan().Movable().front());
    steps.push_back(Show(step.kind));
    Outcome(machine, CallOutcome::kDone, step);
  }
  EXPECT_THAT(steps, ElementsAre("unpublish", "unpublish", "unstage", "stage", "publish", "publish"));
  EXPECT_EQ(Show(machine), "staged, web published, db published");
}

TEST(VolumeMachineTest, ADeadStagingIsMadeAnewAtAnOperatorsWordWhateverThePolicy) {
  VolumeMachine machine = VolumeMachine::Fresh(Record());
  machine.RequestPublish(Publication(kWeb));
  Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
  Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
  EXPECT_FALSE(machine.RepairStaging("ENOTCONN"));
  EXPECT_TRUE(machine.RepairStaging("ENOTCONN", /*asked=*/true));
  EXPECT_EQ(Show(machine), "unstaging, web unpublishing?");
}

TEST(VolumeMachineTest, ADeadStagingTakesWhatIsOnItsWayWithIt) {
  for (const bool sent : {false, true}) {
    VolumeMachine machine = VolumeMachine::Fresh(Record());
    PublicationRecord web = Publication(kWeb);
    web.remount = true;
    machine.RequestPublish(web);
    Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
    Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
    machine.RequestPublish(Publication(kDb));
    if (sent) Outcome(machine, CallOutcome::kUncertain, machine.plan().NextFor(kDb));
    ASSERT_TRUE(machine.RepairStaging("ENOTCONN"));
    for (int i = 0; i < 20 && !machine.plan().Movable().empty(); ++i) {
      Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(machine.plan().Movable().front()));
    }
    EXPECT_EQ(Show(machine), "staged, web published, db published") << sent;
  }
}

TEST(VolumeMachineTest, ADeadStagingStaysWhileSomebodyIsNotToBeMountedAgain) {
  VolumeMachine machine = Published();
  EXPECT_FALSE(machine.RepairStaging("ENOTCONN"));
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, AnExpansionThatIsOwedComesAfterStagingAndNeverInTheWay) {
  VolumeMachine machine = Wanted();
  machine.SetPendingExpansion(100);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kExpand);
  EXPECT_EQ(Outcome(machine, CallOutcome::kUncertain, machine.plan().NextFor(kWeb)), FollowUp::kNext);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish)
      << "it failed, and the publication goes on";
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);
  EXPECT_TRUE(machine.plan().Unsettled()) << "it is pending";
  machine.RetryExpansion();
  const Step again = machine.plan().NextExpansion();
  EXPECT_EQ(again.kind, StepKind::kExpand);
  machine.OnSent(again);
  machine.SetPendingExpansion(200);
  machine.OnOutcome(again, CallOutcome::kDone, absl::OkStatus(), true, kNow);
  EXPECT_EQ(machine.record().pending_expansion_bytes, 200) << "only what was asked for is done";
  Outcome(machine, CallOutcome::kFinal, machine.plan().NextExpansion());
  EXPECT_EQ(machine.plan().NextExpansion().kind, StepKind::kNone);
  EXPECT_FALSE(machine.plan().Unsettled()) << "refused: not before the next stage";
  EXPECT_EQ(machine.record().pending_expansion_bytes, 200);
  // A later stage tries it again.
  machine = VolumeMachine::Recovered(machine.record(), true);
  machine.Resume(kWeb, "");
  for (int i = 0; i < 3; ++i) Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kExpand);
}

TEST(VolumeMachineTest, WithoutStagingItExpandsOncePublished) {
  VolumeMachine machine = Wanted(/*stages=*/false);
  machine.SetPendingExpansion(100);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kExpand);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_FALSE(machine.plan().Unsettled());
}

TEST(VolumeMachineTest, WhatIsToBeMountedAgainDoesNotVanishByAFailure) {
  VolumeMachine machine = Published();
  VolumeRecord record = machine.record();
  record.Find(kWeb)->remount = true;
  machine = VolumeMachine::Recovered(record, true);
  machine.Resume(kWeb, "the node was restarted");
  for (int i = 0; i < 3; ++i) Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_EQ(Outcome(machine, CallOutcome::kFinal, machine.plan().NextFor(kWeb)), FollowUp::kPause);
  EXPECT_THAT(machine.plan().Movable(), ElementsAre(kWeb));
  for (int i = 0; i < 3 && machine.plan().NextFor(kWeb).kind != StepKind::kNone; ++i) {
    Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  }
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, AStagingThatMayHaveBegunAnewSinceTheRowWasWrittenIsUndone) {
  // As the row of a repair is for a moment: unstaged, and to be published again.
  VolumeRecord record = Record();
  record.stage_state = StageState::kAbsent;
  record.publications.push_back(Publication(kWeb));
  VolumeMachine machine = VolumeMachine::Recovered(record, false);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kStage);
  EXPECT_TRUE(machine.RequestUnpublish(kWeb));
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  Outcome(machine, CallOutcome::kDone, {StepKind::kUnpublish, kWeb});
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kUnstage);
}

TEST(VolumeMachineTest, AStagingThatNothingStandsOnIsMadeAgainBeforeItIsPublishedFrom) {
  VolumeRecord record = Record();
  record.stage_state = StageState::kStaged;
  record.publications.push_back(Publication(kWeb));
  VolumeMachine machine = VolumeMachine::Recovered(record, false);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  machine.DoubtStaging();
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kStage);
  Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
  EXPECT_EQ(Show(machine), "staged, web publishing?");
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
}

// Staged with a mount, and published for `kWeb`.
VolumeMachine StagedWithAMount() {
  VolumeMachine machine = VolumeMachine::Fresh(Record());
  machine.RequestPublish(Publication(kWeb));
  Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
  machine.SetStagingMount({.mount_id = 7});
  Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
  return machine;
}

TEST(VolumeMachineTest, AStagingThatIsLostIsMadeAgainBeforeTheNextPublishAndNothingElseMoves) {
  VolumeMachine machine = StagedWithAMount();
  machine.MarkStagingLost("another process unmounted it");
  EXPECT_EQ(Show(machine), "staged?, web published");
  EXPECT_FALSE(machine.plan().Unsettled()) << "what is published from it is still fine";
  machine.RequestPublish(Publication(kDb));
  EXPECT_EQ(machine.plan().NextFor(kDb).kind, StepKind::kStage) << "another stands on it: it is not undone";
  machine.OnSent({StepKind::kStage, kDb});
  EXPECT_EQ(machine.record().staging_mount_id, 0U) << "what lies there now may be the plugin's";
  machine.OnOutcome({StepKind::kStage, kDb}, CallOutcome::kDone, absl::OkStatus(), true, kNow);
  EXPECT_EQ(machine.plan().NextFor(kDb).kind, StepKind::kPublish);
  EXPECT_FALSE(machine.record().staging_lost);
}

TEST(VolumeMachineTest, AStagingThatIsLostIsUndoneFirstWhereNothingStandsOnIt) {
  VolumeMachine machine = StagedWithAMount();
  machine.MarkStagingLost("another process unmounted it");
  ASSERT_TRUE(machine.Repair(kWeb, "another process unmounted it"));
  for (const StepKind expected :
       {StepKind::kUnpublish, StepKind::kUnstage, StepKind::kStage, StepKind::kPublish}) {
    const Step step = machine.plan().NextFor(kWeb);
    EXPECT_EQ(Show(step.kind), Show(expected));
    Outcome(machine, CallOutcome::kDone, step);
  }
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, AStagingThatIsFoundAgainIsTrusted) {
  VolumeMachine machine = StagedWithAMount();
  machine.MarkStagingLost("something is mounted over it");
  machine.MarkStagingFound();
  EXPECT_EQ(Show(machine), "staged, web published");
  EXPECT_EQ(machine.record().last_error, "");
  machine.DoubtStaging();
  machine.MarkStagingFound();
  EXPECT_EQ(Show(machine), "staged?, web published") << "it was doubted for another reason";
}

TEST(VolumeMachineTest, AStagingStaysDoubtfulWhereNothingWasSentToMakeItAgain) {
  VolumeMachine machine = StagedWithAMount();
  machine.MarkStagingLost("another process unmounted it");
  for (const CallOutcome outcome : {CallOutcome::kFinal, CallOutcome::kRetry}) {
    machine.RequestPublish(Publication(kDb));
    machine.OnOutcome({StepKind::kStage, kDb}, outcome, Failure(), false, kNow);
    EXPECT_TRUE(machine.record().stage_uncertain);
    EXPECT_TRUE(machine.record().staging_lost);
  }
}

TEST(VolumeMachineTest, AStagingThatThePluginCouldNotMakeAgainIsUndoneOnceNothingStandsOnIt) {
  VolumeMachine machine = StagedWithAMount();
  machine.MarkStagingLost("another process unmounted it");
  machine.RequestPublish(Publication(kDb));
  Outcome(machine, CallOutcome::kFinal, {StepKind::kStage, kDb});
  EXPECT_EQ(Show(machine), "staging, web published");
  EXPECT_TRUE(machine.record().staging_lost) << "so that an OK without a mount is not believed";
  machine.RequestPublish(Publication(kDb));
  EXPECT_EQ(machine.plan().NextFor(kDb).kind, StepKind::kStage);
  ASSERT_TRUE(machine.Repair(kWeb, "an operator's request"));
  Outcome(machine, CallOutcome::kDone, {StepKind::kUnpublish, kWeb});
  EXPECT_EQ(machine.plan().NextFor(kDb).kind, StepKind::kUnstage);
}

TEST(VolumeMachineTest, AStagingsMountIsVoidAfterAReboot) {
  VolumeRecord record = StagedWithAMount().record();
  record.staging_lost = true;
  EXPECT_EQ(VolumeMachine::Recovered(record, false).record().staging_mount_id, 7U);
  EXPECT_TRUE(VolumeMachine::Recovered(record, false).record().staging_lost);
  EXPECT_EQ(VolumeMachine::Recovered(record, true).record().staging_mount_id, 0U);
  EXPECT_FALSE(VolumeMachine::Recovered(record, true).record().staging_lost);
}

TEST(VolumeMachineTest, AWantThatCouldNotBeWrittenIsWithdrawnAndWhatElseHappenedStays) {
  VolumeMachine machine = VolumeMachine::Fresh(Record());
  machine.RequestPublish(Publication(kWeb));
  Outcome(machine, CallOutcome::kDone, {StepKind::kStage, kWeb});
  Outcome(machine, CallOutcome::kDone, {StepKind::kPublish, kWeb});
  const VolumeMachine before = machine;
  machine.RequestPublish(Publication(kDb));
  machine.MarkLost(kWeb, "another process unmounted it");
  machine.SetPendingExpansion(10);
  machine.RollBackRequest(kDb, before);
  EXPECT_EQ(Show(machine), "staged, web published?");
  EXPECT_EQ(machine.record().pending_expansion_bytes, 10);

  VolumeMachine fresh = VolumeMachine::Fresh(Record());
  const VolumeMachine nothing = fresh;
  fresh.RequestPublish(Publication(kWeb));
  fresh.RollBackRequest(kWeb, nothing);
  EXPECT_EQ(Show(fresh), "gone");
  EXPECT_THAT(fresh.record().publications, IsEmpty());
  EXPECT_EQ(fresh.record().stage_state, StageState::kAbsent);
}

TEST(VolumeMachineTest, Fault57AWantThatCouldNotBeWrittenLeavesWhatWasReleasedWithoutItsPlugin) {
  VolumeMachine machine = Unpublishing();
  machine.SetWithoutPlugin({.requested_by = "uid 0", .at = kNow});
  const VolumeMachine before = machine;
  machine.RequestPublish(Publication(kDb));
  EXPECT_FALSE(machine.record().without_plugin.has_value());
  machine.RollBackRequest(kDb, before);
  ASSERT_TRUE(machine.record().without_plugin.has_value());
  EXPECT_EQ(machine.record().without_plugin->requested_by, "uid 0");
}

TEST(VolumeMachineTest, StuckIsShownUntilTheNextOutcome) {
  VolumeMachine machine = Unpublishing();
  Outcome(machine, CallOutcome::kUncertain, machine.plan().NextFor(kWeb), false);
  machine.OnStuck({.on = "NodeUnpublishVolume", .pid = 0, .since = kNow});
  EXPECT_EQ(machine.stuck()->on, "NodeUnpublishVolume");
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  EXPECT_FALSE(machine.stuck().has_value());
}

TEST(VolumeMachineTest, AReferenceToSecretsIsNeverAwaited) {
  VolumeMachine machine = VolumeMachine::Fresh(Record());
  PublicationRecord publication = Publication(kWeb);
  publication.had_secrets = true;
  publication.secrets_reference.set_file("/etc/secret");
  machine.RequestPublish(publication);
  machine = VolumeMachine::Recovered(machine.record(), false);
  EXPECT_FALSE(machine.plan().AwaitsSecrets());
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kStage);
}

TEST(VolumeMachineTest, AwaitsSecretsUntilTheyComeWhileItsReverseMayRun) {
  VolumeMachine first = VolumeMachine::Fresh(Record());
  first.RequestPublish(Publication(kWeb, true));
  EXPECT_FALSE(first.plan().AwaitsSecrets());

  VolumeMachine machine = VolumeMachine::Recovered(first.record(), false);
  EXPECT_TRUE(machine.plan().AwaitsSecrets());
  EXPECT_FALSE(machine.plan().Unsettled());
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kNone);

  VolumeMachine repeated = machine;
  repeated.RequestPublish(Publication(kWeb, true));
  EXPECT_FALSE(repeated.plan().AwaitsSecrets());
  EXPECT_EQ(repeated.plan().NextFor(kWeb).kind, StepKind::kStage);

  machine.RequestUnpublish(kWeb);
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kUnpublish);
}

TEST(VolumeMachineTest, UnknownPluginBeforeAnythingWasSentLeavesNothingToReverse) {
  VolumeMachine machine = Wanted();
  machine.OnOutcome({StepKind::kStage, kWeb}, CallOutcome::kFinal, absl::NotFoundError("no plugin"), true,
                    kNow);
  EXPECT_EQ(Show(machine), "absent");
  EXPECT_EQ(machine.plan().NextTeardown().kind, StepKind::kForget);
}

TEST(VolumeMachineTest, LostMountIsShownAndMovesNothing) {
  VolumeMachine machine = Published();
  machine.MarkLost(kWeb, "not mounted any more");
  EXPECT_EQ(Show(machine), "staged, web published?");
  EXPECT_FALSE(machine.plan().Unsettled());
  machine.MarkFound(kWeb);
  EXPECT_EQ(Show(machine), "staged, web published");
}

TEST(VolumeMachineTest, OutcomeThatWasNotWrittenIsDoneAgainWithTheSameSecrets) {
  VolumeMachine machine = VolumeMachine::Fresh(Record(false));
  machine.RequestPublish(Publication(kWeb, true));
  Outcome(machine, CallOutcome::kDone, machine.plan().NextFor(kWeb));
  machine.Unsettle(kWeb, "disk full");
  EXPECT_EQ(machine.plan().NextFor(kWeb).kind, StepKind::kPublish);
  EXPECT_FALSE(machine.plan().AwaitsSecrets());
}

TEST(VolumeMachineTest, NothingLivesOnAfterAReboot) {
  VolumeMachine detached = Published();
  detached.AddDetachedMount(7);
  EXPECT_TRUE(VolumeMachine::Recovered(detached.record(), false).record().still_in_use);
  EXPECT_FALSE(VolumeMachine::Recovered(detached.record(), true).record().still_in_use);
}

}  // namespace
}  // namespace berth
