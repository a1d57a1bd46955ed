#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"
#include "scheduler/records/node_records.h"
#include "scheduler/records/operation_ids.h"
#include "scheduler/records/term.h"
#include "scheduler/store/memory_store.h"

namespace berth::scheduler {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CodecTest, WhatIsNoRecordOrANewerProgramsIsRefused) {
  pb::TermRecord term;
  term.set_epoch(7);
  EXPECT_EQ(Decode<pb::TermRecord>("t", Encode(term))->epoch(), 7U);
  EXPECT_TRUE(absl::IsDataLoss(Decode<pb::TermRecord>("t", "\xff\xff").status()));
  EXPECT_TRUE(absl::IsDataLoss(Decode<pb::TermRecord>("t", "").status())) << "it has no version";
  term.set_version(kRecordVersion + 1);
  const auto newer = Decode<pb::TermRecord>("t", term.SerializeAsString());
  EXPECT_TRUE(absl::IsFailedPrecondition(newer.status()));
  EXPECT_THAT(MessageOf(newer.status()), HasSubstr("the record t was written by a newer berth-scheduler"));
}

class RecordsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Term> Begin(WallTime now, Duration lease = seconds(30), const std::string& cluster = "c") {
    return RunOn(loop_,
                 BeginTerm(store_, {.cluster_id = cluster, .lease = lease, .now = now, .holder = "test"}));
  }
  absl::Status Write(NodeRecords& records, const NodeRecord& record) {
    return RunOn(loop_, records.Write(record));
  }
  std::vector<NodeRecord> Load() {
    NodeRecords records(store_, {});
    auto loaded = RunOn(loop_, records.Load());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : std::vector<NodeRecord>();
  }
  void Put(std::string_view key, const std::string& value) {
    EXPECT_TRUE(
        RunOn(loop_, store_.Commit({.compares = {}, .puts = {{std::string(key), value}}, .deletes = {}}))
            .ok());
  }
  static NodeRecord Node(const std::string& name, const std::string& instance,
                         const std::string& boot = "b") {
    return {.name = name, .instance_id = instance, .boot_id = boot, .previous_boot_id = ""};
  }

  asio::io_context loop_;
  MemoryStore store_{loop_.get_executor()};
  WallTime now_ = WallTime{} + std::chrono::hours(24 * 365 * 50);
};

TEST_F(RecordsTest, EachTermIsAboveTheOneBefore) {
  const auto first = Begin(now_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch()).count();
  EXPECT_EQ(first->epoch, static_cast<uint64_t>(ms));
  EXPECT_EQ(Begin(now_)->epoch, first->epoch + 1);
  // The clock was set back.
  EXPECT_EQ(Begin(now_ - std::chrono::hours(1))->epoch, first->epoch + 2);
}

TEST_F(RecordsTest, TheLongestLeaseOfAllTermsIsKnown) {
  EXPECT_EQ(Begin(now_, seconds(30))->longest_before, seconds(30)) << "what was before is not known";
  EXPECT_EQ(Begin(now_, seconds(10))->longest_before, seconds(30));
  EXPECT_EQ(Begin(now_, seconds(60))->longest_before, seconds(30)) << "none of 60 s was granted before";
  EXPECT_EQ(Begin(now_, seconds(10))->longest_before, seconds(60));
}

TEST_F(RecordsTest, ARecordOfAnotherClusterIsRefused) {
  ASSERT_TRUE(Begin(now_).ok());
  const auto other = Begin(now_, seconds(30), "other");
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status()));
  EXPECT_THAT(MessageOf(other.status()), HasSubstr("the record of cluster c, and the settings say other"));
  Put(kClusterKey, "\xff");
  EXPECT_TRUE(absl::IsDataLoss(Begin(now_).status()));
}

TEST_F(RecordsTest, OneRecordPerNameWhicheverInstance) {
  NodeRecords records(store_, *Begin(now_));
  ASSERT_TRUE(RunOn(loop_, records.Load()).ok());
  EXPECT_TRUE(Write(records, Node("a", "i")).ok());
  EXPECT_TRUE(Write(records, Node("b/c", "i")).ok());
  NodeRecord restarted = Node("a", "i", "b2");
  restarted.previous_boot_id = "b";
  restarted.two_machines = true;
  EXPECT_TRUE(Write(records, restarted).ok());
  EXPECT_THAT(Load(), ElementsAre(restarted, Node("b/c", "i")));
  EXPECT_TRUE(Write(records, Node("a", "i2")).ok());
  EXPECT_THAT(Load(), ElementsAre(Node("a", "i2"), Node("b/c", "i")));
}

