// The life of volumes of every kind, through the real program, with real mounts.

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/testing/plugin_test.h"

namespace berth::hostpath {
namespace {

int64_t FileSystemBytes(const std::string& path) {
  struct statvfs info{};
  EXPECT_EQ(statvfs(path.c_str(), &info), 0);
  return static_cast<int64_t>(info.f_blocks * info.f_frsize);
}

std::string ReadDevice(const std::string& path, size_t count) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(fd.valid()) << path;
  std::string text(count, '\0');
  EXPECT_EQ(pread(fd.get(), text.data(), count, 0), static_cast<ssize_t>(count));
  return text;
}

void WriteDevice(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid()) << path;
  ASSERT_EQ(pwrite(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  ASSERT_EQ(fsync(fd.get()), 0);
}

// A mountable kind and what it is made with.
struct Mountable {
  std::string name;
  std::string kind;
  std::string fs_type;
  int64_t bytes;
};
// CTest names each case by this.
void PrintTo(const Mountable& mountable, std::ostream* out) { *out << mountable.name; }

class MountableVolumeTest : public PluginTest, public ::testing::WithParamInterface<Mountable> {
 protected:
  void SetUp() override {
    if (GetParam().kind != "directory" && MissingLoopDevices()) GTEST_SKIP() << "no loop devices";
    plugin_.Start();
  }
  ::csi::v1::CreateVolumeRequest Request(const std::string& name) {
    auto request = CreateRequest(name, Capability(), GetParam().bytes, GetParam().kind);
    if (!GetParam().fs_type.empty()) (*request.mutable_parameters())["fsType"] = GetParam().fs_type;
    return request;
  }
  static VolumeCapability Capability() {
    return Mounted(AccessModeEnum::SINGLE_NODE_MULTI_WRITER, GetParam().fs_type);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, MountableVolumeTest,
                         ::testing::Values(Mountable{"Directory", "directory", "", 64 * kMiB},
                                           Mountable{"Ext4", "image", "ext4", 64 * kMiB},
                                           Mountable{"Xfs", "image", "xfs", 320 * kMiB}),
                         [](const auto& info) { return info.param.name; });

TEST_P(MountableVolumeTest, LivesFromCreationToDeletionWithEveryStepRepeated) {
  const std::string id = MustCreate(Request("pvc-1"));
  EXPECT_EQ(MustCreate(Request("pvc-1")), id);
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string one = workplace_.Target("one");
  const std::string two = workplace_.Target("two");

  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Stage(id, staging, Capability()));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Publish(id, staging, one, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, two, Capability(), /*read_only=*/true));
  EXPECT_EQ(MountsBeneath(workplace_.path()).size(), 3);
  WriteText(one + "/hello", "written at one");
  EXPECT_EQ(ReadText(two + "/hello"), "written at one");

  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats(id, one, &stats));
  ASSERT_EQ(stats.usage_size(), 2);
  EXPECT_GT(stats.usage(0).total(), 0);
  EXPECT_FALSE(stats.volume_condition().abnormal()) << stats.volume_condition().message();
  if (GetParam().kind == "image") EXPECT_LE(stats.usage(0).total(), GetParam().bytes);
  ::csi::v1::VolumeHealth health;
  EXPECT_CALL_OK(Health(id, one, &health));
  EXPECT_EQ(health.volume_id(), id);
  EXPECT_EQ(health.health_statuses_size(), 0);
  EXPECT_CODE(Health(id, workplace_.Target("none"), &health), NOT_FOUND);
  EXPECT_CODE(Health(id, "", &health), INVALID_ARGUMENT);

