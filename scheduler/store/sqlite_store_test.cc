#include "scheduler/store/sqlite_store.h"

#include <sqlite3.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/testing/power_cut_vfs.h"
#include "scheduler/store/testing/store_suite.h"

namespace berth::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Store> MakeSqlite(const asio::any_io_executor& executor, const std::string& directory) {
  auto opened = RecordFile::Open({.directory = directory, .vfs = ""});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? std::make_unique<SqliteStore>(executor, *std::move(opened)) : nullptr;
}
INSTANTIATE_TEST_SUITE_P(Sqlite, StoreSuite, testing::Values(&MakeSqlite));

using Rows = std::map<std::string, std::string>;

class SqliteStoreTest : public ::testing::Test {
 protected:
  absl::Status Open(const std::string& directory, const std::string& vfs = "",
                    uint64_t least_free_bytes = 0) {
    store_.reset();
    auto opened = RecordFile::Open({.directory = directory, .vfs = vfs});
    if (!opened.ok()) return opened.status();
    store_ = std::make_unique<SqliteStore>(loop_.get_executor(), *std::move(opened), least_free_bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Put(const std::string& key, const std::string& value, bool is_new_work = false) {
    return RunOn(
        loop_,
        store_->Commit({.compares = {}, .puts = {{key, value}}, .deletes = {}, .is_new_work = is_new_work}));
  }
  absl::StatusOr<uint64_t> Delete(const std::string& key) {
    return RunOn(loop_, store_->Commit({.compares = {}, .puts = {}, .deletes = {key}}));
  }
  Rows All() {
    Rows rows;
    const auto snapshot = RunOn(loop_, store_->Read({KeyRange::Prefix("")}));
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    if (snapshot.ok()) {
      for (const StoredRecord& record : snapshot->records) rows[record.key] = record.value;
      revision_ = snapshot->revision;
    }
    return rows;
  }
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string File(int number = 1) const {
    return directory_.path() + "/records-" + std::to_string(number) + ".db";
  }

  TempDir directory_;
  asio::io_context loop_;
  std::unique_ptr<SqliteStore> store_;
  uint64_t revision_ = 0;
};

TEST_F(SqliteStoreTest, WhatWasCommittedIsThereAgainWithItsRevisions) {
  ASSERT_TRUE(Open(directory_.path()).ok());
  const uint64_t first = *Put("a", "1");
  ASSERT_TRUE(Put("b", std::string("\0x", 2)).ok());
  ASSERT_TRUE(Put("empty", "").ok());
  ASSERT_TRUE(Delete("empty").ok());
  const Rows before = All();
  const uint64_t revision = revision_;
  ASSERT_TRUE(Open(directory_.path()).ok());
  EXPECT_EQ(All(), before);
  EXPECT_EQ(revision_, revision);
  EXPECT_EQ(RunOn(loop_, store_->Read({KeyRange::Key("a")}))->records.at(0).modified, first);
  EXPECT_EQ(*Put("c", "1"), revision + 1);
  // Followers from before read everything again.
  EXPECT_TRUE(absl::IsOutOfRange(RunOn(loop_, store_->Changes(first, Clock::now())).status()));
  EXPECT_THAT(Files(), ElementsAre("records-1.db", "records-1.db-wal"));
  EXPECT_EQ(std::filesystem::status(File()).permissions(), std::filesystem::perms(0600));
}

TEST_F(SqliteStoreTest, ManyAtOnceAreOneWrite) {
  PowerCutVfs vfs;
  ASSERT_TRUE(Open(directory_.path(), vfs.name()).ok());
  const uint64_t before = vfs.syncs();
  size_t done = 0;
  for (int i = 0; i < 500; ++i) {
    asio::co_spawn(loop_, store_->Commit({.compares = {}, .puts = {{std::to_string(i), "x"}}, .deletes = {}}),
                   [&done](const std::exception_ptr& /*error*/, const absl::StatusOr<uint64_t>& revision) {
                     EXPECT_TRUE(revision.ok());
                     ++done;
                   });
  }
  loop_.restart();
  while (done < 500 && loop_.run_one() > 0) {
  }
  EXPECT_EQ(All().size(), 500U);
  EXPECT_LT(vfs.syncs() - before, 250U);
}

TEST_F(SqliteStoreTest, ASecondProcessIsRefusedAndSoIsWhatIsNoFileOfOurs) {
  ASSERT_TRUE(Open(directory_.path()).ok());
  ASSERT_TRUE(Put("a", "1").ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(RecordFile::Open({.directory = directory_.path(), .vfs = ""}).status()));
  store_.reset();
  const auto sql = [this](const char* text) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(File().c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, text, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  };
  sql("UPDATE records SET value = 'changed'");
  absl::Status opened = Open(directory_.path());
  EXPECT_TRUE(absl::IsDataLoss(opened));
  EXPECT_THAT(MessageOf(opened), HasSubstr("the record a is not as it was written"));
  sql("PRAGMA user_version=99");
  opened = Open(directory_.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(opened));
  EXPECT_THAT(MessageOf(opened), HasSubstr("a newer berth-scheduler wrote it (format 99; this one knows 1)"));
  sql("PRAGMA application_id=7");
  EXPECT_THAT(MessageOf(Open(directory_.path())), HasSubstr("no file of a berth-scheduler"));
  std::ofstream(File(), std::ios::trunc) << "precious text that is no database";
  EXPECT_FALSE(Open(directory_.path()).ok());
  std::filesystem::resize_file(File(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(directory_.path()))) << "an empty file is not an empty store";
  EXPECT_EQ(std::filesystem::file_size(File()), 0U) << "and it stays as it is";
}

TEST_F(SqliteStoreTest, WithLittleSpaceOnlyWhatIsNoNewWorkIsTaken) {
  ASSERT_TRUE(Open(directory_.path(), "", UINT64_MAX).ok());
  const auto refused = Put("claim", "1", /*is_new_work=*/true);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("what is left is for releasing volumes"));
  EXPECT_TRUE(Put("release", "1").ok());
  EXPECT_EQ(All(), (Rows{{"release", "1"}}));
}

// What was to be synced is lost, and the kernel goes on showing it: nothing of it counts.
TEST_F(SqliteStoreTest, AfterAFailedSyncEverythingIsWrittenToANewFileBeforeAnythingIsAcknowledged) {
  PowerCutVfs vfs;
  ASSERT_TRUE(Open(directory_.path(), vfs.name()).ok());
  ASSERT_TRUE(Put("a", "1").ok());
  vfs.FailSyncs(0, 1);
  EXPECT_TRUE(Put("b", "1").ok()) << "the new file has it";
  EXPECT_THAT(Files(), ElementsAre("records-2.db", "records-2.db-wal"));
  // The disk does not come back at once.
  vfs.FailSyncs(0, 2);
  const auto failed = Put("c", "1");
  EXPECT_TRUE(absl::IsUnavailable(failed.status())) << failed.status();
  EXPECT_EQ(All(), (Rows{{"a", "1"}, {"b", "1"}}));
  EXPECT_TRUE(Put("d", "1").ok());
  const TempDir copy;
  vfs.Cut(directory_.path(), copy.path(), nullptr);
  ASSERT_TRUE(Open(copy.path()).ok());
  EXPECT_EQ(All(), (Rows{{"a", "1"}, {"b", "1"}, {"d", "1"}}));
}

// The power goes at each point of a life with checkpoints and failing syncs: what was acknowledged is there,
// and besides that at most what was asked for and not answered yet.
class SqlitePowerCutTest : public SqliteStoreTest {
 protected:
  void CutNow(const PowerCutVfs& vfs, const char* what, bool some_kept) {
    const TempDir copy;
    vfs.Cut(directory_.path(), copy.path(), some_kept ? &random_ : nullptr);
    ++cuts_;
    const auto opened = RecordFile::Open({.directory = copy.path(), .vfs = ""});
    ASSERT_TRUE(opened.ok()) << what << ", cut " << cuts_ << ", seed " << seed_ << ": " << opened.status();
    Rows found;
    for (const auto& [key, value] : opened->records) found[key] = value.value;
    EXPECT_TRUE(found == acknowledged_ || found == asked_)
        << what << ", cut " << cuts_ << ", seed " << seed_ << ": " << found.size() << " rows";
  }
  void Live(int steps, int failing_syncs) {
    PowerCutVfs vfs;
    ASSERT_TRUE(Open(directory_.path(), vfs.name()).ok());
    vfs.OnPoint([&](const char* what) {
      if (HasFailure()) return;
      CutNow(vfs, what, false);
      CutNow(vfs, what, true);
    });
    for (int i = 0; i < steps && !HasFailure(); ++i) {
      const std::string key = std::to_string(random_() % 6);
      asked_ = acknowledged_;
      absl::Status status;
      if (failing_syncs > 0 && random_() % 6 == 0) vfs.FailSyncs(random_() % 3, 1 + random_() % 2);
      if (random_() % 3 == 0) {
        asked_.erase(key);
        status = Delete(key).status();
      } else {
        asked_[key] = std::string(1 + random_() % 900, 'x');
        status = Put(key, asked_[key]).status();
      }
      if (status.ok()) acknowledged_ = asked_;
      asked_ = acknowledged_;
    }
    EXPECT_EQ(All(), acknowledged_);
    store_.reset();
    vfs.OnPoint(nullptr);
    CutNow(vfs, "the end", false);
  }

  uint32_t seed_ = std::getenv("BERTH_TEST_SEED") != nullptr
                       ? static_cast<uint32_t>(std::strtoul(std::getenv("BERTH_TEST_SEED"), nullptr, 10))
                       : std::random_device{}();
  std::minstd_rand random_{seed_};
  int cuts_ = 0;
  Rows acknowledged_;
  Rows asked_;
};

TEST_F(SqlitePowerCutTest, WhatWasAcknowledgedOutlivesACutAtAnyPoint) { Live(60, 0); }
TEST_F(SqlitePowerCutTest, AlsoWhereSyncsFail) { Live(60, 1); }

}  // namespace
}  // namespace berth::scheduler
