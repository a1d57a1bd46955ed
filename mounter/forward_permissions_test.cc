#include "mounter/forward_permissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr BootTime kLeaseBegan{seconds(1000)};

PublicationRecord Of(Origin origin) {
  PublicationRecord publication;
  publication.origin = origin;
  return publication;
}

TEST(ForwardPermissionsTest, OfAnOriginWithoutAWordNothingChanges) {
  const ForwardPermissions permissions;
  PublicationRecord publication = Of(Origin::kScheduler);
  publication.forward_blocked = "berthd was restarted";
  EXPECT_FALSE(permissions.ApplyTo(publication));
  EXPECT_EQ(publication.forward_blocked, "berthd was restarted");
}

TEST(ForwardPermissionsTest, WithoutALeaseAllOfItsOriginAreBlocked) {
  ForwardPermissions permissions;
  permissions.Block(Origin::kScheduler, "no lease");
  PublicationRecord publication = Of(Origin::kScheduler);
  PublicationRecord other = Of(Origin::kCaller);
  EXPECT_FALSE(permissions.ApplyTo(publication));
  EXPECT_FALSE(permissions.ApplyTo(other));
  EXPECT_EQ(publication.forward_blocked, "no lease");
  EXPECT_THAT(other.forward_blocked, IsEmpty());
}

TEST(ForwardPermissionsTest, ALeaseFreesWhatWasConfirmedSinceItBeganAndNothingElse) {
  ForwardPermissions permissions;
  permissions.Block(Origin::kScheduler, "no lease");
  PublicationRecord confirmed = Of(Origin::kScheduler);
  confirmed.confirmed_at = kLeaseBegan;
  PublicationRecord older = Of(Origin::kScheduler);
  older.confirmed_at = kLeaseBegan - seconds(1);
  PublicationRecord never = Of(Origin::kScheduler);
  for (PublicationRecord* each : {&confirmed, &older, &never}) EXPECT_FALSE(permissions.ApplyTo(*each));

  permissions.Unblock(Origin::kScheduler, kLeaseBegan);
  EXPECT_TRUE(permissions.ApplyTo(confirmed));
  EXPECT_FALSE(permissions.ApplyTo(confirmed)) << "it was not blocked any more";
  EXPECT_THAT(confirmed.forward_blocked, IsEmpty());
  for (PublicationRecord* each : {&older, &never}) {
    EXPECT_FALSE(permissions.ApplyTo(*each));
    EXPECT_TRUE(each->unconfirmed);
    EXPECT_THAT(each->forward_blocked, HasSubstr("another node may have the volume"));
  }
}

TEST(ForwardPermissionsTest, AnEarlierCopyShowsWhetherSomethingWasSaidSince) {
  ForwardPermissions permissions;
  const ForwardPermissions none = permissions;
  EXPECT_FALSE(permissions.ChangedSince(none, Origin::kScheduler));
  permissions.Unblock(Origin::kScheduler, kLeaseBegan);
  const ForwardPermissions before = permissions;
  EXPECT_TRUE(permissions.ChangedSince(none, Origin::kScheduler));
  EXPECT_FALSE(permissions.ChangedSince(before, Origin::kScheduler));
  permissions.Unblock(Origin::kScheduler, kLeaseBegan);
  EXPECT_TRUE(permissions.ChangedSince(before, Origin::kScheduler)) << "the same again is news";
  EXPECT_FALSE(permissions.ChangedSince(before, Origin::kCaller));
}

}  // namespace
}  // namespace berth
