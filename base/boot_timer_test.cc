#include "base/boot_timer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

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

// --- On a machine that has slept ---------------------------------------------------------------------------
//
// A time namespace in which CLOCK_BOOTTIME is ahead looks like a machine that slept for so long, unlike
// CLOCK_MONOTONIC, which stood still. Such a namespace is entered by a child of the process that made it:
//
//   this test ── fork ──▶ makes the namespace ── fork, exec ──▶ this test again, in it

constexpr const char* kSlept = "BERTH_TEST_SLEPT_SECONDS";  // set: this is the inner one
constexpr int kSleptSeconds = 100'000;
constexpr int kNoNamespace = 77;  // exit status

// Of the first child, which may do nothing that another thread of its parent could have locked.
[[noreturn]] void RunInner(char* const* argv, char* const* envp, const std::string& offsets) {
  if (unshare(CLONE_NEWTIME) != 0) _exit(kNoNamespace);
  const int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, offsets.data(), offsets.size()) < 0) _exit(kNoNamespace);
  const pid_t inner = fork();
  if (inner == 0) {
    execve("/proc/self/exe", argv, envp);
    _exit(127);
  }
  int status = 0;
  if (inner < 0 || waitpid(inner, &status, 0) != inner) _exit(126);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 125);
}

TEST(BootTimerSleptTest, TheTimeThatTheMachineSleptCountsAndATimerEndsByIt) {
  const auto ahead = [] { return BootClock::now().time_since_epoch() - Clock::now().time_since_epoch(); };
  if (const char* slept = std::getenv(kSlept)) {
    EXPECT_GT(ahead(), seconds(std::atoi(slept) - 1)) << "the clocks are read one after the other";
    EXPECT_LT(ahead(), seconds(std::atoi(slept)) + hours(1));
    // By a clock that stood still this would be a day from now.
    asio::io_context loop{1};
    const TimePoint began = Clock::now();
    RunOn(loop, SleepUntil(BootClock::now() + milliseconds(50)), seconds(10));
    EXPECT_GE(Clock::now() - began, milliseconds(50));
    return;
  }
  const auto slept_before = std::chrono::duration_cast<seconds>(ahead()).count();
  const std::string offsets = "boottime " + std::to_string(kSleptSeconds) + " 0\n";
  std::string name = "boot-timer-test";
  std::string filter = "--gtest_filter=BootTimerSleptTest.*";
  std::string slept = std::string(kSlept) + "=" + std::to_string(slept_before + kSleptSeconds);
  const std::array<char*, 3> argv = {name.data(), filter.data(), nullptr};
  const std::array<char*, 2> envp = {slept.data(), nullptr};
  const pid_t outer = fork();
  ASSERT_GE(outer, 0);
  if (outer == 0) RunInner(argv.data(), envp.data(), offsets);
  int status = 0;
  ASSERT_EQ(waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoNamespace)
    GTEST_SKIP() << "no time namespace here: it takes root and a kernel with it";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace berth
