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
  std::vector<int> told;
  for (int second = 0; second <= 4 * 3600; second += 5) {
    if (log.Tell("unstage INTERNAL", TimePoint(std::chrono::seconds(second)))) told.push_back(second / 60);
  }
  EXPECT_THAT(told, ElementsAre(0, 1, 10, 60, 120, 180, 240));
}

TEST(FailureLogTest, AfterALongPauseItIsToldOnce) {
  FailureLog log;
  const auto at = [&log](std::chrono::seconds time) { return log.Tell("x", TimePoint(time)); };
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
  EXPECT_TRUE(log.Tell("unstage INTERNAL", now));
  EXPECT_TRUE(log.Tell("unstage UNAVAILABLE", now));
  EXPECT_FALSE(log.Tell("unstage INTERNAL", now));
  log.Clear();
  EXPECT_TRUE(log.Tell("unstage INTERNAL", now));
}

TEST(FailureLogTest, TheKindThatHasNotComeForTheLongestTimeIsForgotten) {
  FailureLog log;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(log.Tell(fmt::format("{}", i), TimePoint(std::chrono::seconds(i))));
  }
  EXPECT_FALSE(log.Tell("39", TimePoint(std::chrono::seconds(40))));
  EXPECT_TRUE(log.Tell("0", TimePoint(std::chrono::seconds(41))));
}

}  // namespace
}  // namespace berth
