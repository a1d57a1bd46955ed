#include "rpc/uplink/dial_schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using End = DialSchedule::End;

constexpr DialLimits kLimits{
    .initial_backoff = seconds(1), .max_backoff = seconds(10), .stable_after = seconds(30)};
constexpr double kMiddle = 0.5;

class DialScheduleTest : public testing::Test {
 protected:
  void ExpectNext(const DialSchedule& schedule, size_t address, Duration after) const {
    EXPECT_EQ(schedule.next().address, address);
    EXPECT_EQ(schedule.next().at - now_, after);
  }

  TimePoint now_{std::chrono::hours(1)};
};

TEST_F(DialScheduleTest, TheFirstAttemptIsAtOnce) {
  ExpectNext(DialSchedule(3, kLimits, now_), 0, seconds(0));
}

TEST_F(DialScheduleTest, ARoundTriesEachAddressOnceAndThenPauses) {
  DialSchedule schedule(3, kLimits, now_);
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 1, seconds(0));
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 2, seconds(0));
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 0, milliseconds(750));
}

TEST_F(DialScheduleTest, PausesDoubleUpToTheLimit) {
  DialSchedule schedule(1, kLimits, now_);
  for (const auto pause : {750, 1500, 3000, 6000, 7500, 7500}) {
    schedule.OnFailed(now_, kMiddle);
    ExpectNext(schedule, 0, milliseconds(pause));
  }
  // Years of failures overflow nothing.
  for (int i = 0; i < 100'000; ++i) schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 0, milliseconds(7500));
}

TEST_F(DialScheduleTest, ChanceTakesAPauseFromHalfToItsFullLength) {
  DialSchedule shortest(1, kLimits, now_);
  shortest.OnFailed(now_, 0.0);
  ExpectNext(shortest, 0, milliseconds(500));
  DialSchedule longest(1, kLimits, now_);
  longest.OnFailed(now_, 0.999'999);
  EXPECT_GT(longest.next().at - now_, milliseconds(999));
  EXPECT_LT(longest.next().at - now_, seconds(1));
}

TEST_F(DialScheduleTest, AStableLinkThatBreaksIsDialledAgainAfterAShortPause) {
  DialSchedule schedule(2, kLimits, now_);
  for (int i = 0; i < 9; ++i) schedule.OnFailed(now_, kMiddle);
  ASSERT_EQ(schedule.next().address, 1U);
  schedule.OnLinkEnded(End::kBroken, seconds(30), now_, kMiddle);
  ExpectNext(schedule, 1, milliseconds(750));
  // It is a round's first attempt.
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 0, seconds(0));
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 1, milliseconds(750));
}