  EXPECT_CODE(Delete(id), FAILED_PRECONDITION);
  EXPECT_CODE(Unstage(id, staging), FAILED_PRECONDITION);
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Unpublish(id, one));
  EXPECT_EQ(access(one.c_str(), F_OK), -1) << "the target is the plugin's to remove";
  EXPECT_CALL_OK(Unpublish(id, two));
  EXPECT_CODE(Delete(id), FAILED_PRECONDITION);
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_EQ(access(staging.c_str(), F_OK), 0) << "the staging path is the caller's";

  // The content outlives staging.
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_EQ(ReadText(staging + "/hello"), "written at one");
  EXPECT_CALL_OK(Unstage(id, staging));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Delete(id));
  EXPECT_TRUE(std::filesystem::is_empty(workplace_.StateDir() + "/volumes"));
  EXPECT_TRUE(std::filesystem::is_empty(workplace_.StateDir() + "/trash"));
  EXPECT_EQ(plugin_.Terminate(), 0);
  EXPECT_EQ(access(workplace_.Socket().c_str(), F_OK), -1);
}

TEST_P(MountableVolumeTest, APublicationThatTheKernelKnowsNothingOfHoldsNeitherTheStagingNorTheVolume) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string one = workplace_.Target("one");
  const std::string two = workplace_.Target("two");
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, one, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, two, Capability()));
  ASSERT_EQ(umount2(one.c_str(), UMOUNT_NOFOLLOW), 0) << "another process unmounts it";
  EXPECT_CODE(Unstage(id, staging), FAILED_PRECONDITION);  // The other one is there.
  EXPECT_CALL_OK(Unpublish(id, two));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Unpublish(id, one));  // Late, and repeated.
  EXPECT_EQ(rmdir(one.c_str()), 0);
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, IsReadOnlyWhereItIsPublishedReadOnly) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, target, Capability(), /*read_only=*/true));
  EXPECT_EQ(open((target + "/file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), -1);
  EXPECT_EQ(errno, EROFS);
  WriteText(staging + "/file", "the staging path is writable still");
  EXPECT_CODE(Publish(id, staging, target, Capability(), /*read_only=*/false), ALREADY_EXISTS);
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, IsReadOnlyInAReaderOnlyMode) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  const auto readers = Mounted(AccessModeEnum::MULTI_NODE_READER_ONLY, GetParam().fs_type);
  EXPECT_CALL_OK(Stage(id, staging, readers));
  EXPECT_CALL_OK(Publish(id, staging, target, readers));
  for (const std::string& path : {staging, target}) {
    EXPECT_EQ(mkdir((path + "/file").c_str(), 0700), -1);
    EXPECT_EQ(errno, EROFS) << path;
  }
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, IsCopiedWholeIntoClonesAndSnapshots) {
  const std::string id = MustCreate(Request("original"));
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  WriteText(staging + "/old", "before the snapshot");
  mkdir((staging + "/sub").c_str(), 0701);
  EXPECT_EQ(symlink("old", (staging + "/sub/link").c_str()), 0);
  EXPECT_EQ(chown((staging + "/old").c_str(), 1234, 2345), 0);

  ::csi::v1::Snapshot snapshot;
  EXPECT_CALL_OK(Snap(id, "snap", &snapshot));
  EXPECT_TRUE(snapshot.ready_to_use());
  EXPECT_GT(snapshot.creation_time().seconds(), 1'600'000'000);
  WriteText(staging + "/new", "after the snapshot");

  auto from_snapshot = Request("restored");
  from_snapshot.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id(snapshot.snapshot_id());
  auto from_volume = Request("cloned");
  from_volume.mutable_volume_content_source()->mutable_volume()->set_volume_id(id);
  const std::string restored = MustCreate(from_snapshot);
  const std::string cloned = MustCreate(from_volume);
  EXPECT_EQ(MustCreate(from_snapshot), restored);

  // All three at once: copies of an xfs share its UUID.
  const std::string staging_restored = workplace_.NewStagingPath("restored");
  const std::string staging_cloned = workplace_.NewStagingPath("cloned");
  EXPECT_CALL_OK(Stage(restored, staging_restored, Capability()));
  EXPECT_CALL_OK(Stage(cloned, staging_cloned, Capability()));
  EXPECT_EQ(ReadText(staging_restored + "/old"), "before the snapshot");
  EXPECT_EQ(access((staging_restored + "/new").c_str(), F_OK), -1);
  EXPECT_EQ(ReadText(staging_cloned + "/new"), "after the snapshot");
  struct stat info{};
  EXPECT_EQ(stat((staging_restored + "/old").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 1234U);
  EXPECT_EQ(info.st_gid, 2345U);
  EXPECT_EQ(stat((staging_restored + "/sub").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0701U);
  EXPECT_EQ(std::filesystem::read_symlink(staging_restored + "/sub/link"), "old");
  WriteText(staging_cloned + "/old", "changed in the clone");
  EXPECT_EQ(ReadText(staging + "/old"), "before the snapshot");

  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
  // A snapshot is independent of its volume.
  from_snapshot.set_name("restored again");
  const std::string again = MustCreate(from_snapshot);
  EXPECT_CALL_OK(Unstage(restored, staging_restored));
  EXPECT_CALL_OK(Unstage(cloned, staging_cloned));
  for (const std::string& volume : {restored, cloned, again}) EXPECT_CALL_OK(Delete(volume));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(DropSnapshot(snapshot.snapshot_id()));
}

// As udev does, and blkid: the kernel keeps the loop device attached to the image meanwhile.
TEST_P(MountableVolumeTest, IsDeletedThoughAProgramLooksAtItsDeviceForAMoment) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  std::vector<UniqueFd> devices;  // a directory has none
  for (const std::string& loop : LoopsBeneath(workplace_.path())) {
    devices.emplace_back(open(("/dev/" + loop).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(devices.back().valid()) << loop;
  }
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_EQ(LoopsBeneath(workplace_.path()).size(), GetParam().kind == "directory" ? 0 : 1);
  std::jthread looker([&devices] {
    poll(nullptr, 0, 200);  // It looks for this long.
    devices.clear();
  });
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, SurvivesKillsBetweenAllSteps) {
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  const auto restart = [&] {
    plugin_.Kill();
    plugin_.Start();
  };
  const std::string id = MustCreate(Request("pvc-1"));
  restart();
  EXPECT_EQ(MustCreate(Request("pvc-1")), id);
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  restart();
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, target, Capability()));
  WriteText(target + "/file", "kept");
  restart();
  EXPECT_EQ(ReadText(target + "/file"), "kept") << "a mount does not depend on the plugin";
  EXPECT_CALL_OK(Publish(id, staging, target, Capability()));
  EXPECT_EQ(MountsBeneath(workplace_.path()).size(), 2);
  EXPECT_CODE(Delete(id), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unpublish(id, target));
  restart();
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  restart();
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
  restart();
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, IsMountedAgainAfterItsMountsWereLost) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, target, Capability()));
  WriteText(target + "/file", "kept");
  // As a reboot does, which keeps the records and the directories.
  ASSERT_EQ(umount2(target.c_str(), 0), 0);
  ASSERT_EQ(umount2(staging.c_str(), 0), 0);
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats(id, target, &stats));
  EXPECT_TRUE(stats.volume_condition().abnormal());
  ::csi::v1::VolumeHealth health;
  EXPECT_CALL_OK(Health(id, target, &health));
  ASSERT_EQ(health.health_statuses_size(), 1);
  EXPECT_EQ(health.health_statuses(0).status(), ::csi::v1::INACCESSIBLE);
  EXPECT_EQ(health.health_statuses(0).reason(), "NotMounted");
  EXPECT_CODE(Publish(id, staging, target, Capability()), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Stage(id, staging, Capability()));
  EXPECT_CALL_OK(Publish(id, staging, target, Capability()));
  EXPECT_EQ(ReadText(target + "/file"), "kept");
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_EQ(access(target.c_str(), F_OK), -1);
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, GivesItsRootToTheMountGroup) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  auto capability = Capability();
  capability.mutable_mount()->set_volume_mount_group("4321");
  EXPECT_CALL_OK(Stage(id, staging, capability));
  struct stat info{};
  EXPECT_EQ(stat(staging.c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 4321U);
  EXPECT_EQ(info.st_mode & 02070, 02070U);
  mkdir((staging + "/sub").c_str(), 0700);
  EXPECT_EQ(stat((staging + "/sub").c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 4321U);
  EXPECT_CALL_OK(Unstage(id, staging));
  capability.mutable_mount()->set_volume_mount_group("no number");
  EXPECT_CODE(Stage(id, staging, capability), INVALID_ARGUMENT);
  EXPECT_CALL_OK(Delete(id));
}

TEST_P(MountableVolumeTest, PassesMountFlagsOn) {
  const std::string id = MustCreate(Request("pvc-1"));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  auto capability = Capability();
  capability.mutable_mount()->add_mount_flags("noexec,nosuid");
  capability.mutable_mount()->add_mount_flags("noatime");
  EXPECT_CALL_OK(Stage(id, staging, capability));
  EXPECT_CALL_OK(Publish(id, staging, target, capability));
  for (const std::string& path : {staging, target}) {
    struct statvfs info{};
    EXPECT_EQ(statvfs(path.c_str(), &info), 0);
    for (const unsigned long flag : {ST_NOEXEC, ST_NOSUID, ST_NOATIME})
      EXPECT_NE(info.f_flag & flag, 0) << path;
  }
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  auto wrong = Capability();
  wrong.mutable_mount()->add_mount_flags("no-such-option");
  EXPECT_CODE(Stage(id, staging, wrong), INVALID_ARGUMENT);
  EXPECT_TRUE(MountsBeneath(workplace_.path()).empty());
  EXPECT_CALL_OK(Delete(id));
}

// --- Images ---

class ImageVolumeTest : public PluginTest {
 protected:
  void SetUp() override {
    if (MissingLoopDevices()) GTEST_SKIP() << "no loop devices";
    plugin_.Start();
  }
  std::string Image(const std::string& id) { return workplace_.StateDir() + "/volumes/" + id + "/image"; }
};

TEST_F(ImageVolumeTest, GrowsWhileItIsMounted) {
  for (const auto& [fs_type, bytes] : {std::pair{"ext4", 64 * kMiB}, std::pair{"xfs", 320 * kMiB}}) {
    const auto capability = Mounted(AccessModeEnum::SINGLE_NODE_WRITER, fs_type);
    const std::string id = MustCreate(CreateRequest(fs_type, capability, bytes));
    const std::string staging = workplace_.NewStagingPath(fs_type);
    const std::string target = workplace_.Target(fs_type);
    EXPECT_CALL_OK(Stage(id, staging, capability));
    EXPECT_CALL_OK(Publish(id, staging, target, capability));
    WriteText(target + "/file", "kept");
    const int64_t before = FileSystemBytes(target);
    ::csi::v1::ControllerExpandVolumeResponse expanded;
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_CALL_OK(Expand(id, 2 * bytes, &expanded));
      EXPECT_EQ(expanded.capacity_bytes(), 2 * bytes);
      EXPECT_TRUE(expanded.node_expansion_required());
    }
    ::csi::v1::NodeExpandVolumeResponse node;
    EXPECT_CODE(NodeExpand(id, target, 4 * bytes, &node), OUT_OF_RANGE);
    if (GrowsWhileMounted(fs_type)) {
      for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(NodeExpand(id, target, 2 * bytes, &node));
      EXPECT_EQ(node.capacity_bytes(), 2 * bytes);
    } else {
      GTEST_LOG_(WARNING) << "NO CAP_SYS_RESOURCE HERE: a mounted " << fs_type << " cannot be grown";
      EXPECT_CODE(NodeExpand(id, target, 2 * bytes, &node), FAILED_PRECONDITION);
      EXPECT_CALL_OK(Unpublish(id, target));
      EXPECT_CALL_OK(Unstage(id, staging));
      EXPECT_CALL_OK(Stage(id, staging, capability));
      EXPECT_CALL_OK(Publish(id, staging, target, capability));
      EXPECT_CALL_OK(NodeExpand(id, target, 2 * bytes, &node));
    }
    EXPECT_GT(FileSystemBytes(target), before + bytes * 8 / 10) << fs_type;
    EXPECT_EQ(ReadText(target + "/file"), "kept");
    EXPECT_CALL_OK(Unpublish(id, target));
    EXPECT_CALL_OK(Unstage(id, staging));
    EXPECT_CALL_OK(Delete(id));
  }
}

