#include "journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "base/testing/loop_runner.h"
#include "base/testing/test_area.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  sqlite3_close(db);
}

class JournalTest : public ::testing::Test {
 protected:
  std::unique_ptr<Journal> Open(size_t queue_limit = 8192) {
    auto journal = Journal::Open(loop_.executor(), {.path = path_, .queue_limit = queue_limit});
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }

  LoopRunner loop_;
  std::string directory_ = NewTestDirectory();
  std::string path_ = directory_ + "/journal.db";
};

TEST_F(JournalTest, RemembersWhatWasPutAndForgetsWhatWasDeleted) {
  {
    const auto journal = Open();
    EXPECT_THAT(journal->TakeLoaded(), IsEmpty());
    EXPECT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Put("b", std::string("t\0wo", 4))), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Put("a", "three")), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Put("c", "four")), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Delete("c")), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Delete("never there")), absl::OkStatus());
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("a", "three"), Pair("b", std::string("t\0wo", 4))));
}

TEST_F(JournalTest, OtherRowsAreWrittenWithARowOrNotAtAll) {
  const auto meta = [](const std::string& key, const std::string& value) {
    return JournalChange{.table = JournalChange::Table::kMeta, .key = key, .value = value};
  };
  {
    const auto journal = Open();
    ASSERT_EQ(journal->Restore({}, {}), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Delete("a", {meta("a", "of a")})), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Write({meta("b", "of b"), meta("c", "of c")})), absl::OkStatus());
    EXPECT_EQ(loop_.Run(journal->Put("b", "two", {}, {meta("b", "")})), absl::OkStatus());
    auto fails = [] { return absl::InternalError("no directory"); };
    EXPECT_FALSE(loop_.Run(journal->Put("c", "three", fails, {meta("c", "")})).ok());
  }
  const auto journal = Open();
  EXPECT_THAT(journal->TakeLoaded(), ElementsAre(Pair("b", "two")));
  EXPECT_THAT(journal->TakeMeta(), ElementsAre(Pair("a", "of a"), Pair("c", "of c")));
}

TEST_F(JournalTest, IsReadableByRootAlone) {
  const auto journal = Open();
  EXPECT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
  for (const char* suffix : {"", "-wal", ".lock"}) {
    struct stat info{};
    ASSERT_EQ(stat((path_ + suffix).c_str(), &info), 0) << suffix;
    EXPECT_EQ(info.st_mode & 07777, 0600U) << suffix;
  }
}

TEST_F(JournalTest, CommitsWhatQueuedUpAsOneTransaction) {
  const auto journal = Open();
  // Holds the writer's first batch up until everything else is queued.
  std::promise<void> go;
  std::vector<std::shared_ptr<std::optional<absl::Status>>> results;
  results.push_back(loop_.Start(journal->Put("first", "x", [future = go.get_future().share()] {
    future.wait();
    return absl::OkStatus();
  })));
  for (int i = 0; i < 64; ++i) results.push_back(loop_.Start(journal->Put(std::to_string(i), "x")));
  ASSERT_TRUE(loop_.RunUntil([&] { return journal->queued() == 64; }));
  go.set_value();
  for (const auto& result : results) {
    ASSERT_TRUE(loop_.RunUntil([&] { return result->has_value(); }));
    EXPECT_EQ(**result, absl::OkStatus());
  }
  EXPECT_EQ(journal->transactions(), 2U);
}

TEST_F(JournalTest, WhatNobodyWaitsForIsDoneInTheWritersRestAndNotBeforeAWrite) {
  const auto journal = Open();
  std::atomic<int> done = 0;
  std::atomic<bool> begun = false;
  std::promise<void> go;
  journal->SetIdleWork([&, future = go.get_future().share()] {
    begun = true;
    future.wait();
    return ++done < 3;
  });
  journal->WhenIdle();
  EXPECT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
  EXPECT_EQ(done, 0);
  // It is at work: what is written now comes before the rest of it.
  ASSERT_TRUE(loop_.RunUntil([&] { return begun.load(); }));
  int before = -1;
  const auto result = loop_.Start(journal->Put("b", "two", [&] {
    before = done;
    return absl::OkStatus();
  }));
  ASSERT_TRUE(loop_.RunUntil([&] { return journal->queued() == 1; }));
  go.set_value();
  ASSERT_TRUE(loop_.RunUntil([&] { return result->has_value() && done == 3; }));
  EXPECT_EQ(before, 1);
}

