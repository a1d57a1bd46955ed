#include "rpc/uplink/ask_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Ask Claim(const std::string& volume) {
  v1::Ask ask;
  ask.mutable_claim()->set_volume(volume);
  return ask;
}

v1::Answer AnswerTo(uint64_t number, const std::string& message = "") {
  v1::Answer answer;
  answer.set_number(number);
  answer.set_message(message);
  return answer;
}

// "claim NUMBER VOLUME" or "withdraw NUMBER".
std::vector<std::string> Sent(AskTable& table) {
  std::vector<std::string> sent;
  while (const auto next = table.NextToSend()) {
    if (const auto* ask = std::get_if<v1::Ask>(&*next)) {
      sent.push_back("claim " + std::to_string(ask->number()) + " " + ask->claim().volume());
    } else {
      sent.push_back("withdraw " + std::to_string(std::get<v1::AskWithdrawn>(*next).number()));
    }
  }
  return sent;
}

TEST(AskTableTest, AnAskIsSentOnEachStreamUntilItIsAnswered) {
  AskTable table{1};
  const auto number = table.Add(Claim("v"));
  ASSERT_TRUE(number.ok());
  EXPECT_THAT(Sent(table), ElementsAre("claim 1 v"));
  EXPECT_THAT(Sent(table), IsEmpty());
  table.BeginStream();
  EXPECT_THAT(Sent(table), ElementsAre("claim 1 v"));
  EXPECT_EQ(table.AnswerOf(*number), nullptr);
  EXPECT_TRUE(table.Answer(AnswerTo(*number, "yes")));
  ASSERT_NE(table.AnswerOf(*number), nullptr);
  EXPECT_EQ(table.AnswerOf(*number)->message(), "yes");
  table.BeginStream();
  EXPECT_THAT(Sent(table), IsEmpty());
  table.Leave(*number);
  EXPECT_EQ(table.open(), 0U);
}

TEST(AskTableTest, EqualAsksAreOneAndAllWhoWaitedTakeTheAnswer) {
  AskTable table{1};
  const uint64_t first = *table.Add(Claim("v"));
  EXPECT_EQ(*table.Add(Claim("v")), first);
  EXPECT_NE(*table.Add(Claim("w")), first);
  table.Leave(first);
  EXPECT_TRUE(table.Answer(AnswerTo(first)));
  EXPECT_NE(table.AnswerOf(first), nullptr);
  table.Leave(first);
  EXPECT_EQ(table.AnswerOf(first), nullptr);
}

TEST(AskTableTest, WhatNobodyWaitsForAnyMoreIsWithdrawnWhereItWasAsked) {
  AskTable table{1};
  const uint64_t asked = *table.Add(Claim("v"));
  EXPECT_THAT(Sent(table), ElementsAre("claim 1 v"));
  const uint64_t never_asked = *table.Add(Claim("w"));
  table.Leave(never_asked);
  table.Leave(asked);
  EXPECT_THAT(Sent(table), ElementsAre("withdraw 1"));
  EXPECT_FALSE(table.Answer(AnswerTo(asked)));
}

TEST(AskTableTest, WhatAnAskWaitsForIsOfOneStream) {
  AskTable table{1};
  const uint64_t number = *table.Add(Claim("v"));
  table.SetProgress(number, "first");
  table.SetProgress(number, "second");
  table.SetProgress(number + 1, "it is not asked");
  EXPECT_EQ(table.ProgressOf(number), "second");
  EXPECT_EQ(table.ProgressOf(number + 1), "");
  table.BeginStream();
  EXPECT_EQ(table.ProgressOf(number), "") << "the scheduler says it again";
}

TEST(AskTableTest, ANewStreamNeedsNoWithdrawals) {
  AskTable table{1};
  const uint64_t asked = *table.Add(Claim("v"));
  EXPECT_THAT(Sent(table), ElementsAre("claim 1 v"));
  table.Leave(asked);
  table.BeginStream();
  EXPECT_THAT(Sent(table), IsEmpty());
}

TEST(AskTableTest, AnAskThatWasAnsweredIsAskedAnewByTheNext) {
  AskTable table{1};
  const uint64_t first = *table.Add(Claim("v"));
  EXPECT_TRUE(table.Answer(AnswerTo(first)));
  EXPECT_FALSE(table.Answer(AnswerTo(first)));
  EXPECT_NE(*table.Add(Claim("v")), first);
}

TEST(AskTableTest, BeyondTheLimitAnAskIsRefused) {
  AskTable table{1};
  for (size_t i = 0; i < AskTable::kOpen; ++i) ASSERT_TRUE(table.Add(Claim(std::to_string(i))).ok());
  EXPECT_EQ(table.Add(Claim("one more")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.Add(Claim("7")).ok());
  EXPECT_TRUE(table.Answer(AnswerTo(1)));
  EXPECT_TRUE(table.Add(Claim("one more")).ok());
}

}  // namespace
}  // namespace berth