TEST_F(ImageVolumeTest, GrowsAtTheNextStageIfItWasNotMounted) {
  const auto capability = Mounted();
  const std::string id = MustCreate(CreateRequest("pvc", capability, 64 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_CALL_OK(Stage(id, staging, capability));
  const int64_t before = FileSystemBytes(staging);
  EXPECT_CALL_OK(Unstage(id, staging));
  ::csi::v1::ControllerExpandVolumeResponse expanded;
  EXPECT_CALL_OK(Expand(id, 128 * kMiB, &expanded));
  EXPECT_TRUE(expanded.node_expansion_required());
  // Even if it is only to be read.
  const auto reader = Mounted(AccessModeEnum::SINGLE_NODE_READER_ONLY);
  EXPECT_CALL_OK(Stage(id, staging, reader));
  EXPECT_GT(FileSystemBytes(staging), before + 50 * kMiB);
  EXPECT_EQ(mkdir((staging + "/x").c_str(), 0700), -1);
  ::csi::v1::NodeExpandVolumeResponse node;
  EXPECT_CALL_OK(NodeExpand(id, staging, 128 * kMiB, &node));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ImageVolumeTest, RestoredLargerThanItsSnapshotHasTheWholeSize) {
  const std::string id = MustCreate(CreateRequest("pvc", Mounted(), 64 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_CALL_OK(Stage(id, staging, Mounted()));
  WriteText(staging + "/file", "kept");
  ::csi::v1::Snapshot snapshot;
  EXPECT_CALL_OK(Snap(id, "snap", &snapshot));
  EXPECT_EQ(snapshot.size_bytes(), 64 * kMiB);
  EXPECT_CALL_OK(Unstage(id, staging));
  auto request = CreateRequest("restored", Mounted(), 128 * kMiB);
  request.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id(snapshot.snapshot_id());
  const std::string restored = MustCreate(request);
  EXPECT_CALL_OK(Stage(restored, staging, Mounted()));
  EXPECT_GT(FileSystemBytes(staging), 100 * kMiB);
  EXPECT_EQ(ReadText(staging + "/file"), "kept");
  EXPECT_CALL_OK(Unstage(restored, staging));
  request.set_name("too small");
  request.mutable_capacity_range()->set_required_bytes(32 * kMiB);
  EXPECT_CODE(Create(request), OUT_OF_RANGE);
  EXPECT_CALL_OK(Delete(id));
  EXPECT_CALL_OK(Delete(restored));
  EXPECT_CALL_OK(DropSnapshot(snapshot.snapshot_id()));
}

TEST_F(ImageVolumeTest, OfABlockVolumeWithDataIsNeverFormatted) {
  auto request = CreateRequest("both", Raw(), 64 * kMiB);
  *request.add_volume_capabilities() = Mounted();
  const std::string id = MustCreate(request);
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("raw");
  EXPECT_CALL_OK(Stage(id, staging, Raw()));
  EXPECT_CALL_OK(Publish(id, staging, target, Raw()));
  WriteDevice(target, "a database without a signature");
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CODE(Stage(id, staging, Mounted()), FAILED_PRECONDITION);
  EXPECT_TRUE(LoopsBeneath(workplace_.path()).empty());
  EXPECT_CALL_OK(Stage(id, staging, Raw()));
  EXPECT_CALL_OK(Publish(id, staging, target, Raw()));
  EXPECT_EQ(ReadDevice(target, 10), "a database");
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ImageVolumeTest, LeavesAStrangersMountAtItsTargetAlone) {
  const std::string id = MustCreate(CreateRequest("pvc", Mounted(), 64 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Mounted()));
  EXPECT_CALL_OK(Publish(id, staging, target, Mounted()));
  ASSERT_EQ(mount("stranger", target.c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_CODE(Unpublish(id, target), FAILED_PRECONDITION);
  EXPECT_EQ(MountsBeneath(target.substr(0, target.rfind('/'))).size(), 2);
  ASSERT_EQ(umount2(target.c_str(), 0), 0);
  // The same mount twice is both ours.
  ASSERT_EQ(mount(staging.c_str(), target.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ImageVolumeTest, ReportsAMissingImageAsAbnormal) {
  const std::string id = MustCreate(CreateRequest("pvc", Mounted(), 64 * kMiB));
  ::csi::v1::ControllerGetVolumeRequest request;
  request.set_volume_id(id);
  ::csi::v1::ControllerGetVolumeResponse response;
  const auto get = &::csi::v1::Controller::Stub::ControllerGetVolume;
  EXPECT_CALL_OK(plugin_.Call(plugin_.controller(), get, request, &response));
  EXPECT_FALSE(response.status().volume_condition().abnormal());
  EXPECT_EQ(response.volume().capacity_bytes(), 64 * kMiB);
  ASSERT_EQ(unlink(Image(id).c_str()), 0);
  EXPECT_CALL_OK(plugin_.Call(plugin_.controller(), get, request, &response));
  EXPECT_TRUE(response.status().volume_condition().abnormal());
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_FALSE(Stage(id, staging, Mounted()).ok());
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ImageVolumeTest, IsUsedAtOnceWithOthers) {
  constexpr int kThreads = 4;
  std::vector<std::string> stagings;
  stagings.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) stagings.push_back(workplace_.NewStagingPath(std::to_string(i)));
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        const std::string id = MustCreate(CreateRequest("pvc-" + std::to_string(i), Mounted(), 16 * kMiB));
        EXPECT_CALL_OK(Stage(id, stagings[i], Mounted()));
        WriteText(stagings[i] + "/file", id);
        EXPECT_EQ(ReadText(stagings[i] + "/file"), id);
        EXPECT_CALL_OK(Unstage(id, stagings[i]));
        EXPECT_CALL_OK(Delete(id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The kill comes later and later in one life from creation to deletion, until that ends before the kill.
TEST_F(ImageVolumeTest, RecoversFromAKillAtAnyMoment) {
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  bool finished = false;
  for (int step = 0; step < 60 && !finished; ++step) {
    SCOPED_TRACE(step);
    std::future<bool> life = std::async(std::launch::async, [&] {
      ::csi::v1::Volume volume;
      if (!Create(CreateRequest("pvc", Mounted(), 16 * kMiB), &volume).ok()) return false;
      const std::string& id = volume.volume_id();
      return Stage(id, staging, Mounted()).ok() && Publish(id, staging, target, Mounted()).ok() &&
             Unpublish(id, target).ok() && Unstage(id, staging).ok() && Delete(id).ok();
    });
    finished = life.wait_for(std::chrono::milliseconds(8 * step)) == std::future_status::ready;
    plugin_.Kill();
    const bool lived = life.get();
    EXPECT_TRUE(lived || !finished);
    plugin_.Start();

    // The caller takes it up where it was, all steps again, and none is in the way.
    const std::string id = MustCreate(CreateRequest("pvc", Mounted(), 16 * kMiB));
    EXPECT_CALL_OK(Stage(id, staging, Mounted()));
    EXPECT_CALL_OK(Publish(id, staging, target, Mounted()));
    EXPECT_EQ(MountsBeneath(workplace_.path()).size(), 2);
    EXPECT_EQ(LoopsBeneath(workplace_.path()).size(), 1);
    EXPECT_CALL_OK(Unpublish(id, target));
    EXPECT_CALL_OK(Unstage(id, staging));
    EXPECT_CALL_OK(Delete(id));
    EXPECT_TRUE(std::filesystem::is_empty(workplace_.StateDir() + "/volumes"));
    EXPECT_TRUE(MountsBeneath(workplace_.path()).empty());
    EXPECT_TRUE(LoopsBeneath(workplace_.path()).empty());
    if (HasFailure()) return;
  }
}

// --- Raw block ---

class BlockVolumeTest : public ImageVolumeTest {};

TEST_F(BlockVolumeTest, IsADeviceOfItsCapacityAtTheTarget) {
  const auto capability = Raw(AccessModeEnum::SINGLE_NODE_MULTI_WRITER);
  const std::string id = MustCreate(CreateRequest("raw", capability, 10 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string writer = workplace_.Target("writer");
  const std::string reader = workplace_.Target("reader");
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Stage(id, staging, capability));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Publish(id, staging, writer, capability));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Publish(id, staging, reader, capability, true));
  struct stat info{};
  ASSERT_EQ(stat(writer.c_str(), &info), 0);
  EXPECT_TRUE(S_ISBLK(info.st_mode));
  WriteDevice(writer, "raw data");
  EXPECT_EQ(ReadDevice(reader, 8), "raw data");
  {
    const UniqueFd fd(open(reader.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1) << "a device published read-only was written";
    const UniqueFd size(open(writer.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(lseek(size.get(), 0, SEEK_END), 10 * kMiB);
  }
  plugin_.Kill();
  plugin_.Start();
  EXPECT_CALL_OK(Publish(id, staging, writer, capability));
  EXPECT_EQ(LoopsBeneath(workplace_.path()).size(), 2);

  ::csi::v1::ControllerExpandVolumeResponse expanded;
  EXPECT_CALL_OK(Expand(id, 20 * kMiB, &expanded));
  EXPECT_FALSE(expanded.node_expansion_required());
  ::csi::v1::NodeExpandVolumeResponse node;
  EXPECT_CALL_OK(NodeExpand(id, writer, 20 * kMiB, &node));
  {
    const UniqueFd size(open(writer.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(lseek(size.get(), 0, SEEK_END), 20 * kMiB);
  }
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats(id, writer, &stats));
  ASSERT_EQ(stats.usage_size(), 1);
  EXPECT_EQ(stats.usage(0).total(), 20 * kMiB);

  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Unpublish(id, reader));
  EXPECT_EQ(LoopsBeneath(workplace_.path()).size(), 1);
  EXPECT_CALL_OK(Unpublish(id, writer));
  EXPECT_EQ(access(writer.c_str(), F_OK), -1);
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_TRUE(LoopsBeneath(workplace_.path()).empty());
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(BlockVolumeTest, IsCopiedWithItsContent) {
  const std::string id = MustCreate(CreateRequest("raw", Raw(), 10 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Raw()));
  EXPECT_CALL_OK(Publish(id, staging, target, Raw()));
  {
    // Left in the device's cache on purpose.
    const UniqueFd fd(open(target.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(pwrite(fd.get(), "raw data", 8, 0), 8);
    ::csi::v1::Snapshot snapshot;
    EXPECT_CALL_OK(Snap(id, "snap", &snapshot));
    auto request = CreateRequest("restored", Raw());
    request.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id(snapshot.snapshot_id());
    const std::string restored = MustCreate(request);
    EXPECT_EQ(ReadDevice(Image(restored), 8), "raw data");
    EXPECT_EQ(std::filesystem::file_size(Image(restored)), static_cast<uint64_t>(10 * kMiB));
    EXPECT_CALL_OK(Delete(restored));
    EXPECT_CALL_OK(DropSnapshot(snapshot.snapshot_id()));
  }
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(BlockVolumeTest, StillOpenElsewhereIsNotUnstaged) {
  const std::string id = MustCreate(CreateRequest("raw", Raw(), 10 * kMiB));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Raw()));
  EXPECT_CALL_OK(Publish(id, staging, target, Raw()));
  UniqueFd holder(open(target.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_CODE(Unpublish(id, target), FAILED_PRECONDITION);
  const auto loops = LoopsBeneath(workplace_.path());
  ASSERT_EQ(loops.size(), 1);
  holder.Reset(open(("/dev/" + loops.front()).c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CODE(Unstage(id, staging), UNAVAILABLE);
  holder.Reset();
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

}  // namespace
}  // namespace berth::hostpath
