#include "rpc/uplink/operation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = OperationTable::Admission::Kind;

v1::OperationResult Result(uint64_t id, const std::string& message = "") {
  v1::OperationResult result;
  result.set_id(id);
  result.set_outcome(v1::OUTCOME_DONE);
  result.set_message(message);
  return result;
}

std::vector<uint64_t> Sent(OperationTable& table) {
  std::vector<uint64_t> ids;
  while (const v1::OperationResult* result = table.NextResult()) ids.push_back(result->id());
  return ids;
}

class OperationTableTest : public ::testing::Test {
 protected:
  Kind Admit(uint64_t id, const std::string& subject = "publish v") {
    return table_.Admit(id, subject, false).kind;
  }
  void Run(uint64_t id) {
    ASSERT_EQ(Admit(id), Kind::kRun);
    table_.Finish(Result(id));
  }

  OperationTable table_{{.running = 4, .results = 4, .result_bytes = 10'000, .acknowledged = 4}};
};

TEST_F(OperationTableTest, AnOperationIsRunOnceHoweverOftenItIsAskedFor) {
  EXPECT_EQ(Admit(7), Kind::kRun);
  EXPECT_EQ(Admit(7), Kind::kRuns);
  EXPECT_EQ(table_.running(), 1U);
  table_.Finish(Result(7, "first"));
  EXPECT_EQ(table_.running(), 0U);
  EXPECT_THAT(Sent(table_), ElementsAre(7));
  EXPECT_EQ(Admit(7), Kind::kAnswered);
  const v1::OperationResult* again = table_.NextResult();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->message(), "first");
  EXPECT_THAT(Sent(table_), IsEmpty());
}

TEST_F(OperationTableTest, AResultIsSentOnceOnEachStreamUntilItIsAcknowledged) {
  Run(1);
  Run(2);
  EXPECT_THAT(Sent(table_), ElementsAre(1, 2));
  EXPECT_THAT(Sent(table_), IsEmpty());
  table_.BeginStream();
  EXPECT_THAT(Sent(table_), ElementsAre(1, 2));
  EXPECT_THAT(table_.Acknowledge({1}, 0).acknowledged, ElementsAre(1));
  table_.BeginStream();
  EXPECT_THAT(Sent(table_), ElementsAre(2));
}

TEST_F(OperationTableTest, AReplayedOperationIsRefusedOnceItsResultWasTaken) {
  Run(5);
  EXPECT_THAT(table_.Acknowledge({5}, 0).acknowledged, ElementsAre(5));
  const auto replayed = table_.Admit(5, "publish v", false);
  EXPECT_EQ(replayed.kind, Kind::kRefused);
  EXPECT_EQ(replayed.refusal, v1::SETTLED);
  // One that is late, and was never run, is not a replay.
  EXPECT_EQ(Admit(3), Kind::kRun);
}

TEST_F(OperationTableTest, WhatIsSettledIsForgottenAndRefusedForEver) {
  Run(1);
  Run(2);
  EXPECT_THAT(table_.Acknowledge({1}, 0).acknowledged, ElementsAre(1));
  const auto changes = table_.Acknowledge({}, 10);
  EXPECT_TRUE(changes.settled);
  EXPECT_THAT(changes.forgotten, UnorderedElementsAre(1, 2));
  EXPECT_EQ(table_.kept(), 0U);
  for (const uint64_t id : {1, 2, 9}) EXPECT_EQ(table_.Admit(id, "publish v", false).refusal, v1::SETTLED);
  EXPECT_EQ(Admit(10), Kind::kRun);
  EXPECT_FALSE(table_.Acknowledge({}, 4).settled);
  EXPECT_EQ(table_.settled_below(), 10U);
}

TEST_F(OperationTableTest, WhatIsAcknowledgedAndSettledAtOnceIsToldOnce) {
  Run(1);
  const auto changes = table_.Acknowledge({1}, 2);
  EXPECT_THAT(changes.acknowledged, IsEmpty());
  EXPECT_THAT(changes.forgotten, ElementsAre(1));
}

TEST_F(OperationTableTest, AnOperationThatRunsWhenItIsSettledLeavesNothing) {
  EXPECT_EQ(Admit(1), Kind::kRun);
  EXPECT_THAT(table_.Acknowledge({1}, 2).forgotten, IsEmpty());
  table_.Finish(Result(1));
  EXPECT_EQ(table_.running(), 0U);
  EXPECT_THAT(Sent(table_), IsEmpty());
}

TEST(OperationLimitsTest, WhatEndsUsesIsTakenWhenOthersAreRefused) {
  OperationTable table({.running = 2, .results = 100, .result_bytes = 1 << 20, .acknowledged = 100});
  for (const uint64_t id : {1, 2}) EXPECT_EQ(table.Admit(id, "publish", false).kind, Kind::kRun);
  EXPECT_EQ(table.Admit(3, "publish", false).refusal, v1::TOO_MANY);
  uint64_t id = 3;
  while (table.Admit(id, "unpublish", true).kind == Kind::kRun) ++id;
  EXPECT_EQ(id, 33U) << "16 times as many, and no more";
}

TEST_F(OperationTableTest, NobodyAcknowledgesWhatHasNoResult) {
  EXPECT_EQ(Admit(1), Kind::kRun);
  EXPECT_THAT(table_.Acknowledge({1, 99}, 0).acknowledged, IsEmpty());
  EXPECT_EQ(Admit(99), Kind::kRun);
  table_.Finish(Result(1));
  EXPECT_THAT(Sent(table_), ElementsAre(1));
}

TEST_F(OperationTableTest, AnIdThatStandsForSomethingElseIsRefused) {
  EXPECT_EQ(Admit(1, "publish v"), Kind::kRun);
  auto reused = table_.Admit(1, "unpublish v", false);
  EXPECT_EQ(reused.refusal, v1::ID_REUSED);
  EXPECT_THAT(reused.why, HasSubstr("publish v"));
  table_.Finish(Result(1));
  EXPECT_EQ(table_.Admit(1, "unpublish v", false).refusal, v1::ID_REUSED);
  EXPECT_EQ(Admit(1, "publish v"), Kind::kAnswered);
}

TEST_F(OperationTableTest, WhatIsTooMuchIsRefusedAndMayComeAgain) {
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(Admit(id), Kind::kRun);
  EXPECT_EQ(table_.Admit(5, "publish v", false).refusal, v1::TOO_MANY);
  for (uint64_t id = 1; id <= 4; ++id) table_.Finish(Result(id));
  EXPECT_EQ(table_.Admit(5, "publish v", false).refusal, v1::TOO_MANY);  // four results
  (void)table_.Acknowledge({1, 2, 3, 4}, 0);
  EXPECT_EQ(table_.Admit(5, "publish v", false).refusal, v1::TOO_MANY);  // four ids
  (void)table_.Acknowledge({}, 5);
  EXPECT_EQ(Admit(5), Kind::kRun);
}

TEST_F(OperationTableTest, LongResultsCountByTheirLength) {
  EXPECT_EQ(Admit(1), Kind::kRun);
  table_.Finish(Result(1, std::string(20'000, 'x')));
  EXPECT_EQ(table_.Admit(2, "publish v", false).refusal, v1::TOO_MANY);
  (void)table_.Acknowledge({1}, 0);
  EXPECT_EQ(Admit(2), Kind::kRun);
}

TEST_F(OperationTableTest, WhatWasKeptIsAnsweredAfterARestart) {
  table_.RestoreResult(Result(1, "before"), "publish v");
  table_.RestoreAcknowledged(2);
  (void)table_.Acknowledge({}, 1);
  EXPECT_EQ(Admit(1), Kind::kAnswered);
  EXPECT_THAT(Sent(table_), ElementsAre(1));
  EXPECT_EQ(table_.Admit(2, "publish v", false).refusal, v1::SETTLED);
  EXPECT_EQ(table_.Admit(0, "publish v", false).refusal, v1::SETTLED);
}

TEST_F(OperationTableTest, TheHighestIdIsThatOfAllThatIsKnown) {
  EXPECT_EQ(table_.highest_id(), 0U);
  (void)table_.Acknowledge({}, 5);
  EXPECT_EQ(table_.highest_id(), 4U);
  EXPECT_EQ(Admit(7), Kind::kRun);
  EXPECT_EQ(table_.highest_id(), 7U);
  table_.Finish(Result(7));
  (void)table_.Acknowledge({7}, 0);
  EXPECT_EQ(table_.highest_id(), 7U);
}

}  // namespace
}  // namespace berth
