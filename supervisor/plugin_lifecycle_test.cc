#include "supervisor/plugin_lifecycle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Type = LifecycleEvent::Type;
using enum LifecycleAction;

const TimePoint kStart = TimePoint(std::chrono::hours(1));

LifecycleLimits TestLimits() {
  LifecycleLimits limits;
  limits.start_timeout = seconds(30);
  limits.stop_timeout = seconds(10);
  limits.health_failures = 3;
  limits.restart.initial_backoff = seconds(1);
  limits.restart.burst = 5;
  return limits;
}

LifecycleEvent EventOf(Type type) {
  LifecycleEvent event;
  event.type = type;
  return event;
}
LifecycleEvent Exited(bool clean = false) {
  LifecycleEvent event = EventOf(Type::kExited);
  event.text = clean ? "exit code 0" : "exit code 3";
  event.clean = clean;
  return event;
}
LifecycleEvent ProbeFailed(int failures) {
  LifecycleEvent event = EventOf(Type::kProbeFailed);
  event.text = "not ready";
  event.failures = failures;
  return event;
}
LifecycleEvent NotReady(int failures) {
  LifecycleEvent event = ProbeFailed(failures);
  event.type = Type::kProbeNotReady;
  return event;
}
LifecycleEvent LaunchFailed() {
  LifecycleEvent event = EventOf(Type::kLaunchFailed);
  event.text = "execute /x: No such file or directory";
  return event;
}

class PluginLifecycleTest : public ::testing::Test {
 protected:
  std::vector<LifecycleAction> On(const LifecycleEvent& event) { return machine_.Handle(event, now_); }
  std::vector<LifecycleAction> On(Type type) { return On(EventOf(type)); }
  std::vector<LifecycleAction> OnTimerAt(Duration later) {
    now_ += later;
    return On(Type::kTimer);
  }
  void Launch() {
    ASSERT_THAT(On(Type::kStartRequested), ElementsAre(kLaunch));
    ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  }
  void BecomeReady() {
    Launch();
    ASSERT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
    ASSERT_THAT(On(Type::kProbeOk), IsEmpty());
    ASSERT_EQ(machine_.state(), PluginState::kReady);
  }

  TimePoint now_ = kStart;
  PluginLifecycle machine_{TestLimits()};
};

TEST_F(PluginLifecycleTest, StartsLaunchesAnnouncesAndIsReady) {
  EXPECT_EQ(machine_.state(), PluginState::kStopped);
  EXPECT_THAT(On(Type::kStartRequested), ElementsAre(kLaunch));
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_FALSE(machine_.alive());
  EXPECT_THAT(On(Type::kLaunched), IsEmpty());
  EXPECT_TRUE(machine_.alive());
  EXPECT_EQ(machine_.wake_at(), now_ + seconds(30));
  EXPECT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_EQ(machine_.wake_at(), std::nullopt) << "the start timeout is over";
  EXPECT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kReady);
  EXPECT_EQ(machine_.reason(), "");
}

TEST_F(PluginLifecycleTest, NotReadyIsNoCrash) {
  Launch();
  ASSERT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
  for (int failures = 1; failures < 1000; ++failures) {
    ASSERT_THAT(On(NotReady(failures)), IsEmpty());
    ASSERT_THAT(OnTimerAt(minutes(1)), IsEmpty());
  }
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_EQ(machine_.reason(), "Probe: not ready");
  EXPECT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kReady);
}

TEST_F(PluginLifecycleTest, SeveralFailedProbesMakeItUnhealthyAndOneGoodOneWell) {
  BecomeReady();
  EXPECT_THAT(On(ProbeFailed(2)), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kReady);
  EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kUnhealthy);
  EXPECT_EQ(machine_.reason(), "Probe: not ready");
  EXPECT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kReady);
  EXPECT_EQ(machine_.reason(), "");
}

