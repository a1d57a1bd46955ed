#include "mounter/secrets_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/status.h"
#include "base/testing/killed_daemon.h"
#include "base/testing/loop_runner.h"
#include "base/testing/temp_dir.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

class SecretsReferenceTest : public ::testing::Test {
 protected:
  void TearDown() override { loop_.RunVoid(reaper_.Join()); }

  absl::StatusOr<std::map<std::string, std::string>> Read(const SecretsReference& reference,
                                                          Duration within = std::chrono::seconds(20)) {
    return loop_.Run(ReadSecretsReference(reference, dir_.path(), helper_, Clock::now() + within));
  }
  static SecretsReference File(const std::string& path) {
    SecretsReference reference;
    reference.set_file(path);
    return reference;
  }
  static SecretsReference Credential(const std::string& name) {
    SecretsReference reference;
    reference.set_credential(name);
    return reference;
  }
  absl::StatusOr<std::map<std::string, std::string>> ReadPath(const std::string& path) {
    return Read(File(path));
  }
  std::string Write(const std::string& name, const std::string& content, mode_t mode) {
    dir_.Write(name, content);
    EXPECT_EQ(chmod(dir_.Path(name).c_str(), mode), 0);
    return dir_.Path(name);
  }
  static void ExpectWrong(const absl::Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(why));
    EXPECT_THAT(std::string(MessageOf(status)), Not(HasSubstr("hunter2")));
  }

  TempDir dir_;
  LoopRunner loop_;
  TaskScope reaper_{loop_.executor(), "reaper"};
  MountHelper helper_{BERTH_MOUNT_HELPER, reaper_};
};

TEST_F(SecretsReferenceTest, NoneIsNoSecrets) {
  const auto none = Read(SecretsReference());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(*none, IsEmpty());
}

TEST_F(SecretsReferenceTest, ReadsAFileOfRootsAnew) {
  const std::string path = Write("secrets", "k=hunter2\n", 0600);
  EXPECT_THAT(*ReadPath(path), ElementsAre(Pair("k", "hunter2")));
  Write("secrets", "{\"k\": \"hunter3\"}", 0600);
  EXPECT_THAT(*ReadPath(path), ElementsAre(Pair("k", "hunter3")));
}

TEST_F(SecretsReferenceTest, ReadsACredentialFromWhereTheyLie) {
  Write("storage", "k=hunter2\n", 0400);
  EXPECT_THAT(*Read(Credential("storage")), ElementsAre(Pair("k", "hunter2")));
  ExpectWrong(Read(Credential("none")).status(), "credential none: No such file");
  ExpectWrong(Read(Credential("../storage")).status(), "no name of a credential");
}

TEST_F(SecretsReferenceTest, AFileThatOthersHaveARightToIsRefused) {
  for (const mode_t mode : {0640, 0604, 0602, 0610}) {
    ExpectWrong(ReadPath(Write("secrets", "k=hunter2", mode)).status(), "chmod 600");
  }
  const std::string path = Write("secrets", "k=hunter2", 0600);
  ASSERT_EQ(chown(path.c_str(), 4711, 0), 0);
  ExpectWrong(ReadPath(path).status(), "belongs to user 4711");
}

TEST_F(SecretsReferenceTest, OnlyARegularFileIsRead) {
  ASSERT_EQ(mkfifo((dir_.path() + "/pipe").c_str(), 0600), 0);
  ExpectWrong(ReadPath(dir_.path() + "/pipe").status(), "not a regular file");
  ExpectWrong(ReadPath(dir_.path()).status(), "not a regular file");
  Write("secrets", "k=hunter2", 0600);
  ASSERT_EQ(symlink("secrets", (dir_.path() + "/link").c_str()), 0);
  ExpectWrong(ReadPath(dir_.path() + "/link").status(), "symbolic link");
  ExpectWrong(ReadPath(dir_.path() + "/missing").status(), "No such file");
}

TEST_F(SecretsReferenceTest, SizeAndFormAreChecked) {
  const std::string huge = "k=" + std::string(kSecretsFileLimit, 'x');
  ExpectWrong(ReadPath(Write("secrets", huge, 0600)).status(), "longer than");
  ExpectWrong(ReadPath(Write("secrets", "hunter2", 0600)).status(), "line 1 is not KEY=VALUE");
}

// --- on a file system that does not answer ---

constexpr std::chrono::milliseconds kShort{400};

class HungSecretsReferenceTest : public SecretsReferenceTest {
 protected:
  void SetUp() override {
    const std::string mounted = NewTestDirectory();
    auto server = FuseServer::Mount(mounted);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    path_ = mounted + "/hello";
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
    ASSERT_TRUE((std::ofstream(path_) << "k=hunter2").flush().good());
    server_->Hang();
  }

  std::unique_ptr<FuseServer> server_;
  std::string path_;
};

TEST_F(HungSecretsReferenceTest, EndsAtItsDeadlineAndLeavesAHelperBehind) {
  const absl::Status hung = Read(File(path_), kShort).status();
  EXPECT_EQ(hung.code(), absl::StatusCode::kDeadlineExceeded) << hung;
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  EXPECT_EQ(helper_.stuck()[0].what, "read " + path_);
  EXPECT_THAT(std::string(MessageOf(hung)),
              HasSubstr(fmt::format("secrets file {}: read {}: process {} hangs", path_, path_,
                                    helper_.stuck()[0].pid)));
  server_->Resume();
  const auto secrets = ReadPath(path_);
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_THAT(*secrets, ElementsAre(Pair("k", "hunter2")));
  EXPECT_THAT(helper_.stuck(), IsEmpty());
}

TEST_F(HungSecretsReferenceTest, AKilledDaemonIsNotKeptByIt) {
  const pid_t stuck = KillADaemon(dir_.path() + "/lock", [this](const Tell& tell) {
    LoopRunner loop;
    TaskScope reaper(loop.executor(), "reaper");
    MountHelper helper(BERTH_MOUNT_HELPER, reaper);
    const auto hung = loop.Run(ReadSecretsReference(File(path_), "", helper, Clock::now() + kShort));
    const auto left = helper.stuck();
    tell(absl::IsDeadlineExceeded(hung.status()) && left.size() == 1 ? left[0].pid : -1);
  });
  EXPECT_GT(stuck, 0);
}

}  // namespace
}  // namespace berth
