#include "berthd/event_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EventHistoryTest : public ::testing::Test {
 protected:
  // One life of berthd.
  struct Life {
    explicit Life(EventHistoryTest& test)
        : events(test.loop_.get_executor(), 100'000),
          history(test.state_, test.runtime_, events),
          tasks(test.loop_.get_executor(), "life") {
      RunOn(test.loop_, history.Begin());
    }
    EventLog events;
    EventHistory history;
    TaskScope tasks;
  };

  EventHistoryTest() {
    EXPECT_TRUE(MakeDirectories(state_, 0711).ok());
    EXPECT_TRUE(MakeDirectories(runtime_, 0755).ok());
  }
  std::unique_ptr<Life> Begin() { return std::make_unique<Life>(*this); }
  // An orderly end.
  void End(std::unique_ptr<Life> life) { RunOn(loop_, life->history.End(Clock::now() + seconds(20))); }
  // Until the history has every event.
  void Write(Life& life) {
    life.tasks.Spawn("write", life.history.Write());
    const std::string last = std::to_string(life.events.next_sequence() - 1) + "\t";
    const TimePoint bound = Clock::now() + seconds(20);
    loop_.restart();
    while (ReadFile(state_ + "/events", 1 << 20).value_or("").find(last) == std::string::npos) {
      ASSERT_LT(Clock::now(), bound);
      loop_.run_one_for(milliseconds(10));
    }
    RunOn(loop_, life.tasks.Join());
  }
  void Reboot() { (void)unlink((runtime_ + "/event-number").c_str()); }
  static void Happen(Life& life, int count) {
    for (int i = 0; i < count; ++i) life.events.Append({.type = "t", .message = fmt::format("number {}", i)});
  }
  static std::vector<uint64_t> Numbers(const Life& life) {
    std::vector<uint64_t> numbers;
    for (const Event& event : life.events.After(0, 100'000).events) numbers.push_back(event.sequence);
    return numbers;
  }

  TempDir temp_;
  std::string state_ = temp_.Path("state");
  std::string runtime_ = temp_.Path("run");
  asio::io_context loop_{1};
};

TEST(EventLineTest, KeepsEveryByteAndTheExactTime) {
  Event event{.sequence = 18'000'000'000'000'000'000ULL,
              .time = WallTime(std::chrono::nanoseconds(1'790'000'000'123'456'789)),
              .type = "volume.published",
              .plugin_id = "nfs",
              .volume_id = std::string("a\0b\n\t\\\"\xff\x01 9", 12),
              .consumer = "",
              .message = "größer – it's\r\nall"};
  const std::string line = EventLine(event);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const std::optional<Event> read = ParseEventLine(line);
  ASSERT_TRUE(read.has_value()) << line;
  EXPECT_EQ(read->sequence, event.sequence);
  EXPECT_EQ(read->time, event.time);
  EXPECT_EQ(read->type, event.type);
  EXPECT_EQ(read->plugin_id, event.plugin_id);
  EXPECT_EQ(read->volume_id, event.volume_id);
  EXPECT_EQ(read->consumer, event.consumer);
  EXPECT_EQ(read->message, event.message);
}

TEST(EventLineTest, WhatIsNoLineIsNone) {
  const std::string line = EventLine({.sequence = 7, .type = "t", .message = "m"});
  for (size_t size = 0; size < line.size(); ++size) EXPECT_FALSE(ParseEventLine(line.substr(0, size)));
  for (const char* text : {"\n", "0\t1\tt\t\t\t\tm\n", "x\t1\tt\t\t\t\tm\n", "1\t1\tt\t\t\t\t\\x\n",
                           "1\t1\tt\t\t\tm\n", "1\t1\tt\t\t\t\tm\tmore\n", "-1\t1\tt\t\t\t\tm\n"}) {
    EXPECT_FALSE(ParseEventLine(text)) << text;
  }
}

TEST_F(EventHistoryTest, ARestartGoesOnWithoutAJumpAndKnowsWhatWasBefore) {
  auto life = Begin();
  Happen(*life, 3);
  const std::vector<Event> before = life->events.After(0, 10).events;
  End(std::move(life));
  life = Begin();
  Happen(*life, 1);
  const std::vector<Event> after = life->events.After(0, 10).events;
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(after[0].time, before[0].time);
  EXPECT_EQ(after[2].message, "number 2");
  struct stat info{};
  for (const std::string& path : {state_ + "/events", runtime_ + "/event-number"}) {
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 07777, 0600U) << path;
  }
}

TEST_F(EventHistoryTest, AnOrderlyRebootGoesOnWithoutAJump) {
  auto life = Begin();
  Happen(*life, 3);
  End(std::move(life));
  Reboot();
  life = Begin();
  Happen(*life, 1);
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 2, 3, 4));
}

TEST_F(EventHistoryTest, AKilledBerthdUsesNoNumberTwiceAndSaysWhatIsLost) {
  auto life = Begin();
  Happen(*life, 2);
  RunOn(loop_, life->history.End(Clock::now() + seconds(20)));
  Happen(*life, 3);  // seen, and not written
  life.reset();
  life = Begin();
  const std::vector<Event> events = life->events.After(0, 10).events;
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 2, 6));
  EXPECT_EQ(events.back().type, "node.events_lost");
  EXPECT_THAT(events.back().message, HasSubstr("events 3 to 5 are not kept: berthd was killed"));
}

