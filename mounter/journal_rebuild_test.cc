#include "mounter/journal_rebuild.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/testing/loop_runner.h"
#include "base/testing/test_area.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class JournalRebuildTest : public ::testing::Test {
 protected:
  JournalRebuildTest() {
    record_.plugin_id = "hp";
    record_.volume_id = "v1";
    record_.driver_name = "fake.example.com";
    record_.stages = true;
    record_.stage_state = StageState::kStaged;
    record_.volume_context = {{"only", "the journal knows"}};
    web_.key = {.consumer = "web", .name = "data"};
    web_.component = VolumePaths::PublicationComponent(web_.key);
    web_.readonly = true;
    web_.origin = Origin::kScheduler;
    web_.state = PublicationState::kPublished;
    record_.publications.push_back(web_);
    EXPECT_EQ(paths_.Make(record_, web_), absl::OkStatus());
    EXPECT_EQ(mkdir(Target().c_str(), 0755), 0);
  }

  [[nodiscard]] std::string Target() const { return paths_.TargetPath(record_, web_); }
  [[nodiscard]] std::string Key() const {
    return VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id);
  }
  std::unique_ptr<Journal> Open() {
    auto journal = Journal::Open(loop_.executor(), {.path = path_});
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  // What a berthd that starts has of the volumes.
  std::map<std::string, VolumeRecord> Restored(Journal& journal) {
    std::map<std::string, VolumeRecord> records;
    const auto rows = RestoreRows(journal, paths_, "boot");
    EXPECT_TRUE(rows.ok()) << rows.status();
    if (!rows.ok()) return records;
    for (const auto& [key, bytes] : *rows) {
      const auto record = DecodeRecord(bytes);
      EXPECT_TRUE(record.ok()) << record.status();
      if (record.ok()) records[key] = *record;
    }
    return records;
  }

  LoopRunner loop_;
  static VolumePaths OpenPaths(const std::string& state_dir) {
    MakeDirectory(VolumePaths::TreeIn(state_dir));
    return *VolumePaths::Open(state_dir);
  }

  std::string state_dir_ = NewTestDirectory();
  std::string path_ = state_dir_ + "/journal.db";
  VolumePaths paths_ = OpenPaths(state_dir_);
  VolumeRecord record_;
  PublicationRecord web_;
};