TEST_F(JournalTest, WhatNobodyWaitsForIsDoneThoughTheWriterNeverRests) {
  const auto journal = Open();
  std::atomic<int> done = 0;
  journal->SetIdleWork([&done] { return ++done < 2; });
  journal->WhenIdle();
  ASSERT_TRUE(loop_.RunUntil([&] {
    if (journal->queued() == 0) journal->PutSoon("a", "one");
    return done == 2;
  }));
}

TEST_F(JournalTest, WhatNobodyWaitsForHoldsUpNoEnd) {
  std::atomic<int> done = 0;
  auto journal = Open();
  journal->SetIdleWork([&done] { return ++done < 2; });
  journal->WhenIdle();
  ASSERT_TRUE(loop_.RunUntil([&] { return done == 2; }));
  journal->WhenIdle();
  journal.reset();
  EXPECT_EQ(done, 2);
}

TEST_F(JournalTest, WhatNobodyWaitsForIsNotGoneOnWithAfterAnEndInItsMidst) {
  std::atomic<int> begun = 0;
  std::promise<void> go;
  auto journal = Open();
  journal->SetIdleWork([&begun, future = go.get_future().share()] {
    ++begun;
    future.wait();
    return true;
  });
  journal->WhenIdle();
  ASSERT_TRUE(loop_.RunUntil([&] { return begun == 1; }));
  go.set_value();
  journal.reset();
  // What the writer thread sent last is taken now, and keeps nothing alive.
  bool taken = false;
  asio::post(loop_.executor(), [&taken] { taken = true; });
  ASSERT_TRUE(loop_.RunUntil([&taken] { return taken; }));
  EXPECT_EQ(begun, 1);
}

TEST_F(JournalTest, RefusesBeyondTheQueuesLimit) {
  const auto journal = Open(/*queue_limit=*/2);
  std::promise<void> go;
  std::vector<std::shared_ptr<std::optional<absl::Status>>> results;
  results.push_back(loop_.Start(journal->Put("first", "x", [future = go.get_future().share()] {
    future.wait();
    return absl::OkStatus();
  })));
  for (int i = 0; i < 2; ++i) results.push_back(loop_.Start(journal->Put(std::to_string(i), "x")));
  ASSERT_TRUE(loop_.RunUntil([&] { return journal->queued() == 2; }));
  EXPECT_EQ(loop_.Run(journal->Put("too many", "x")).code(), absl::StatusCode::kResourceExhausted);
  go.set_value();
  for (const auto& result : results) ASSERT_TRUE(loop_.RunUntil([&] { return result->has_value(); }));
}

TEST_F(JournalTest, AFailedPreparationFailsItsOwnWriteAlone) {
  const auto journal = Open();
  const auto bad = loop_.Start(journal->Put("bad", "x", [] { return absl::AbortedError("no directory"); }));
  const auto good = loop_.Start(journal->Put("good", "x"));
  ASSERT_TRUE(loop_.RunUntil([&] { return bad->has_value() && good->has_value(); }));
  EXPECT_EQ((*bad)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(**good, absl::OkStatus());
}

TEST_F(JournalTest, WhatWasPutSoonIsThereAfterAnOrderlyEnd) {
  {
    const auto journal = Open();
    journal->PutSoon("a", "one");
    journal->PutSoon("b", "two");
    journal->DeleteSoon("a");
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("b", "two")));
}

TEST_F(JournalTest, ASecondOwnerIsRefusedInPlainWords) {
  const auto journal = Open();
  const auto second = Journal::Open(loop_.executor(), {.path = path_});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(second.status()), HasSubstr("another berthd"));
  EXPECT_EQ(loop_.Run(journal->Put("a", "still mine")), absl::OkStatus());
}

