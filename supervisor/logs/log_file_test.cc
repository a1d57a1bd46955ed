#include "supervisor/logs/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "base/status.h"
#include "base/testing/datagram_queue.h"
#include "base/testing/mount_namespace.h"
#include "base/testing/temp_dir.h"
#include "supervisor/logs/log_intake.h"
#include "supervisor/logs/log_reader.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A log in a directory, with its intake.
class LogOnDisk {
 public:
  explicit LogOnDisk(std::string path, const LogLimits& limits = {}) : path_(std::move(path)) {
    Open(limits);
  }

  void Open(const LogLimits& limits = {}) {
    intake_.reset();
    absl::StatusOr<std::unique_ptr<LogFile>> file = LogFile::Open(path_, true);
    ASSERT_TRUE(file.ok()) << file.status();
    append_ = (*file)->OpenToAppend().value();
    intake_ = std::make_unique<LogIntake>("nfs", *std::move(file), limits);
  }
  void Write(std::string_view text) const { ASSERT_TRUE(WriteAll(append_.get(), text, path_).ok()); }
  void TakeIn() {
    while (intake_->Run(secrets_, journal_, buffer_) == LogIntake::Step::kMore) {
    }
  }
  LogIntake::Step TakeInOnce(LogJournal& journal) { return intake_->Run(secrets_, journal, buffer_); }
  LogBatch Read(LogQuery query = {}) {
    query.max_lines = 1'000'000;
    query.max_bytes = size_t{1} << 30;
    return ReadLog(file(), query, intake_->limits(), *secrets_.Of("nfs"), buffer_);
  }
  std::vector<std::string> Lines(LogQuery query = {}) {
    std::vector<std::string> texts;
    for (const LogLine& line : Read(std::move(query)).lines) texts.push_back(line.text);
    return texts;
  }
  std::vector<std::string> Last(uint64_t from) {
    return LastLogLines(file(), from, file().End(WallClock::now()), *secrets_.Of("nfs"), buffer_);
  }
  [[nodiscard]] uint64_t DiskBytes() const {
    struct stat info{};
    EXPECT_EQ(stat(path_.c_str(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  LogFile& file() { return intake_->file(); }
  LogIntake& intake() { return *intake_; }
  LogJournal& journal() { return journal_; }
  RecentSecrets& secrets() { return secrets_; }
  [[nodiscard]] std::string Content() const { return *ReadFile(path_, size_t{1} << 30); }

 private:
  std::string path_;
  std::vector<char> buffer_ = std::vector<char>(kLogChunk);
  RecentSecrets secrets_;
  LogJournal journal_{""};
  std::unique_ptr<LogIntake> intake_;
  UniqueFd append_;
};

class LogFileTest : public ::testing::Test {
 protected:
  TempDir temp_;
  std::string path_ = temp_.Path("nfs.log");
};

TEST_F(LogFileTest, SymlinkDirectoryAndPipeAreRefused) {
  temp_.Write("target", "precious");
  ASSERT_EQ(symlink(temp_.Path("target").c_str(), path_.c_str()), 0);
  EXPECT_THAT(LogFile::Open(path_, true).status().ToString(), HasSubstr("symlink"));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(LogFile::Open(path_, true).status().ToString(), HasSubstr("not a file"));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT(LogFile::Open(path_, true).status().ToString(), HasSubstr("directory"));
  EXPECT_EQ(*ReadFile(temp_.Path("target"), 100), "precious");
}

TEST_F(LogFileTest, NoFileIsNotFoundUnlessItIsToBeMade) {
  EXPECT_EQ(LogFile::Open(path_, false).status().code(), absl::StatusCode::kNotFound);
  LogOnDisk log(path_);
  struct stat info{};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(LogFileTest, PositionsNumbersAndTimesOutliveTheProcess) {
  LogOnDisk log(path_);
  log.Write("one\ntwo\n");
  log.TakeIn();
  const LogBatch before = log.Read();
  log.Open();
  log.Write("three\nfour");
  log.TakeIn();
  const LogBatch after = log.Read();
  ASSERT_EQ(after.lines.size(), 3U);
  EXPECT_EQ(after.lines[1].position, 4U);
  EXPECT_EQ(after.lines[1].number, 1U);
  EXPECT_EQ(after.lines[1].time, before.lines[1].time);
  EXPECT_EQ(after.lines[2].text, "three");
  EXPECT_EQ(after.lines[2].position, 8U);
  EXPECT_GT(after.lines[2].time, after.lines[1].time);
  EXPECT_TRUE(after.at_end);
  EXPECT_EQ(after.next.position, 14U);
}

TEST_F(LogFileTest, WithoutItsIndexWhatIsThereCountsAsRead) {
  temp_.Write("nfs.log", "old\nolder\n");
  LogOnDisk log(path_);
  EXPECT_EQ(log.file().state().position, 10U);
  log.Write("new\n");
  log.TakeIn();
  EXPECT_THAT(log.Lines(), ElementsAre("old", "older", "new"));
  // Damaged: the same.
  temp_.Write("nfs.log.index", std::string(300000, 'x'));
  log.Open();
  EXPECT_THAT(log.Lines(), ElementsAre("old", "older", "new"));
}

TEST_F(LogFileTest, CutOffBySomebodyPositionsGoOn) {
  LogOnDisk log(path_);
  log.Write("one\ntwo\n");
  log.TakeIn();
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  log.Write("three\n");
  log.TakeIn();
  LogBatch batch = log.Read();
  ASSERT_EQ(batch.lines.size(), 1U);
  EXPECT_EQ(batch.lines[0].text, "three");
  EXPECT_EQ(batch.lines[0].position, 8U);
  EXPECT_EQ(batch.lines[0].number, 2U);
  // Unnoticed.
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  log.Write("4\n");
  log.Open();
  log.TakeIn();
  batch = log.Read();
  ASSERT_EQ(batch.lines.size(), 1U);
  EXPECT_EQ(batch.lines[0].text, "4");
  EXPECT_EQ(batch.lines[0].position, 14U);
}

TEST_F(LogFileTest, ReplacedBySomebodyPositionsGoOn) {
  LogOnDisk log(path_);
  log.Write("one\ntwo\n");
  log.TakeIn();
  ASSERT_EQ(rename(path_.c_str(), temp_.Path("old").c_str()), 0);
  log.Write("still read\n");
  log.TakeIn();
  EXPECT_THAT(log.Lines(), ElementsAre("one", "two", "still read"));
  log.Open();
  log.Write("three\n");
  log.TakeIn();
  const LogBatch batch = log.Read();
  ASSERT_EQ(batch.lines.size(), 1U);
  EXPECT_EQ(batch.lines[0].position, 19U);
  EXPECT_EQ(batch.lines[0].text, "three");
}

TEST_F(LogFileTest, UnfinishedLineIsEndedOnce) {
  LogOnDisk log(path_);
  ASSERT_TRUE(log.file().EndUnfinishedLine().ok());
  EXPECT_EQ(log.Content(), "");
  log.Write("half");
  ASSERT_TRUE(log.file().EndUnfinishedLine().ok());
  ASSERT_TRUE(log.file().EndUnfinishedLine().ok());
  EXPECT_EQ(log.Content(), "half\n");
}

TEST_F(LogFileTest, SecretsAreOverwrittenInTheFile) {
  LogOnDisk log(path_);
  log.secrets().Hold("nfs", {"hunter2!"});
  log.Write("login hunter2! ok\nhunt");
  log.TakeIn();
  EXPECT_EQ(log.Content(), "login ******** ok\nhunt");
  log.Write("er2!\n");
  log.TakeIn();
  EXPECT_EQ(log.Content(), "login ******** ok\n********\n");
  EXPECT_THAT(log.Lines(), ElementsAre("login ******** ok", "********"));
}

TEST_F(LogFileTest, SecretsThatBecomeKnownLaterAreHiddenFromReaders) {
  LogOnDisk log(path_);
  log.Write("login hunter2! ok\n");
  log.TakeIn();
  log.secrets().Hold("nfs", {"hunter2!"});
  EXPECT_THAT(log.Lines(), ElementsAre("login ******** ok"));
  EXPECT_THAT(log.Last(0), ElementsAre("login ******** ok"));
  // Nor does a position in the middle of it give a part away.
  EXPECT_THAT(log.Lines({.after = LogCursor{.position = 8}}), IsEmpty());
}

TEST_F(LogFileTest, SecretsAcrossEveryCutAreFound) {
  LogLimits limits;
  limits.max_line = 100;
  LogOnDisk log(path_, limits);
  log.secrets().Hold("nfs", {"hunter2!", std::string(3000, 'S')});
  std::string text;
  // Across max_line; across the place at which a line without end is cut; across chunks.
  for (size_t before : {96, 131068, 131070}) text += std::string(before, 'x') + "hunter2!" + "y\n";
  for (int i = 0; i < 20000; ++i) text += fmt::format("line {} hunter2! and more\n", i);
  text += std::string(kLogLongestLine - 1000, 'x') + std::string(3000, 'S') + "z\n";
  log.Write(text);
  log.TakeIn();
  const std::string content = log.Content();
  EXPECT_EQ(content.size(), text.size());
  EXPECT_EQ(content.find("hunter"), std::string::npos);
  EXPECT_EQ(content.find("unter2"), std::string::npos);
  EXPECT_EQ(content.find('S'), std::string::npos);
  EXPECT_EQ(log.Lines()[0], std::string(96, 'x') + "****… (5 bytes cut)");
}

TEST_F(LogFileTest, LinesBeyondTheRateAreCountedAndTold) {
  LogLimits limits;
  limits.rate = 1;
  limits.burst = 10;
  LogOnDisk log(path_, limits);
  for (int i = 0; i < 1000; ++i) log.Write(fmt::format("line {}\n", i));
  log.TakeIn();
  const LogBatch batch = log.Read();
  ASSERT_EQ(batch.lines.size(), 11U);
  EXPECT_EQ(batch.lines[9].text, "line 9");
  EXPECT_TRUE(batch.lines[10].notice);
  EXPECT_EQ(batch.lines[10].text, "(990 lines dropped: more than 1 a second)");
  EXPECT_EQ(log.intake().TakeLosses(), "990 lines dropped: more than 1 a second");
  EXPECT_EQ(log.intake().TakeLosses(), "");
  // The last lines are the file's, whatever the rate.
  EXPECT_EQ(log.Last(0).back(), "line 999");
  EXPECT_EQ(log.Last(0).size(), 20U);
  // Three shown lines back: the remark lies behind them.
  EXPECT_THAT(log.Lines({.last = 3}), ElementsAre("line 7", "line 8", "line 9", batch.lines[10].text));
}

TEST_F(LogFileTest, QueriesBeginWhereTheyShould) {
  LogOnDisk log(path_);
  for (int i = 0; i < 5000; ++i) log.Write(fmt::format("line {}\n", i));
  log.TakeIn();
  const WallTime between = WallClock::now();
  const uint64_t launch = log.file().state().position;
  for (int i = 5000; i < 10000; ++i) log.Write(fmt::format("line {}\n", i));
  log.TakeIn();
  EXPECT_EQ(log.Lines().size(), 10000U);
  EXPECT_THAT(log.Lines({.last = 2}), ElementsAre("line 9998", "line 9999"));
  EXPECT_THAT(log.Lines({.last = 0}), IsEmpty());
  EXPECT_EQ(log.Lines({.last = 7000}).front(), "line 3000");
  EXPECT_EQ(log.Lines({.last = 7000, .from_position = launch}).front(), "line 5000");
  EXPECT_EQ(log.Lines({.since = between}).front(), "line 5000");
  EXPECT_THAT(log.Lines({.since = WallClock::now() + std::chrono::hours(1)}), IsEmpty());
  EXPECT_EQ(log.Lines({.from_position = launch}).front(), "line 5000");
  EXPECT_THAT(log.Lines({.from_position = uint64_t{1} << 40}), IsEmpty());
  const LogBatch some = log.Read({.after = LogCursor{.position = launch}});
  EXPECT_EQ(some.lines.front().number, 5000U);
  EXPECT_EQ(some.missed_bytes, 0U);
}

TEST_F(LogFileTest, LastLinesAreBoundedAndNeverBlank) {
  LogOnDisk log(path_);
  EXPECT_THAT(log.Last(0), IsEmpty());
  log.Write("\n \n\r\n");
  EXPECT_THAT(log.Last(0), IsEmpty());
  log.Write("one\n\x1b[0m" + std::string(1000, 'x') + "\n\nno licence");
  const std::vector<std::string> lines = log.Last(0);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[2], "no licence");
  EXPECT_LT(lines[1].size(), 600U);
  const uint64_t here = log.file().End(WallClock::now());
  EXPECT_THAT(log.Last(here), IsEmpty());
  log.Write(std::string(100000, 'e'));
  EXPECT_EQ(log.Last(here).size(), 1U);
}

TEST_F(LogFileTest, WhatIsUnreadForTooLongIsSkipped) {
  LogLimits limits;
  limits.max_unread = 1'000'000;
  LogOnDisk log(path_, limits);
  log.Write("first\n");
  log.TakeIn();
  std::string text;
  for (int i = 0; text.size() < 4'000'000; ++i) text += fmt::format("line {}\n", i);
  log.Write(text);
  log.TakeIn();
  const LogBatch batch = log.Read();
  EXPECT_EQ(batch.lines[0].text, "first");
  EXPECT_TRUE(batch.lines[1].notice);
  EXPECT_THAT(batch.lines[1].text, HasSubstr("bytes skipped"));
  EXPECT_EQ(batch.lines.back().position + batch.lines.back().text.size() + 1, 6 + text.size());
  EXPECT_THAT(log.intake().TakeLosses(), HasSubstr("bytes skipped"));
  EXPECT_LT(log.DiskBytes(), 1'200'000U);
}

// A mark for each attempt would fill the index within seconds, and readers would lose the lines before.
TEST_F(LogFileTest, Fault43LineThatWaitsForTheJournalIsMarkedOnce) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  temp_.Path("journal").copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd receiver(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(receiver.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  LogJournal journal(temp_.Path("journal"));
  LogOnDisk log(path_);
  const auto take_in = [&] { return log.TakeInOnce(journal); };

  log.Write("one\n");
  ASSERT_EQ(take_in(), LogIntake::Step::kCaughtUp);
  FillDatagramQueue(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  log.Write("two\nthree\n");
  ASSERT_EQ(take_in(), LogIntake::Step::kBlocked);
  const size_t marks = log.file().Marks().size();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(take_in(), LogIntake::Step::kBlocked);
  EXPECT_EQ(log.file().Marks().size(), marks);
  EXPECT_THAT(log.Lines(), ElementsAre("one"));

  char message[4096];
  while (recv(receiver.get(), message, sizeof message, MSG_DONTWAIT) >= 0) {
  }
  ASSERT_EQ(take_in(), LogIntake::Step::kCaughtUp);
  EXPECT_THAT(log.Lines(), ElementsAre("one", "two", "three"));
}

// The kept tail on file systems of several kinds. Each is mounted in a mount namespace of the test's own.
class LogOnFileSystemTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
    ASSERT_TRUE(UnshareMounts());
    ASSERT_EQ(mkdir(temp_.Path("fs").c_str(), 0700), 0);
    if (GetParam() == "ext4") {
      const std::string image = temp_.Path("image");
      const std::string make = fmt::format(
          "truncate -s 256M {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1}", image, temp_.Path("fs"));
      ASSERT_EQ(std::system(make.c_str()), 0);
    } else {
      ASSERT_EQ(mount("none", temp_.Path("fs").c_str(), GetParam().c_str(), 0, nullptr), 0);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (!mounted_) return;
    EXPECT_EQ(unlink((path_ + ".index").c_str()), 0);
    EXPECT_EQ(unlink(path_.c_str()), 0);
    EXPECT_EQ(umount2(temp_.Path("fs").c_str(), MNT_DETACH), 0);
  }

  TempDir temp_;
  std::string path_ = temp_.Path("fs/nfs.log");
  bool mounted_ = false;
};

TEST_P(LogOnFileSystemTest, TheFileTakesNoMoreThanItsTail) {
  LogLimits limits;
  limits.rate = 0;
  const bool punches = GetParam() != "ramfs";
  {
    LogOnDisk log(path_, limits);
    std::string block;
    uint64_t number = 0;
    uint64_t most = 0;
    LogCursor slow{.position = 0, .number = 0};
    for (int round = 0; round < 60; ++round) {
      block.clear();
      for (int i = 0; i < 10000; ++i) block += fmt::format("{:0>99}\n", number++);
      log.Write(block);
      log.TakeIn();
      most = std::max(most, log.DiskBytes());
    }
    // 60 MB were written; 32 MiB may come together while the plugin writes.
    EXPECT_LT(most, uint64_t{36} << 20);
    log.intake().Settle(log.journal());
    if (punches) {
      EXPECT_LT(log.DiskBytes(), uint64_t{1200} << 10);
      const LogBatch batch = log.Read({.after = slow});
      EXPECT_GE(batch.lines.size(), 10000U);
      EXPECT_EQ(batch.lines.back().number, number - 1);
      // It learns exactly what it missed.
      EXPECT_EQ(batch.missed_lines, batch.lines.front().number);
      EXPECT_EQ(batch.missed_bytes, batch.missed_lines * 100);
      EXPECT_EQ(batch.lines.front().text, fmt::format("{:0>99}", batch.lines.front().number));
    }
    log.Write("one more\n");
    log.TakeIn();
    const LogBatch batch = log.Read();
    EXPECT_EQ(batch.lines.back().text, "one more");
    EXPECT_EQ(batch.lines.back().number, number);
    EXPECT_EQ(batch.lines.back().position, number * 100);
    // The next berthd reads the same.
    log.Open(limits);
    EXPECT_EQ(log.Read().lines.size(), batch.lines.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LogOnFileSystemTest, ::testing::Values("tmpfs", "ext4", "ramfs"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace berth
