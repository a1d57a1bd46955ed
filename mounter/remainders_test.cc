#include "mounter/remainders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Remainder Owed(const std::string& volume, int64_t bytes) {
  return {.plugin_id = "hp", .volume_id = volume, .owed_expansion_bytes = bytes};
}

// The rows as a journal keeps them.
void Write(const Remainders::Rows& changed, Remainders::Rows* rows) {
  for (const auto& [key, bytes] : changed) {
    if (bytes.empty()) {
      rows->erase(key);
    } else {
      (*rows)[key] = bytes;
    }
  }
}

TEST(RemaindersTest, ReadsWhatItWrote) {
  Remainders::Rows rows;
  Remainders before("boot");
  Write(before.Set(Owed("v1", 5)), &rows);
  Write(before.Set(Owed("v2", 7)), &rows);
  Remainders after("boot");
  EXPECT_THAT(after.Load(rows), IsEmpty());
  EXPECT_EQ(after.Of("hp", "v1"), Owed("v1", 5));
  EXPECT_EQ(after.Of("hp", "v2"), Owed("v2", 7));
  EXPECT_TRUE(after.Of("hp", "v3").Nothing());
  EXPECT_TRUE(after.Of("other", "v1").Nothing());
}

TEST(RemaindersTest, WhatIsSettledIsNotWrittenAgain) {
  Remainders::Rows rows;
  Remainders remainders("boot");
  Write(remainders.Set(Owed("v1", 5)), &rows);
  Write(remainders.Set(Owed("v1", 0)), &rows);
  EXPECT_THAT(rows, IsEmpty());
  EXPECT_THAT(remainders.Set(Owed("v1", 0)), IsEmpty()) << "the common case writes no row";
  EXPECT_EQ(remainders.size(), 0U);
}

TEST(RemaindersTest, TheOldestIsForgottenAndToldWhereThereAreTooMany) {
  Remainders::Rows rows;
  std::vector<std::string> forgotten;
  const auto note = [&forgotten](const Remainder& remainder) { forgotten.push_back(remainder.volume_id); };
  Remainders before("boot", 2);
  before.on_forgotten = note;
  Write(before.Set(Owed("z", 1)), &rows);
  Write(before.Set(Owed("m", 7)), &rows);
  Write(before.Set(Owed("z", 2)), &rows);
  EXPECT_THAT(forgotten, IsEmpty());
  // Who is the oldest outlives berthd.
  Remainders after("boot", 2);
  after.on_forgotten = note;
  EXPECT_THAT(after.Load(rows), IsEmpty());
  Write(after.Set(Owed("a", 7)), &rows);
  EXPECT_THAT(forgotten, ElementsAre("z"));
  Write(after.Set(Owed("b", 7)), &rows);
  EXPECT_THAT(forgotten, ElementsAre("z", "m"));
  EXPECT_THAT(rows, SizeIs(2));
}

TEST(RemaindersTest, ARowThatCannotBeReadIsDeleted) {
  Remainders::Rows rows;
  Remainders before("boot");
  Write(before.Set(Owed("v1", 5)), &rows);
  const std::string bytes = rows.begin()->second;
  rows = {{"some other key", bytes}, {"key", "no message"}};
  Remainders after("boot");
  Write(after.Load(rows), &rows);
  EXPECT_THAT(rows, IsEmpty());
  EXPECT_EQ(after.size(), 0U);
}

}  // namespace
}  // namespace berth