TEST_F(JournalTest, AnotherProcessIsRefusedToo) {
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  // Begun before the journal is open: SQLite knows its own process's locks without the kernel.
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1) _exit(2);
    LoopRunner loop;
    const auto second = Journal::Open(loop.executor(), {.path = path_});
    _exit(second.status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1);
  }
  const auto journal = Open();
  EXPECT_EQ(write(go[1], "x", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(go[0]);
  close(go[1]);
}

// While the first berthd writes a new journal, its file is closed for a moment, and the next one is there.
TEST_F(JournalTest, AnotherProcessFinishesNoReplacementOfARunningBerthd) {
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1) _exit(2);
    LoopRunner loop;
    const auto second = Journal::Open(loop.executor(), {.path = path_});
    _exit(second.status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1);
  }
  {
    const auto journal = Open();
    ASSERT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
    std::filesystem::copy_file(path_, path_ + ".next");
    const std::string before = Bytes(path_ + "-wal");
    EXPECT_FALSE(before.empty());
    EXPECT_EQ(write(go[1], "x", 1), 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(std::filesystem::exists(path_ + ".next"));
    ASSERT_TRUE(std::filesystem::exists(path_ + "-wal"));
    EXPECT_TRUE(Bytes(path_ + "-wal") == before) << "the log of the running berthd was changed";
    ASSERT_EQ(unlink((path_ + ".next").c_str()), 0);
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("a", "one")));
  close(go[0]);
  close(go[1]);
}

TEST_F(JournalTest, Fault18ANewerSchemaIsRefusedAndNothingChanged) {
  Open().reset();
  Sql(path_, "PRAGMA user_version=99");
  const std::string before = Bytes(path_);
  const auto newer = Journal::Open(loop_.executor(), {.path = path_});
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(newer.status()), HasSubstr("newer berthd"));
  EXPECT_EQ(Bytes(path_), before);
}

TEST_F(JournalTest, AForeignDatabaseIsLeftAlone) {
  Sql(path_, "CREATE TABLE theirs(x)");
  const std::string before = Bytes(path_);
  const auto foreign = Journal::Open(loop_.executor(), {.path = path_});
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(foreign.status()), HasSubstr("not one of Berth"));
  EXPECT_EQ(Bytes(path_), before);
}

TEST_F(JournalTest, Fault18ASchemaThatWasNeverReleasedIsRefusedAndNothingChanged) {
  Sql(path_,
      "CREATE TABLE volumes(key TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;"
      "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
      "INSERT INTO volumes VALUES('a', 'one'), ('b', 'two');"
      "PRAGMA application_id=1114797160;PRAGMA user_version=1");
  const std::string before = Bytes(path_);
  const auto journal = Journal::Open(loop_.executor(), {.path = path_});
  EXPECT_EQ(journal.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(journal.status()), HasSubstr("never released"));
  EXPECT_EQ(Bytes(path_), before);
}

// What is in the directory, by name; the contents of the files that were set aside.
std::map<std::string, std::string> SetAside(const std::string& directory) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("journal.db.corrupt-") && !name.ends_with("-wal"))
      found[name] = Bytes(entry.path().string());
  }
  return found;
}

TEST_F(JournalTest, Fault21AFileThatIsNoDatabaseIsSetAsideWhole) {
  const std::string garbage(8192, 'x');
  std::ofstream(path_) << garbage;
  const auto journal = Open();
  ASSERT_NE(journal, nullptr);
  EXPECT_TRUE(journal->is_new());
  EXPECT_THAT(journal->set_aside(), HasSubstr("journal.db.corrupt-2"));
  EXPECT_EQ(Bytes(journal->set_aside()), garbage);
  EXPECT_THAT(journal->problem(), HasSubstr(journal->set_aside()));
  EXPECT_THAT(journal->TakeNotes(), ElementsAre(HasSubstr("set aside")));
  EXPECT_EQ(loop_.Run(journal->Put("a", "new life")), absl::OkStatus());
}

