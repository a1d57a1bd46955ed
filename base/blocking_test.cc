#include "base/blocking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// A call that blocks until it is released.
struct Hanging {
  std::promise<void> release;
  std::shared_future<void> released{release.get_future()};
  std::promise<void> begun;
};

Awaitable<absl::Status> Hang(std::shared_ptr<Hanging> hanging, TimePoint deadline) {
  auto body = [hanging] {
    hanging->begun.set_value();
    hanging->released.wait();
    return absl::OkStatus();
  };
  co_return co_await RunBlocking("open /dead/file", std::move(body), deadline);
}

Awaitable<void> HangFor(std::shared_ptr<Hanging> hanging, TimePoint deadline, absl::Status* result) {
  *result = co_await Hang(std::move(hanging), deadline);
}

Awaitable<absl::StatusOr<int>> Compute(absl::StatusOr<int> result) {
  auto body = [result] { return result; };
  co_return co_await RunBlocking("compute", std::move(body), Clock::now() + seconds(10));
}

TEST(RunBlockingTest, RunsElsewhereAndReturnsWhatTheCallReturns) {
  asio::io_context loop;
  auto where = [](std::thread::id* ran) -> Awaitable<absl::StatusOr<std::unique_ptr<int>>> {
    auto body = [ran] {
      *ran = std::this_thread::get_id();
      return std::make_unique<int>(42);
    };
    co_return co_await RunBlocking("make a number", std::move(body), Clock::now() + seconds(10));
  };
  std::thread::id ran;
  const absl::StatusOr<std::unique_ptr<int>> number = RunOn(loop, where(&ran));
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(**number, 42);
  EXPECT_NE(ran, std::this_thread::get_id());
  EXPECT_EQ(RunOn(loop, Compute(7)).value(), 7);
  EXPECT_EQ(RunOn(loop, Compute(absl::DataLossError("bad"))).status(), absl::DataLossError("bad"));
}

TEST(RunBlockingTest, LeavesAtItsDeadlineAndNamesWhatHangs) {
  asio::io_context loop;
  const auto hanging = std::make_shared<Hanging>();
  const absl::Status status = RunOn(loop, Hang(hanging, Clock::now() + milliseconds(50)));
  EXPECT_EQ(status, absl::DeadlineExceededError("open /dead/file: not done in time"));
  hanging->release.set_value();
}

TEST(RunBlockingTest, CancelledWaiterLeavesAtOnce) {
  asio::io_context loop;
  const auto hanging = std::make_shared<Hanging>();
  absl::Status result = absl::UnknownError("not touched");
  TaskScope scope(loop.get_executor(), "test");
  scope.Spawn("hang", HangFor(hanging, TimePoint::max(), &result));
  loop.run_one_for(seconds(10));
  hanging->begun.get_future().wait();
  const TimePoint before = Clock::now();
  RunOn(loop, scope.Join());
  EXPECT_LT(Clock::now() - before, seconds(5));
  EXPECT_EQ(result, absl::UnknownError("not touched"));
  hanging->release.set_value();
}

TEST(RunBlockingTest, HangingCallOutlivesItsLoop) {
  const auto hanging = std::make_shared<Hanging>();
  const std::weak_ptr<Hanging> watch = hanging;
  {
    asio::io_context loop;
    EXPECT_EQ(RunOn(loop, Hang(hanging, Clock::now() + milliseconds(50))).code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  hanging->release.set_value();
}

// In a process of its own: one that is forked lacks the threads of earlier tests, and seems to leak what they
// hold.
TEST(RunBlockingTest, ProcessExitsWhileACallHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        asio::io_context loop;
        const auto hanging = std::make_shared<Hanging>();
        const absl::Status status = RunOn(loop, Hang(hanging, Clock::now() + milliseconds(50)));
        exit(status.code() == absl::StatusCode::kDeadlineExceeded ? 3 : 4);
      },
      ::testing::ExitedWithCode(3), "");
}

// Eight at a time, and yet those that hang delay no other call: their threads are replaced.
TEST(RunBlockingTest, CallsThatHangAreBoundedAndHoldUpNobody) {
  asio::io_context loop;
  std::vector<std::shared_ptr<Hanging>> all;
  for (int i = 0; i < kBlockingLeftBehind; ++i) {
    all.push_back(std::make_shared<Hanging>());
    TaskScope scope(loop.get_executor(), "test");
    absl::Status result;
    scope.Spawn("hang", HangFor(all.back(), TimePoint::max(), &result));
    loop.restart();
    loop.run_one_for(seconds(10));
    all.back()->begun.get_future().wait();
    if (i + 1 < kBlockingLeftBehind) {
      EXPECT_EQ(RunOn(loop, Compute(i)).value(), i);
    }
    RunOn(loop, scope.Join());
  }
  const absl::Status refused = RunOn(loop, Compute(1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("compute: 32 earlier calls hang"));

  for (const auto& hanging : all) hanging->release.set_value();
  const TimePoint bound = Clock::now() + seconds(10);
  while (!RunOn(loop, Compute(1)).ok()) ASSERT_LT(Clock::now(), bound);
}

TEST(RunBlockingTest, MoreCallsThanThreadsQueue) {
  asio::io_context loop;
  TaskScope scope(loop.get_executor(), "test");
  int ended = 0;
  auto one = [](int* count) -> Awaitable<void> {
    const absl::StatusOr<int> result = co_await Compute(5);
    EXPECT_TRUE(result.ok()) << result.status();
    ++*count;
  };
  for (int i = 0; i < 200; ++i) scope.Spawn("compute", one(&ended));
  RunOn(loop, scope.WaitEmpty());
  EXPECT_EQ(ended, 200);
}

}  // namespace
}  // namespace berth
