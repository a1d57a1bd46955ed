#include "mounter/volume_release.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <string>
#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr unsigned kExt4Major = 7;

KernelObject Disk() {
  const dev_t device = makedev(kExt4Major, 1);
  return {.device = device, .disk = device, .disk_sequence = 5, .root = "/", .fs_type = "ext4", .source = ""};
}
KernelObject Nfs(const std::string& source) {
  return {.device = makedev(0, 50), .root = "/", .fs_type = "nfs4", .source = source};
}
MountLine LineOf(const KernelObject& object, std::string_view root, std::string_view source) {
  return {.device = object.device, .root = root, .fs_type = object.fs_type, .source = source};
}

TEST(KernelObjectTest, AMountOfTheRootOrOfADirectoryInItIsTheVolumes) {
  EXPECT_EQ(Match(Disk(), LineOf(Disk(), "/", "/dev/loop1")), MountMatch::kSubtree);
  EXPECT_EQ(Match(Disk(), LineOf(Disk(), "/data", "/dev/loop1")), MountMatch::kSubtree);
  KernelObject directory = Disk();
  directory.root = "/volumes/v1";
  EXPECT_EQ(Match(directory, LineOf(Disk(), "/volumes/v1/data", "/dev/loop1")), MountMatch::kSubtree);
  EXPECT_EQ(Match(directory, LineOf(Disk(), "/volumes/v10", "/dev/loop1")), MountMatch::kSibling);
  EXPECT_EQ(Match(directory, LineOf(Disk(), "/", "/dev/loop1")), MountMatch::kSibling);
}

// NFS shows "/" as the root of each mount: the directory of the server stands in the source.
TEST(KernelObjectTest, OfNfsTheSourceTellsTheDirectory) {
  const KernelObject volume = Nfs("server:/export/v1");
  EXPECT_EQ(Match(volume, LineOf(volume, "/", "server:/export/v1")), MountMatch::kSubtree);
  EXPECT_EQ(Match(volume, LineOf(volume, "/", "server:/export/v1/data")), MountMatch::kSubtree);
  EXPECT_EQ(Match(volume, LineOf(volume, "/", "server:/export/v2")), MountMatch::kSibling);
  EXPECT_EQ(Match(volume, LineOf(volume, "/", "server:/export")), MountMatch::kSibling);
}

TEST(KernelObjectTest, ANumberOfAnotherTypeOfFileSystemWasUsedAgain) {
  MountLine line = LineOf(Nfs("server:/export"), "/", "server:/export");
  line.fs_type = "tmpfs";
  EXPECT_EQ(Match(Nfs("server:/export"), line), MountMatch::kReused);
  line.device = makedev(0, 51);
  EXPECT_EQ(Match(Nfs("server:/export"), line), MountMatch::kOther);
}

TEST(KernelObjectTest, ARawDeviceIsNoMount) {
  KernelObject raw = Disk();
  raw.block_device = true;
  EXPECT_EQ(Match(raw, LineOf(Disk(), "/", "/dev/loop1")), MountMatch::kOther);
}

class VolumeReleaseTest : public ::testing::Test {
 protected:
  FoundMount Mount(const std::string& mount_namespace, const std::string& target) {
    FoundMount mount;
    mount.object = object_;
    mount.pid = 812;
    mount.mount_namespace = mount_namespace;
    mount.own_namespace = mount_namespace == "host";
    mount.target = target;
    return mount;
  }
  FoundMount Follower(const std::string& target) {
    FoundMount mount = Mount("container", target);
    mount.follows_tree = true;
    return mount;
  }
  static auto At(const std::string& target) { return Field(&FoundMount::target, target); }

  KernelObject object_ = Disk();
  const MountScope scope_{.tree = "/t", .volume = "/t/v", .plugin_namespace = "plugin"};
};

TEST_F(VolumeReleaseTest, OurOwnMountsBlockNoUnstageAndCountOnceTheyAreLeft) {
  const FoundMounts found{.mounts = {Mount("host", "/t/v/staging"), Follower("/t/v/staging")}};
  EXPECT_THAT(SortBlockingUnstage(found, scope_), IsEmpty());
  EXPECT_THAT(SortRemaining(found, scope_), ElementsAre(At("/t/v/staging")));
}

TEST_F(VolumeReleaseTest, AContainersMountBlocksAndCounts) {
  const FoundMounts found{.mounts = {Mount("container", "/data")}};
  EXPECT_THAT(SortBlockingUnstage(found, scope_), ElementsAre(At("/data")));
  EXPECT_THAT(SortRemaining(found, scope_), ElementsAre(At("/data")));
}

TEST_F(VolumeReleaseTest, AMountOfADiskElsewhereInOurNamespaceBlocks) {
  const FoundMounts found{.mounts = {Mount("host", "/srv/bound")}};
  EXPECT_THAT(SortBlockingUnstage(found, scope_), ElementsAre(At("/srv/bound")));
}

// FUSE and network drivers mount at a place of their own first, and bind that.
TEST_F(VolumeReleaseTest, WhatAPluginMountsForItselfIsItsOwn) {
  object_ = Nfs("server:/export");
  FoundMount copy = Mount("container", "/var/lib/driver/mount");
  copy.follows_outside = true;
  const FoundMounts found{
      .mounts = {Mount("host", "/var/lib/driver/mount"), Mount("plugin", "/mount"), copy}};
  EXPECT_THAT(SortBlockingUnstage(found, scope_), IsEmpty());
  EXPECT_THAT(SortRemaining(found, scope_), IsEmpty());
}

TEST_F(VolumeReleaseTest, AnotherVolumeOfTheSameDirectoryIsItsOwnUse) {
  const FoundMounts found{.mounts = {Mount("host", "/t/other/staging"), Follower("/t/other/staging")}};
  EXPECT_THAT(SortRemaining(found, scope_), IsEmpty());
}

}  // namespace
}  // namespace berth
