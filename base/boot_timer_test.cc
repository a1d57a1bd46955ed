#include "base/boot_timer.h"

#include <gtest/gtest.h>

#include "base/testing.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

Awaitable<void> WaitAndTell(BootTimer& timer, bool* ended) {
  co_await timer.Wait();
  *ended = true;
}

class BootTimerTest : public testing::Test {
 protected:
  ~BootTimerTest() override { RunOn(loop_, scope_.Join()); }

  void RunFor(Duration time) {
    loop_.restart();
    loop_.run_for(time);
  }

  asio::io_context loop_{1};
  TaskScope scope_{loop_.get_executor(), "test"};
  BootTimer timer_{loop_.get_executor()};
  bool ended_ = false;
};

TEST(BootClockTest, CountsSinceBootAndNeverBackwards) {
  timespec expected{};
  clock_gettime(CLOCK_BOOTTIME, &expected);
  const BootTime first = BootClock::now();
  EXPECT_GE(first.time_since_epoch(), std::chrono::seconds(expected.tv_sec));
  EXPECT_LT(first.time_since_epoch(), std::chrono::seconds(expected.tv_sec + 10));
  EXPECT_GE(BootClock::now(), first);
}

TEST_F(BootTimerTest, SleepsUntilItsTimeAndNoLonger) {
  const BootTime when = BootClock::now() + milliseconds(20);
  RunOn(loop_, SleepUntil(when));
  EXPECT_GE(BootClock::now(), when);
  EXPECT_LT(BootClock::now(), when + std::chrono::seconds(10));
}

TEST_F(BootTimerTest, WhatIsPastIsNotWaitedFor) {
  RunOn(loop_, SleepUntil(BootClock::now() - hours(1)));
  RunOn(loop_, SleepUntil(BootTime()));
  RunOn(loop_, SleepUntil(BootTime() - hours(1)));
}

TEST_F(BootTimerTest, OneThatWaitsGoesByTheTimeThatIsSetMeanwhile) {
  timer_.ExpireAt(BootClock::now() + hours(1));
  scope_.Spawn("wait", WaitAndTell(timer_, &ended_));
  loop_.poll();
  // Put off, it does not end at its first time.
  timer_.ExpireAt(BootClock::now() + milliseconds(5));
  timer_.ExpireAt(BootClock::now() + hours(2));
  RunFor(milliseconds(20));
  EXPECT_FALSE(ended_);
  timer_.ExpireAt(BootClock::now() + milliseconds(5));
  RunFor(std::chrono::seconds(10));
  EXPECT_TRUE(ended_);
}

TEST_F(BootTimerTest, NeverIsNeverUntilItIsSet) {
  scope_.Spawn("wait", WaitAndTell(timer_, &ended_));
  RunFor(milliseconds(5));
  EXPECT_FALSE(ended_);
  timer_.ExpireAt(BootClock::now());
  RunFor(std::chrono::seconds(10));
  EXPECT_TRUE(ended_);
}

// A scope takes anything but one cancellation for a bug.
TEST_F(BootTimerTest, ACancelledWaitEndsAtOnce) {
  timer_.ExpireAt(BootClock::now() + hours(1));
  scope_.Spawn("wait", WaitAndTell(timer_, &ended_));
  loop_.poll();
  RunOn(loop_, scope_.Join());
  EXPECT_FALSE(ended_);
}

}  // namespace
}  // namespace berth
