#include "fingerprint/probe_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

std::vector<int64_t> Delays(ProbeSchedule& schedule, const std::vector<bool>& outcomes) {
  std::vector<int64_t> delays;
  delays.reserve(outcomes.size());
  for (const bool ok : outcomes) {
    delays.push_back(std::chrono::duration_cast<milliseconds>(schedule.After(ok)).count());
  }
  return delays;
}

TEST(ProbeScheduleTest, LosesLittleOfAnyStart) {
  ProbeSchedule schedule(seconds(10));
  Duration waited{};
  int probes = 0;
  while (waited < std::chrono::minutes(1)) {
    const Duration delay = schedule.After(false);
    ++probes;
    EXPECT_GE(delay, milliseconds(5));
    EXPECT_LE(delay, std::max<Duration>(waited / 16, milliseconds(5)));
    EXPECT_LE(delay, seconds(1));
    if (waited < milliseconds(300)) EXPECT_LT(delay, milliseconds(20));
    waited += delay;
  }
  EXPECT_LT(probes, 200);
}

TEST(ProbeScheduleTest, ANewStartIsNotTakenForFailing) {
  ProbeSchedule schedule(seconds(10));
  EXPECT_THAT(Delays(schedule, {false, false, false}), ElementsAre(5, 5, 5));
}

TEST(ProbeScheduleTest, KeepsTheIntervalWhileWell) {
  ProbeSchedule schedule(seconds(10));
  EXPECT_THAT(Delays(schedule, {false, true, true}), ElementsAre(5, 10'000, 10'000));
}

TEST(ProbeScheduleTest, IsQuickerWhileFailingAndBackAtTheIntervalAfterwards) {
  ProbeSchedule schedule(seconds(2));
  EXPECT_THAT(Delays(schedule, {true, false, false, true, false}), ElementsAre(2000, 500, 500, 2000, 500));
}

TEST(ProbeScheduleTest, BoundsTheDelayWhileFailing) {
  ProbeSchedule rare(seconds(60));
  EXPECT_THAT(Delays(rare, {true, false}), ElementsAre(60'000, 1000));
  ProbeSchedule often(milliseconds(200));
  EXPECT_THAT(Delays(often, {true, false}), ElementsAre(200, 100));
}

TEST(ProbeScheduleTest, NeverWaitsLongerThanTheInterval) {
  ProbeSchedule schedule(milliseconds(3));
  EXPECT_THAT(Delays(schedule, {false, false, true, false}), ElementsAre(3, 3, 3, 3));
}

}  // namespace
}  // namespace berth
