#include "mounter/superblock.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/safe_path.h"
#include "base/testing.h"
#include "mounter/testing/fuse_server.h"
#include "mounter/testing/holder.h"
#include "mounter/testing/test_area.h"

namespace berth {
namespace {

class SuperblockTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kShort{200};
  static constexpr std::chrono::seconds kSoon{20};

  void SetUp() override {
    auto server = FuseServer::Mount(path_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    device_ = LookAt(path_)->device;
  }
  bool LivesOn(Duration within) { return RunOn(loop_, LivesUnmounted(device_, Clock::now() + within)); }

  asio::io_context loop_;
  std::string path_ = NewTestDirectory();
  std::unique_ptr<FuseServer> server_;
  dev_t device_ = 0;
};

TEST_F(SuperblockTest, EndsWithItsLastMount) {
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_FALSE(LivesOn(kSoon));
}

TEST_F(SuperblockTest, LivesOnInAnotherMountNamespace) {
  {
    const Holder outside([] {
      return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    });
    ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
    EXPECT_TRUE(LivesOn(kShort));
  }
  EXPECT_FALSE(LivesOn(kSoon));
}

TEST_F(SuperblockTest, AnotherUseOfItHereIsNothingToTell) {
  const std::string copy = NewTestDirectory();
  ASSERT_EQ(mount(path_.c_str(), copy.c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_FALSE(LivesOn(kShort));
  EXPECT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(SuperblockTest, OfADiskNothingIsKnown) {
  EXPECT_FALSE(RunOn(loop_, LivesUnmounted(LookAt("/")->device, Clock::now() + kShort)));
  EXPECT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
}

}  // namespace
}  // namespace berth