TEST_F(PluginLifecycleTest, FirstCrashRestartsAtOnceTheSecondBacksOff) {
  BecomeReady();
  EXPECT_THAT(On(Exited()), ElementsAre(kRetire, kLaunch));
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_EQ(machine_.restarts(), 1);
  EXPECT_THAT(On(Type::kLaunched), IsEmpty());
  EXPECT_THAT(On(Exited()), IsEmpty()) << "it was not announced, so its end is not";
  EXPECT_EQ(machine_.state(), PluginState::kBackingOff);
  EXPECT_EQ(machine_.reason(), "exit code 3");
  EXPECT_EQ(machine_.wake_at(), now_ + milliseconds(750));
  EXPECT_THAT(OnTimerAt(milliseconds(749)), IsEmpty());
  EXPECT_THAT(OnTimerAt(milliseconds(1)), ElementsAre(kLaunch));
  EXPECT_EQ(machine_.restarts(), 2);
}

TEST_F(PluginLifecycleTest, GivesUpWithTheReasonAndStartsAnewByRequest) {
  Launch();
  for (int i = 0; i < 4; ++i) {
    [[maybe_unused]] const auto ended = On(Exited());
    if (machine_.state() == PluginState::kBackingOff) {
      ASSERT_THAT(OnTimerAt(minutes(1)), ElementsAre(kLaunch));
    }
    ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  }
  EXPECT_THAT(On(Exited()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kFailed);
  EXPECT_EQ(machine_.reason(), "not restarted, as it ended 5 times within 30m; last: exit code 3");
  EXPECT_EQ(machine_.wake_at(), std::nullopt);
  EXPECT_THAT(On(Type::kStartRequested), ElementsAre(kLaunch));
  EXPECT_EQ(machine_.restarts(), 0);
  EXPECT_THAT(On(Type::kLaunched), IsEmpty());
  EXPECT_THAT(On(Exited()), ElementsAre(kLaunch)) << "its budget is whole again";
}

TEST_F(PluginLifecycleTest, IllAgainAndAgainIsReplacedAndThenGivenUpUntilAPersonStartsIt) {
  LifecycleLimits limits = TestLimits();
  limits.replace = {.after = seconds(20), .burst = 2, .window = minutes(10)};
  machine_.SetLimits(limits);
  BecomeReady();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
    EXPECT_EQ(machine_.state(), PluginState::kUnhealthy);
    ASSERT_THAT(OnTimerAt(seconds(20)), ElementsAre(kRetire, kTerminate));
    EXPECT_TRUE(machine_.paused()) << "calls wait for the next one";
    ASSERT_THAT(On(Exited()), ElementsAre(kLaunch));
    ASSERT_THAT(On(Type::kLaunched), IsEmpty());
    ASSERT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
    ASSERT_THAT(On(Type::kProbeOk), IsEmpty());
  }
  EXPECT_EQ(machine_.restarts(), 2);
  EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
  EXPECT_THAT(OnTimerAt(seconds(20)), ElementsAre(kRetire, kTerminate));
  EXPECT_FALSE(machine_.paused()) << "no call waits for what does not come";
  EXPECT_THAT(On(Exited()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kFailed);
  EXPECT_EQ(machine_.reason(),
            "not restarted, as it was unhealthy again after it was replaced 2 times within 10m; last: Probe: "
            "not ready");
  EXPECT_EQ(machine_.wake_at(), std::nullopt);
  BecomeReady();
  EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
  EXPECT_THAT(OnTimerAt(seconds(20)), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Exited()), ElementsAre(kLaunch)) << "its budget is whole again";
}

TEST_F(PluginLifecycleTest, OneToBeGivenUpThatIsWellBeforeItsOperationsHaveEndedServesOn) {
  LifecycleLimits limits = TestLimits();
  limits.replace = {.after = seconds(20), .burst = 1, .window = minutes(10)};
  machine_.SetLimits(limits);
  BecomeReady();
  EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
  ASSERT_THAT(OnTimerAt(seconds(20)), ElementsAre(kRetire, kTerminate));
  ASSERT_THAT(On(Exited()), ElementsAre(kLaunch));
  ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  ASSERT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
  ASSERT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_THAT(On(ProbeFailed(3)), IsEmpty());
  now_ += seconds(20);
  LifecycleEvent timer = EventOf(Type::kTimer);
  timer.busy_until = now_ + minutes(1);
  EXPECT_THAT(On(timer), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kDraining);
  EXPECT_THAT(machine_.reason(), HasSubstr("waits for operations in flight"));
  EXPECT_TRUE(machine_.draining()) << "nothing new is begun with it";
  EXPECT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kReady);
  EXPECT_FALSE(machine_.draining());
}

