#include "base/task_scope.h"

#include <gtest/gtest.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

Awaitable<void> SetAfterWait(Condition& condition, const bool& go, bool& done) {
  done = co_await condition.WaitUntil([&go] { return go; }, Clock::now() + hours(1));
}

Awaitable<void> SleepLong(bool& unwound) {
  struct Unwind {
    bool* flag;
    ~Unwind() { *flag = true; }
  } unwind{&unwound};
  co_await SleepUntil(Clock::now() + hours(1));
}

Awaitable<void> Throw() {
  co_await SleepUntil(Clock::now());
  throw std::runtime_error("a bug");
}

Awaitable<void> SleepLongTwice(bool& unwound) {
  using boost::asio::experimental::awaitable_operators::operator||;
  bool other = false;
  [[maybe_unused]] const auto first = co_await (SleepLong(unwound) || SleepLong(other));
}

Awaitable<void> JoinScope(TaskScope& scope) { co_await scope.Join(); }

class TaskScopeTest : public testing::Test {
 protected:
  asio::io_context loop_;
};

TEST_F(TaskScopeTest, ConditionWakesEveryWaiterWhoseTimeHasCome) {
  Condition condition(loop_.get_executor());
  TaskScope scope(loop_.get_executor(), "test");
  bool go = false;
  bool first = false;
  bool second = false;
  scope.Spawn("first", SetAfterWait(condition, go, first));
  scope.Spawn("second", SetAfterWait(condition, go, second));
  loop_.poll();
  condition.NotifyAll();  // Nothing has changed: no waiter may leave.
  loop_.poll();
  EXPECT_EQ(scope.size(), 2U);

  go = true;
  condition.NotifyAll();
  loop_.poll();
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_EQ(scope.size(), 0U);
}

TEST_F(TaskScopeTest, ConditionSaysFalseAtTheDeadline) {
  Condition condition(loop_.get_executor());
  EXPECT_FALSE(RunOn(loop_, condition.WaitUntil([] { return false; }, Clock::now() + milliseconds(1))));
}

TEST_F(TaskScopeTest, ConditionHoldsEvenIfTheDeadlineHasPassed) {
  Condition condition(loop_.get_executor());
  EXPECT_TRUE(RunOn(loop_, condition.WaitUntil([] { return true; }, Clock::now() - hours(1))));
}

TEST_F(TaskScopeTest, JoinCancelsAndWaitsForEveryTask) {
  TaskScope scope(loop_.get_executor(), "test");
  bool one = false;
  bool two = false;
  scope.Spawn("one", SleepLong(one));
  scope.Spawn("two", SleepLong(two));
  loop_.poll();
  RunOn(loop_, JoinScope(scope));
  EXPECT_TRUE(one);
  EXPECT_TRUE(two);
}

// What is cancelled while it waits for either of two ends with two exceptions.
TEST_F(TaskScopeTest, ACancellationOfTwoWaitsAtOnceIsNoBug) {
  TaskScope scope(loop_.get_executor(), "test");
  bool unwound = false;
  scope.Spawn("both", SleepLongTwice(unwound));
  loop_.poll();
  RunOn(loop_, JoinScope(scope));
  EXPECT_TRUE(unwound);
  EXPECT_EQ(scope.size(), 0U);
}

TEST_F(TaskScopeTest, ATaskSpawnedAfterCancelNeverRuns) {
  TaskScope scope(loop_.get_executor(), "test");
  scope.Cancel();
  bool unwound = false;
  scope.Spawn("late", SleepLong(unwound));
  loop_.poll();
  EXPECT_EQ(scope.size(), 0U);
  EXPECT_FALSE(unwound);
}

TEST_F(TaskScopeTest, ATaskThatThrowsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        asio::io_context loop;
        TaskScope scope(loop.get_executor(), "test");
        scope.Spawn("faulty", Throw());
        loop.run();
      },
      "");
}

}  // namespace
}  // namespace berth
