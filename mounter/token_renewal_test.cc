#include "mounter/token_renewal.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const BootTime kBegin{seconds(1000)};

TEST(TokenRenewalTest, WhatIsNotKnownIsDueAtOnce) {
  const TokenRenewal renewal;
  EXPECT_LE(renewal.due(), kBegin);
  EXPECT_EQ(renewal.failures(), 0);
}

TEST(TokenRenewalTest, IsDueWhenAFifthIsLeftAndNeverLater) {
  TokenRenewal renewal;
  renewal.OnPassed({.since = kBegin, .lifetime = seconds(100)}, 0);
  EXPECT_EQ(renewal.due(), kBegin + seconds(80));
  renewal.OnPassed({.since = kBegin, .lifetime = seconds(100)}, 1);
  EXPECT_NEAR(std::chrono::duration<double>(renewal.due() - kBegin).count(), 75, 0.001);
}

TEST(TokenRenewalTest, ALifetimeOfNextToNothingIsNotFollowed) {
  TokenRenewal renewal;
  renewal.OnPassed({.since = kBegin, .lifetime = milliseconds(1)}, 0);
  EXPECT_EQ(renewal.due(), kBegin + TokenRenewal::kLeastPause);
}

TEST(TokenRenewalTest, AFailureIsNewsOnceAndEndsWithASuccess) {
  TokenRenewal renewal;
  EXPECT_TRUE(renewal.OnFailed(kBegin, seconds(2), "away"));
  EXPECT_EQ(renewal.due(), kBegin + seconds(2));
  EXPECT_FALSE(renewal.OnFailed(kBegin, seconds(4), "still away"));
  EXPECT_EQ(renewal.due(), kBegin + seconds(4));
  EXPECT_EQ(renewal.failures(), 2);
  EXPECT_EQ(renewal.error(), "still away");
  renewal.Hasten();
  EXPECT_LE(renewal.due(), kBegin);
  EXPECT_EQ(renewal.failures(), 2) << "it has not succeeded yet";
  renewal.OnPassed({.since = kBegin, .lifetime = seconds(100)}, 0);
  EXPECT_EQ(renewal.failures(), 0);
  EXPECT_EQ(renewal.error(), "");
  EXPECT_TRUE(renewal.OnFailed(kBegin, seconds(2), "away")) << "again";
}

TEST(TokenRenewalTest, WhatWasMadeOutForSomethingElseIsDueAtOnce) {
  const std::vector<WantedToken> wanted = {{.audience = "vault", .name = "token", .republish = true}};
  TokenRenewal renewal;
  renewal.OnPassed({.since = kBegin, .lifetime = seconds(100), .wanted = wanted}, 0);
  renewal.OnWanted(wanted);
  EXPECT_EQ(renewal.due(), kBegin + seconds(80)) << "its file was read again, and says the same";
  auto other = wanted;
  other[0].name = "other";
  renewal.OnWanted(other);
  EXPECT_LE(renewal.due(), kBegin);
}

}  // namespace
}  // namespace berth
