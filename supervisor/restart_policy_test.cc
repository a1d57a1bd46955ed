#include "supervisor/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using What = RestartDecision::What;

constexpr double kWhole = 1;  // of the backoff
constexpr Duration kBrief = milliseconds(10);

RestartLimits PolicyLimits() {
  RestartLimits limits;
  limits.initial_backoff = seconds(1);
  limits.max_backoff = seconds(10);
  limits.burst = 100;
  limits.window = minutes(10);
  limits.stable_after = minutes(1);
  return limits;
}

TEST(RestartPolicyTest, FirstRestartIsImmediate) {
  RestartPolicy policy(PolicyLimits());
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).what, What::kNow);
}

TEST(RestartPolicyTest, BackoffDoublesUpToItsLimit) {
  RestartPolicy policy(PolicyLimits());
  [[maybe_unused]] const auto first = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole);
  for (const int expected : {1, 2, 4, 8, 10, 10}) {
    const RestartDecision decision = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole);
    EXPECT_EQ(decision.what, What::kLater);
    EXPECT_EQ(decision.delay, seconds(expected));
  }
}

TEST(RestartPolicyTest, JitterIsFromHalfToTheWholeAndNeverAboveTheLimit) {
  for (const auto& [random, expected] : std::map<double, Duration>{
           {0.0, milliseconds(500)}, {0.5, milliseconds(750)}, {1.0, milliseconds(1000)}}) {
    RestartPolicy policy(PolicyLimits());
    [[maybe_unused]] const auto first = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), random);
    const Duration delay = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), random).delay;
    EXPECT_NEAR(std::chrono::duration<double>(delay).count(), std::chrono::duration<double>(expected).count(),
                1e-6);
  }
  RestartPolicy policy(PolicyLimits());
  Duration delay{};
  for (int i = 0; i < 10; ++i) delay = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).delay;
  EXPECT_EQ(delay, seconds(10));
}

TEST(RestartPolicyTest, StablePeriodMakesTheNextRestartImmediate) {
  RestartPolicy policy(PolicyLimits());
  for (int i = 0; i < 4; ++i) {
    [[maybe_unused]] const auto each = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole);
  }
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, minutes(1), TimePoint(), kWhole).what, What::kNow);
  // And the backoff begins again.
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).delay, seconds(1));
}

TEST(RestartPolicyTest, AlmostStableIsNotStable) {
  RestartPolicy policy(PolicyLimits());
  [[maybe_unused]] const auto first = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, minutes(1) - milliseconds(1), TimePoint(), kWhole).what,
            What::kLater);
}

TEST(RestartPolicyTest, FailedLaunchNeverRestartsAtOnce) {
  RestartPolicy policy(PolicyLimits());
  for (const int expected : {1, 1, 2, 4}) {
    const RestartDecision decision = policy.OnEnd(EndCause::kLaunchFailed, {}, TimePoint(), kWhole);
    EXPECT_EQ(decision.what, What::kLater);
    EXPECT_EQ(decision.delay, seconds(expected));
  }
}

TEST(RestartPolicyTest, GivesUpAfterBurst) {
  RestartLimits limits = PolicyLimits();
  limits.burst = 3;
  RestartPolicy policy(limits);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).what, What::kNow);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).what, What::kLater);
  const RestartDecision decision = policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole);
  EXPECT_EQ(decision.what, What::kGiveUp);
  EXPECT_THAT(decision.why, HasSubstr("3 times within 10m"));
}

TEST(RestartPolicyTest, EndsOutsideTheWindowDoNotCount) {
  RestartLimits limits = PolicyLimits();
  limits.burst = 2;
  RestartPolicy policy(limits);
  TimePoint now;
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(policy.OnEnd(EndCause::kFailure, kBrief, now, kWhole).what, What::kGiveUp) << i;
    now += limits.window + milliseconds(1);
  }
  // At the window's very edge it still counts.
  now -= milliseconds(1);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, now, kWhole).what, What::kGiveUp);
}

TEST(RestartPolicyTest, BurstCountsStableRunsToo) {
  RestartLimits limits = PolicyLimits();
  limits.burst = 3;
  RestartPolicy policy(limits);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, minutes(2), TimePoint(minutes(2)), kWhole).what, What::kNow);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, minutes(2), TimePoint(minutes(4)), kWhole).what, What::kNow);
  EXPECT_EQ(policy.OnEnd(EndCause::kFailure, minutes(2), TimePoint(minutes(6)), kWhole).what, What::kGiveUp);
}

TEST(RestartPolicyTest, ResetForgetsEverything) {
  RestartLimits limits = PolicyLimits();
  limits.burst = 2;
  RestartPolicy policy(limits);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(policy.OnEnd(EndCause::kFailure, kBrief, TimePoint(), kWhole).what, What::kNow);
    policy.Reset();
  }
}

TEST(RestartPolicyTest, ModesDecideByCause) {
  struct Row {
    RestartMode mode;
    EndCause cause;
    What what;
  };
  for (const Row& row : {
           Row{RestartMode::kAlways, EndCause::kClean, What::kNow},
           Row{RestartMode::kAlways, EndCause::kFailure, What::kNow},
           Row{RestartMode::kAlways, EndCause::kLaunchFailed, What::kLater},
           Row{RestartMode::kOnFailure, EndCause::kClean, What::kStayDown},
           Row{RestartMode::kOnFailure, EndCause::kFailure, What::kNow},
           Row{RestartMode::kOnFailure, EndCause::kLaunchFailed, What::kLater},
           Row{RestartMode::kNever, EndCause::kClean, What::kStayDown},
           Row{RestartMode::kNever, EndCause::kFailure, What::kGiveUp},
           Row{RestartMode::kNever, EndCause::kLaunchFailed, What::kGiveUp},
       }) {
    RestartLimits limits = PolicyLimits();
    limits.mode = row.mode;
    RestartPolicy policy(limits);
    EXPECT_EQ(policy.OnEnd(row.cause, kBrief, TimePoint(), kWhole).what, row.what)
        << static_cast<int>(row.mode) << " " << static_cast<int>(row.cause);
  }
}

}  // namespace
}  // namespace berth
