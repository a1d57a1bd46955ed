#include "mounter/volume_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const PublicationKey kApi{.consumer = "api", .name = ""};
const PublicationKey kBatch{.consumer = "batch", .name = ""};

PublicationRecord Publication(const PublicationKey& key, PublicationState state) {
  PublicationRecord publication;
  publication.key = key;
  publication.state = state;
  return publication;
}

VolumeRecord Record(StageState stage, std::vector<PublicationRecord> publications) {
  VolumeRecord record;
  record.stages = true;
  record.stage_state = stage;
  record.publications = std::move(publications);
  return record;
}

StepKind Next(const VolumeRecord& record, const PublicationKey& key = kApi, bool leaving = false) {
  return VolumePlan(record, {.present = true, .leaving = leaving}).NextFor(key).kind;
}

TEST(VolumePlanTest, APublicationIsStagedThenPublished) {
  VolumeRecord record = Record(StageState::kStaging, {Publication(kApi, PublicationState::kPublishing)});
  EXPECT_EQ(Next(record), StepKind::kStage);
  record.stage_state = StageState::kStaged;
  EXPECT_EQ(Next(record), StepKind::kPublish);
  record.stage_uncertain = true;
  EXPECT_EQ(Next(record), StepKind::kStage) << "what may not be there is staged again";
  record.publications[0].ephemeral = true;
  EXPECT_EQ(Next(record), StepKind::kPublish) << "an ephemeral one is not staged";
}

TEST(VolumePlanTest, NothingGoesForwardThatIsBlockedOrLeavingAndReverseStepsDo) {
  VolumeRecord record = Record(StageState::kStaged, {Publication(kApi, PublicationState::kPublishing)});
  EXPECT_EQ(Next(record, kApi, true), StepKind::kNone);
  record.publications[0].forward_blocked = "no lease";
  EXPECT_EQ(Next(record), StepKind::kNone);
  record.publications[0].state = PublicationState::kUnpublishing;
  EXPECT_EQ(Next(record, kApi, true), StepKind::kUnpublish);
  record.publications.clear();
  EXPECT_EQ(Next(record, kApi, true), StepKind::kUnstage);
  record.stage_state = StageState::kAbsent;
  EXPECT_EQ(Next(record, kApi, true), StepKind::kForget);
}

TEST(VolumePlanTest, WhatIsUndoneComesFirst) {
  const VolumeRecord record =
      Record(StageState::kStaged, {Publication(kApi, PublicationState::kPublishing),
                                   Publication(kBatch, PublicationState::kUnpublishing)});
  EXPECT_THAT(VolumePlan(record, {.present = true}).Movable(), ElementsAre(kBatch, kApi));
}

TEST(VolumePlanTest, ALostStagingIsUndoneOnlyWhenNothingIsPublishedFromIt) {
  VolumeRecord record = Record(StageState::kStaged, {Publication(kApi, PublicationState::kPublishing),
                                                     Publication(kBatch, PublicationState::kPublished)});
  record.staging_lost = true;
  record.stage_uncertain = true;
  record.publications[0].sent = false;
  EXPECT_EQ(Next(record), StepKind::kStage);
  record.publications.pop_back();
  EXPECT_EQ(Next(record), StepKind::kUnstage);
}

TEST(VolumePlanTest, WhatAwaitsItsSecretsDoesNotMove) {
  VolumeRecord record = Record(StageState::kStaged, {Publication(kApi, PublicationState::kPublishing)});
  record.publications[0].had_secrets = true;
  const VolumePlan plan(record, {.present = true});
  EXPECT_TRUE(plan.AwaitsSecrets());
  EXPECT_THAT(plan.Movable(), IsEmpty());
  record.publications[0].secrets_at_hand = true;
  EXPECT_FALSE(plan.AwaitsSecrets());
  EXPECT_THAT(plan.Movable(), ElementsAre(kApi));
}

TEST(VolumePlanTest, AnExpansionWaitsUntilItCanBeDoneAndIsNotRepeatedAtOnce) {
  VolumeRecord record = Record(StageState::kStaging, {Publication(kApi, PublicationState::kPublishing)});
  record.pending_expansion_bytes = 1 << 20;
  EXPECT_EQ(VolumePlan(record, {.present = true}).NextExpansion().kind, StepKind::kNone);
  record.stage_state = StageState::kStaged;
  EXPECT_EQ(VolumePlan(record, {.present = true}).NextExpansion().kind, StepKind::kExpand);
  const VolumePlan deferred(record, {.present = true, .expansion_deferred = true});
  EXPECT_EQ(deferred.NextExpansion().kind, StepKind::kNone);
  EXPECT_TRUE(deferred.Unsettled()) << "later";
  record.use.access_mode = ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_READER_ONLY;
  EXPECT_EQ(VolumePlan(record, {.present = true}).NextExpansion().kind, StepKind::kNone);
}

}  // namespace
}  // namespace berth
