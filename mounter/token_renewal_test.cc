#include "mounter/token_renewal.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const BootTime kNow{seconds(1000)};

TEST(TokenRenewalTest, WhatIsNotKnownIsDueAtOnce) {
  const TokenRenewal renewal;
  EXPECT_LE(renewal.due(), kNow);
  EXPECT_EQ(renewal.failures(), 0);
}

TEST(TokenRenewalTest, IsDueWhenAFifthIsLeftAndNeverLater) {
  TokenRenewal renewal;
  renewal.OnPassed({.since = kNow, .lifetime = seconds(100)}, 0);
  EXPECT_EQ(renewal.due(), kNow + seconds(80));
  renewal.OnPassed({.since = kNow, .lifetime = seconds(100)}, 1);
  EXPECT_NEAR(std::chrono::duration<double>(renewal.due() - kNow).count(), 75, 0.001);
}

TEST(TokenRenewalTest, ALifetimeOfNextToNothingIsNotFollowed) {
  TokenRenewal renewal;
  renewal.OnPassed({.since = kNow, .lifetime = milliseconds(1)}, 0);
  EXPECT_EQ(renewal.due(), kNow + TokenRenewal::kLeastPause);
}

TEST(TokenRenewalTest, AFailureIsNewsOnceAndEndsWithASuccess) {
  TokenRenewal renewal;
  EXPECT_TRUE(renewal.OnFailed(kNow, seconds(2), "away"));
  EXPECT_EQ(renewal.due(), kNow + seconds(2));
  EXPECT_FALSE(renewal.OnFailed(kNow, seconds(4), "still away"));
  EXPECT_EQ(renewal.due(), kNow + seconds(4));
  EXPECT_EQ(renewal.failures(), 2);
  EXPECT_EQ(renewal.error(), "still away");
  renewal.Hasten();
  EXPECT_LE(renewal.due(), kNow);
  EXPECT_EQ(renewal.failures(), 2) << "it has not succeeded yet";
  renewal.OnPassed({.since = kNow, .lifetime = seconds(100)}, 0);
  EXPECT_EQ(renewal.failures(), 0);
  EXPECT_EQ(renewal.error(), "");
  EXPECT_TRUE(renewal.OnFailed(kNow, seconds(2), "away")) << "again";
}

TEST(TokenRenewalTest, WhatWasMadeOutForSomethingElseIsDueAtOnce) {
  const std::vector<WantedToken> wanted = {{.audience = "vault", .name = "token", .republish = true}};
  TokenRenewal renewal;
  renewal.OnPassed({.since = kNow, .lifetime = seconds(100), .wanted = wanted}, 0);
  renewal.OnWanted(wanted);
  EXPECT_EQ(renewal.due(), kNow + seconds(80)) << "its file was read again, and says the same";
  auto other = wanted;
  other[0].name = "other";
  renewal.OnWanted(other);
  EXPECT_LE(renewal.due(), kNow);
}

}  // namespace
}  // namespace berth
