#include "rpc/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace berth {
namespace {

using testing::HasSubstr;

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kPing = 6;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;

constexpr TimePoint kNow{std::chrono::hours(1)};
const std::string kGreeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(uint8_t type, uint8_t flags, uint8_t stream, size_t length) {
  const auto byte = [](size_t value) { return static_cast<char>(value & 0xff); };
  const std::string head = {
      byte(length >> 16), byte(length >> 8), byte(length), byte(type), byte(flags), 0, 0, 0, byte(stream)};
  return head + std::string(length, 'x');
}

// What comes of `bytes` in pieces of each size: always the same.
absl::StatusOr<size_t> Take(const std::string& bytes) {
  absl::StatusOr<size_t> whole;
  for (const size_t piece : {bytes.size(), size_t{1}, size_t{7}}) {
    FrameGuard guard({.headers = 1000, .requests = 2000, .streams = 3, .answers = 30});
    absl::StatusOr<size_t> all = 0;
    for (size_t at = 0; at < bytes.size() && all.ok(); at += piece) {
      const auto taken = guard.Take(std::string_view(bytes).substr(at, piece), kNow);
      all = taken.ok() ? absl::StatusOr<size_t>(*all + *taken) : taken;
    }
    if (piece == bytes.size()) whole = all;
    EXPECT_EQ(all.status(), whole.status());
    if (all.ok() && whole.ok()) EXPECT_EQ(*all, *whole);
  }
  return whole;
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(FrameGuardTest, WhatIsNoHttp2IsKnownByItsFirstBytes) {
  EXPECT_EQ(Take("GET / HTTP/1.1\r\n").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(std::string(5, '\xff')).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*Take("PRI * HT"), 0U);
  EXPECT_EQ(*Take(kGreeting), 0U);
}

TEST(FrameGuardTest, CallsPassAsManyAsThereAre) {
  const std::string call = Frame(kHeaders, kEndHeaders, 1, 900) + Frame(kData, kEndStream, 1, 1900);
  EXPECT_EQ(*Take(kGreeting + Times(50, call)), 100U);
  const std::string in_parts = Frame(kHeaders, 0, 1, 400) + Frame(kContinuation, kEndHeaders, 1, 400) +
                               Frame(kData, 0, 1, 900) + Frame(kPing, 0, 0, 8) +
                               Frame(kData, kEndStream, 1, 900);
  EXPECT_EQ(*Take(kGreeting + Times(20, in_parts)), 100U);
}

TEST(FrameGuardTest, HeadersWithoutEndAreRefusedByTheirBeginning) {
  EXPECT_THAT(std::string(Take(kGreeting + Frame(kHeaders, 0, 1, 2000).substr(0, 9)).status().message()),
              HasSubstr("headers of more than 1000 bytes"));
  const std::string begun = kGreeting + Frame(kHeaders, 0, 1, 500);
  EXPECT_TRUE(Take(begun + Frame(kContinuation, 0, 1, 400)).ok());
  EXPECT_EQ(Take(begun + Frame(kContinuation, 0, 1, 500)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Take(begun + Times(100, Frame(kContinuation, 0, 1, 0))).ok()) << "empty ones count";
}

TEST(FrameGuardTest, RequestsThatAreNotCompleteAreLimitedTogether) {
  const auto open = [](uint8_t stream, size_t bytes) {
    return Frame(kHeaders, kEndHeaders, stream, 10) + Frame(kData, 0, stream, bytes);
  };
  EXPECT_TRUE(Take(kGreeting + open(1, 1000) + open(3, 900)).ok());
  EXPECT_FALSE(Take(kGreeting + open(1, 1000) + open(3, 1100)).ok());
  EXPECT_FALSE(Take(kGreeting + Frame(kData, kEndStream, 1, 2100)).ok());
  EXPECT_TRUE(Take(kGreeting + open(1, 1000) + Frame(kReset, 0, 1, 4) + open(3, 1100)).ok());
  EXPECT_TRUE(Take(kGreeting + open(1, 1000) + Frame(kData, kEndStream, 1, 0) + open(3, 1100)).ok());
  EXPECT_FALSE(Take(kGreeting + open(1, 1) + open(3, 1) + open(5, 1) + open(7, 1)).ok()) << "too many";
}

TEST(FrameGuardTest, PingsAreLimitedInAWhileAndTheirAnswersAreNot) {
  constexpr uint8_t kAnswer = 1;
  EXPECT_TRUE(Take(kGreeting + Times(30, Frame(kPing, 0, 0, 8))).ok());
  EXPECT_THAT(std::string(Take(kGreeting + Times(31, Frame(kPing, 0, 0, 8))).status().message()),
              HasSubstr("more than 30 pings and settings in 10 s"));
  EXPECT_TRUE(Take(kGreeting + Times(100, Frame(kPing, kAnswer, 0, 8))).ok());
  FrameGuard guard;
  EXPECT_TRUE(guard.Take(kGreeting, kNow).ok());
  for (int i = 0; i < 10; ++i) {
    const TimePoint now = kNow + i * std::chrono::seconds(10);
    EXPECT_TRUE(guard.Take(Times(200, Frame(kPing, 0, 0, 8)), now).ok()) << i;
  }
}

TEST(FrameGuardTest, WindowUpdatesAreNotCounted) {
  EXPECT_EQ(*Take(kGreeting + Times(100, Frame(8, 0, 1, 4)) + Frame(kPing, 0, 0, 8)), 1U);
}

}  // namespace
}  // namespace berth
