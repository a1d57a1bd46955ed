#include "mounter/secrets_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/status.h"
#include "base/temp_dir.h"
#include "mounter/testing/loop_runner.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

class SecretsReferenceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::map<std::string, std::string>> Read(SecretsReference::Kind kind,
                                                          const std::string& name) {
    return loop_.Run(ReadSecretsReference({.kind = kind, .name = name}, dir_.path(),
                                          Clock::now() + std::chrono::seconds(20)));
  }
  absl::StatusOr<std::map<std::string, std::string>> ReadPath(const std::string& path) {
    return Read(SecretsReference::Kind::kFile, path);
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
};

TEST_F(SecretsReferenceTest, NoneIsNoSecrets) {
  const auto none = Read(SecretsReference::Kind::kNone, "");
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
  EXPECT_THAT(*Read(SecretsReference::Kind::kCredential, "storage"), ElementsAre(Pair("k", "hunter2")));
  ExpectWrong(Read(SecretsReference::Kind::kCredential, "none").status(), "credential none: No such file");
  ExpectWrong(Read(SecretsReference::Kind::kCredential, "../storage").status(), "no name of a credential");
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

}  // namespace
}  // namespace berth
