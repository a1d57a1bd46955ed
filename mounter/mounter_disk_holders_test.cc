// Volumes on a disk of their own, with ext4, xfs or btrfs, that are in use when they are unpublished: held
// until the kernel has ended the file system (FAULTS rows 37 and 48).
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/mountinfo.h"
#include "base/testing/disk_image.h"
#include "base/testing/holder.h"
#include "base/unique_fd.h"
#include "mounter/testing/mounter_holders_base.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

struct FileSystem {
  const char* type;
  const char* size;
};

class MounterDiskHoldersTest : public MounterHoldersBase, public ::testing::WithParamInterface<FileSystem> {
 protected:
  void SetUp() override {
    MounterHoldersBase::SetUp();
    if (!DiskImage::Possible(GetParam().type)) GTEST_SKIP() << "this system has no " << GetParam().type;
    ASSERT_TRUE(MountDisk());
  }
  // The plugin's mount of the disk, from which it makes the others.
  bool MountDisk() { return disk_.made() && disk_.Mount(data_); }
  void UnmountDisk() { ASSERT_EQ(umount2(data_.c_str(), UMOUNT_NOFOLLOW), 0) << strerror(errno); }
  // Published, and mounted only where berthd knows of.
  std::string PublishDisk() {
    const auto target = Publish(Request());
    EXPECT_TRUE(target.ok()) << target.status();
    UnmountDisk();
    return target.value_or("");
  }

  const std::string data_ = plugin_.DataPath("v1");
  const DiskImage disk_{directory_ + "/disk", fmt::format("mkfs.{} -q", GetParam().type), GetParam().size};
};

TEST_P(MounterDiskHoldersTest, Fault37InAContainerItStaysStaged) {
  ExpectBlockedBy(Container(PublishDisk()));
}

TEST_P(MounterDiskHoldersTest, Fault37WithoutStagingItStaysUntilTheKernelHasReleasedIt) {
  Close();
  plugins_.facts.node_capabilities.erase(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME);
  Open();
  auto container = Container(PublishDisk());
  for (const char* time : {"first", "second", "after a restart"}) {
    const auto result = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->still_in_use) << time;
    EXPECT_THAT(result->used_by, HasSubstr(fmt::format("pid {}", container->pid()))) << time;
    EXPECT_TRUE(View().still_in_use) << time;
    Close();
    Open();
  }
  container.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
  EXPECT_THAT(EventTypes(), ::testing::Contains("volume.free"));
}

TEST_P(MounterDiskHoldersTest, Fault37AfterALazyUnpublishAndAnotherUseTheFirstWriterIsStillSeen) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  UniqueFd writer(open((*target + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(writer.valid());
  UnpublishRequest lazy = Undo(Request());
  lazy.lazy = true;
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(lazy, Soon()))->still_in_use);
  ASSERT_NE(PublishDisk(), "");
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()))->still_in_use);
  EXPECT_TRUE(View().still_in_use);
  writer.Reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_P(MounterDiskHoldersTest, Fault48BoundIntoAnotherVolumesTargetItIsHeld) {
  const std::string target = PublishDisk();
  const auto other = Publish(Request("v2"));
  ASSERT_TRUE(other.ok()) << other.status();
  const std::string inner = *other + "/inner";
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  ASSERT_EQ(mount(target.c_str(), inner.c_str(), nullptr, MS_BIND, nullptr), 0);
  for (const char* time : {"first", "after a restart"}) {
    const auto busy = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
    EXPECT_EQ(busy.status().code(), absl::StatusCode::kUnavailable) << time << ": " << busy.status();
    EXPECT_THAT(std::string(busy.status().message()), HasSubstr("the mount at " + inner)) << time;
    EXPECT_EQ(View().stage_state, StageState::kStaged) << time;
    Close();
    Open();
  }
  ASSERT_EQ(umount2(inner.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_TRUE(loop_.RunUntil([this] { return !mounter_->Find("hp", "v1").has_value(); }))
      << View().last_error;
  EXPECT_TRUE(Unpublish(Request("v2")).ok());
}

// A driver mounts its disk for itself while it stages, before it mounts at the staging path or after that.
// While the volume is staged, that mount is the driver's own; what it leaves behind then keeps the volume.
TEST_P(MounterDiskHoldersTest, Fault48WhatItsPluginMountsWhileItStagesIsItsOwnUntilItIsUnstaged) {
  UnmountDisk();
  const std::string second = NewTestDirectory();
  plugin_.WhileStaging(
      [this] { EXPECT_TRUE(MountDisk()); },
      [&] { EXPECT_EQ(mount(data_.c_str(), second.c_str(), nullptr, MS_BIND, nullptr), 0); });
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  for (const char* time : {"first", "after a restart"}) {
    const auto left = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
    ASSERT_TRUE(left.ok()) << time << ": " << left.status();
    EXPECT_TRUE(left->still_in_use) << time;
    EXPECT_THAT(left->used_by, AllOf(HasSubstr("the mount at " + data_), HasSubstr("the mount at " + second)))
        << time;
    EXPECT_EQ(plugin_.StagedCount(), 0U) << time;
    Close();
    Open();
  }
  ASSERT_EQ(umount2(second.c_str(), UMOUNT_NOFOLLOW), 0);
  UnmountDisk();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

INSTANTIATE_TEST_SUITE_P(Disks, MounterDiskHoldersTest,
                         ::testing::Values(FileSystem{"ext4", "20M"}, FileSystem{"xfs", "300M"},
                                           FileSystem{"btrfs", "128M"}),
                         [](const auto& info) { return info.param.type; });

// The kernel calls a btrfs by the name with which its disk was last announced.
class MounterBtrfsNameTest : public MounterHoldersBase, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    MounterHoldersBase::SetUp();
    if (!DiskImage::Possible("btrfs")) GTEST_SKIP() << "this system has no btrfs";
    ASSERT_TRUE(disk_.made() && disk_.Mount(data_));
  }
  void Rename(const std::string& mounted) {
    const std::string node = directory_ + "/node";
    ASSERT_TRUE(DiskImage::Run(
        fmt::format("mknod {} b $(lsblk -dno MAJ:MIN $(findmnt -no SOURCE {}) | tr : ' ')", node, mounted)));
    ASSERT_TRUE(DiskImage::Run(fmt::format("btrfs device scan {} >/dev/null", node)));
    ASSERT_EQ(Source(mounted), node);
  }
  static std::string Source(const std::string& mounted) {
    std::string source;
    EXPECT_TRUE(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
                  if (DecodeMountinfo(line.target) == mounted) source = DecodeMountinfo(line.source);
                  return true;
                }).ok());
    return source;
  }

  const std::string data_ = plugin_.DataPath("v1");
  const DiskImage disk_{directory_ + "/disk", "mkfs.btrfs -q", "128M"};
};

TEST_P(MounterBtrfsNameTest, Fault48ADiskThatIsKnownUnderAnotherNameIsHeld) {
  const bool before = GetParam();
  if (before) ASSERT_NO_FATAL_FAILURE(Rename(data_));
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_EQ(umount2(data_.c_str(), UMOUNT_NOFOLLOW), 0);
  if (!before) ASSERT_NO_FATAL_FAILURE(Rename(*target));
  ExpectBlockedBy(Container(*target));
}

INSTANTIATE_TEST_SUITE_P(Renamed, MounterBtrfsNameTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "BeforeItIsStaged" : "Afterwards"; });

}  // namespace
}  // namespace berth