TEST_F(PluginLifecycleTest, StopIsTermThenKill) {
  BecomeReady();
  EXPECT_THAT(On(Type::kStopRequested), ElementsAre(kRetire, kTerminate));
  EXPECT_EQ(machine_.state(), PluginState::kDraining);
  EXPECT_EQ(machine_.wake_at(), now_ + seconds(10));
  EXPECT_THAT(OnTimerAt(seconds(9)), IsEmpty());
  EXPECT_THAT(OnTimerAt(seconds(1)), ElementsAre(kKill));
  EXPECT_EQ(machine_.state(), PluginState::kDraining);
  EXPECT_THAT(machine_.reason(), HasSubstr("killed"));
  EXPECT_THAT(OnTimerAt(minutes(10)), IsEmpty()) << "killed once is enough";
  EXPECT_THAT(On(Exited()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kStopped);
  EXPECT_FALSE(machine_.alive());
}

TEST_F(PluginLifecycleTest, RestartLaunchesOnceTheOldOneIsGone) {
  BecomeReady();
  EXPECT_THAT(On(Type::kRestartRequested), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Exited(true)), ElementsAre(kLaunch));
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_EQ(machine_.restarts(), 0);
}

TEST_F(PluginLifecycleTest, LastRequestWhileDrainingCounts) {
  BecomeReady();
  ASSERT_THAT(On(Type::kStopRequested), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Type::kStartRequested), IsEmpty());
  EXPECT_THAT(On(Type::kStopRequested), IsEmpty());
  EXPECT_THAT(On(Type::kRestartRequested), IsEmpty());
  EXPECT_THAT(On(Exited()), ElementsAre(kLaunch));

  ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  ASSERT_THAT(On(Type::kRestartRequested), ElementsAre(kTerminate));
  EXPECT_THAT(On(Type::kStopRequested), IsEmpty());
  EXPECT_THAT(On(Exited()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kStopped);
}

