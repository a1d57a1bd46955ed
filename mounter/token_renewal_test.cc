#include "mounter/token_renewal.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kNow{seconds(1000)};

TEST(TokenRenewalTest, WhatIsNotKnownIsDueAtOnce) {
  const TokenRenewal renewal;
  EXPECT_LE(renewal.due(), kNow);
  EXPECT_EQ(renewal.failures(), 0);
}

TEST(TokenRenewalTest, IsDueWhenAFifthIsLeftAndNeverLater) {
  TokenRenewal renewal;
  renewal.OnPassed(kNow, seconds(100), 0);
  EXPECT_EQ(renewal.due(), kNow + seconds(80));
  renewal.OnPassed(kNow, seconds(100), 1);
  EXPECT_NEAR(std::chrono::duration<double>(renewal.due() - kNow).count(), 75, 0.001);
}

TEST(TokenRenewalTest, ALifetimeOfNextToNothingIsNotFollowed) {
  TokenRenewal renewal;
  renewal.OnPassed(kNow, milliseconds(1), 0);
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
  renewal.OnPassed(kNow, seconds(100), 0);
  EXPECT_EQ(renewal.failures(), 0);
  EXPECT_EQ(renewal.error(), "");
  EXPECT_TRUE(renewal.OnFailed(kNow, seconds(2), "away")) << "again";
}

}  // namespace
}  // namespace berth
