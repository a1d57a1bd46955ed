#include "base/backoff.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(BackoffTest, DoublesUpToTheLimitWithHalfOfItLeftToChance) {
  EXPECT_EQ(Backoff(1, milliseconds(100), seconds(5), 0), milliseconds(50));
  EXPECT_EQ(Backoff(3, milliseconds(100), seconds(5), 0), milliseconds(200));
  EXPECT_EQ(Backoff(3, milliseconds(100), seconds(5), 0.5), milliseconds(300));
  EXPECT_EQ(Backoff(30, milliseconds(100), seconds(5), 0), milliseconds(2500));
  EXPECT_EQ(Backoff(1'000'000, milliseconds(100), seconds(5), 0), milliseconds(2500));
  EXPECT_LT(Backoff(30, milliseconds(100), seconds(5), 0.999999), seconds(5));
}

TEST(BackoffTest, ATimerBeginsAnewOnceItIsReset) {
  BackoffTimer timer(milliseconds(100), seconds(5));
  for (int i = 0; i < 10; ++i) {
    const Duration pause = timer.Next();
    EXPECT_GE(pause, Backoff(i + 1, milliseconds(100), seconds(5), 0));
    EXPECT_LE(pause, Backoff(i + 1, milliseconds(100), seconds(5), 1));
  }
  EXPECT_EQ(timer.failures(), 10);
  timer.Reset();
  EXPECT_LE(timer.Next(), milliseconds(100));
}

}  // namespace
}  // namespace berth