TEST_F(PluginLifecycleTest, StartThatTakesTooLongIsEndedAndCountsAsCrash) {
  Launch();
  EXPECT_THAT(OnTimerAt(seconds(30)), ElementsAre(kTerminate));
  EXPECT_EQ(machine_.state(), PluginState::kDraining);
  EXPECT_EQ(machine_.reason(), "its socket did not answer within 30s");
  EXPECT_THAT(OnTimerAt(seconds(10)), ElementsAre(kKill));
  EXPECT_THAT(On(Exited()), ElementsAre(kLaunch));
  ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  ASSERT_THAT(OnTimerAt(seconds(30)), ElementsAre(kTerminate));
  EXPECT_THAT(On(Exited()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kBackingOff);
  EXPECT_EQ(machine_.reason(), "its socket did not answer within 30s");
}

TEST_F(PluginLifecycleTest, FailedLaunchBacksOffAFinalOneFails) {
  ASSERT_THAT(On(Type::kStartRequested), ElementsAre(kLaunch));
  EXPECT_THAT(On(LaunchFailed()), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kBackingOff);
  EXPECT_THAT(machine_.reason(), HasSubstr("No such file"));
  ASSERT_THAT(OnTimerAt(seconds(1)), ElementsAre(kLaunch));
  LifecycleEvent final = LaunchFailed();
  final.final = true;
  EXPECT_THAT(On(final), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kFailed);
  EXPECT_THAT(machine_.reason(), HasSubstr("No such file"));
}

TEST_F(PluginLifecycleTest, CleanEndStaysDownWhereTheFileSaysSo) {
  LifecycleLimits limits = TestLimits();
  limits.restart.mode = RestartMode::kOnFailure;
  machine_.SetLimits(limits);
  BecomeReady();
  EXPECT_THAT(On(Exited(true)), ElementsAre(kRetire));
  EXPECT_EQ(machine_.state(), PluginState::kStopped);
  EXPECT_EQ(machine_.reason(), "exit code 0; a plugin has to stay in the foreground, and it ended by itself");
}

TEST_F(PluginLifecycleTest, TakenBackPluginIsNotLaunchedAndItsUptimeCounts) {
  LifecycleEvent taken = EventOf(Type::kTakenBack);
  taken.uptime = minutes(5);
  EXPECT_THAT(On(taken), IsEmpty());
  EXPECT_EQ(machine_.state(), PluginState::kStarting);
  EXPECT_TRUE(machine_.alive());
  EXPECT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
  EXPECT_THAT(On(Type::kProbeOk), IsEmpty());
  EXPECT_EQ(machine_.restarts(), 0);
  EXPECT_THAT(On(Exited()), ElementsAre(kRetire, kLaunch));
}

// Every event in every state: which state follows, and what is done. An event that is not named here for a
// state changes nothing in it.
TEST(PluginLifecycleTableTest, EveryEventInEveryState) {
  using Steps = std::function<void(PluginLifecycle&)>;
  const auto feed = [](PluginLifecycle& machine, const LifecycleEvent& event) {
    [[maybe_unused]] const auto actions = machine.Handle(event, kStart);
  };
  const Steps launch = [&](PluginLifecycle& m) { feed(m, EventOf(Type::kStartRequested)); };
  const Steps launched = [&](PluginLifecycle& m) { launch(m), feed(m, EventOf(Type::kLaunched)); };
  const Steps announced = [&](PluginLifecycle& m) { launched(m), feed(m, EventOf(Type::kSocketAnswered)); };
  const Steps ready = [&](PluginLifecycle& m) { announced(m), feed(m, EventOf(Type::kProbeOk)); };
  const std::map<std::string, Steps> states = {
      {"stopped", [](PluginLifecycle&) {}},
      {"launching", launch},
      {"launched", launched},
      {"announced", announced},
      {"ready", ready},
      {"unhealthy", [&](PluginLifecycle& m) { ready(m), feed(m, ProbeFailed(3)); }},
      {"backing off", [&](PluginLifecycle& m) { launch(m), feed(m, LaunchFailed()); }},
      {"stopping", [&](PluginLifecycle& m) { ready(m), feed(m, EventOf(Type::kStopRequested)); }},
      {"restarting", [&](PluginLifecycle& m) { ready(m), feed(m, EventOf(Type::kRestartRequested)); }},
      {"failed",
       [&](PluginLifecycle& m) {
         launch(m);
         LifecycleEvent final = LaunchFailed();
         final.final = true;
         feed(m, final);
       }},
  };
  LifecycleEvent final_failure = LaunchFailed();
  final_failure.final = true;
  const std::map<std::string, LifecycleEvent> events = {
      {"start", EventOf(Type::kStartRequested)},
      {"stop", EventOf(Type::kStopRequested)},
      {"restart", EventOf(Type::kRestartRequested)},
      {"taken back", EventOf(Type::kTakenBack)},
      {"launched", EventOf(Type::kLaunched)},
      {"launch failed", LaunchFailed()},
      {"launch failed for good", final_failure},
      {"socket answered", EventOf(Type::kSocketAnswered)},
      {"probe ok", EventOf(Type::kProbeOk)},
      {"probe failed", ProbeFailed(1)},
      {"probes failed", ProbeFailed(3)},
      {"exited", Exited()},
      {"exited cleanly", Exited(true)},
      {"timer", EventOf(Type::kTimer)},
  };
  struct Outcome {
    PluginState state;
    std::vector<LifecycleAction> actions;
  };
  using S = PluginState;
  const std::map<std::pair<std::string, std::string>, Outcome> expected = {
      {{"stopped", "start"}, {S::kStarting, {kLaunch}}},
      {{"stopped", "restart"}, {S::kStarting, {kLaunch}}},
      {{"stopped", "taken back"}, {S::kStarting, {}}},

      {{"launching", "stop"}, {S::kStopped, {}}},
      {{"launching", "launch failed"}, {S::kBackingOff, {}}},
      {{"launching", "launch failed for good"}, {S::kFailed, {}}},

      {{"launched", "stop"}, {S::kDraining, {kTerminate}}},
      {{"launched", "restart"}, {S::kDraining, {kTerminate}}},
      {{"launched", "socket answered"}, {S::kStarting, {kAnnounce}}},
      {{"launched", "exited"}, {S::kStarting, {kLaunch}}},
      {{"launched", "exited cleanly"}, {S::kStarting, {kLaunch}}},
      {{"launched", "timer"}, {S::kDraining, {kTerminate}}},

      {{"announced", "stop"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"announced", "restart"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"announced", "probe ok"}, {S::kReady, {}}},
      {{"announced", "exited"}, {S::kStarting, {kRetire, kLaunch}}},
      {{"announced", "exited cleanly"}, {S::kStarting, {kRetire, kLaunch}}},

      {{"ready", "stop"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"ready", "restart"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"ready", "probes failed"}, {S::kUnhealthy, {}}},
      {{"ready", "exited"}, {S::kStarting, {kRetire, kLaunch}}},
      {{"ready", "exited cleanly"}, {S::kStarting, {kRetire, kLaunch}}},

      {{"unhealthy", "stop"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"unhealthy", "restart"}, {S::kDraining, {kRetire, kTerminate}}},
      {{"unhealthy", "probe ok"}, {S::kReady, {}}},
      {{"unhealthy", "exited"}, {S::kStarting, {kRetire, kLaunch}}},
      {{"unhealthy", "exited cleanly"}, {S::kStarting, {kRetire, kLaunch}}},

      {{"backing off", "start"}, {S::kStarting, {kLaunch}}},
      {{"backing off", "restart"}, {S::kStarting, {kLaunch}}},
      {{"backing off", "stop"}, {S::kStopped, {}}},
      {{"backing off", "timer"}, {S::kStarting, {kLaunch}}},

      {{"stopping", "exited"}, {S::kStopped, {}}},
      {{"stopping", "exited cleanly"}, {S::kStopped, {}}},
      {{"stopping", "timer"}, {S::kDraining, {kKill}}},

      {{"restarting", "exited"}, {S::kStarting, {kLaunch}}},
      {{"restarting", "exited cleanly"}, {S::kStarting, {kLaunch}}},
      {{"restarting", "timer"}, {S::kDraining, {kKill}}},

      {{"failed", "start"}, {S::kStarting, {kLaunch}}},
      {{"failed", "restart"}, {S::kStarting, {kLaunch}}},
      {{"failed", "stop"}, {S::kStopped, {}}},
  };
  for (const auto& [row, outcome] : expected) {
    ASSERT_TRUE(states.contains(row.first)) << row.first;
    ASSERT_TRUE(events.contains(row.second)) << row.second;
  }
  for (const auto& [state_name, prepare] : states) {
    for (const auto& [event_name, event] : events) {
      SCOPED_TRACE(fmt::format("{} in {}", event_name, state_name));
      PluginLifecycle machine(TestLimits());
      prepare(machine);
      const S before = machine.state();
      const auto row = expected.find({state_name, event_name});
      const std::vector<LifecycleAction> actions = machine.Handle(event, kStart + minutes(1));
      EXPECT_EQ(PluginStateName(machine.state()),
                PluginStateName(row == expected.end() ? before : row->second.state));
      EXPECT_EQ(actions, row == expected.end() ? std::vector<LifecycleAction>{} : row->second.actions);
      // What is not alive has been retired and cannot be signalled.
      if (machine.state() == S::kStopped || machine.state() == S::kFailed ||
          machine.state() == S::kBackingOff) {
        EXPECT_FALSE(machine.alive());
      }
    }
  }
}

}  // namespace
}  // namespace berth
