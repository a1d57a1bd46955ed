#include "rpc/uplink/message_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

using testing::HasSubstr;

constexpr uint32_t kMost = 1000;

std::string BigEndian(size_t number, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  return text;
}

std::string Frame(char type, const std::string& content) {
  return BigEndian(content.size(), 3) + type + '\0' + BigEndian(1, 4) + content;
}
std::string Data(const std::string& content) { return Frame('\0', content); }

std::string Prefix(size_t size, bool compressed = false) {
  return std::string(1, compressed ? '\1' : '\0') + BigEndian(size, 4);
}
std::string MessageOfSize(size_t size) { return Prefix(size) + std::string(size, '\xff'); }

// What comes of bytes, whatever pieces they come in.
absl::StatusCode Verdict(const std::string& bytes) {
  MessageGuard whole(kMost);
  const absl::Status at_once = whole.Take(bytes);
  for (const size_t piece : {1, 2, 3, 7, 64}) {
    MessageGuard guard(kMost);
    absl::Status status;
    for (size_t at = 0; at < bytes.size() && status.ok(); at += piece) {
      status = guard.Take(std::string_view(bytes).substr(at, piece));
    }
    EXPECT_EQ(status, at_once) << "in pieces of " << piece;
  }
  return at_once.code();
}

TEST(MessageGuardTest, MessagesUpToTheLimitPass) {
  EXPECT_EQ(Verdict(Data(MessageOfSize(kMost)) + Data(MessageOfSize(0)) + Data(MessageOfSize(1))),
            absl::StatusCode::kOk);
  EXPECT_EQ(Verdict(Data(MessageOfSize(10) + MessageOfSize(20) + MessageOfSize(kMost))),
            absl::StatusCode::kOk);
}

TEST(MessageGuardTest, OneThatIsTooLongIsKnownByItsBeginning) {
  EXPECT_EQ(Verdict(Data(Prefix(kMost + 1))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Verdict(Data(Prefix(0xffffffff))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Verdict(Data(MessageOfSize(10) + Prefix(kMost + 1))), absl::StatusCode::kResourceExhausted);
  MessageGuard guard(kMost);
  EXPECT_THAT(std::string(guard.Take(Data(Prefix(5000))).message()),
              HasSubstr("5000 bytes, and one may have 1000"));
}

TEST(MessageGuardTest, AMessageGoesOnAcrossFramesAndBetweenThemIsWhatElseThereIs) {
  const std::string message = MessageOfSize(600);
  const std::string ping = Frame('\6', "\xff\xff\xff\xff\xff\xff\xff\xff");
  const std::string in_parts = Data(message.substr(0, 3)) + ping + Data("") + Data(message.substr(3, 300)) +
                               Frame('\4', "") + Data(message.substr(303));
  EXPECT_EQ(Verdict(in_parts + Data(MessageOfSize(kMost))), absl::StatusCode::kOk);
  EXPECT_EQ(Verdict(in_parts + Data(MessageOfSize(kMost + 1))), absl::StatusCode::kResourceExhausted);
}

TEST(MessageGuardTest, WhatIsNoDataIsNotLookedInto) {
  EXPECT_EQ(Verdict(Frame('\1', Prefix(0xffffffff)) + Data(MessageOfSize(5))), absl::StatusCode::kOk);
}

TEST(MessageGuardTest, OneThatIsCompressedIsRefused) {
  EXPECT_EQ(Verdict(Data(Prefix(10, /*compressed=*/true))), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace berth
