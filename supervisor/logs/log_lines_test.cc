#include "supervisor/logs/log_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Split(std::string_view text, bool at_end = false, size_t limit = 1000) {
  std::vector<LogSpan> spans;
  SplitLines(text, at_end, limit, &spans);
  std::vector<std::string> lines;
  for (const LogSpan& span : spans) lines.emplace_back(text.substr(span.begin, span.length));
  return lines;
}

TEST(SplitLinesTest, UnfinishedLineWaits) {
  EXPECT_THAT(Split("one\ntwo\r\n\nthr"), ElementsAre("one", "two", ""));
  EXPECT_THAT(Split("one\ntwo\r\n\nthr", true), ElementsAre("one", "two", "", "thr"));
  EXPECT_THAT(Split("\r\n\r"), ElementsAre(""));
  EXPECT_THAT(Split(""), IsEmpty());
  EXPECT_THAT(Split("a\nb\nc\n", false, 2), ElementsAre("a", "b"));
}

TEST(SplitLinesTest, EndlessLineIsTakenInPieces) {
  const std::string endless(kLogLongestLine + kLogLookAhead, 'x');
  EXPECT_THAT(Split(endless.substr(1)), IsEmpty());
  const std::vector<std::string> pieces = Split(endless + "y\n");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].size(), kLogLongestLine);
  EXPECT_EQ(pieces[1], std::string(kLogLookAhead, 'x') + "y");
  EXPECT_EQ(Split(std::string(kLogLongestLine + 5, 'x') + "\n").size(), 2U);
  // A chunk that is full always gives a line, or reading would stand still.
  EXPECT_FALSE(Split(std::string(kLogChunk, 'x')).empty());
}

// Readers split what the intake has split before, from other beginnings and in other chunks.
TEST(SplitLinesTest, LinesAreTheSameFromAnyLineOn) {
  std::mt19937 random(4711);
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += std::string(i % 40 == 0 ? random() % (3 * kLogLongestLine) : random() % 200, 'a') + "\n";
  }
  const std::string_view all = text;
  std::vector<LogSpan> whole;
  SplitLines(all, true, text.size(), &whole);
  size_t next = 0;
  size_t position = 0;
  while (position < all.size()) {
    std::vector<LogSpan> some;
    const std::string_view chunk = all.substr(position, kLogChunk);
    SplitLines(chunk, position + chunk.size() == all.size(), 1 + random() % 20, &some);
    ASSERT_FALSE(some.empty());
    for (const LogSpan& span : some) {
      ASSERT_EQ(position, whole[next].begin);
      ASSERT_EQ(span.length, whole[next].length);
      position += span.size;
      ++next;
    }
  }
  EXPECT_EQ(next, whole.size());
}

TEST(ShownLineTest, LongLineSaysWhatWasCut) {
  EXPECT_EQ(ShownLine("12345678", 8), "12345678");
  EXPECT_EQ(ShownLine("123456789", 8), "12345678… (1 bytes cut)");
  EXPECT_EQ(ShownLine("1234567ä", 8), "1234567… (2 bytes cut)");
}

TEST(ShownLineTest, WhatIsNoTextIsEscaped) {
  EXPECT_EQ(ShownLine("a\tb\x1b[31mc", 100), "a\tb\\x1b[31mc");
  EXPECT_EQ(ShownLine(std::string_view("\0\xff", 2), 100), "\\x00\\xff");
}

TEST(TakePriorityTest, PrefixOfSdDaemon) {
  std::string_view line = "<3>disk failed";
  EXPECT_EQ(TakePriority(&line), 3);
  EXPECT_EQ(line, "disk failed");
  for (const std::string_view other : {"<8>x", "<x>y", "<1", "plain", ""}) {
    line = other;
    EXPECT_EQ(TakePriority(&line), 6);
    EXPECT_EQ(line, other);
  }
}

int Admitted(LogRate& rate, int lines, TimePoint now) {
  int admitted = 0;
  for (int i = 0; i < lines; ++i) admitted += rate.Admit(now) ? 1 : 0;
  return admitted;
}

TEST(LogRateTest, BurstThenNothingUntilThereIsRoomForMany) {
  const TimePoint start = Clock::now();
  LogRate rate(100, 1000, start);
  EXPECT_EQ(Admitted(rate, 5000, start), 1000);
  EXPECT_EQ(Admitted(rate, 5000, start + milliseconds(400)), 0);
  EXPECT_EQ(Admitted(rate, 5000, start + milliseconds(600)), 60);
  EXPECT_EQ(Admitted(rate, 5000, start + seconds(3600)), 1000);
}

TEST(LogRateTest, SteadyLinesWithinTheRateAllPass) {
  const TimePoint start = Clock::now();
  LogRate rate(100, 1, start);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(rate.Admit(start + milliseconds(i * 11))) << i;
}

TEST(LogRateTest, NoRateIsNoLimit) {
  const TimePoint start = Clock::now();
  LogRate rate(0, 0, start);
  EXPECT_EQ(Admitted(rate, 100000, start), 100000);
}

// What was written without a reader comes all at once.
TEST(LogRateTest, TimeAwayIsCredited) {
  const TimePoint start = Clock::now();
  LogRate rate(100, 10, start);
  rate.Credit(seconds(60));
  EXPECT_EQ(Admitted(rate, 10000, start), 6010);
  rate.Credit(seconds(-60));
  EXPECT_EQ(Admitted(rate, 10000, start), 0);
}

TEST(LogRateTest, ReconfiguredAtOnce) {
  const TimePoint start = Clock::now();
  LogRate rate(100, 10, start);
  rate.Configure(1, 3);
  EXPECT_EQ(Admitted(rate, 100, start), 3);
  rate.Configure(1, 13);
  EXPECT_EQ(Admitted(rate, 100, start), 10);
}

}  // namespace
}  // namespace berth
