#include "mounter/publication_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::IsEmpty;

constexpr WallTime kPublishedAt{std::chrono::seconds(1'000'000)};

PublicationRecord PublishedRecord(Origin origin = Origin::kCaller) {
  PublicationRecord publication;
  publication.key = {.consumer = "web", .name = ""};
  publication.origin = origin;
  publication.MarkPublished(kPublishedAt);
  return publication;
}

TEST(PublicationRecordTest, ASchedulerTakesOverACallersAndNeverBack) {
  PublicationRecord publication = PublishedRecord();
  PublicationRecord said = publication;
  said.origin = Origin::kScheduler;
  EXPECT_TRUE(publication.Update(said));
  EXPECT_EQ(publication.origin, Origin::kScheduler);
  EXPECT_FALSE(publication.Update(said)) << "the same again is no news";
  said.origin = Origin::kCaller;
  EXPECT_FALSE(publication.Update(said));
  EXPECT_EQ(publication.origin, Origin::kScheduler);
}

TEST(PublicationRecordTest, OnlyItsFileChangesThePathOfADeclaredOne) {
  PublicationRecord publication = PublishedRecord(Origin::kDeclared);
  PublicationRecord said = publication;
  said.path.path = "/srv/data";
  said.origin = Origin::kCaller;
  EXPECT_FALSE(publication.Update(said));
  said.origin = Origin::kDeclared;
  EXPECT_TRUE(publication.Update(said));
  EXPECT_EQ(publication.path.path, "/srv/data");
  EXPECT_EQ(publication.path_made.path, "/srv/data") << "written with the same commit";
}

TEST(PublicationRecordTest, AnUpdateThatWasNotWrittenIsRolledBackWhole) {
  PublicationRecord publication = PublishedRecord(Origin::kDeclared);
  publication.remount = false;
  const PublicationRecord before = publication;
  PublicationRecord said = publication;
  said.remount = true;
  said.path.path = "/srv/data";
  said.consumer_labels = {{"pod.name", "web"}};
  ASSERT_TRUE(publication.Update(said));
  publication.RollBackUpdate(before);
  EXPECT_EQ(publication.remount, before.remount);
  EXPECT_EQ(publication.path, before.path);
  EXPECT_EQ(publication.path_made, before.path_made);
  EXPECT_EQ(publication.consumer_labels, before.consumer_labels);
}

TEST(PublicationRecordTest, AVerdictTakesThePlaceOfTheLastOne) {
  PublicationRecord publication = PublishedRecord();
  publication.ApplyVerdict(absl::DeadlineExceededError("no answer"));
  EXPECT_EQ(publication.hung, "no answer");
  publication.ApplyVerdict(absl::InternalError("not a verdict"));
  EXPECT_EQ(publication.hung, "no answer");
  publication.ApplyVerdict(absl::UnavailableError(""));
  EXPECT_THAT(publication.hung, IsEmpty());
  EXPECT_FALSE(publication.dead.empty()) << "also where it says nothing";
  publication.ApplyVerdict(absl::OkStatus());
  EXPECT_THAT(publication.dead, IsEmpty());
}

TEST(PublicationRecordTest, AnEphemeralOneIsNotUndoneToBeMountedAgain) {
  PublicationRecord publication = PublishedRecord();
  publication.MountAgain("it was unmounted");
  EXPECT_EQ(publication.state, PublicationState::kUnpublishing);
  EXPECT_TRUE(publication.remount_after_undo);
  PublicationRecord ephemeral = PublishedRecord();
  ephemeral.ephemeral = true;
  ephemeral.MountAgain("it was unmounted");
  EXPECT_EQ(ephemeral.state, PublicationState::kPublishing);
}

TEST(PublicationRecordTest, WhatIsUndoneForGoodIsBlockedByNothing) {
  PublicationRecord publication = PublishedRecord(Origin::kScheduler);
  publication.forward_blocked = "no lease";
  EXPECT_FALSE(publication.BlockedBecause().has_value()) << "it is well";
  publication.MarkLost("it was unmounted");
  ASSERT_TRUE(publication.BlockedBecause().has_value());
  EXPECT_EQ(publication.BlockedBecause()->reason, Blocked::Reason::kNoLease);
  publication.UndoAndRemount();
  EXPECT_TRUE(publication.BlockedBecause().has_value()) << "it is to be mounted again";
  publication.Undo();
  EXPECT_FALSE(publication.BlockedBecause().has_value());
}

}  // namespace
}  // namespace berth
