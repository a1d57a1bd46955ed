#include "base/descriptor_wait.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "base/testing/run_on.h"

namespace berth {
namespace {

Awaitable<void> WaitReadable(asio::posix::stream_descriptor& descriptor, TimePoint deadline, bool* came) {
  *came = co_await WaitDescriptor(descriptor, asio::posix::stream_descriptor::wait_read, deadline);
}

class DescriptorWaitTest : public testing::Test {
 protected:
  DescriptorWaitTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    reader_.assign(ends[0]);
    writer_ = ends[1];
  }
  ~DescriptorWaitTest() override { close(writer_); }

  asio::io_context loop_{1};
  asio::posix::stream_descriptor reader_{loop_};
  int writer_ = -1;
  bool came_ = false;
};

TEST_F(DescriptorWaitTest, SaysWhichCameFirst) {
  RunOn(loop_, WaitReadable(reader_, Clock::now() + std::chrono::milliseconds(5), &came_));
  EXPECT_FALSE(came_);
  ASSERT_EQ(write(writer_, "x", 1), 1);
  RunOn(loop_, WaitReadable(reader_, Clock::now() + std::chrono::hours(1), &came_));
  EXPECT_TRUE(came_);
}

// Both of its waits end then: a scope takes that for a bug unless it is one cancellation.
TEST_F(DescriptorWaitTest, ACancelledWaitIsOneCancellation) {
  TaskScope scope(loop_.get_executor(), "test");
  scope.Spawn("wait", WaitReadable(reader_, Clock::now() + std::chrono::hours(1), &came_));
  loop_.poll();
  RunOn(loop_, scope.Join());
  EXPECT_FALSE(came_);
}

}  // namespace
}  // namespace berth
