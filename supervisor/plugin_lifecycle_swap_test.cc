// Swaps, as PluginLifecycle decides them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "supervisor/plugin_lifecycle.h"

namespace berth {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Type = LifecycleEvent::Type;
using enum LifecycleAction;

class PluginLifecycleSwapTest : public ::testing::Test {
 protected:
  std::vector<LifecycleAction> On(Type type, const std::string& text = "") {
    LifecycleEvent event;
    event.type = type;
    event.text = text;
    event.failures = 100;
    event.busy_until = busy_until_;
    return machine_.Handle(event, now_);
  }
  void Serve() {
    ASSERT_THAT(On(Type::kLaunched), IsEmpty());
    ASSERT_THAT(On(Type::kSocketAnswered), ElementsAre(kAnnounce));
    ASSERT_THAT(On(Type::kProbeOk), IsEmpty());
    ASSERT_EQ(machine_.state(), PluginState::kReady);
  }
  void BecomeReady() {
    ASSERT_THAT(On(Type::kStartRequested), ElementsAre(kLaunch));
    Serve();
    ASSERT_THAT(On(Type::kAccepted), IsEmpty());
  }
  void BeOnTrial() {
    BecomeReady();
    ASSERT_THAT(On(Type::kSwapRequested), ElementsAre(kRetire, kTerminate));
    ASSERT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kTry, kLaunch));
  }

  TimePoint now_ = TimePoint(std::chrono::hours(1));
  std::optional<TimePoint> busy_until_;
  PluginLifecycle machine_{LifecycleLimits()};
};

TEST_F(PluginLifecycleSwapTest, WaitsForOperationsThenEndsTheOldOneAndTriesTheNewOne) {
  BecomeReady();
  busy_until_ = now_ + seconds(60);
  EXPECT_THAT(On(Type::kSwapRequested), IsEmpty());
  EXPECT_TRUE(machine_.paused());
  EXPECT_FALSE(machine_.draining()) << "callers queue, and are not refused";
  busy_until_.reset();
  EXPECT_THAT(On(Type::kIdle), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kTry, kLaunch));
  Serve();
  EXPECT_TRUE(machine_.paused()) << "it is not compared yet";
  EXPECT_THAT(On(Type::kAccepted), ElementsAre(kAdopt));
  EXPECT_FALSE(machine_.paused());
  EXPECT_FALSE(machine_.swapping());
}

TEST_F(PluginLifecycleSwapTest, WhateverTheNewOneFailsByTheOldOneComesBack) {
  BeOnTrial();
  Serve();
  EXPECT_THAT(On(Type::kRefused, "its name is b"), ElementsAre(kRevert, kRetire, kTerminate));
  EXPECT_EQ(machine_.swap_failure(), "its name is b");
  EXPECT_TRUE(machine_.paused());
  EXPECT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kLaunch));
  Serve();
  EXPECT_THAT(On(Type::kAccepted), IsEmpty());
  EXPECT_FALSE(machine_.paused());
}

TEST_F(PluginLifecycleSwapTest, ANewOneThatEndsOrIsNotLaunchedIsReplacedByTheOldOneAtOnce) {
  BeOnTrial();
  EXPECT_THAT(On(Type::kLaunchFailed, "no such file"), ElementsAre(kRevert, kLaunch));
  EXPECT_THAT(machine_.reason(), HasSubstr("no such file"));
  Serve();
  ASSERT_THAT(On(Type::kSwapRequested), ElementsAre(kRetire, kTerminate));
  ASSERT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kTry, kLaunch));
  ASSERT_THAT(On(Type::kLaunched), IsEmpty());
  EXPECT_THAT(On(Type::kExited, "exit code 3"), ElementsAre(kRevert, kLaunch));
}

TEST_F(PluginLifecycleSwapTest, AStartRequestLeavesItAloneInEveryPhase) {
  BecomeReady();
  busy_until_ = now_ + seconds(60);
  EXPECT_THAT(On(Type::kSwapRequested), IsEmpty());
  EXPECT_THAT(On(Type::kStartRequested), IsEmpty());
  busy_until_.reset();
  EXPECT_THAT(On(Type::kIdle), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Type::kStartRequested), IsEmpty());
  EXPECT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kTry, kLaunch));
  EXPECT_THAT(On(Type::kStartRequested), IsEmpty());
  Serve();
  EXPECT_THAT(On(Type::kStartRequested), IsEmpty());
  EXPECT_THAT(On(Type::kAccepted), ElementsAre(kAdopt));
}

TEST_F(PluginLifecycleSwapTest, ARestartRequestGivesItUp) {
  BecomeReady();
  ASSERT_THAT(On(Type::kSwapRequested), ElementsAre(kRetire, kTerminate));
  EXPECT_THAT(On(Type::kRestartRequested), ElementsAre(kRevert));
  EXPECT_THAT(On(Type::kExited, "signal 15"), ElementsAre(kLaunch));
}

}  // namespace
}  // namespace berth