TEST_F(DialScheduleTest, ALinkThatIsNotStableCountsAsAFailure) {
  for (const End end : {End::kBroken, End::kUnavailable}) {
    DialSchedule schedule(2, kLimits, now_);
    schedule.OnLinkEnded(end, milliseconds(29'999), now_, kMiddle);
    ExpectNext(schedule, 1, seconds(0));
    schedule.OnLinkEnded(end, seconds(0), now_, kMiddle);
    ExpectNext(schedule, 0, milliseconds(750));
    schedule.OnLinkEnded(end, seconds(1), now_, kMiddle);
    schedule.OnFailed(now_, kMiddle);
    ExpectNext(schedule, 0, milliseconds(1500));
  }
}

TEST_F(DialScheduleTest, UnavailableAfterAStableLinkMeansTheNextAddressAtOnce) {
  DialSchedule schedule(2, kLimits, now_);
  schedule.OnLinkEnded(End::kUnavailable, minutes(5), now_, kMiddle);
  ExpectNext(schedule, 1, seconds(0));
  // Once in a round: the address that said so is not tried again without a pause.
  schedule.OnFailed(now_, kMiddle);
  ExpectNext(schedule, 0, milliseconds(750));
}

TEST_F(DialScheduleTest, UnavailableWithOneAddressPauses) {
  DialSchedule schedule(1, kLimits, now_);
  schedule.OnLinkEnded(End::kUnavailable, minutes(5), now_, kMiddle);
  ExpectNext(schedule, 0, milliseconds(750));
}

// A scheduler that is away for a week: its addresses do not answer until their time is over, or refuse at
// once.
TEST_F(DialScheduleTest, AWeekOfFailuresIsAboutAnAttemptOfEachAddressInEveryLongestPause) {
  constexpr size_t kAddresses = 3;
  constexpr Duration kWeek = hours(7 * 24);
  constexpr DialLimits limits;
  for (const Duration answers_after : {Duration(0), Duration(seconds(20))}) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<double> chance(0.0, 1.0);
    DialSchedule schedule(kAddresses, limits, now_);
    std::array<int64_t, kAddresses> attempts{};
    Duration shortest = limits.max_backoff;
    Duration longest{};
    for (TimePoint now = now_; now < now_ + kWeek;) {
      const auto attempt = schedule.next();
      ++attempts.at(attempt.address);
      now = attempt.at + answers_after;
      schedule.OnFailed(now, chance(random));
      const Duration pause = schedule.next().at - now;
      if (schedule.next().address != 0) {
        ASSERT_EQ(pause, Duration(0)) << "no pause within a round";
      } else {
        ASSERT_LE(pause, limits.max_backoff);
        ASSERT_GE(pause, limits.initial_backoff / 2);
        // The first pauses are the short ones.
        if (attempts[0] <= 10) continue;
        shortest = std::min(shortest, pause);
        longest = std::max(longest, pause);
      }
    }
    // By chance from half the longest to the longest, and so three quarters of it on average.
    EXPECT_GE(shortest, limits.max_backoff / 2);
    EXPECT_LT(shortest, limits.max_backoff * 0.51);
    EXPECT_GT(longest, limits.max_backoff * 0.99);
    const int64_t rounds = kWeek / (limits.max_backoff * 3 / 4 + kAddresses * answers_after);
    for (const int64_t count : attempts) {
      EXPECT_GT(count, rounds * 95 / 100);
      EXPECT_LT(count, rounds * 105 / 100);
    }
    // The link that comes then is as good as any.
    schedule.OnLinkEnded(End::kBroken, minutes(1), now_ + kWeek, kMiddle);
    EXPECT_EQ(schedule.next().at - (now_ + kWeek), milliseconds(750));
  }
}

// Whatever happens in whatever order, an address is not dialled twice without a pause between, unless it
// held for the stable period; and the address is one of those there are.
TEST_F(DialScheduleTest, NoOrderOfEventsMakesAHotLoop) {
  constexpr size_t kAddresses = 3;
  constexpr int kEvents = 5;
  constexpr int kLength = 7;
  int orders = 1;
  for (int i = 0; i < kLength; ++i) orders *= kEvents;
  for (int order = 0; order < orders; ++order) {
    DialSchedule schedule(kAddresses, kLimits, now_);
    std::array<int, kAddresses> tried_since_pause{};
    TimePoint now = now_;
    for (int step = 0, rest = order; step < kLength; ++step, rest /= kEvents) {
      const auto attempt = schedule.next();
      ASSERT_LT(attempt.address, kAddresses);
      ASSERT_GE(attempt.at, now);
      if (attempt.at - now >= kLimits.initial_backoff / 2) tried_since_pause = {};
      ASSERT_EQ(tried_since_pause.at(attempt.address)++, 0) << "order " << order << ", step " << step;
      now = attempt.at;
      const auto held = [&](End end, Duration uptime) {
        now += uptime;
        if (uptime >= kLimits.stable_after) tried_since_pause = {};
        schedule.OnLinkEnded(end, uptime, now, 0.0);
      };
      switch (rest % kEvents) {
        case 0:
          schedule.OnFailed(now, 0.0);
          break;
        case 1:
          held(End::kBroken, seconds(0));
          break;
        case 2:
          held(End::kUnavailable, seconds(0));
          break;
        case 3:
          held(End::kBroken, minutes(1));
          break;
        default:
          held(End::kUnavailable, minutes(1));
          break;
      }
    }
  }
}

}  // namespace
}  // namespace berth