TEST_F(EventHistoryTest, AfterAPowerCutNumbersGoOnAboveAllThatMayHaveBeenGivenOut) {
  auto life = Begin();
  Happen(*life, 2);
  Write(*life);
  Happen(*life, 3);
  life.reset();
  Reboot();
  life = Begin();
  const std::vector<Event> events = life->events.After(0, 10).events;
  ASSERT_THAT(Numbers(*life), ElementsAre(1, 2, Gt(1'000'000U)));
  EXPECT_THAT(events.back().message,
              HasSubstr(fmt::format("events 3 to {} are not kept", events.back().sequence - 1)));
  // And again, though nothing was written in between.
  const uint64_t before = events.back().sequence;
  life.reset();
  Reboot();
  while (WallClock::now() < WallTime(milliseconds(before + 1))) {
  }
  life = Begin();
  EXPECT_GT(Numbers(*life).back(), before);
}

TEST_F(EventHistoryTest, AnOrderlyEndCountsOnceOnly) {
  auto life = Begin();
  Happen(*life, 2);
  End(std::move(life));
  Reboot();
  life = Begin();
  Happen(*life, 3);
  life.reset();
  Reboot();
  life = Begin();
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 2, Gt(1'000'000U)));
}

TEST_F(EventHistoryTest, ANumberOfAnotherBootCountsForNothing) {
  auto life = Begin();
  Happen(*life, 2);
  End(std::move(life));
  ASSERT_TRUE(WriteFileSoon(runtime_ + "/event-number",
                            "00000000-0000-4000-8000-000000000000 00000000000000009999\n", 0600)
                  .ok());
  life = Begin();
  EXPECT_EQ(life->events.next_sequence(), 3U);
}

TEST_F(EventHistoryTest, AHistoryThatCannotBeReadTakesNoNumberBack) {
  auto life = Begin();
  Happen(*life, 5);
  End(std::move(life));
  Reboot();
  ASSERT_TRUE(WriteFileSoon(state_ + "/events", std::string(4096, '\0'), 0600).ok());
  life = Begin();
  EXPECT_GT(life->events.next_sequence(), 1'000'000U);
}

TEST_F(EventHistoryTest, AnOrderlyEndBehindALineThatCannotBeReadTakesNoNumberBack) {
  auto life = Begin();
  Happen(*life, 3);
  End(std::move(life));
  Reboot();
  std::string text = *ReadFile(state_ + "/events", 1 << 20);
  text[text.find("\n3\t") + 1] = 'x';  // the last event's number
  ASSERT_TRUE(WriteFileSoon(state_ + "/events", text, 0600).ok());
  EXPECT_GT(Begin()->events.next_sequence(), 1'000'000U);
}

TEST_F(EventHistoryTest, ATornLastLineIsIgnoredAndADamagedOneIsSkippedAndReported) {
  auto life = Begin();
  Happen(*life, 3);
  End(std::move(life));
  std::string text = *ReadFile(state_ + "/events", 1 << 20);
  const size_t second = text.find('\n') + 1;
  text[second] = '\0';
  text += EventLine({.sequence = 4, .type = "torn"}).substr(0, 12);
  ASSERT_TRUE(WriteFileSoon(state_ + "/events", text, 0600).ok());
  life = Begin();
  std::vector<Event> events = life->events.After(0, 10).events;
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 3, 4));
  EXPECT_EQ(events.back().type, "node.events_damaged");
  EXPECT_THAT(events.back().message, HasSubstr("events: 1 lines cannot be read"));
  End(std::move(life));
  life = Begin();
  EXPECT_THAT(Numbers(*life), ElementsAre(1, 3, 4, 5))
      << "the torn line has gone, and nothing was joined to it";
}

TEST_F(EventHistoryTest, WhatIsNoFileCostsTheHistoryAndNothingElse) {
  ASSERT_EQ(mkdir((state_ + "/events").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo((state_ + "/events.old").c_str(), 0600), 0);
  auto life = Begin();
  Happen(*life, 1);
  EXPECT_EQ(life->events.After(0, 10).events.front().type, "node.events_damaged");
  RunOn(loop_, life->history.End(Clock::now() + seconds(20)));
}

TEST_F(EventHistoryTest, ItIsBoundedAndItsNewestEventsAreKept) {
  auto life = Begin();
  const std::string message(10'000, 'x');
  for (int i = 0; i < 500; ++i) {
    life->events.Append({.type = "t", .message = message});
    if (i % 50 == 0) RunOn(loop_, life->history.End(Clock::now() + seconds(20)));
  }
  End(std::move(life));
  EXPECT_LT(std::filesystem::file_size(state_ + "/events"), 2U << 20);
  EXPECT_LT(std::filesystem::file_size(state_ + "/events.old"), 2U << 20);
  life = Begin();
  const std::vector<uint64_t> numbers = Numbers(*life);
  EXPECT_EQ(numbers.back(), 500U);
  EXPECT_GT(numbers.size(), 90U);
  for (size_t i = 1; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], numbers[i - 1] + 1);
}

TEST_F(EventHistoryTest, EventsAreWrittenAsTheyCome) {
  auto life = Begin();
  Happen(*life, 1);
  Write(*life);
  EXPECT_THAT(*ReadFile(state_ + "/events", 1000), HasSubstr("number 0"));
}

}  // namespace
}  // namespace berth
