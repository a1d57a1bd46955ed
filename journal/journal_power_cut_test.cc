// The power goes at every point of the journal's life: what was acknowledged is found again each time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/testing/loop_runner.h"
#include "base/testing/power_cut_vfs.h"
#include "base/testing/test_area.h"
#include "journal/journal.h"

namespace berth {
namespace {

using Rows = std::map<std::string, std::string>;

class JournalPowerCutTest : public ::testing::Test {
 protected:
  JournalPowerCutTest() {
    const char* given = std::getenv("BERTH_TEST_SEED");
    seed_ =
        given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", static_cast<int>(seed_));
  }

  // Opens what is left after a cut now, and compares: every acknowledged row is there, and besides those at
  // most what was asked for and not yet answered.
  void CutNow(const char* what, bool some_kept) {
    const std::string copy = NewTestDirectory();
    vfs_.Cut(directory_, copy, some_kept ? &random_ : nullptr);
    ++cuts_;
    LoopRunner loop;
    auto journal = Journal::Open(loop.executor(), {.path = copy + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << what << ", cut " << cuts_ << ", seed " << seed_ << ": " << journal.status();
    EXPECT_EQ((*journal)->set_aside(), "") << what << ", cut " << cuts_ << ", seed " << seed_;
    const Rows found = (*journal)->TakeLoaded();
    EXPECT_TRUE(found == acknowledged_ || found == asked_)
        << what << ", cut " << cuts_ << ", seed " << seed_ << ": " << found.size() << " rows; acknowledged "
        << acknowledged_.size();
    journal->reset();
    for (const auto& entry : std::filesystem::directory_iterator(copy)) {
      std::filesystem::remove(entry.path());
    }
  }

  void CutAtEveryPoint() {
    vfs_.OnPoint([this](const char* what) {
      if (::testing::Test::HasFailure()) return;
      CutNow(what, false);
      CutNow(what, true);
    });
  }

  // One change, reported to the test before and after.
  void Change(Journal& journal, const std::string& key, const std::string& record) {
    asked_ = acknowledged_;
    if (record.empty()) {
      asked_.erase(key);
    } else {
      asked_[key] = record;
    }
    const absl::Status status =
        record.empty() ? loop_.Run(journal.Delete(key)) : loop_.Run(journal.Put(key, record));
    if (status.ok()) {
      acknowledged_ = asked_;
      ++answered_;
    } else {
      ++failed_;
    }
  }

  void SomeLife(Journal& journal, int count) {
    for (int i = 0; i < count && !HasFailure(); ++i) {
      const std::string key = std::to_string(random_() % 6);
      const bool put = random_() % 3 != 0;
      Change(journal, key, put ? std::string(1 + random_() % 900, static_cast<char>('a' + i % 26)) : "");
    }
  }

  std::unique_ptr<Journal> Open() {
    // So small that the log is moved into the file every few writes.
    auto journal = Journal::Open(
        loop_.executor(),
        {.path = path_, .reserve = {.free_bytes = 0, .log_bytes = 0, .file_bytes = 0}, .vfs = vfs_.name()});
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }

  uint32_t seed_ = 0;
  std::minstd_rand random_;
  PowerCutVfs vfs_;
  LoopRunner loop_;
  std::string directory_ = NewTestDirectory();
  std::string path_ = directory_ + "/journal.db";
  Rows acknowledged_;
  Rows asked_;
  int cuts_ = 0;
  int answered_ = 0;
  int failed_ = 0;
};

TEST_F(JournalPowerCutTest, Fault20APowerCutAtEveryPointFindsTheLastAcknowledgedState) {
  auto journal = Open();
  ASSERT_NE(journal, nullptr);
  CutAtEveryPoint();
  SomeLife(*journal, 30);
  journal.reset();
  EXPECT_EQ(failed_, 0);
  EXPECT_GT(cuts_, 120);
  // And through a second life, which begins with what the first one left.
  journal = Open();
  ASSERT_NE(journal, nullptr);
  SomeLife(*journal, 10);
  journal.reset();
  vfs_.OnPoint(nullptr);
}

TEST_F(JournalPowerCutTest, Fault23AfterAFailedSyncOnlyWhatIsOnTheDiskIsAcknowledged) {
  // Each of the syncs in turn: of the log, of the file, of the one that takes its place.
  for (uint64_t n = 0; n < 12 && !HasFailure(); ++n) {
    for (const uint64_t count : {1U, 3U}) {
      auto journal = Open();
      ASSERT_NE(journal, nullptr);
      vfs_.FailSyncs(n, count);
      for (int i = 0; i < 20 && !HasFailure(); ++i) {
        const int before = answered_;
        SomeLife(*journal, 1);
        // The moment after an answer is the one that counts.
        if (answered_ > before) CutNow("after an answer", i % 2 == 1);
      }
      EXPECT_EQ(journal->problem(), "") << "it is sound again once syncs succeed";
      vfs_.FailSyncs(0, 0);
      journal.reset();
      const auto again = Open();
      ASSERT_NE(again, nullptr);
      const Rows found = again->TakeLoaded();
      EXPECT_TRUE(found == acknowledged_ || found == asked_) << "sync " << n << ", seed " << seed_;
      acknowledged_ = asked_ = found;
    }
  }
  EXPECT_GT(answered_, 100);
}

TEST_F(JournalPowerCutTest, Fault23NothingIsAcknowledgedWhileSyncsFail) {
  auto journal = Open();
  ASSERT_NE(journal, nullptr);
  Change(*journal, "a", "one");
  vfs_.FailSyncs(0, 1'000'000);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(loop_.Run(journal->Put("b", "two")).ok());
    EXPECT_THAT(journal->problem(), ::testing::HasSubstr("nothing is acknowledged"));
    loop_.RunVoid(journal->Flush(Clock::now() + std::chrono::seconds(10)));
  }
  vfs_.FailSyncs(0, 0);
  // It tries by itself.
  EXPECT_TRUE(loop_.RunUntil([&] { return journal->problem().empty(); }));
  EXPECT_EQ(loop_.Run(journal->Put("b", "three")), absl::OkStatus());
  acknowledged_ = asked_ = {{"a", "one"}, {"b", "three"}};
  CutNow("in the end", false);
}

}  // namespace
}  // namespace berth
