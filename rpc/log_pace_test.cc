#include "rpc/log_pace.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LogPaceTest, TellsSoManyInAWindowAndThenHowManyWereLeftOut) {
  LogPace pace(2, seconds(60));
  const TimePoint begin{std::chrono::hours(1)};
  EXPECT_EQ(pace.Take(begin), 0U);
  EXPECT_EQ(pace.Take(begin + seconds(59)), 0U);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(pace.Take(begin + milliseconds(59'999)));
  EXPECT_EQ(pace.Take(begin + seconds(60)), 1000U);
  EXPECT_EQ(pace.Take(begin + seconds(60)), 0U) << "they are told once";
  EXPECT_FALSE(pace.Take(begin + seconds(60)));
}

TEST(LogPaceTest, AWindowBeginsWithItsFirstLine) {
  LogPace pace(1, seconds(60));
  const TimePoint begin{std::chrono::hours(1)};
  EXPECT_EQ(pace.Take(begin), 0U);
  EXPECT_EQ(pace.Take(begin + seconds(100)), 0U);
  EXPECT_FALSE(pace.Take(begin + seconds(130))) << "not a minute after the one before";
}

}  // namespace
}  // namespace berth
