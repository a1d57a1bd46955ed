#include "plugins/hostpath/trash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/testing/mount_namespace.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

class TrashTest : public ::testing::Test {
 protected:
  TrashTest() {
    std::string pattern = "/tmp/berth-hostpath-trash-XXXXXX";
    root_ = mkdtemp(pattern.data());
    path_ = root_ + "/trash";
    mkdir(path_.c_str(), 0700);
  }
  ~TrashTest() override {
    unlink((root_ + "/victim").c_str());
    rmdir((path_ + "/stuck/mounted").c_str());
    rmdir((path_ + "/stuck").c_str());
    EXPECT_EQ(rmdir(path_.c_str()), 0) << "something is left in the trash";
    rmdir(root_.c_str());
  }
  static void Touch(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd.valid()) << path;
  }
  absl::Status Empty() {
    auto trash = Trash::Open(path_);
    EXPECT_TRUE(trash.ok());
    const std::atomic<bool> stop = false;
    return trash->Empty(stop);
  }

  std::string root_;
  std::string path_;
};

TEST_F(TrashTest, TakesWideAndDeepTreesApart) {
  for (int i = 0; i < 500; ++i) Touch(path_ + "/file" + std::to_string(i));
  // Deeper than any path may be long.
  UniqueFd at(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int depth = 0; depth < 900; ++depth) {
    ASSERT_EQ(mkdirat(at.get(), "deep", 0700), 0);
    UniqueFd next(openat(at.get(), "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(next.valid());
    const UniqueFd file(openat(next.get(), "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file.valid());
    at = std::move(next);
  }
  EXPECT_TRUE(Empty().ok());
  EXPECT_TRUE(std::filesystem::is_empty(path_));
}

TEST_F(TrashTest, FollowsNoLink) {
  Touch(root_ + "/victim");
  mkdir((path_ + "/volume").c_str(), 0700);
  ASSERT_EQ(symlink(root_.c_str(), (path_ + "/volume/link").c_str()), 0);
  ASSERT_EQ(symlink(root_.c_str(), (path_ + "/link").c_str()), 0);
  ASSERT_EQ(link((root_ + "/victim").c_str(), (path_ + "/volume/hard").c_str()), 0);
  EXPECT_TRUE(Empty().ok());
  EXPECT_EQ(access((root_ + "/victim").c_str(), F_OK), 0);
}

TEST_F(TrashTest, NeverEntersAMount) {
  if (!UnshareMounts()) {
    GTEST_LOG_(WARNING) << "NO MOUNT NAMESPACE HERE: that trash is not emptied across mounts is not tested";
    GTEST_SKIP();
  }
  Touch(root_ + "/victim");
  const std::string mounted = path_ + "/stuck/mounted";
  std::filesystem::create_directories(mounted);
  mkdir((path_ + "/stuck/sub").c_str(), 0700);
  Touch(path_ + "/stuck/sub/file");
  const std::string data = root_ + "/data";
  mkdir(data.c_str(), 0700);
  Touch(data + "/precious");
  ASSERT_EQ(mount(data.c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(Empty()));
  EXPECT_EQ(access((data + "/precious").c_str(), F_OK), 0) << "deleted across a mount";
  EXPECT_FALSE(std::filesystem::exists(path_ + "/stuck/sub")) << "the rest goes";
  ASSERT_EQ(umount2(mounted.c_str(), 0), 0);
  EXPECT_TRUE(Empty().ok());
  unlink((data + "/precious").c_str());
  rmdir(data.c_str());
}

TEST_F(TrashTest, StopsWhenItIsToldToAndGoesOnLater) {
  mkdir((path_ + "/volume").c_str(), 0700);
  Touch(path_ + "/volume/file");
  auto trash = Trash::Open(path_);
  ASSERT_TRUE(trash.ok());
  const std::atomic<bool> stop = true;
  EXPECT_TRUE(trash->Empty(stop).ok());
  EXPECT_EQ(access((path_ + "/volume/file").c_str(), F_OK), 0);
  EXPECT_TRUE(Empty().ok());
}

}  // namespace
}  // namespace berth::hostpath