TEST_F(RecordsTest, OnceAnotherTermHasBegunNothingIsWritten) {
  NodeRecords records(store_, *Begin(now_));
  EXPECT_TRUE(Write(records, Node("a", "i")).ok());
  ASSERT_TRUE(Begin(now_).ok());
  EXPECT_TRUE(absl::IsAborted(Write(records, Node("a", "i", "b2"))));
  EXPECT_TRUE(absl::IsAborted(Write(records, Node("z", "i"))));
  EXPECT_TRUE(absl::IsAborted(Write(records, Node("a", "i", "b2")))) << "and again";
  EXPECT_THAT(Load(), ElementsAre(Node("a", "i")));
}

// A waiter may go while its write is carried out.
TEST_F(RecordsTest, AWriteWhoseEndIsNotKnownIsFollowedByAnother) {
  const Term term = *Begin(now_);
  NodeRecords first(store_, term);
  NodeRecords second(store_, term);
  EXPECT_TRUE(Write(first, Node("a", "i")).ok());
  EXPECT_TRUE(Write(second, Node("a", "i2")).ok());
  EXPECT_TRUE(absl::IsAborted(Write(first, Node("a", "i3"))));
  EXPECT_TRUE(Write(first, Node("a", "i3")).ok());
  EXPECT_THAT(Load(), ElementsAre(Node("a", "i3")));
}

TEST_F(RecordsTest, ARecordThatCannotBeReadIsNamed) {
  Put(NodeKey("a", "i"), "\xff");
  NodeRecords records(store_, {});
  const auto loaded = RunOn(loop_, records.Load());
  EXPECT_TRUE(absl::IsDataLoss(loaded.status()));
  EXPECT_THAT(MessageOf(loaded.status()), HasSubstr("n/a/i"));
}

TEST_F(RecordsTest, NoIdIsGivenOutTwiceAndABlockCostsOneWrite) {
  const auto term = Begin(WallTime(milliseconds(5)));
  ASSERT_TRUE(term.ok());
  const auto revision = [this] { return RunOn(loop_, store_.Read({}))->revision; };
  const uint64_t before = revision();
  uint64_t expected = 5000;
  OperationIds ids(store_, *term);
  for (uint64_t i = 0; i < kIdsInABlock + 1; ++i, ++expected) {
    ASSERT_TRUE(RunOn(loop_, ids.Reserve()).ok());
    ASSERT_EQ(ids.Take(), expected);
  }
  EXPECT_EQ(revision(), before + 2);
  // A successor begins above what this one may have used.
  OperationIds next(store_, *Begin(WallTime(milliseconds(5))));
  ASSERT_TRUE(RunOn(loop_, next.Reserve()).ok());
  EXPECT_EQ(next.Take(), 5000 + (2 * kIdsInABlock));
  // And the one before takes no more of them.
  while (!ids.Empty()) std::ignore = ids.Take();
  EXPECT_TRUE(absl::IsAborted(RunOn(loop_, ids.Reserve())));
  EXPECT_TRUE(ids.Empty());
}

TEST_F(RecordsTest, IdsAreAboveThoseThatANodeHasSeen) {
  OperationIds ids(store_, *Begin(WallTime(milliseconds(5))));
  ASSERT_TRUE(RunOn(loop_, ids.Reserve()).ok());
  EXPECT_TRUE(ids.Above(4000).ok());
  EXPECT_EQ(ids.Take(), 5000U);
  EXPECT_TRUE(ids.Above(7'000'000).ok());
  EXPECT_TRUE(ids.Empty());
  ASSERT_TRUE(RunOn(loop_, ids.Reserve()).ok());
  EXPECT_EQ(ids.Take(), 7'000'001U);
  EXPECT_TRUE(absl::IsOutOfRange(ids.Above(kHighestId + 1)));
  EXPECT_FALSE(ids.Empty());
}

}  // namespace
}  // namespace berth::scheduler
