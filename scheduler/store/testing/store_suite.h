// What every store has to do, run on each kind of them:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreSuite, testing::Values(&MakeMemoryStore));
//
// For tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

// A store in `directory`, empty at first.
using StoreMaker = std::unique_ptr<Store> (*)(const asio::any_io_executor& executor,
                                              const std::string& directory);

class StoreSuite : public ::testing::TestWithParam<StoreMaker> {
 protected:
  absl::StatusOr<uint64_t> Commit(Transaction transaction) {
    return RunOn(loop_, store_->Commit(std::move(transaction)));
  }
  uint64_t Put(const std::string& key, const std::string& value) {
    const auto revision = Commit({.compares = {}, .puts = {{key, value}}, .deletes = {}});
    EXPECT_TRUE(revision.ok()) << revision.status();
    return revision.value_or(0);
  }
  Snapshot Read(std::vector<KeyRange> ranges) {
    auto snapshot = RunOn(loop_, store_->Read(std::move(ranges)));
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? *std::move(snapshot) : Snapshot{};
  }
  // "key=value" each.
  std::vector<std::string> Texts(std::vector<KeyRange> ranges) {
    std::vector<std::string> texts;
    for (const StoredRecord& record : Read(std::move(ranges)).records)
      texts.push_back(record.key + "=" + record.value);
    return texts;
  }
  std::vector<std::string> All() { return Texts({KeyRange::Prefix("")}); }
  absl::StatusOr<std::vector<Change>> Changes(uint64_t revision, Duration within = {}) {
    return RunOn(loop_, store_->Changes(revision, Clock::now() + within));
  }
  std::vector<std::string> KeysAfter(uint64_t revision) {
    const auto changes = Changes(revision);
    EXPECT_TRUE(changes.ok()) << changes.status();
    std::vector<std::string> keys;
    if (!changes.ok()) return keys;
    for (const Change& change : *changes) keys.push_back(change.key);
    return keys;
  }
  void ExpectAborted(const Transaction& transaction, const std::string& key) {
    const auto before = All();
    const auto committed = Commit(transaction);
    EXPECT_EQ(committed.status().code(), absl::StatusCode::kAborted) << committed.status();
    EXPECT_THAT(MessageOf(committed.status()), ::testing::HasSubstr(key));
    EXPECT_EQ(All(), before);
  }
  void ExpectRefused(const Transaction& transaction, const std::string& why) {
    const auto committed = Commit(transaction);
    EXPECT_EQ(committed.status().code(), absl::StatusCode::kInvalidArgument) << committed.status();
    EXPECT_THAT(MessageOf(committed.status()), ::testing::HasSubstr(why));
  }

  TempDir directory_;
  asio::io_context loop_;
  std::unique_ptr<Store> store_ = GetParam()(loop_.get_executor(), directory_.path());
};

TEST_P(StoreSuite, WhatIsCommittedIsReadByRangesInOrder) {
  EXPECT_THAT(All(), ::testing::IsEmpty());
  Put("b/2", "two");
  Put("a/1", "one");
  Put("b/10", "ten");
  Put("b0", "other");
  EXPECT_THAT(Texts({KeyRange::Prefix("b/"), KeyRange::Key("a/1"), KeyRange::Key("a")}),
              ::testing::ElementsAre("b/10=ten", "b/2=two", "a/1=one"));
  EXPECT_THAT(Texts({{.first = "a/1", .end = "b/2"}}), ::testing::ElementsAre("a/1=one", "b/10=ten"));
}

TEST_P(StoreSuite, EachCommitHasARevisionAndARecordTheOneThatWroteIt) {
  const uint64_t first = Put("a", "1");
  const uint64_t second = Put("b", "1");
  EXPECT_EQ(second, first + 1);
  const auto third = Commit({.compares = {}, .puts = {{"a", "2"}, {"c", "2"}}, .deletes = {"b"}});
  EXPECT_EQ(*third, second + 1);
  const Snapshot snapshot = Read({KeyRange::Prefix("")});
  EXPECT_EQ(snapshot.revision, *third);
  ASSERT_EQ(snapshot.records.size(), 2U);
  EXPECT_EQ(snapshot.records[0].modified, *third);
  // What changes nothing has none of its own.
  EXPECT_EQ(*Commit({.compares = {}, .puts = {}, .deletes = {"nothing"}}), *third);
  EXPECT_EQ(*Commit({}), *third);
}

