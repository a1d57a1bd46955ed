#include "mounter/pending_expansions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class PendingExpansionsTest : public ::testing::Test {
 protected:
  // Into the rows as a journal keeps them.
  void Set(const std::string& volume, int64_t bytes) {
    const auto changes = pending_.Set("hp", volume, bytes);
    ASSERT_TRUE(changes.ok()) << changes.status();
    for (const JournalChange& change : *changes) journal_.Apply(change);
  }
  void End(const std::string& volume) {
    for (const JournalChange& change : pending_.End("hp", volume)) journal_.Apply(change);
  }

  JournalContents journal_;
  PendingExpansions pending_{2};
};

TEST_F(PendingExpansionsTest, ReadsWhatItWrote) {
  Set("v1", 5);
  Set("v2", 7);
  Set("v1", 9);
  PendingExpansions after;
  after.Load(journal_.meta);
  EXPECT_EQ(after.Of("hp", "v1"), 9);
  EXPECT_EQ(after.Of("hp", "v2"), 7);
  EXPECT_EQ(after.Of("hp", "v3"), 0);
  EXPECT_EQ(after.Of("other", "v1"), 0);
}

TEST_F(PendingExpansionsTest, WhatHasEndedLeavesNoRow) {
  Set("v1", 5);
  End("v1");
  EXPECT_THAT(journal_.meta, IsEmpty());
  EXPECT_THAT(pending_.End("hp", "v1"), IsEmpty()) << "the common case writes no row";
}

TEST_F(PendingExpansionsTest, TooManyAreRefusedAndThoseThatAreThereMayChange) {
  Set("v1", 1);
  Set("v2", 2);
  EXPECT_EQ(pending_.Set("hp", "v3", 3).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pending_.Of("hp", "v3"), 0);
  Set("v2", 4);
  End("v1");
  Set("v3", 3);
  EXPECT_THAT(journal_.meta, SizeIs(2));
}

TEST_F(PendingExpansionsTest, ARowThatCannotBeReadIsLeftOut) {
  PendingExpansions after;
  after.Load({{"expansion/a", "no number"}, {"expansion/b", "-5"}, {"is_new", "1"}});
  EXPECT_TRUE(after.Set("hp", "v1", 1).ok());
}

}  // namespace
}  // namespace berth
