#include "base/grpc_polling.h"

#include <grpc/support/time.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <thread>

#include "base/clock.h"

namespace berth {
namespace {

// How long gpr_sleep_until takes for `asked` on a thread of this name.
Duration SleepOn(const char* thread_name, std::chrono::milliseconds asked, gpr_clock_type clock) {
  Duration took{};
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), thread_name);
    const TimePoint start = Clock::now();
    gpr_sleep_until(gpr_time_add(gpr_now(clock), gpr_time_from_millis(asked.count(), GPR_TIMESPAN)));
    took = Clock::now() - start;
  });
  thread.join();
  return took;
}

TEST(GrpcPollingTest, LibrariesOfGrpcCallOurs) { EXPECT_TRUE(GrpcPollsWithoutPause()); }

TEST(GrpcPollingTest, CallbackThreadsDoNotSleep) {
  EXPECT_LT(SleepOn("nexting_thread", std::chrono::hours(1), GPR_CLOCK_REALTIME), std::chrono::minutes(1));
}

TEST(GrpcPollingTest, OtherThreadsSleepAsLongAsTheyAsk) {
  for (const gpr_clock_type clock : {GPR_CLOCK_REALTIME, GPR_CLOCK_MONOTONIC}) {
    EXPECT_GE(SleepOn("other", std::chrono::milliseconds(30), clock), std::chrono::milliseconds(29));
  }
}

}  // namespace
}  // namespace berth
