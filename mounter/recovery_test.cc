#include "mounter/recovery.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "consumers/consumer_watch.h"

namespace berth {
namespace {

const PublicationKey kTheUse{.consumer = "web", .name = ""};

VolumeRecord RecordIn(PublicationState state, Origin origin = Origin::kCaller, bool remount = false) {
  VolumeRecord record;
  record.plugin_id = "hp";
  record.volume_id = "v1";
  record.stages = true;
  record.stage_state = StageState::kStaged;
  PublicationRecord publication;
  publication.key = kTheUse;
  publication.state = state;
  publication.origin = origin;
  publication.remount = remount;
  publication.mount_id = 7;
  record.publications.push_back(publication);
  return record;
}

constexpr Circumstances kRunning{};
constexpr Circumstances kStart{.start = true};
constexpr Circumstances kReboot{.start = true, .rebooted = true};
const ShownMount kMounted{.error = "", .there = true, .mount_id = 7};
const ShownMount kOther{.error = "", .there = true, .mount_id = 8};
const ShownMount kReplaced{.error = "", .there = true, .mount_id = 8, .replaced = true};
const ShownMount kRenewed{.error = "", .there = true, .mount_id = 8, .replaced = true, .renewed = true};
const ShownMount kRenewedOnTop{.error = "", .there = true, .mount_id = 8, .renewed = true};
const ShownMount kGone{};
const ShownMount kUnknown{.error = "EIO"};

std::string Show(ReconcileAction action) {
  switch (action) {
    case ReconcileAction::kFound:
      return "found";
    case ReconcileAction::kLost:
      return "lost";
    case ReconcileAction::kOvermounted:
      return "overmounted";
    case ReconcileAction::kRenewed:
      return "renewed";
    case ReconcileAction::kRepair:
      return "repair";
    case ReconcileAction::kResume:
      return "resume";
    case ReconcileAction::kBlock:
      return "hold";
    case ReconcileAction::kRelease:
      return "release";
    case ReconcileAction::kStagingFound:
      return "staging found";
    case ReconcileAction::kStagingLost:
      return "staging lost";
    case ReconcileAction::kStagingOvermounted:
      return "staging overmounted";
  }
  return "";
}

// What is planned for the one publication; empty: nothing.
std::string Plan(const VolumeRecord& record, const ShownMount& facts, Circumstances circumstances) {
  const auto plan = PlanReconciliation(record, {{kTheUse, facts}}, circumstances);
  EXPECT_LE(plan.size(), 1U);
  return plan.empty() ? "" : Show(plan.front().action);
}

struct Reconciled {
  const char* name;
  PublicationState state;
  Origin origin;
  bool remount;
  const ShownMount* facts;
  Circumstances circumstances;
  const char* expected;
};
void PrintTo(const Reconciled& row, std::ostream* out) { *out << row.name; }

class ReconciliationTable : public ::testing::TestWithParam<Reconciled> {};

TEST_P(ReconciliationTable, FollowsTheDrawing) {
  const Reconciled& row = GetParam();
  EXPECT_EQ(Plan(RecordIn(row.state, row.origin, row.remount), *row.facts, row.circumstances), row.expected);
}

constexpr auto kPublished = PublicationState::kPublished;
constexpr auto kPublishing = PublicationState::kPublishing;
constexpr auto kUnpublishing = PublicationState::kUnpublishing;

INSTANTIATE_TEST_SUITE_P(
    Rows, ReconciliationTable,
    ::testing::Values(
        Reconciled{"WellWhileRunning", kPublished, Origin::kCaller, false, &kMounted, kRunning, ""},
        Reconciled{"WellAtStart", kPublished, Origin::kCaller, true, &kMounted, kStart, ""},
        Reconciled{"OvermountedIsTold", kPublished, Origin::kCaller, true, &kOther, kRunning, "overmounted"},
        Reconciled{"OvermountedAtStart", kPublished, Origin::kCaller, false, &kOther, kStart, "overmounted"},
        Reconciled{"ReplacedIsTold", kPublished, Origin::kCaller, false, &kReplaced, kRunning, "lost"},
        Reconciled{"ReplacedIsRepaired", kPublished, Origin::kCaller, true, &kReplaced, kRunning, "repair"},
        Reconciled{"ReplacedAtStart", kPublished, Origin::kDeclared, false, &kReplaced, kStart, "repair"},
        Reconciled{"ReplacedByAReboot", kPublished, Origin::kCaller, true, &kReplaced, kReboot, ""},
        Reconciled{"RenewedInItsPlace", kPublished, Origin::kCaller, true, &kRenewed, kRunning, "renewed"},
        Reconciled{"RenewedAtStart", kPublished, Origin::kScheduler, false, &kRenewedOnTop, kStart,
                   "renewed"},
        Reconciled{"RenewedAfterAReboot", kPublished, Origin::kCaller, true, &kRenewed, kReboot, ""},
        Reconciled{"LostIsTold", kPublished, Origin::kCaller, false, &kGone, kRunning, "lost"},
        Reconciled{"LostAtStart", kPublished, Origin::kCaller, false, &kGone, kStart, "lost"},
        Reconciled{"LostOfAScheduler", kPublished, Origin::kScheduler, false, &kGone, kRunning, "lost"},
        Reconciled{"LostIsRepaired", kPublished, Origin::kCaller, true, &kGone, kRunning, "repair"},
        Reconciled{"LostDeclaredIsRepaired", kPublished, Origin::kDeclared, false, &kGone, kStart, "repair"},
        Reconciled{"UnknownIsNotRepaired", kPublished, Origin::kDeclared, true, &kUnknown, kRunning, "lost"},
        Reconciled{"RebootDeclared", kPublished, Origin::kDeclared, false, &kGone, kReboot, "resume"},
        Reconciled{"RebootRemount", kPublished, Origin::kCaller, true, &kGone, kReboot, "resume"},
        Reconciled{"RebootScheduler", kPublished, Origin::kScheduler, false, &kGone, kReboot, "hold"},
        Reconciled{"RebootSchedulerRemount", kPublished, Origin::kScheduler, true, &kGone, kReboot, "hold"},
        Reconciled{"RebootPublishingSchedulerRemount", kPublishing, Origin::kScheduler, true, &kGone, kReboot,
                   "hold"},
        Reconciled{"RebootCaller", kPublished, Origin::kCaller, false, &kGone, kReboot, "hold"},
        Reconciled{"RebootPublishingCaller", kPublishing, Origin::kCaller, false, &kGone, kReboot, "hold"},
        Reconciled{"RebootPublishingScheduler", kPublishing, Origin::kScheduler, false, &kGone, kReboot,
                   "hold"},
        Reconciled{"RebootPublishingDeclared", kPublishing, Origin::kDeclared, false, &kGone, kReboot,
                   "resume"},
        Reconciled{"RebootUnpublishing", kUnpublishing, Origin::kScheduler, false, &kGone, kReboot, ""},
        Reconciled{"PublishingGoesOn", kPublishing, Origin::kCaller, false, &kGone, kStart, ""},
        Reconciled{"UnpublishingGoesOn", kUnpublishing, Origin::kCaller, false, &kMounted, kStart, ""},
        Reconciled{"PublishingWhileRunning", kPublishing, Origin::kCaller, false, &kGone, kRunning, ""}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(ReconciliationTest, WhatIsKnownToBeLostIsToldOnce) {
  VolumeRecord record = RecordIn(kPublished);
  record.publications[0].uncertain = true;
  EXPECT_EQ(Plan(record, kGone, kRunning), "");
  EXPECT_EQ(Plan(record, kOther, kRunning), "");
  EXPECT_EQ(Plan(record, kReplaced, kRunning), "");
  EXPECT_EQ(Plan(record, kUnknown, kRunning), "");
  EXPECT_EQ(Plan(record, kMounted, kRunning), "found") << "it came back";
}

TEST(ReconciliationTest, WhatIsWithheldIsToldAndRepairedLater) {
  VolumeRecord record = RecordIn(kPublished, Origin::kScheduler, true);
  record.publications[0].forward_blocked = "no valid lease";
  EXPECT_EQ(Plan(record, kGone, kRunning), "lost");
  EXPECT_EQ(Plan(record, kGone, kStart), "lost");
  record.publications[0].uncertain = true;
  EXPECT_EQ(Plan(record, kGone, kRunning), "") << "reported once";
  EXPECT_EQ(Plan(record, kMounted, kRunning), "found");
  record.publications[0].forward_blocked.clear();
  EXPECT_EQ(Plan(record, kGone, kRunning), "repair");
}

TEST(ReconciliationTest, OnceItIsLeavingNothingIsMountedAgain) {
  constexpr Circumstances kLeaving{.leaving = true};
  VolumeRecord record = RecordIn(kPublished, Origin::kDeclared);
  ASSERT_EQ(Plan(record, kGone, kRunning), "repair");
  EXPECT_EQ(Plan(record, kGone, kLeaving), "lost");
  record.publications[0].uncertain = true;
  EXPECT_EQ(Plan(record, kGone, kLeaving), "") << "reported once";
  EXPECT_EQ(Plan(record, kMounted, kLeaving), "found");
}

TEST(ReconciliationTest, WhatIsHeldStaysHeld) {
  for (const Origin origin : {Origin::kCaller, Origin::kScheduler}) {
    VolumeRecord record = RecordIn(kPublished, origin);
    record.publications[0].blocked = "since the boot before this one";
    record.publications[0].uncertain = true;
    EXPECT_EQ(Plan(record, kGone, kStart), "");
    EXPECT_EQ(Plan(record, kGone, kRunning), "");
    EXPECT_EQ(Plan(record, kGone, kReboot), "");
  }
}

TEST(ReconciliationTest, AProcessOfAnotherBootHasEnded) {
  const ConsumerLife process = ProcessLife(12, 34);
  const ConsumerLife group = CgroupLife("/sys/fs/cgroup/web");
  for (const PublicationState state : {kPublished, kPublishing}) {
    VolumeRecord record = RecordIn(state, Origin::kDeclared, true);
    for (const ConsumerLife& life : {process, group}) {
      record.publications[0].life = life;
      EXPECT_EQ(Plan(record, kGone, kReboot), "release") << DescribeLife(life);
      EXPECT_EQ(Plan(record, kMounted, kStart), "") << "in the same boot it is watched";
    }
    record.publications[0].life = UnitLife("web.service");
    EXPECT_EQ(Plan(record, kGone, kReboot), "resume") << "a unit is what its name says in every boot";
  }
  VolumeRecord undone = RecordIn(kUnpublishing);
  undone.publications[0].life = ProcessLife(12, 34);
  EXPECT_EQ(Plan(undone, kGone, kReboot), "");
  undone.publications[0].remount_after_undo = true;
  EXPECT_EQ(Plan(undone, kGone, kReboot), "release") << "it is not published again";
}

TEST(ReconciliationTest, ARepairThatWasCutShortByARebootWaitsLikeAnythingElse) {
  VolumeRecord record = RecordIn(kUnpublishing, Origin::kScheduler);
  record.publications[0].remount_after_undo = true;
  EXPECT_EQ(Plan(record, kGone, kReboot), "hold");
  EXPECT_EQ(Plan(record, kGone, kStart), "");
}

TEST(ReconciliationTest, ARebuiltRecordIsNotMountedOfItself) {
  VolumeRecord record = RecordIn(kPublished, Origin::kDeclared, true);
  record.rebuilt = true;
  EXPECT_EQ(Plan(record, kGone, kRunning), "lost") << "its contexts are not known";
  EXPECT_EQ(Plan(record, kGone, kReboot), "hold");
}

TEST(ReconciliationTest, ADeviceHasNoMountToBeCovered) {
  VolumeRecord record = RecordIn(kPublished);
  record.use.access_type = AccessType::kBlock;
  record.publications[0].mount_id = 0;
  EXPECT_EQ(Plan(record, {.error = "", .there = true, .mount_id = 0}, kRunning), "");
  const auto plan = PlanReconciliation(record, {{kTheUse, kGone}}, kRunning);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_THAT(plan[0].why, ::testing::HasSubstr("the device was removed"));
}

// What is planned for a staging with the mount 7.
std::string PlanOfStaging(StageState state, bool lost, const ShownMount& shown) {
  VolumeRecord record = RecordIn(kPublished);
  record.stage_state = state;
  record.staging_mount_id = 7;
  record.staging_lost = lost;
  record.stage_uncertain = lost;
  const auto found = PlanStaging(record, shown);
  if (!found) return "";
  EXPECT_EQ(found->key, PublicationKey{});
  EXPECT_EQ(found->why.empty(), found->action == ReconcileAction::kStagingFound);
  return Show(found->action);
}

TEST(StagingPlanTest, WhatOthersDoToItIsToldOnceAndForgottenWhenItIsBack) {
  constexpr auto kStaged = StageState::kStaged;
  EXPECT_EQ(PlanOfStaging(kStaged, false, kMounted), "");
  EXPECT_EQ(PlanOfStaging(kStaged, false, kGone), "staging lost");
  EXPECT_EQ(PlanOfStaging(kStaged, false, kOther), "staging overmounted");
  EXPECT_EQ(PlanOfStaging(kStaged, false, kReplaced), "staging lost");
  EXPECT_EQ(PlanOfStaging(kStaged, false, kUnknown), "staging lost");
  EXPECT_EQ(PlanOfStaging(kStaged, true, kMounted), "staging found");
  EXPECT_EQ(PlanOfStaging(kStaged, true, kGone), "");
  EXPECT_EQ(PlanOfStaging(kStaged, true, kOther), "");
  EXPECT_EQ(PlanOfStaging(kStaged, true, kReplaced), "");
  EXPECT_EQ(PlanOfStaging(kStaged, true, kUnknown), "");
}

TEST(StagingPlanTest, WhatIsNotStagedNowHasNothingToLose) {
  for (const StageState state : {StageState::kAbsent, StageState::kStaging, StageState::kUnstaging}) {
    for (const bool lost : {false, true}) {
      for (const ShownMount& shown : {kMounted, kOther, kGone, kUnknown}) {
        EXPECT_EQ(PlanOfStaging(state, lost, shown), "");
      }
    }
  }
}

TEST(StagingPlanTest, APluginThatStagesWithoutAMountMissesNone) {
  const VolumeRecord record = RecordIn(kPublished);
  ASSERT_EQ(record.staging_mount_id, 0U);
  for (const ShownMount& shown : {kMounted, kGone, kUnknown}) EXPECT_FALSE(PlanStaging(record, shown));
}

}  // namespace
}  // namespace berth
