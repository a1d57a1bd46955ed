#include "mounts/storage_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>

#include "base/testing/test_area.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Succeeds(const std::string& command) { return std::system(command.c_str()) == 0; }

TEST(StorageStateTest, TheOptionsOfASuperblockSayWhatIsWrongWithIt) {
  StorageState state = StateFromOptions("rw,errors=remount-ro", false);
  EXPECT_EQ(state.dead, "");
  EXPECT_EQ(state.read_only, "");
  EXPECT_THAT(StateFromOptions("rw,shutdown", false).dead, HasSubstr("(shutdown)"));
  EXPECT_THAT(StateFromOptions("rw,emergency_ro", false).read_only, HasSubstr("(emergency_ro)"));
  EXPECT_THAT(StateFromOptions("ro,noload", false).read_only, HasSubstr("is read-only"));
  EXPECT_THAT(StateFromOptions("", true).read_only, HasSubstr("is read-only"));
  state = StateFromOptions("errors=remount-ro,roo,prjquota,shutdown_timeout=3", false);
  EXPECT_THAT(state.dead + state.read_only, IsEmpty()) << "whole words";
}

class StorageLookTest : public ::testing::Test {
 protected:
  // A file system in a file, mounted through a loop device.
  void Mount(const std::string& make, const std::string& size) {
    directory_ = NewTestDirectory();
    path_ = directory_ + "/mount";
    ASSERT_TRUE(
        Succeeds(fmt::format("cd {} && mkdir mount && truncate -s {} image && {} image && mount -o loop "
                             "image mount",
                             directory_, size, make)));
  }
  void TearDown() override {
    if (!path_.empty()) umount2(path_.c_str(), MNT_DETACH);
    if (number_ < 0) return;
    EXPECT_TRUE(Succeeds("losetup --detach " + device_));
    const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    EXPECT_EQ(ioctl(control.get(), LOOP_CTL_REMOVE, number_), 0);
  }
  // A loop device that no other program takes while it is free.
  void AddDevice() {
    directory_ = NewTestDirectory();
    const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    const int number = 1000 + getpid() % 100'000;
    ASSERT_EQ(ioctl(control.get(), LOOP_CTL_ADD, number), number);
    number_ = number;
    device_ = fmt::format("{}/loop", directory_);
    constexpr unsigned kLoopMajor = 7;
    ASSERT_EQ(mknod(device_.c_str(), S_IFBLK | 0600, makedev(kLoopMajor, static_cast<unsigned>(number))), 0);
  }
  void ShutDown() const {
    // FS_IOC_SHUTDOWN of <linux/fs.h>, EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN.
    const unsigned long request = _IOR('X', 125, uint32_t);
    uint32_t without_log = 2;
    const UniqueFd root(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(ioctl(root.get(), request, &without_log), 0);
  }
  void Attach(const std::string& image) const {
    ASSERT_TRUE(
        Succeeds(fmt::format("truncate -s 4M {0}/{1} && losetup {2} {0}/{1}", directory_, image, device_)));
  }
  StorageState Look() { return StorageLook().At(path_, objects_); }

  std::string directory_;
  std::string path_;
  std::string device_;
  int number_ = -1;  // of the loop device that was added
  std::vector<KernelObject> objects_;
};

TEST_F(StorageLookTest, Fault55AFileSystemThatWasShutDownIsDead) {
  Mount("mkfs.ext4 -q", "16M");
  StorageState state = Look();
  EXPECT_TRUE(state.there);
  EXPECT_EQ(state.fs_type, "ext4");
  EXPECT_EQ(state.dead + state.read_only, "");
  EXPECT_EQ(CheckUsable(path_, {}, true), absl::OkStatus());
  ShutDown();
  state = Look();
  EXPECT_TRUE(state.there);
  EXPECT_THAT(state.dead, HasSubstr("shut down"));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckUsable(path_, {}, false)));
}

TEST_F(StorageLookTest, Fault55AFileSystemThatAnswersOnlyWithErrorsIsDeadAndStillThere) {
  Mount("mkfs.xfs -q", "320M");
  const StorageState before = Look();
  EXPECT_EQ(before.dead, "");
  ShutDown();
  const StorageState after = Look();
  EXPECT_TRUE(after.there);
  EXPECT_EQ(after.mount_id, before.mount_id) << "its mount is known nevertheless";
  EXPECT_EQ(after.device, before.device);
  EXPECT_THAT(after.dead, AllOf(HasSubstr("only with errors"), HasSubstr("Input/output error")));
}

TEST_F(StorageLookTest, Fault55AFileSystemThatBecameReadOnlyMatters) {
  Mount("mkfs.ext4 -q", "16M");
  ASSERT_EQ(mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_THAT(Look().read_only, HasSubstr("read-only"));
  EXPECT_EQ(CheckUsable(path_, {}, false), absl::OkStatus());
  EXPECT_THAT(std::string(CheckUsable(path_, {}, true).message()), HasSubstr("to be written"));
}

TEST_F(StorageLookTest, Fault55ADiskThatIsGoneOrAnotherOneIsNotTheVolumesAnyMore) {
  AddDevice();
  Attach("one");
  path_ = directory_ + "/device";
  ASSERT_TRUE(Succeeds(fmt::format("touch {0} && mount --bind {1} {0}", path_, device_)));
  const auto found = ObjectsAt(path_, directory_);
  ASSERT_TRUE(found.ok()) << found.status();
  objects_ = *found;
  StorageState state = Look();
  EXPECT_TRUE(state.there);
  EXPECT_EQ(state.dead + state.read_only, "");

  ASSERT_TRUE(Succeeds("losetup --detach " + device_));
  EXPECT_THAT(Look().dead, HasSubstr("was detached"));
  Attach("two");
  EXPECT_THAT(Look().dead, HasSubstr("another disk's by now"));
  // Recorded as what a later use has: then it is the volume's.
  MergeObjects(*ObjectsAt(path_, directory_), &objects_);
  EXPECT_EQ(Look().dead, "");
  ASSERT_TRUE(Succeeds(fmt::format("blockdev --setro {}", device_)));
  EXPECT_THAT(Look().read_only, HasSubstr("block device is read-only"));
}

}  // namespace
}  // namespace berth
