// When a disk that its driver leaves attached counts as released (FAULTS row 61).
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/testing/holder.h"
#include "mounter/testing/context_test_base.h"
#include "mounter/volume_release.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// A loop device on a file of a file system that can be made to hang.
class DiskReleaseTest : public ContextTestBase {
 protected:
  void SetUp() override {
    ContextTestBase::SetUp();
    auto fuse = FuseServer::Mount(NewTestDirectory());
    ASSERT_TRUE(fuse.ok()) << fuse.status();
    fuse_ = *std::move(fuse);
    const std::string name = NewTestDirectory() + "/loop";
    ASSERT_EQ(std::system(fmt::format("truncate -s 64K {0}/hello && losetup --find --show {0}/hello > {1}",
                                      fuse_->path(), name)
                              .c_str()),
              0);
    std::getline(std::ifstream(name), device_);
    const dev_t number = LookAt(device_)->special;
    disk_ = {.block_device = true, .device = number, .disk = number, .disk_sequence = DiskSequence(number)};
    ASSERT_NE(disk_.disk_sequence, 0U);
  }
  void TearDown() override {
    fuse_->Resume();
    EXPECT_EQ(std::system(("losetup --detach " + device_).c_str()), 0);
    ContextTestBase::TearDown();
  }
  ReleaseCheck Check(const KernelObject& object, Duration patience = std::chrono::seconds(15)) {
    record_.objects = {object};
    return loop_.Run(context_->release.CheckReleased(record_, Clock::now() + patience));
  }
  // Another test's losetup opens each loop device for a moment, to see whether it is free.
  void ExpectReleased(const KernelObject& object) {
    ReleaseCheck check = Check(object);
    for (const TimePoint until = Clock::now() + kTestBound; !check.released && Clock::now() < until;) {
      check = Check(object);
    }
    EXPECT_TRUE(check.released) << check.why;
  }
  // It was mounted, and the kernel has ended that.
  [[nodiscard]] KernelObject FileSystemOnIt() const {
    KernelObject mounted = disk_;
    mounted.block_device = false;
    mounted.inode_device = mounted.device;
    mounted.root = "/";
    mounted.fs_type = "ext4";
    return mounted;
  }

  std::unique_ptr<FuseServer> fuse_;
  std::string device_;
  KernelObject disk_;
};

TEST_F(DiskReleaseTest, Fault61ARawDiskIsNotReleasedBeforeItsLastWritersDataAreOnIt) {
  // A process that has ended, but for its file: the kernel writes what it wrote, and nobody has the device
  // any more.
  int written[2];
  ASSERT_EQ(pipe2(written, O_CLOEXEC), 0);
  const pid_t writer = fork();
  if (writer == 0) {
    const int fd = open(device_.c_str(), O_RDWR | O_CLOEXEC);
    const std::string data(32 << 10, 'x');
    const bool done = fd >= 0 && write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size());
    if (write(written[1], done ? "y" : "n", 1) != 1) _exit(1);
    while (true) pause();
  }
  char done = 0;
  ASSERT_EQ(read(written[0], &done, 1), 1);
  ASSERT_EQ(done, 'y');
  EXPECT_FALSE(Check(disk_).released) << "it is open";
  fuse_->Hang();
  kill(writer, SIGKILL);
  // It hangs on its way out, where it has no descriptors any more.
  const std::string descriptors = fmt::format("/proc/{}/fd/3", writer);
  for (const TimePoint until = Clock::now() + kTestBound; access(descriptors.c_str(), F_OK) == 0;) {
    ASSERT_LT(Clock::now(), until);
  }
  ReleaseCheck check = Check(disk_, std::chrono::seconds(2));
  for (const TimePoint until = Clock::now() + kTestBound;
       !check.released && !check.holders.empty() && Clock::now() < until;) {
    check = Check(disk_, std::chrono::seconds(2));  // another test's mount looks at each loop device
  }
  EXPECT_FALSE(check.released);
  EXPECT_THAT(check.why, HasSubstr("not on its disk yet"));
  fuse_->Resume();
  EXPECT_EQ(waitpid(writer, nullptr, 0), writer);
  ExpectReleased(disk_);
  close(written[0]);
  close(written[1]);
}

TEST_F(DiskReleaseTest, Fault61ADiskThatHasGoneOrIsAnotherOneIsReleased) {
  KernelObject gone = disk_;
  gone.disk_sequence -= 1;
  EXPECT_TRUE(Check(gone).released);
  EXPECT_EQ(loop_.Run(context_->helper.Flush(makedev(7, 4000), 0, Clock::now() + std::chrono::seconds(15))),
            absl::OkStatus());
  // Its data are nobody's business: it is not asked for them.
  fuse_->Hang();
  EXPECT_EQ(loop_.Run(context_->helper.Flush(disk_.device, disk_.disk_sequence + 1,
                                             Clock::now() + std::chrono::seconds(15))),
            absl::OkStatus());
}

TEST_F(DiskReleaseTest, Fault61TheDiskOfAFileSystemThatHasEndedIsHeldByWhoMayWriteToIt) {
  const KernelObject mounted = FileSystemOnIt();
  ExpectReleased(mounted);
  auto writer = std::make_unique<Holder>([this] { return open(device_.c_str(), O_RDWR) >= 0; });
  const ReleaseCheck check = Check(mounted);
  EXPECT_FALSE(check.released);
  EXPECT_THAT(check.why, HasSubstr(fmt::format("pid {}", writer->pid())));
  writer.reset();
  ExpectReleased(mounted);
  const Holder reader([this] { return open(device_.c_str(), O_RDONLY) >= 0; });
  ExpectReleased(mounted);
}

}  // namespace
}  // namespace berth
