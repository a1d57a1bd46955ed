#include "base/lock_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace berth {
namespace {

using testing::HasSubstr;

class LockFileTest : public testing::Test {
 protected:
  LockFileTest() {
    char name[] = "/tmp/berth-lock-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/lock";
  }
  ~LockFileTest() override {
    unlink(path_.c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(LockFileTest, IsHeldByOneAndNamesItToTheNext) {
  auto first = TakeLockFile(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = TakeLockFile(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(path_ + ": process " + std::to_string(getpid()) + " has it"));
  first->Reset();
  EXPECT_TRUE(TakeLockFile(path_).ok());
}

TEST_F(LockFileTest, AChildOfAHolderThatWasKilledHasItForAMomentOnly) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto lock = TakeLockFile(path_);
    if (!lock.ok()) _exit(1);
    if (fork() == 0) {
      // As a child that has not executed its program yet.
      poll(nullptr, 0, 200);
      _exit(0);
    }
    if (write(ready[1], "r", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(TakeLockFile(path_).ok()) << "it runs";
  ASSERT_EQ(kill(holder, SIGKILL), 0);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  const auto lock = TakeLockFile(path_);
  EXPECT_TRUE(lock.ok()) << lock.status();
  close(ready[0]);
  close(ready[1]);
}

TEST_F(LockFileTest, IsForItsOwnerAlone) {
  // Also where the file was made with another mode.
  const int made = open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  ASSERT_GE(made, 0);
  close(made);
  const auto lock = TakeLockFile(path_);
  ASSERT_TRUE(lock.ok()) << lock.status();
  struct stat file{};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600U);
}

TEST_F(LockFileTest, FollowsNoSymlink) {
  ASSERT_EQ(symlink("/nonexistent/elsewhere", path_.c_str()), 0);
  EXPECT_FALSE(TakeLockFile(path_).ok());
}

}  // namespace
}  // namespace berth
