// FAULTS row 22, of berth-hostpath: a state directory that is full, or read-only, hinders no release. The
// real program, with a file system of its own for its state.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/testing/plugin_test.h"

namespace berth::hostpath {
namespace {

class FullDiskTest : public PluginTest {
 protected:
  // A volume's directory is staged and published twice.
  void Use() {
    volume_ = MustCreate(CreateRequest("v", capability_, 0, "directory"));
    ASSERT_TRUE(Stage(volume_, staging_, capability_).ok());
    for (const std::string& target : {a_, b_}) {
      const grpc::Status status = Publish(volume_, staging_, target, capability_);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }
  void FillUp() {
    for (const size_t block : {size_t{64} << 10, size_t{1}}) {
      const std::string path = fmt::format("{}/fill-{}", workplace_.StateDir(), block);
      const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      ASSERT_TRUE(fd.valid());
      const std::string zeros(block, '\0');
      while (write(fd.get(), zeros.data(), zeros.size()) > 0) {
      }
      ASSERT_EQ(errno, ENOSPC);
    }
  }
  void MakeRoom() {
    for (const char* block : {"65536", "1"}) {
      ASSERT_EQ(unlink(fmt::format("{}/fill-{}", workplace_.StateDir(), block).c_str()), 0);
    }
  }
  void ReleaseAll() {
    for (const std::string& target : {a_, b_}) {
      const grpc::Status status = Unpublish(volume_, target);
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
    const grpc::Status status = Unstage(volume_, staging_);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  void DeleteIt() {
    const grpc::Status status = Delete(volume_);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  bool Probe() {
    ::csi::v1::ProbeResponse response;
    return plugin_
        .Call(plugin_.identity(), &::csi::v1::Identity::Stub::Probe, ::csi::v1::ProbeRequest(), &response)
        .ok();
  }

  VolumeCapability capability_ = Mounted(AccessModeEnum::MULTI_NODE_MULTI_WRITER);
  std::string staging_ = workplace_.NewStagingPath("s");
  std::string a_ = workplace_.Target("a");
  std::string b_ = workplace_.Target("b");
  std::string volume_;
};

class FullTmpfsTest : public FullDiskTest {
 protected:
  grpc::Status PublishInline(const std::string& kind) {
    ::csi::v1::NodePublishVolumeRequest request;
    request.set_volume_id("inline");
    request.set_target_path(a_);
    *request.mutable_volume_capability() = Mounted();
    request.mutable_volume_context()->insert({{"csi.storage.k8s.io/ephemeral", "true"}, {"kind", kind}});
    ::csi::v1::NodePublishVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodePublishVolume, request, &response);
  }
  void SetUp() override {
    std::filesystem::create_directory(workplace_.StateDir());
    ASSERT_EQ(mount("berth", workplace_.StateDir().c_str(), "tmpfs", 0, "size=8m"), 0);
    plugin_.Start();
  }
  void TearDown() override {
    EXPECT_EQ(plugin_.Terminate(), 0);
    EXPECT_EQ(umount2(workplace_.StateDir().c_str(), 0), 0);
  }
};

TEST_F(FullTmpfsTest, Fault22AFullDiskHindersNoReleaseAlsoAfterARestart) {
  Use();
  FillUp();
  EXPECT_EQ(Create(CreateRequest("w", capability_, 0, "directory")).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ReleaseAll();
  plugin_.Kill();
  MakeRoom();
  plugin_.Start();
  DeleteIt();
}

TEST_F(FullTmpfsTest, Fault22MoreThanIsSetAsideIsForgottenInMemoryUntilThereIsRoom) {
  Use();
  // Without the space that is set aside, and what the log had.
  ASSERT_EQ(
      truncate((workplace_.StateDir() + "/hostpath.db-wal").c_str(),
               static_cast<off_t>(std::filesystem::file_size(workplace_.StateDir() + "/hostpath.db-wal"))),
      0);
  FillUp();
  ReleaseAll();
  // The next probe after there is room writes it.
  MakeRoom();
  EXPECT_TRUE(Probe());
  plugin_.Kill();
  plugin_.Start();
  DeleteIt();
}

TEST_F(FullTmpfsTest, AnEphemeralVolumeIsNoLargerThanThePool) {
  EXPECT_EQ(PublishInline("image").error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(access(a_.c_str(), F_OK), -1);
}

TEST_F(FullTmpfsTest, Fault22AnEphemeralVolumeMakesRoomByItsEnd) {
  const grpc::Status published = PublishInline("directory");
  ASSERT_TRUE(published.ok()) << published.error_message();
  WriteText(a_ + "/data", std::string(1 << 20, 'x'));
  FillUp();
  const grpc::Status gone = Unpublish("inline", a_);
  EXPECT_TRUE(gone.ok()) << gone.error_message();
  MakeRoom();
}

// What a volume has already is not asked for again.
TEST_F(FullTmpfsTest, AVolumeGrowsByWhatIsLeftAndNoFurther) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  auto request = CreateRequest("v", Raw(), 4 * kMiB, "block");
  (*request.mutable_parameters())["preallocate"] = "true";
  volume_ = MustCreate(request);
  ::csi::v1::ControllerExpandVolumeResponse grown;
  const grpc::Status grows = Expand(volume_, 5 * kMiB, &grown);
  EXPECT_TRUE(grows.ok()) << grows.error_message();
  EXPECT_EQ(grown.capacity_bytes(), 5 * kMiB);
  EXPECT_EQ(Expand(volume_, 8 * kMiB, &grown).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Expand(volume_, 80 * kMiB, &grown).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  DeleteIt();
}

class ReadOnlyDiskTest : public FullDiskTest {
 protected:
  void SetUp() override {
    if (MissingLoopDevices()) GTEST_SKIP() << "no loop devices";
    std::filesystem::create_directory(workplace_.StateDir());
    const std::string image = workplace_.path() + "/disk";
    const UniqueFd fd(open(image.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(ftruncate(fd.get(), 32 << 20), 0);
    ASSERT_EQ(std::system(fmt::format("mkfs.ext4 -q {0} && mount -o loop,errors=remount-ro {0} {1}", image,
                                      workplace_.StateDir())
                              .c_str()),
              0);
    mounted_ = true;
    plugin_.Start();
  }
  void TearDown() override {
    if (!mounted_) return;
    plugin_.Kill();
    EXPECT_EQ(umount2(workplace_.StateDir().c_str(), 0), 0);
    EXPECT_EQ(unlink((workplace_.path() + "/disk").c_str()), 0);
  }
  // As after an error of the disk.
  bool BecomeReadOnly() {
    struct stat info{};
    EXPECT_EQ(stat(workplace_.StateDir().c_str(), &info), 0);
    std::error_code error;
    const auto device = std::filesystem::read_symlink(
        fmt::format("/sys/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev)), error);
    std::ofstream trigger("/sys/fs/ext4/" + device.filename().string() + "/trigger_fs_error");
    trigger << "1" << std::flush;
    return static_cast<bool>(trigger);
  }
  bool mounted_ = false;
};

TEST_F(ReadOnlyDiskTest, Fault22AReadOnlyStateDirectoryHindersNoRelease) {
  Use();
  if (!BecomeReadOnly()) GTEST_SKIP() << "the kernel cannot be asked for an error of ext4";
  EXPECT_FALSE(Create(CreateRequest("w", capability_, 0, "directory")).ok());
  ReleaseAll();
  EXPECT_TRUE(MountsBeneath(staging_).empty());
  EXPECT_TRUE(Probe());
  // It is not in use any more: what stands in the way is the disk.
  const grpc::Status deleted = Delete(volume_);
  EXPECT_FALSE(deleted.ok());
  EXPECT_EQ(deleted.error_message().find("in use"), std::string::npos) << deleted.error_message();
}

}  // namespace
}  // namespace berth::hostpath
