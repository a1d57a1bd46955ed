#include "base/event_log.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "base/testing/run_on.h"

namespace berth {
namespace {

class EventLogTest : public testing::Test {
 protected:
  void Append(EventLog& log, const std::string& type) { log.Append({.type = type, .message = "m"}); }

  asio::io_context loop_;
};

TEST_F(EventLogTest, NumbersFromWhereItWasTold) {
  EventLog log(loop_.get_executor(), 10, 1000);
  Append(log, "a");
  Append(log, "b");
  const auto batch = log.After(0, 10);
  ASSERT_EQ(batch.events.size(), 2U);
  EXPECT_EQ(batch.events[0].sequence, 1000U);
  EXPECT_EQ(batch.events[1].type, "b");
  EXPECT_EQ(log.next_sequence(), 1002U);
}

TEST_F(EventLogTest, ResumesAfterANumberWithoutLossOrRepeat) {
  EventLog log(loop_.get_executor(), 10, 1);
  for (int i = 0; i < 5; ++i) Append(log, std::to_string(i));
  const auto batch = log.After(2, 2);
  ASSERT_EQ(batch.events.size(), 2U);
  EXPECT_EQ(batch.events[0].sequence, 3U);
  EXPECT_EQ(batch.missed, 0U);
  EXPECT_TRUE(log.After(5, 10).events.empty());
}

TEST_F(EventLogTest, TellsHowManyAReaderMissed) {
  EventLog log(loop_.get_executor(), 3, 1);
  for (int i = 0; i < 10; ++i) Append(log, std::to_string(i));
  const auto batch = log.After(4, 100);
  EXPECT_EQ(batch.missed, 3U);  // 5, 6 and 7; 8 to 10 are kept.
  ASSERT_EQ(batch.events.size(), 3U);
  EXPECT_EQ(batch.events[0].sequence, 8U);
}

TEST_F(EventLogTest, ANumberFromTheFutureYieldsNothing) {
  EventLog log(loop_.get_executor(), 3, 1);
  Append(log, "a");
  EXPECT_TRUE(log.After(UINT64_MAX, 10).events.empty());
  EXPECT_TRUE(log.After(77, 10).events.empty());
}

TEST_F(EventLogTest, GoesOnAfterAHistoryWithGaps) {
  EventLog log(loop_.get_executor(), 3);
  std::vector<Event> history;
  for (const uint64_t number : {3, 4, 7, 8}) {
    history.push_back({.sequence = number, .time = WallTime(std::chrono::seconds(number)), .type = "old"});
  }
  std::vector<uint64_t> numbers;
  log.BeginAt(20, history, [&](uint64_t number) { numbers.push_back(number); });
  EXPECT_EQ(log.After(0, 10).events.front().sequence, 4U) << "more than it keeps";
  EXPECT_EQ(log.After(4, 10).events.front().sequence, 7U);
  EXPECT_EQ(log.After(5, 10).events.front().sequence, 7U);
  EXPECT_EQ(log.After(5, 10).missed, 0U);
  EXPECT_TRUE(log.After(8, 10).events.empty());
  EXPECT_FALSE(RunOn(loop_, log.WaitAfter(8, Clock::now())));
  EXPECT_EQ(log.Before(WallTime(std::chrono::seconds(5))), 6U);
  EXPECT_EQ(log.Before(WallTime(std::chrono::seconds(9))), 19U);
  Append(log, "new");
  EXPECT_EQ(log.After(8, 10).events.front().sequence, 20U);
  EXPECT_EQ(numbers, std::vector<uint64_t>{20});
}

TEST_F(EventLogTest, WaitersWakeWithTheNextEvent) {
  EventLog log(loop_.get_executor(), 3, 1);
  const auto deadline = Clock::now() + std::chrono::milliseconds(1);
  EXPECT_FALSE(RunOn(loop_, log.WaitAfter(0, deadline)));
  Append(log, "a");
  EXPECT_TRUE(RunOn(loop_, log.WaitAfter(0, Clock::now())));
  EXPECT_FALSE(RunOn(loop_, log.WaitAfter(1, Clock::now())));
}

}  // namespace
}  // namespace berth
