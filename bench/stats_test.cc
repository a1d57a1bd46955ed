#include "bench/stats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace berth {
namespace {

TEST(MedianTest, IsTheMiddleOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_DOUBLE_EQ(Median({7}), 7);
  EXPECT_DOUBLE_EQ(Median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(Median({9, 1, 5, 6}), 5.5);
}

TEST(MedianTest, IsNotMovedByOneOutlier) { EXPECT_DOUBLE_EQ(Median({1, 1, 1, 1, 1000}), 1); }

TEST(PercentileTest, IsTheNearestRank) {
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_DOUBLE_EQ(Percentile(hundred, 99), 99);
  EXPECT_DOUBLE_EQ(Percentile(hundred, 100), 100);
  EXPECT_DOUBLE_EQ(Percentile(hundred, 50), 50);
  EXPECT_DOUBLE_EQ(Percentile(hundred, 0.5), 1);
}

TEST(PercentileTest, OfFewValuesIsTheLargest) {
  EXPECT_DOUBLE_EQ(Percentile({3, 1, 2}, 99), 3);
  EXPECT_DOUBLE_EQ(Percentile({4}, 99), 4);
}

TEST(SummarizeTest, DividesLikeByLike) {
  const Summary summary = Summarize({.candidate = {2, 4, 30}, .reference = {1, 2, 3}});
  EXPECT_DOUBLE_EQ(summary.candidate_p50, 4);
  EXPECT_DOUBLE_EQ(summary.reference_p50, 2);
  EXPECT_DOUBLE_EQ(summary.ratio_p50, 2);
  EXPECT_DOUBLE_EQ(summary.candidate_p99, 30);
  EXPECT_DOUBLE_EQ(summary.reference_p99, 3);
  EXPECT_DOUBLE_EQ(summary.ratio_p99, 10);
}

TEST(SummarizeTest, AReferenceOfNothingIsNeverReached) {
  const Summary summary = Summarize({.candidate = {1}, .reference = {0}});
  EXPECT_TRUE(std::isinf(summary.ratio_p50));
  EXPECT_FALSE(Met({.p50 = 1000}, summary));
}

TEST(GoalTest, TheBoundItselfIsMet) {
  Summary summary;
  summary.ratio_p50 = 2;
  EXPECT_TRUE(Met({.p50 = 2}, summary));
  EXPECT_FALSE(Met({.p50 = 1.99}, summary));
  EXPECT_TRUE(Met({.p50 = 2, .at_least = true}, summary));
  EXPECT_FALSE(Met({.p50 = 2.01, .at_least = true}, summary));
}

TEST(GoalTest, APercentileCountsOnlyWhereTheGoalNamesOne) {
  Summary summary;
  summary.ratio_p50 = 1;
  summary.ratio_p99 = 50;
  EXPECT_TRUE(Met({.p50 = 1.1}, summary));
  EXPECT_FALSE(Met({.p50 = 1.1, .p99 = 1.25}, summary));
  summary.ratio_p99 = 1.25;
  EXPECT_TRUE(Met({.p50 = 1.1, .p99 = 1.25}, summary));
}

TEST(TextTest, SaysGoalsAsTheyAreWritten) {
  EXPECT_EQ(GoalText({.p50 = 2}), "≤ 2");
  EXPECT_EQ(GoalText({.p50 = 1.1, .p99 = 1.25}), "≤ 1.1, p99 ≤ 1.25");
  EXPECT_EQ(GoalText({.p50 = 0.5, .at_least = true}), "≥ 0.5");
}

TEST(TextTest, ShowsThreeDigits) {
  EXPECT_EQ(RatioText(1.0512), "1.05");
  EXPECT_EQ(RatioText(12.34), "12.3");
  EXPECT_EQ(RatioText(10400.4), "10400");
  EXPECT_EQ(RatioText(0.012345), "0.0123");
  EXPECT_EQ(RatioText(0.5), "0.500");
  EXPECT_EQ(RatioText(0), "0.00");
}

TEST(TextTest, ScalesQuantities) {
  EXPECT_EQ(QuantityText(0.0123, Unit::kSeconds), "12.3 ms");
  EXPECT_EQ(QuantityText(1.5, Unit::kSeconds), "1.50 s");
  EXPECT_EQ(QuantityText(42e-6, Unit::kSeconds), "42.0 µs");
  EXPECT_EQ(QuantityText(9.3 * 1024 * 1024, Unit::kBytes), "9.30 MiB");
  EXPECT_EQ(QuantityText(123.0 * 1024, Unit::kBytes), "123 KiB");
  EXPECT_EQ(QuantityText(-2.0 * 1024, Unit::kBytes), "-2.00 KiB");
  EXPECT_EQ(QuantityText(4210, Unit::kPerSecond), "4.21 k/s");
}

}  // namespace
}  // namespace berth