TEST_F(JournalTest, Fault21DamagedPagesAndATruncatedFileAreSetAsideAndNothingIsDeleted) {
  for (int round = 0; round < 2; ++round) {
    {
      const auto journal = Open();
      ASSERT_EQ(journal->Restore({}, {}), absl::OkStatus());
      for (int i = 0; i < 200; ++i) journal->PutSoon(std::to_string(i), std::string(500, 'r'));
    }
    const std::string before = Bytes(path_);
    ASSERT_GT(before.size(), 40'000U);
    if (round == 0) {
      std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(5 * 4096);
      file << std::string(3 * 4096, '\x5a');
    } else {
      ASSERT_EQ(truncate(path_.c_str(), 5 * 4096 + 100), 0);
    }
    const std::string damaged = Bytes(path_);
    const auto journal = Open();
    ASSERT_NE(journal, nullptr);
    EXPECT_TRUE(journal->is_new());
    EXPECT_THAT(journal->TakeLoaded(), IsEmpty());
    const auto aside = SetAside(directory_);
    EXPECT_EQ(aside.size(), static_cast<size_t>(round + 1)) << "one more, and the first one still there";
    EXPECT_EQ(Bytes(journal->set_aside()), damaged);
  }
}

TEST_F(JournalTest, Fault21AnEmptiedFileWithALogIsSetAsideWithIt) {
  const std::string copy = NewTestDirectory() + "/journal.db";
  {
    const auto journal = Open();
    ASSERT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
    std::filesystem::copy_file(path_ + "-wal", copy + "-wal");
  }
  std::ofstream(copy).close();
  const std::string log = Bytes(copy + "-wal");
  const auto journal = Journal::Open(loop_.executor(), {.path = copy});
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_FALSE((*journal)->set_aside().empty());
  EXPECT_EQ(Bytes((*journal)->set_aside() + "-wal"), log);
}

TEST_F(JournalTest, Fault21ARowThatIsNotAsItWasWrittenIsToldApart) {
  {
    const auto journal = Open();
    ASSERT_EQ(journal->Restore({}, {}), absl::OkStatus());
    ASSERT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
    ASSERT_EQ(loop_.Run(journal->Put("b", "two")), absl::OkStatus());
  }
  Sql(path_, "UPDATE volumes SET record = 'onf' WHERE key = 'a'");
  {
    const auto journal = Open();
    EXPECT_FALSE(journal->is_new());
    EXPECT_THAT(journal->TakeLoaded(), ElementsAre(Pair("b", "two")));
    EXPECT_THAT(journal->TakeDamaged(), ElementsAre(Pair("a", "onf")));
    ASSERT_EQ(journal->Restore({{"a", "rebuilt"}}, {{.key = "a", .record = "onf", .reason = "why"}}),
              absl::OkStatus());
  }
  const auto journal = Open();
  EXPECT_THAT(journal->TakeDamaged(), IsEmpty());
  EXPECT_THAT(journal->TakeLoaded(), ElementsAre(Pair("a", "rebuilt"), Pair("b", "two")));
}

TEST_F(JournalTest, HoldsWhatIsOnTheDiskAndNothingElse) {
  const auto journal = Open();
  EXPECT_FALSE(journal->Holds("a", "one"));
  ASSERT_EQ(loop_.Run(journal->Put("a", "one")), absl::OkStatus());
  EXPECT_TRUE(journal->Holds("a", "one"));
  EXPECT_FALSE(journal->Holds("a", "two"));
  ASSERT_EQ(loop_.Run(journal->Delete("a")), absl::OkStatus());
  EXPECT_FALSE(journal->Holds("a", "one"));
}

TEST_F(JournalTest, AReplacementThatACrashCutInTheMiddleIsFinished) {
  const std::string other = NewTestDirectory() + "/journal.db";
  {
    const auto next = Journal::Open(loop_.executor(), {.path = other});
    ASSERT_TRUE(next.ok());
    ASSERT_EQ(loop_.Run((*next)->Put("a", "of the new file")), absl::OkStatus());
  }
  std::filesystem::copy_file(other, path_ + ".next");
  {
    const auto old = Journal::Open(loop_.executor(), {.path = other});
    ASSERT_TRUE(old.ok());
    ASSERT_EQ(loop_.Run((*old)->Put("a", "of the old file")), absl::OkStatus());
    // The old one's log must not be taken for the new one's.
    std::filesystem::copy_file(other, path_);
    std::filesystem::copy_file(other + "-wal", path_ + "-wal");
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("a", "of the new file")));
}

TEST_F(JournalTest, AFullDiskIsToldAndWritingGoesOnOnceThereIsRoom) {
  ASSERT_EQ(mount("small", directory_.c_str(), "tmpfs", 0, "size=256k"), 0);
  {
    const auto journal = Open();
    EXPECT_EQ(loop_.Run(journal->Put("a", "before")), absl::OkStatus());
    const absl::Status full = loop_.Run(journal->Put("b", std::string(1 << 20, 'x')));
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_EQ(loop_.Run(journal->Put("c", "after")), absl::OkStatus());
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("a", "before"), Pair("c", "after")));
  ASSERT_EQ(umount2(directory_.c_str(), MNT_DETACH), 0);
}

