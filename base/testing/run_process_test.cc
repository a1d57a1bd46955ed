#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/process.h"
#include "base/testing/process_testing.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

TEST_F(ProcessTest, RunKeepsOutputAndErrorsApart) {
  const auto result = RunShell("cat; echo oops >&2; exit 4", "some input");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "some input");
  EXPECT_EQ(result->err, "oops\n");
  EXPECT_EQ(result->exit.code, 4);
}

TEST_F(ProcessTest, RunTakesMoreInputAndOutputThanAPipeHolds) {
  const std::string input(1'000'000, 'x');
  const auto result = RunShell("cat", input, 2'000'000);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, input);
}

TEST_F(ProcessTest, RunCutsOutputAtTheLimitAndReadsOn) {
  const auto result = RunShell("head -c 1000000 /dev/zero; exit 5", "", 100);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out.size(), 100U);
  EXPECT_EQ(result->exit.code, 5);
}

TEST_F(ProcessTest, RunIsNotHeldUpByAGrandchildWithThePipe) {
  const auto result = RunShell("setsid sleep 1000 & echo $!");
  ASSERT_TRUE(result.ok()) << result.status();
  const pid_t grandchild = atoi(result->out.c_str());
  ASSERT_GT(grandchild, 1);
  EXPECT_EQ(kill(grandchild, SIGKILL), 0);
}

TEST_F(ProcessTest, RunIsAbandonedAtItsDeadline) {
  const TimePoint before = Clock::now();
  const auto result =
      RunShell("trap '' TERM; echo begun; sleep 1000; sleep 1000", "", 100, milliseconds(100));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result.status().message()), StartsWith("run /bin/sh: "));
  EXPECT_LT(Clock::now() - before, seconds(10));
  // The reaper collects it: the destructor checks that nothing is left.
  while (reaper_.size() > 0) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
}

TEST_F(ProcessTest, RunReportsAFailedLaunch) {
  ProcessSpec spec;
  spec.executable = "/nonexistent/helper";
  const auto result = Run(RunProcess(reaper_, spec, "", 10, Clock::now() + seconds(10)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessTest, CancelledRunKillsWhatItRan) {
  auto run = [](TaskScope& reaper, ProcessSpec spec) -> Awaitable<void> {
    const auto result = co_await RunProcess(reaper, std::move(spec), "", 10, Clock::now() + seconds(100));
    ADD_FAILURE() << "it was not cancelled: " << result.status();
  };
  TaskScope scope(loop_.get_executor(), "caller");
  scope.Spawn("run", run(reaper_, Sleep()));
  loop_.restart();
  while (reaper_.size() < 3) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
  Run(scope.Join());
  loop_.restart();
  while (reaper_.size() > 0) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
}

}  // namespace
}  // namespace berth