TEST_P(StoreSuite, KeysAndValuesHoldAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  Put(bytes, bytes);
  Put("\xff\xff", "last");
  Put("empty", "");
  EXPECT_THAT(Texts({KeyRange::Key(bytes)}), ::testing::ElementsAre(bytes + "=" + bytes));
  EXPECT_THAT(Texts({KeyRange::Prefix("\xff")}), ::testing::ElementsAre("\xff\xff=last"));
  EXPECT_THAT(Texts({KeyRange::Prefix("empty")}), ::testing::ElementsAre("empty="));
  EXPECT_THAT(All(), ::testing::SizeIs(3));
}

TEST_P(StoreSuite, ACompareOfAKeyHoldsForTheRevisionThatWroteItAlone) {
  const uint64_t first = Put("a", "1");
  const uint64_t second = Put("a", "2");
  ExpectAborted({.compares = {{.key = "a", .modified = first}}, .puts = {{"x", "1"}}, .deletes = {"a"}}, "a");
  ExpectAborted({.compares = {{.key = "a"}}, .puts = {{"x", "1"}}, .deletes = {}}, "a");
  ExpectAborted({.compares = {{.key = "b", .modified = second}}, .puts = {{"x", "1"}}, .deletes = {}}, "b");
  const auto third = Commit(
      {.compares = {{.key = "a", .modified = second}, {.key = "b"}}, .puts = {{"b", "1"}}, .deletes = {"a"}});
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(All(), ::testing::ElementsAre("b=1"));
  // The same key, written again after it was deleted.
  const uint64_t fourth = Put("a", "2");
  ExpectAborted({.compares = {{.key = "a", .modified = second}}, .puts = {}, .deletes = {"a"}}, "a");
  EXPECT_TRUE(Commit({.compares = {{.key = "a", .modified = fourth}}, .puts = {}, .deletes = {"a"}}).ok());
}

TEST_P(StoreSuite, ACompareOfARangeHoldsWhereItIsEmpty) {
  Put("u/v1/a", "1");
  const auto none_in = [](const std::string& prefix) {
    KeyRange range = KeyRange::Prefix(prefix);
    return Compare{.key = range.first, .modified = 0, .end = range.end};
  };
  ExpectAborted({.compares = {none_in("u/v1/")}, .puts = {{"u/v1/b", "1"}}, .deletes = {}}, "u/v1/");
  ExpectAborted({.compares = {none_in("u/v2/"), none_in("u/")}, .puts = {{"u/v2/b", "1"}}, .deletes = {}},
                "u/");
  EXPECT_TRUE(Commit({.compares = {none_in("u/v2/")}, .puts = {{"u/v2/b", "1"}}, .deletes = {}}).ok());
  EXPECT_TRUE(Commit({.compares = {}, .puts = {}, .deletes = {"u/v1/a"}}).ok());
  EXPECT_TRUE(Commit({.compares = {none_in("u/v1/")}, .puts = {{"u/v1/b", "1"}}, .deletes = {}}).ok());
}

// A compare is of what was there before the transaction.
TEST_P(StoreSuite, ATransactionDoesNotSeeItself) {
  EXPECT_TRUE(Commit({.compares = {{.key = "a"}}, .puts = {{"a", "1"}}, .deletes = {}}).ok());
  ExpectAborted({.compares = {{.key = "a"}}, .puts = {{"b", "1"}}, .deletes = {"a"}}, "a");
}

