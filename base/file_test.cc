#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/status.h"

namespace berth {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/berth-file-test.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    for (const auto& path : made_) ASSERT_EQ(::remove(path.c_str()), 0) << path;
    ASSERT_EQ(rmdir(dir_.c_str()), 0) << "something else was left in " << dir_;
  }
  std::string Made(const std::string& name) {
    made_.insert(made_.begin(), dir_ + "/" + name);
    return dir_ + "/" + name;
  }

  std::string dir_;
  std::vector<std::string> made_;
};

TEST_F(FileTest, WritesWholeWithTheExactModeWhateverTheUmask) {
  const mode_t old = umask(0077);
  const std::string path = Made("a");
  ASSERT_TRUE(WriteFileAtomic(path, "one", 0644).ok());
  ASSERT_TRUE(WriteFileAtomic(path, "two", 0644).ok());
  umask(old);
  EXPECT_EQ(*ReadFile(path, 100), "two");
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644U);
}

TEST_F(FileTest, AFailedWriteLeavesNothingBehind) {
  const std::string path = Made("d");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_FALSE(WriteFileAtomic(path, "x", 0600).ok());  // TearDown finds what is left.
  EXPECT_FALSE(WriteFileAtomic(dir_ + "/missing/x", "x", 0600).ok());
}

TEST_F(FileTest, ReadingHasALimit) {
  const std::string path = Made("big");
  ASSERT_TRUE(WriteFileAtomic(path, std::string(100, 'a'), 0600).ok());
  EXPECT_TRUE(ReadFile(path, 100).ok());
  EXPECT_EQ(ReadFile(path, 99).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReadFile(dir_ + "/none", 99).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, MakesWhatIsMissingOfADirectoryPath) {
  Made("x");
  const std::string path = Made("x/y");
  ASSERT_TRUE(MakeDirectories(path, 0750).ok());
  ASSERT_TRUE(MakeDirectories(path, 0700).ok());
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0750U) << "what is there stays as it is";
}

TEST_F(FileTest, AFileInTheWayIsAnError) {
  const std::string path = Made("f");
  ASSERT_TRUE(WriteFileAtomic(path, "", 0600).ok());
  EXPECT_FALSE(MakeDirectories(path, 0700).ok());
  EXPECT_EQ(ErrnoOf(MakeDirectories(path + "/z", 0700)), ENOTDIR);
}

}  // namespace
}  // namespace berth