TEST_F(JournalRebuildTest, Fault21WhatIsMountedIsPublishedAndWhoseItIsIsKnown) {
  ASSERT_EQ(mount("x", Target().c_str(), "tmpfs", 0, nullptr), 0);
  const auto row = RebuildRow(paths_, Key(), "boot");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_TRUE(row->rebuilt);
  EXPECT_EQ(row->boot_id, "boot");
  EXPECT_EQ(row->driver_name, "fake.example.com");
  EXPECT_EQ(row->stage_state, StageState::kStaged);
  ASSERT_THAT(row->publications, SizeIs(1));
  EXPECT_EQ(row->publications[0].key, web_.key);
  EXPECT_EQ(row->publications[0].state, PublicationState::kPublished);
  EXPECT_FALSE(row->publications[0].uncertain);
  EXPECT_TRUE(row->publications[0].readonly);
  EXPECT_EQ(row->publications[0].origin, Origin::kScheduler);
  EXPECT_NE(row->publications[0].mount_id, 0U);
  ASSERT_EQ(umount2(Target().c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(JournalRebuildTest, Fault21WhatIsNotMountedIsUncertainAndHeld) {
  const auto row = RebuildRow(paths_, Key(), "boot");
  ASSERT_TRUE(row.ok()) << row.status();
  ASSERT_THAT(row->publications, SizeIs(1));
  EXPECT_TRUE(row->publications[0].uncertain);
  EXPECT_THAT(row->publications[0].blocked, HasSubstr("journal was lost"));
  EXPECT_TRUE(row->stage_uncertain);
}

TEST_F(JournalRebuildTest, Fault21WhetherItIsAttachedAndStillInUseIsKnown) {
  record_.publish_context = std::map<std::string, std::string>{{"devicePath", "/dev/sdx"}};
  record_.node_id = "node-7";
  record_.boot_id = "boot";
  record_.still_in_use = true;
  ASSERT_EQ(paths_.WriteIdentity(record_), absl::OkStatus());
  const auto row = RebuildRow(paths_, Key(), "boot");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_TRUE(row->publish_context.has_value());
  EXPECT_EQ(row->node_id, "node-7");
  EXPECT_TRUE(row->still_in_use);
  EXPECT_FALSE(RebuildRow(paths_, Key(), "the next boot")->still_in_use) << "no kernel has it any more";
}

TEST_F(JournalRebuildTest, AnIdentityFileOfAnotherVolumeIsNotBelieved) {
  const std::string other(32, 'a');
  const std::string file = state_dir_ + "/identities/" + other + ".json";
  std::ofstream(file) << R"({"plugin_id": "hp", "volume_id": "v1"})";
  EXPECT_EQ(RebuildRow(paths_, other, "boot").status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(file) << "no json";
  EXPECT_EQ(RebuildRow(paths_, other, "boot").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(RebuildRow(paths_, "nothing", "boot").status().code(), absl::StatusCode::kNotFound);
  MakeDirectory(paths_.tree() + "/unknown");
  const auto rows = RebuildRows(paths_, "boot");
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(rows->records, SizeIs(1));
  EXPECT_THAT(rows->unreadable, ElementsAre(HasSubstr("cannot be read"), HasSubstr("no identity file")));
}

TEST_F(JournalRebuildTest, Fault21ACorruptJournalIsMadeAnewFromTheTreeOnceAndSaysSo) {
  std::ofstream(path_) << std::string(8192, 'x');
  {
    const auto journal = Open();
    const auto records = Restored(*journal);
    ASSERT_THAT(records, SizeIs(1));
    EXPECT_EQ(records.begin()->first, Key());
    EXPECT_TRUE(records.begin()->second.rebuilt);
    EXPECT_THAT(journal->problem(), HasSubstr("set aside"));
    EXPECT_THAT(journal->problem(), HasSubstr("1 volumes were rebuilt"));
    EventLog events(loop_.executor(), 100);
    ReportRestored(*journal, events);
    EXPECT_THAT(events.After(0, 100).events, SizeIs(2));
  }
  const auto journal = Open();
  EXPECT_FALSE(journal->is_new());
  EXPECT_EQ(journal->problem(), "");
  EXPECT_THAT(Restored(*journal), SizeIs(1));
}

TEST_F(JournalRebuildTest, AStartThatCameNotAsFarAsRestoringIsRepeated) {
  Open().reset();
  EXPECT_THAT(Restored(*Open()), SizeIs(1));
}

TEST_F(JournalRebuildTest, ARowThatIsNoRecordIsKeptApartAndMadeAnew) {
  {
    const auto journal = Open();
    ASSERT_EQ(journal->Restore({{Key(), "\x01\x02 no record"}, {"gone", "\x01 nor this"}}, {}),
              absl::OkStatus());
  }
  {
    const auto journal = Open();
    const auto records = Restored(*journal);
    ASSERT_THAT(records, SizeIs(1)) << "the other one has no directory";
    EXPECT_TRUE(records.at(Key()).rebuilt);
    EXPECT_THAT(journal->problem(), HasSubstr("damaged"));
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  sqlite3_stmt* rows = nullptr;
  ASSERT_EQ(sqlite3_prepare_v2(db, "SELECT count(*) FROM damaged", -1, &rows, nullptr), SQLITE_OK);
  ASSERT_EQ(sqlite3_step(rows), SQLITE_ROW);
  EXPECT_EQ(sqlite3_column_int(rows, 0), 2);
  sqlite3_finalize(rows);
  sqlite3_close(db);
}

TEST_F(JournalRebuildTest, ARecordOfANewerBerthdIsRefusedAndNothingIsChanged) {
  VolumeRecord record = record_;
  {
    const auto journal = Open();
    // Field 17, the record's version: 99.
    ASSERT_EQ(journal->Restore({{Key(), EncodeRecord(record) + "\x88\x01\x63"}}, {}), absl::OkStatus());
  }
  for (int again = 0; again < 2; ++again) {
    const auto journal = Open();
    EXPECT_EQ(RestoreRows(*journal, paths_, "boot").status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace berth
