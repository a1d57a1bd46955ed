#include "mounter/failure_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;

TEST(FailureLogTest, Fault57TheSameFailureIsToldAtOnceAfterOneTenAndSixtyMinutesAndThenEachHour) {
  FailureLog log;
  std::vector<int> reported;
  for (int second = 0; second <= 4 * 3600; second += 5) {
    if (log.ShouldReport("unstage INTERNAL", TimePoint(std::chrono::seconds(second))))
      reported.push_back(second / 60);
  }
  EXPECT_THAT(reported, ElementsAre(0, 1, 10, 60, 120, 180, 240));
}

TEST(FailureLogTest, AfterALongPauseItIsToldOnce) {
  FailureLog log;
  const auto at = [&log](std::chrono::seconds time) { return log.ShouldReport("x", TimePoint(time)); };
  EXPECT_TRUE(at(std::chrono::seconds(0)));
  EXPECT_TRUE(at(std::chrono::minutes(30)));
  EXPECT_FALSE(at(std::chrono::minutes(30) + std::chrono::seconds(5)));
  EXPECT_TRUE(at(std::chrono::minutes(31)));
  EXPECT_FALSE(at(std::chrono::minutes(45)));
  EXPECT_TRUE(at(std::chrono::minutes(60)));
}

TEST(FailureLogTest, OtherKindsAreToldByThemselvesAndAllAnewAfterASuccess) {
  FailureLog log;
  const TimePoint now(std::chrono::hours(1));
  EXPECT_TRUE(log.ShouldReport("unstage INTERNAL", now));
  EXPECT_TRUE(log.ShouldReport("unstage UNAVAILABLE", now));
  EXPECT_FALSE(log.ShouldReport("unstage INTERNAL", now));
  log.Clear();
  EXPECT_TRUE(log.ShouldReport("unstage INTERNAL", now));
}

TEST(FailureLogTest, TheKindThatHasNotComeForTheLongestTimeIsForgotten) {
  FailureLog log;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(log.ShouldReport(fmt::format("{}", i), TimePoint(std::chrono::seconds(i))));
  }
  EXPECT_FALSE(log.ShouldReport("39", TimePoint(std::chrono::seconds(40))));
  EXPECT_TRUE(log.ShouldReport("0", TimePoint(std::chrono::seconds(41))));
}

}  // namespace
}  // namespace berth