TEST_P(StoreSuite, WhatEtcdWouldRefuseIsRefusedHereToo) {
  Transaction compares;
  for (size_t i = 0; i <= kCompareLimit; ++i) compares.compares.push_back({.key = std::to_string(i)});
  ExpectRefused(compares, "129 compares, more than 128");
  compares.compares.pop_back();
  EXPECT_TRUE(Commit(compares).ok());
  Transaction changes;
  for (size_t i = 0; i < kChangeLimit; ++i) changes.puts.emplace_back(std::to_string(i), "x");
  EXPECT_TRUE(Commit(changes).ok());
  changes.deletes.emplace_back("x");
  ExpectRefused(changes, "129 changes, more than 128");
  ExpectRefused({.compares = {}, .puts = {{"a", "1"}, {"a", "2"}}, .deletes = {}}, "the key a twice");
  ExpectRefused({.compares = {}, .puts = {{"a", "1"}}, .deletes = {"a"}}, "the key a twice");
  ExpectRefused({.compares = {}, .puts = {{"a", std::string(kTransactionBytes, 'x')}}, .deletes = {}},
                "1572865 bytes");
  EXPECT_TRUE(
      Commit({.compares = {}, .puts = {{"a", std::string(kTransactionBytes - 1, 'x')}}, .deletes = {}}).ok());
  ExpectRefused({.compares = {}, .puts = {{"", "1"}}, .deletes = {}}, "key of 0 bytes");
  ExpectRefused({.compares = {}, .puts = {}, .deletes = {std::string(kKeyLimit + 1, 'k')}},
                "key of 1025 bytes");
  ExpectRefused({.compares = {{.key = "a", .modified = 1, .end = "b"}}, .puts = {}, .deletes = {}},
                "a range with a revision");
}

TEST_P(StoreSuite, ChangesAreToldInOrderAndFromAnyRevision) {
  const uint64_t first = Put("a", "1");
  EXPECT_TRUE(Commit({.compares = {}, .puts = {{"b", "1"}}, .deletes = {"a", "never"}}).ok());
  const uint64_t third = Put("c", "1");
  EXPECT_THAT(KeysAfter(first), ::testing::ElementsAre("b", "a", "c"));
  EXPECT_THAT(KeysAfter(first + 1), ::testing::ElementsAre("c"));
  EXPECT_THAT(KeysAfter(third), ::testing::IsEmpty());
  EXPECT_EQ(Changes(first)->back().revision, third);
}

TEST_P(StoreSuite, WhoeverWaitsForAChangeIsWokenByIt) {
  const uint64_t now = Put("a", "1");
  std::optional<absl::StatusOr<std::vector<Change>>> told;
  asio::co_spawn(loop_, store_->Changes(now, Clock::now() + std::chrono::seconds(20)),
                 [&told](const std::exception_ptr& /*error*/, absl::StatusOr<std::vector<Change>> changes) {
                   told = std::move(changes);
                 });
  Put("b", "1");
  loop_.restart();
  while (!told.has_value() && loop_.run_one() > 0) {
  }
  ASSERT_TRUE(told.has_value() && told->ok());
  EXPECT_EQ((*told)->front().key, "b");
}

TEST_P(StoreSuite, OnlySoManyChangesAreRemembered) {
  const uint64_t first = Put("first", "1");
  // So many that no answer ends with a revision by chance.
  constexpr size_t kEach = 97;
  Transaction many;
  for (size_t i = 0; i < kEach; ++i) many.puts.emplace_back(std::to_string(i), "x");
  uint64_t last = 0;
  for (size_t i = 0; i <= kChangesKept / kEach; ++i) last = *Commit(many);
  EXPECT_EQ(Changes(first).status().code(), absl::StatusCode::kOutOfRange);
  // From the next revision on all of them, each revision whole.
  uint64_t at = first + 1;
  size_t seen = 0;
  while (at < last) {
    const auto changes = Changes(at);
    ASSERT_TRUE(changes.ok() && !changes->empty()) << changes.status();
    seen += changes->size();
    at = changes->back().revision;
  }
  EXPECT_EQ(seen, kChangesKept / kEach * kEach);
}

// Of two that read the same and change it, one has to read again.
TEST_P(StoreSuite, OfTwoThatDecidedByTheSameOneIsAborted) {
  const uint64_t read = Put("n", "0");
  std::vector<absl::StatusCode> codes;
  for (int i = 0; i < 10; ++i) {
    asio::co_spawn(loop_,
                   store_->Commit({.compares = {{.key = "n", .modified = read}},
                                   .puts = {{"n", std::to_string(i)}},
                                   .deletes = {}}),
                   [&codes](const std::exception_ptr& /*error*/, const absl::StatusOr<uint64_t>& revision) {
                     codes.push_back(revision.status().code());
                   });
  }
  loop_.restart();
  while (codes.size() < 10 && loop_.run_one() > 0) {
  }
  EXPECT_EQ(std::ranges::count(codes, absl::StatusCode::kOk), 1);
  EXPECT_EQ(std::ranges::count(codes, absl::StatusCode::kAborted), 9);
}

}  // namespace berth::scheduler
