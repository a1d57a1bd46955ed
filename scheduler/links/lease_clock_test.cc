#include "scheduler/links/lease_clock.h"

#include <gtest/gtest.h>

namespace berth::scheduler {
namespace {

using std::chrono::seconds;

TEST(LeaseClockTest, EndsALittleLaterThanTheNodeThinks) {
  const BootTime start{};
  LeaseClock clock(start, seconds(0));
  EXPECT_EQ(clock.EndOf("a"), start);
  clock.Granted("a", start + seconds(10), seconds(100));
  EXPECT_EQ(clock.EndOf("a"), start + seconds(10) + seconds(101));
  EXPECT_EQ(clock.EndOf("b"), start) << "each by itself";
  // A shorter one that is granted later does not end the longer one.
  clock.Granted("a", start + seconds(20), seconds(1));
  EXPECT_EQ(clock.EndOf("a"), start + seconds(111));
}

TEST(LeaseClockTest, WhatTheSchedulerBeforeHasGrantedCountsFromTheStart) {
  const BootTime start = BootTime{} + seconds(1000);
  LeaseClock clock(start, seconds(200));
  EXPECT_EQ(clock.EndOf("a"), start + seconds(202));
  clock.Granted("a", start, seconds(30));
  EXPECT_EQ(clock.EndOf("a"), start + seconds(202));
}

}  // namespace
}  // namespace berth::scheduler
