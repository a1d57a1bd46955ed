#include "mounter/recovered_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

VolumeRecord Record(StageState stage, PublicationState state, Origin origin = Origin::kCaller) {
  VolumeRecord record;
  record.stages = true;
  record.stage_state = stage;
  record.staging_mount_id = 5;
  record.objects = {KernelObject{}};
  PublicationRecord publication;
  publication.key = {.consumer = "web", .name = ""};
  publication.state = state;
  publication.origin = origin;
  publication.mount_id = 7;
  publication.path_mounted = true;
  publication.hung = "an earlier verdict";
  record.publications = {publication};
  return record;
}

TEST(RecoveredRecordTest, WhatWasDoneIsDoneAndTheKernelIsAskedAboutTheRest) {
  const VolumeRecord record =
      RecoveredRecord(Record(StageState::kStaged, PublicationState::kPublished), false);
  EXPECT_TRUE(record.Staged());
  EXPECT_FALSE(record.mounts_unknown);
  const PublicationRecord& publication = record.publications[0];
  EXPECT_EQ(publication.state, PublicationState::kPublished);
  EXPECT_FALSE(publication.uncertain);
  EXPECT_EQ(publication.mount_id, 7U);
  EXPECT_FALSE(publication.path_mounted);
  EXPECT_THAT(publication.hung, IsEmpty());
}

TEST(RecoveredRecordTest, WhatWasUnderWayIsUncertainAndMayHaveMounted) {
  const VolumeRecord record =
      RecoveredRecord(Record(StageState::kStaging, PublicationState::kPublishing), false);
  EXPECT_TRUE(record.stage_uncertain);
  EXPECT_TRUE(record.mounts_unknown);
  EXPECT_TRUE(record.publications[0].uncertain);
  EXPECT_TRUE(record.publications[0].sent) << "it may have reached the plugin";
}

TEST(RecoveredRecordTest, AStagingThatAPublicationNeedsMayHaveBegunAgain) {
  const VolumeRecord record =
      RecoveredRecord(Record(StageState::kAbsent, PublicationState::kPublishing), false);
  EXPECT_EQ(record.stage_state, StageState::kStaging);
  EXPECT_TRUE(record.stage_uncertain);
}

TEST(RecoveredRecordTest, AStagingThatWasBeingRepairedTakesItsPublicationsWithIt) {
  const VolumeRecord record =
      RecoveredRecord(Record(StageState::kUnstaging, PublicationState::kPublishing), false);
  EXPECT_EQ(record.publications[0].state, PublicationState::kUnpublishing);
  EXPECT_TRUE(record.publications[0].remount_after_undo);
}

TEST(RecoveredRecordTest, AfterARebootTheKernelHasNothingOfIt) {
  VolumeRecord before = Record(StageState::kStaged, PublicationState::kPublished);
  before.still_in_use = true;
  before.detached_mounts = {9};
  before.past_consumers = {"db"};
  const VolumeRecord record = RecoveredRecord(before, true);
  EXPECT_THAT(record.objects, IsEmpty());
  EXPECT_THAT(record.Mounts(), IsEmpty());
  EXPECT_THAT(record.past_consumers, IsEmpty());
  EXPECT_FALSE(record.still_in_use);
  EXPECT_FALSE(record.mounts_unknown);
  EXPECT_EQ(record.stage_state, StageState::kStaging) << "the plugin may remember it";
  EXPECT_TRUE(record.publications[0].before_reboot);
}

TEST(RecoveredRecordTest, WhatKeptItInUseIsNotKnownWhereThatWasNotWritten) {
  VolumeRecord before = Record(StageState::kStaged, PublicationState::kPublished);
  before.still_in_use = true;
  before.objects.clear();
  EXPECT_THAT(RecoveredRecord(before, false).objects, SizeIs(1));
}

TEST(RecoveredRecordTest, OnlyASchedulersIsBlockedUntilItsLeaseIsKnown) {
  const auto blocked = [](Origin origin) {
    return RecoveredRecord(Record(StageState::kStaged, PublicationState::kPublished, origin), false)
        .publications[0]
        .forward_blocked;
  };
  EXPECT_THAT(blocked(Origin::kScheduler), HasSubstr("no valid lease"));
  EXPECT_THAT(blocked(Origin::kCaller), IsEmpty());
  EXPECT_THAT(blocked(Origin::kDeclared), IsEmpty());
}

}  // namespace
}  // namespace berth
