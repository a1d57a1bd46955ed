#include "supervisor/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunRecord Record() {
  RunRecord record;
  record.plugin_id = "nfs";
  record.kind = PluginKind::kController;
  record.process = {"3c0e0d6a-boot", 4711, 123456789, "/usr/bin/a \"quoted\"\\ ä",
                    "0::/x\n1:name=systemd:/y\n"};
  record.group_id = 4242;
  record.executed = true;
  record.socket_path = "/run/berth/plugins/nfs/csi.sock";
  record.config_file = "/etc/berth/plugins.d/nfs.toml";
  record.launch_fingerprint = "0123abcd";
  record.started_at = WallTime(std::chrono::milliseconds(1'700'000'000'123));
  record.output_position = 42;
  record.stop_timeout = std::chrono::milliseconds(1500);
  record.tokens = {
      {.audience = "vault", .name = "a \"quoted\" name"},
      {.audience = "s3", .name = "s3-token", .place = WantedToken::Place::kVolumeContext, .republish = true}};
  return record;
}

TEST(RunRecordTest, IsReadAsItWasWritten) {
  const TempDir temp;
  ASSERT_TRUE(WriteRunRecord(temp.path(), Record()).ok());
  const absl::StatusOr<RunRecord> read = ReadRunRecord(temp.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Record());
  struct stat info{};
  ASSERT_EQ(stat(RunRecordPath(temp.path()).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(RunRecordTest, WhatAnOlderBerthdHasWrittenWantsNoTokens) {
  const TempDir temp;
  RunRecord record = Record();
  record.tokens.clear();
  ASSERT_TRUE(WriteRunRecord(temp.path(), record).ok());
  std::string text = *ReadFile(RunRecordPath(temp.path()), 1 << 16);
  const std::string none = "token = []\n";
  ASSERT_THAT(text, HasSubstr(none));
  temp.Write("run.toml", text.erase(text.find(none), none.size()));
  const absl::StatusOr<RunRecord> read = ReadRunRecord(temp.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, record);
  temp.Write("run.toml", text + "[[token]]\naudience = \"vault\"\n");
  EXPECT_THAT(std::string(ReadRunRecord(temp.path()).status().message()), HasSubstr("token.name is missing"));
}

TEST(RunRecordTest, IsNotFoundOnceRemoved) {
  const TempDir temp;
  EXPECT_EQ(ReadRunRecord(temp.path()).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteRunRecord(temp.path(), Record()).ok());
  EXPECT_TRUE(RemoveRunRecord(temp.path()).ok());
  EXPECT_TRUE(RemoveRunRecord(temp.path()).ok());
  EXPECT_EQ(ReadRunRecord(temp.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST(RunRecordTest, DamagedRecordIsRefused) {
  const TempDir temp;
  for (const char* content : {"", "pid = ", "format = 1\npid = 3\n", "format = 2\n"}) {
    temp.Write("run.toml", content);
    EXPECT_EQ(ReadRunRecord(temp.path()).status().code(), absl::StatusCode::kInvalidArgument) << content;
  }
}

TEST(RunRecordTest, PidsThatMeanMoreThanOneProcessAreRefused) {
  const TempDir temp;
  for (const pid_t pid : {0, -1, 1, -4711}) {
    RunRecord record = Record();
    record.process.pid = pid;
    ASSERT_TRUE(WriteRunRecord(temp.path(), record).ok());
    const absl::Status status = ReadRunRecord(temp.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pid;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no plugin's process"));
  }
}

TEST(RunRecordTest, RecordsAreListedByPlugin) {
  const TempDir temp;
  EXPECT_THAT(*ListRunRecords(temp.path()), IsEmpty());
  for (const char* id : {"b", "a", "empty"}) {
    ASSERT_TRUE(MakeDirectories(temp.Path("plugins/" + std::string(id)), 0700).ok());
  }
  ASSERT_TRUE(WriteRunRecord(temp.Path("plugins/a"), Record()).ok());
  ASSERT_TRUE(WriteRunRecord(temp.Path("plugins/b"), Record()).ok());
  EXPECT_THAT(*ListRunRecords(temp.path()), ElementsAre("a", "b"));
}

TEST(RunRecordTest, EverythingMustMatch) {
  const RunRecord record = Record();
  const ProcessIdentity same = record.process;
  EXPECT_EQ(MatchRecord(record, same), RecordMatch::kSame);
  ProcessIdentity other = same;
  other.boot_id = "another";
  EXPECT_EQ(MatchRecord(record, other), RecordMatch::kUnknown);
  other = same;
  other.start_time += 1;
  EXPECT_EQ(MatchRecord(record, other), RecordMatch::kUnknown);
  other = same;
  other.pid += 1;
  EXPECT_EQ(MatchRecord(record, other), RecordMatch::kUnknown);
  other = same;
  other.executable = "/bin/other";
  EXPECT_EQ(MatchRecord(record, other), RecordMatch::kInDoubt);
  other = same;
  other.cgroup = "0::/z\n";
  EXPECT_EQ(MatchRecord(record, other), RecordMatch::kInDoubt);
}

TEST(RunRecordTest, RecordOfTheGateKnowsWhetherItWasPassed) {
  RunRecord record = Record();
  record.executed = false;
  record.process.executable = "/usr/sbin/berthd";
  ProcessIdentity now = record.process;
  EXPECT_EQ(MatchRecord(record, now), RecordMatch::kAtTheGate);
  now.executable = "/usr/bin/plugin";
  EXPECT_EQ(MatchRecord(record, now), RecordMatch::kSame);
  now.cgroup = "0::/z\n";
  EXPECT_EQ(MatchRecord(record, now), RecordMatch::kInDoubt);
  now.start_time += 1;
  EXPECT_EQ(MatchRecord(record, now), RecordMatch::kUnknown);
}

}  // namespace
}  // namespace berth
