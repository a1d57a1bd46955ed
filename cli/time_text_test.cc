#include "cli/time_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

namespace berth::cli {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using std::chrono::system_clock;

// 2026-11-21 12:00:00 UTC, in a zone that is two hours ahead of it (a POSIX rule: no files are needed).
class TimeTextTest : public testing::Test {
 protected:
  TimeTextTest() {
    setenv("TZ", "BRT-2", 1);
    tzset();
  }
  ~TimeTextTest() override {
    unsetenv("TZ");
    tzset();
  }

  const system_clock::time_point now_ = system_clock::from_time_t(1'795'262'400);
  const system_clock::time_point midnight_ = now_ - hours(14);  // of the local day

  system_clock::time_point Read(const std::string& text) {
    const auto time = ParseTime(text, now_);
    EXPECT_TRUE(time.ok()) << text << ": " << time.status();
    return time.value_or(system_clock::time_point());
  }
};

TEST_F(TimeTextTest, HowLongAgo) {
  EXPECT_EQ(Read("10m"), now_ - minutes(10));
  EXPECT_EQ(Read("1h30m"), now_ - minutes(90));
  EXPECT_EQ(Read("2d ago"), now_ - hours(48));
}

TEST_F(TimeTextTest, LocalTime) {
  EXPECT_EQ(Read("2026-11-21 10:00"), midnight_ + hours(10));
  EXPECT_EQ(Read("2026-11-21T10:00:30"), midnight_ + hours(10) + seconds(30));
  EXPECT_EQ(Read("2026-11-21 10:00:30.25"),
            midnight_ + hours(10) + seconds(30) + std::chrono::milliseconds(250));
  EXPECT_EQ(Read("2026-11-21"), midnight_);
  EXPECT_EQ(Read("10:00"), midnight_ + hours(10));
  EXPECT_EQ(Read("today"), midnight_);
  EXPECT_EQ(Read("yesterday"), midnight_ - hours(24));
}

TEST_F(TimeTextTest, Rfc3339) {
  EXPECT_EQ(Read("2026-11-21T11:59:59Z"), now_ - seconds(1));
  EXPECT_EQ(Read("2026-11-21t11:59:59z"), now_ - seconds(1));
  EXPECT_EQ(Read("2026-11-21T12:00:00+01:00"), now_ - hours(1));
  EXPECT_EQ(Read("2026-11-21T04:30:00-0730"), now_);
  EXPECT_EQ(Read("2026-11-21 11:00:00Z"), now_ - hours(1));
  EXPECT_EQ(Read("2026-11-21T11:59:59.123456789123Z"),
            now_ - seconds(1) + std::chrono::nanoseconds(123'456'789));
}

TEST_F(TimeTextTest, YesterdayIsADayOfTheCalendar) {
  // In the night after clocks went forward: the day before had 23 hours.
  setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
  tzset();
  const auto now = system_clock::from_time_t(1'774'823'400);  // 2026-03-30 00:30 CEST
  const auto yesterday = ParseTime("yesterday", now);
  ASSERT_TRUE(yesterday.ok()) << yesterday.status();
  EXPECT_EQ(now - *yesterday, hours(23) + minutes(30));
}

TEST_F(TimeTextTest, SecondsSince1970) { EXPECT_EQ(Read("@1795262400"), now_); }

TEST_F(TimeTextTest, WhatIsNoTimeIsRefusedInWords) {
  for (const char* text :
       {"", "soon", "10", "2026-13-01", "2026-02-30", "2026-11-21 25:00", "2026-11-21 10:60",
        "2026-11-21T10:00:00+25:00", "2026-11-21 10", "10:00Z", "1969-12-31", "@", "@x", "@-5",
        "@99999999999", "-5m", "2026-11-21 10:00 x", "-026-11-21", "10:00:00."}) {
    const auto time = ParseTime(text, now_);
    EXPECT_EQ(time.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(TimeTextTest, TheFutureIsRefused) {
  EXPECT_THAT(std::string(ParseTime("23:00", now_).status().message()), testing::HasSubstr("in the future"));
  EXPECT_FALSE(ParseTime("2027-01-01", now_).ok());
}

}  // namespace
}  // namespace berth::cli