TEST_F(JournalTest, Fault22AFullDiskRefusesNewWorkAndLetsVolumesGo) {
  ASSERT_EQ(mount("small", directory_.c_str(), "tmpfs", 0, "size=2m"), 0);
  const JournalReserve reserve{.free_bytes = 256 << 10, .log_bytes = 256 << 10, .file_bytes = 64 << 10};
  const auto prepare = [] { return absl::OkStatus(); };
  {
    auto opened = Journal::Open(loop_.executor(), {.path = path_, .reserve = reserve});
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto journal = *std::move(opened);
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(loop_.Run(journal->Put(std::to_string(i), std::string(400, 'r'), prepare)), absl::OkStatus());
    }
    EXPECT_EQ(journal->problem(), "");
    // Another program fills it to the last byte.
    {
      std::ofstream file(directory_ + "/theirs", std::ios::binary);
      const std::string block(4096, 'x');
      while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) continue;
    }
    const absl::Status refused = loop_.Run(journal->Put("new", "work", prepare));
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(refused), HasSubstr("disk is full"));
    EXPECT_THAT(journal->problem(), HasSubstr("disk is full"));
    // Far more than the log holds, so that it has to be moved into the file on the way.
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(
            loop_.Run(journal->Put(std::to_string(i), std::string(400, static_cast<char>('a' + round)))),
            absl::OkStatus());
      }
    }
    for (int i = 0; i < 49; ++i) ASSERT_EQ(loop_.Run(journal->Delete(std::to_string(i))), absl::OkStatus());
    ASSERT_EQ(unlink((directory_ + "/theirs").c_str()), 0);
    EXPECT_EQ(loop_.Run(journal->Put("new", "work", prepare)), absl::OkStatus());
    EXPECT_EQ(journal->problem(), "");
  }
  EXPECT_THAT(Open()->TakeLoaded(), ElementsAre(Pair("49", std::string(400, 'd')), Pair("new", "work")));
  ASSERT_EQ(umount2(directory_.c_str(), MNT_DETACH), 0);
}

TEST_F(JournalTest, AFailedWriteReachesEverybodyInItsGroupAndTheNextOneWorks) {
  const auto journal = Open();
  EXPECT_EQ(loop_.Run(journal->Put("a", "before")), absl::OkStatus());
  // From here on no file may grow: write(2) fails, as on a disk that is going.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit none = old_limit;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto first = loop_.Start(journal->Put("b", "x"));
  const auto second = loop_.Start(journal->Put("c", "x"));
  const auto third = loop_.Start(journal->Put("d", "x"));
  EXPECT_TRUE(
      loop_.RunUntil([&] { return first->has_value() && second->has_value() && third->has_value(); }));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE((*first)->ok());
  EXPECT_THAT(journal->problem(), HasSubstr("nothing is acknowledged"));
  EXPECT_FALSE((*second)->ok());
  EXPECT_EQ(**second, **third) << "one transaction, one error";
  EXPECT_EQ(loop_.Run(journal->Put("e", "after")), absl::OkStatus());
  EXPECT_EQ(journal->problem(), "");
}

// Writes 0, 1, 2, … under its own name and says so after each, until it is killed.
[[noreturn]] void WriteUntilKilled(const std::string& path, int told) {
  LoopRunner loop;
  auto journal = Journal::Open(loop.executor(), {.path = path});
  if (!journal.ok()) _exit(1);
  for (int i = 0;; ++i) {
    if (!loop.Run((*journal)->Put(std::to_string(i), std::to_string(i))).ok()) _exit(2);
    if (write(told, "x", 1) != 1) _exit(3);
  }
}

TEST_F(JournalTest, KilledWriterLosesNothingThatItWasTold) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) WriteUntilKilled(path_, told[1]);
  close(told[1]);
  // The kill comes in the middle of one of the commits that follow.
  char buffer[200];
  size_t acknowledged = 0;
  while (acknowledged < sizeof buffer) {
    const ssize_t count = read(told[0], buffer, sizeof buffer - acknowledged);
    ASSERT_GT(count, 0);
    acknowledged += static_cast<size_t>(count);
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ssize_t more = 0;
  while ((more = read(told[0], buffer, sizeof buffer)) > 0) acknowledged += static_cast<size_t>(more);
  close(told[0]);

  const auto rows = Open()->TakeLoaded();
  EXPECT_GE(rows.size(), acknowledged);
  EXPECT_LE(rows.size(), acknowledged + 1) << "at most one was durable and not yet acknowledged";
  for (size_t i = 0; i < acknowledged; ++i) EXPECT_EQ(rows.count(std::to_string(i)), 1U) << i;
}

}  // namespace
}  // namespace berth
