#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/blkpg.h>
#include <linux/loop.h>
#include <mqueue.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/testing/census_base.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class CensusKernelUsersTest : public CensusTestBase {
 protected:
  // As ShareDirectory, of a disk.
  void ShareDisk() {
    ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
    ASSERT_TRUE(RunShell(
        fmt::format("truncate -s 32M {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1} && mkdir {1}/v1 {1}/v2",
                    NewTestDirectory() + "/image", shared_)));
    ASSERT_TRUE(Bind(shared_ + "/v1", target_));
    question_.objects = {ObjectAt(target_)};
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusKernelUsersTest,
                         ::testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         KernelName);

TEST_P(CensusKernelUsersTest, ASwapFileAndALoopDeviceOnAFileInItAreNamed) {
  // On a file system that can have swap files.
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  const std::string image = NewTestDirectory() + "/image";
  ASSERT_TRUE(RunShell(
      fmt::format("truncate -s 32M {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1}", image, target_)));
  question_.objects = {ObjectAt(target_)};
  const std::string swap = target_ + "/swap";
  ASSERT_TRUE(
      RunShell(fmt::format("dd if=/dev/zero of={0} bs=1M count=4 2>/dev/null && chmod 600 {0} && "
                           "mkswap -q {0} >/dev/null && swapon {0}",
                           swap)));
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kSwap, swap)));
  ASSERT_TRUE(RunShell("swapoff " + swap));
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}.loop", swap, image)));
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}.loop)", image)));
  ExpectFree();
}

TEST_P(CensusKernelUsersTest, Fault47ASwapFileOnAMountThatIsGoneIsNamed) {
  ShareDisk();
  const std::string swap = shared_ + "/v1/in/file";
  ASSERT_TRUE(RunShell(
      fmt::format("mkdir {1}/in && dd if=/dev/zero of={0} bs=1M count=4 2>/dev/null && chmod 600 {0} && "
                  "mkswap -q {0} >/dev/null && swapon {1}/in/file",
                  swap, target_)));
  const UniqueFd file(open(swap.c_str(), O_PATH | O_CLOEXEC));
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kSwap, "/in/file")));
  ASSERT_EQ(swapoff(fmt::format("/proc/self/fd/{}", file.get()).c_str()), 0);
  ExpectFree();
}

TEST_P(CensusKernelUsersTest, Fault49ALoopDeviceOnAFileThatHasNoNameAnyMoreIsNamed) {
  ShareDirectory();
  const std::string other = shared_ + "/v2/file";
  ASSERT_TRUE(RunShell(fmt::format("truncate -s 1M {} {}", file_, other)));
  const auto over = [&](const std::string& file) {
    const std::string name = NewTestDirectory() + "/loop";
    EXPECT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}", file, name)));
    return name;
  };
  const std::string elsewhere = over(other);
  const std::string ours = over(file_);
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", ours)));
  ExpectFree();
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", elsewhere)));
}

// A container that attaches a loop device to a file in a volume, and leaves it behind when it ends; and one
// that has another directory of the same file system.
TEST_P(CensusKernelUsersTest, Fault49ALoopDeviceOfAContainerIsNamedAsLongAsItIsThere) {
  ShareDirectory();
  const std::string elsewhere = NewTestDirectory();
  const std::string name = elsewhere + "-loop";
  const auto container_on = [&](const std::string& directory) {
    return std::make_unique<Holder>([&, directory] {
      return Unshared(MS_PRIVATE) && Bind(directory, elsewhere) &&
             umount2(target_.c_str(), MNT_DETACH) == 0 && umount2(shared_.c_str(), MNT_DETACH) == 0 &&
             RunShell(fmt::format("truncate -s 1M {0}/file && losetup --find --show {0}/file > {1}",
                                  elsewhere, name));
    });
  };
  const std::string detach = fmt::format("losetup --detach $(cat {})", name);
  auto container = container_on(target_);
  const auto loop = Field(&Hold::kind, HoldKind::kLoop);
  EXPECT_THAT(Holds(), Contains(Is(container->pid(), HoldKind::kNamespace)));
  container.reset();
  ExpectSoon(ElementsAre(loop));
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(loop));
  ASSERT_TRUE(RunShell(detach));
  ExpectFree();
  ASSERT_TRUE(Bind(shared_ + "/v1", target_));
  container = container_on(shared_ + "/v2");
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectFree();
  // Left behind, too, while the other directory has a mount of its own.
  const std::string other = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v2", other));
  container.reset();
  ExpectFree();
  ASSERT_EQ(umount2(other.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(RunShell(detach));
}

TEST_P(CensusKernelUsersTest, Fault49WhoHasABlockDeviceIsNamedWhateverItsName) {
  const std::string directory = NewTestDirectory();
  ASSERT_TRUE(RunShell(
      fmt::format("truncate -s 8M {0}/image && losetup --find --show {0}/image > {0}/loop", directory)));
  std::string device;
  std::getline(std::ifstream(directory + "/loop"), device);
  const dev_t number = LookAt(device)->special;
  question_.objects = {{.block_device = true, .device = number, .users = true}};
  // Another test's losetup opens it for a moment, too: to see whether it is free.
  ExpectFree();
  // On a disk: a node need not lie where devices usually do.
  const std::string disk = NewTestDirectory();
  ASSERT_TRUE(RunShell(fmt::format(
      "truncate -s 16M {0}/disk && mkfs.ext4 -q {0}/disk && mount -o loop {0}/disk {1}", directory, disk)));
  const std::string node = disk + "/node";
  ASSERT_EQ(mknod(node.c_str(), S_IFBLK | 0600, number), 0);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] { return OpenAndKeep(node); }), HoldKind::kOpenFile);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] {
                          const int fd = open(node.c_str(), O_RDONLY);
                          const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED;
                          return close(fd) == 0 && mapped;
                        }),
                        HoldKind::kMappedFile);
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}/above", node, directory)));
  ExpectSoon(ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}/above)", directory)));
  ExpectFree();
  ASSERT_EQ(umount2(disk.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(RunShell("losetup --detach " + device));
}

TEST_P(CensusKernelUsersTest, Fault61WhoHasAPartitionHasItsDiskAndWhoHasTheDiskHasNoOtherPartition) {
  const std::string directory = NewTestDirectory();
  ASSERT_TRUE(RunShell(fmt::format(
      "truncate -s 8M {0}/image && losetup --find --partscan --show {0}/image > {0}/loop", directory)));
  std::string device;
  std::getline(std::ifstream(directory + "/loop"), device);
  blkpg_partition part{.start = 1 << 20, .length = 1 << 20, .pno = 1, .devname = {}, .volname = {}};
  blkpg_ioctl_arg add{.op = BLKPG_ADD_PARTITION, .flags = 0, .datalen = sizeof part, .data = &part};
  const UniqueFd disk(open(device.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(ioctl(disk.get(), BLKPG, &add), 0);
  const dev_t number = LookAt(device)->special;
  const std::string sysfs = fmt::format("/sys/dev/block/{}:{}/{}p1/dev", major(number), minor(number),
                                        device.substr(device.rfind('/') + 1));
  unsigned major_number = 0;
  unsigned minor_number = 0;
  char colon = 0;
  std::ifstream(sysfs) >> major_number >> colon >> minor_number;
  const dev_t partition = makedev(major_number, minor_number);
  const std::string place = NewTestDirectory();
  ASSERT_TRUE(RunShell(fmt::format("mount -t tmpfs -o dev tmpfs {}", place)));
  const std::string node = place + "/node";
  ASSERT_EQ(mknod(node.c_str(), S_IFBLK | 0600, partition), 0);
  const std::vector<CensusObject> whole = {{.block_device = true, .device = number, .users = true}};
  const std::vector<CensusObject> part_alone = {{.block_device = true, .device = partition, .users = true}};
  {
    question_.objects = part_alone;
    ExpectFree();  // though we have the disk
    const Holder holder([&] { return OpenAndKeep(node); });
    question_.objects = whole;
    ExpectSoon(Contains(AllOf(Field(&Hold::pid, holder.pid()), Field(&Hold::kind, HoldKind::kOpenFile))));
    question_.objects = part_alone;
    ExpectSoon(ElementsAre(AllOf(Field(&Hold::pid, holder.pid()), Field(&Hold::kind, HoldKind::kOpenFile))));
  }
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}/above", node, directory)));
  question_.objects = whole;
  ExpectSoon(Contains(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}/above)", directory)));
  ASSERT_EQ(umount2(place.c_str(), UMOUNT_NOFOLLOW), 0);
  add.op = BLKPG_DEL_PARTITION;
  EXPECT_EQ(ioctl(disk.get(), BLKPG, &add), 0);
  ASSERT_TRUE(RunShell("losetup --detach " + device));
}

TEST_P(CensusKernelUsersTest, Fault49ALoopDeviceOnAFileWhoseNameCannotBeToldIsNamed) {
  ShareDirectory();
  const int file = OpenDeepFile(target_);
  ASSERT_GE(file, 0);
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  loop_config config{.fd = static_cast<uint32_t>(file)};
  std::string name;
  int configured = -1;
  // Another test may take the same one.
  for (int tries = 0; tries < 100 && configured != 0; ++tries) {
    name = fmt::format("/dev/loop{}", ioctl(control.get(), LOOP_CTL_GET_FREE));
    const UniqueFd loop(open(name.c_str(), O_RDWR | O_CLOEXEC));
    configured = ioctl(loop.get(), LOOP_CONFIGURE, &config);
  }
  ASSERT_EQ(configured, 0);
  ASSERT_EQ(close(file), 0);
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell("losetup --detach " + name));
  ExpectFree();
}

// An overlay whose layers are in the volume, but are not called by its name.
class Overlay {
 public:
  // The names of the upper and the working directory, as they are given.
  Overlay(const std::string& where, const std::string& names, const std::string& lower) : where_(where) {
    const std::string options = fmt::format("lowerdir={},upperdir={}up,workdir={}work", lower, names, names);
    made_ = mount("overlay", where.c_str(), "overlay", 0, options.c_str()) == 0;
  }
  ~Overlay() { umount2(where_.c_str(), UMOUNT_NOFOLLOW); }
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;
  [[nodiscard]] bool made() const { return made_; }

 private:
  std::string where_;
  bool made_ = false;
};

class CensusOverlayTest : public CensusTestBase {
 protected:
  void SetUp() override {
    CensusTestBase::SetUp();
    ShareDirectory();
    BeginVolume();
    question_.objects[0].ours = {IdOf(target_)};
    for (const std::string& directory : {target_, target_ + "/inner", shared_ + "/v2"}) {
      for (const char* name : {"/up", "/work"}) ASSERT_EQ(mkdir((directory + name).c_str(), 0755), 0);
    }
  }
  // Whether mounts have unique ids: else it is not known which volume is older than an overlay.
  bool AgesAreKnown() const { return question_.objects[0].before != 0; }
  // One whose upper directory cannot be found out.
  void ExpectCountsForOlderVolumes(std::unique_ptr<Overlay> overlay) {
    if (AgesAreKnown()) {
      ExpectNamedUntilItEnds(std::move(overlay));
    } else {
      EXPECT_THAT(Holds(), IsEmpty());
    }
  }
  // Named while it is there; also when the volume is not mounted any more.
  void ExpectNamedUntilItEnds(std::unique_ptr<Overlay> overlay) {
    ASSERT_TRUE(overlay->made()) << strerror(errno);
    const auto named = ElementsAre(Is(0, HoldKind::kOverlay, over_));
    EXPECT_THAT(Holds(), named);
    ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
    question_.objects[0].staged = false;
    EXPECT_THAT(Holds(), named);
    overlay.reset();
    ExpectFree();
  }
  // In a container, with layers in a directory that it `fills`, and `leaves` when it is mounted.
  template <class Fill, class Leave>
  std::unique_ptr<Holder> Container(Fill fill, Leave leave) {
    return std::make_unique<Holder>([=, this] {
      const std::string place = low_ + "/place";
      return Unshared(MS_PRIVATE) && mkdir(place.c_str(), 0755) == 0 && fill(place) &&
             umount2(target_.c_str(), MNT_DETACH) == 0 && umount2(shared_.c_str(), MNT_DETACH) == 0 &&
             mount("overlay", over_.c_str(), "overlay", 0,
                   fmt::format("lowerdir={1},upperdir={0}/up,workdir={0}/work", place, low_).c_str()) == 0 &&
             leave(place);
    });
  }

  std::string low_ = NewTestDirectory();
  std::string over_ = NewTestDirectory();
};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusOverlayTest,
                         ::testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         KernelName);

TEST_P(CensusOverlayTest, Fault47OneWithALayerInItIsNamed) {
  ExpectNamedUntilItEnds(std::make_unique<Overlay>(over_, target_ + "/", low_));
}

TEST_P(CensusOverlayTest, Fault47ItsLayersMayBeGivenByASymlink) {
  const std::string link = NewTestDirectory() + "/link";
  ASSERT_EQ(symlink(shared_.c_str(), link.c_str()), 0);
  // The other volume's first.
  auto other = std::make_unique<Overlay>(over_, link + "/v2/", low_);
  ASSERT_TRUE(other->made());
  EXPECT_THAT(Holds(), IsEmpty());
  other.reset();
  ExpectNamedUntilItEnds(std::make_unique<Overlay>(over_, link + "/v1/inner/", low_));
}

// From another directory it might have been, the same names lead there; but no overlay has them.
TEST_P(CensusOverlayTest, Fault47ItsLayersMayBeGivenRelativeToTheVolume) {
  over_ = low_ + "/over";
  for (const char* name : {"/over", "/up", "/work"}) ASSERT_EQ(mkdir((low_ + name).c_str(), 0755), 0);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(target_);
  auto overlay = std::make_unique<Overlay>(over_, "", low_);
  std::filesystem::current_path(before);
  ExpectCountsForOlderVolumes(std::move(overlay));
}

TEST_P(CensusOverlayTest, Fault47ItsLayersMayBeGivenRelativeToADirectoryInTheVolume) {
  over_ = low_ + "/over";
  for (const char* name : {"/over", "/up", "/work"}) ASSERT_EQ(mkdir((low_ + name).c_str(), 0755), 0);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(target_ + "/inner");
  auto overlay = std::make_unique<Overlay>(over_, "", low_);
  std::filesystem::current_path(before);
  // The volume itself has nothing of these names.
  for (const char* name : {"/up", "/work"})
    ASSERT_EQ(rename((target_ + name).c_str(), (target_ + name + "2").c_str()), 0);
  ExpectCountsForOlderVolumes(std::move(overlay));
}

TEST_P(CensusOverlayTest, Fault47ItsLayersMayBeGivenRelativeToWhereItIsMounted) {
  ASSERT_EQ(mkdir((shared_ + "/over").c_str(), 0755), 0);
  over_ = shared_ + "/over";
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(shared_);
  auto overlay = std::make_unique<Overlay>(over_, "v1/", low_);
  std::filesystem::current_path(before);
  ExpectCountsForOlderVolumes(std::move(overlay));
}

TEST_P(CensusOverlayTest, Fault47ALayerMayHaveBeenGivenThroughAMountThatIsGone) {
  const std::string bind = NewTestDirectory();
  ASSERT_TRUE(Bind(target_, bind));
  auto overlay = std::make_unique<Overlay>(over_, bind + "/", low_);
  ASSERT_EQ(umount2(bind.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectCountsForOlderVolumes(std::move(overlay));
}

TEST_P(CensusOverlayTest, FromALowerLayerItOnlyReads) {
  const Overlay overlay(over_, shared_ + "/v2/", target_ + "/inner:" + low_);
  ASSERT_TRUE(overlay.made());
  EXPECT_THAT(Holds(), IsEmpty());
}

// More options than fit in what they are read into: it is not known where the upper directory is.
TEST_P(CensusOverlayTest, Fault62OneWithOptionsThatAreTooLongIsNamed) {
  const UniqueFd overlay(static_cast<int>(syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC)));
  const auto add = [&overlay](const char* key, const std::string& value) {
    return syscall(SYS_fsconfig, overlay.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  for (int i = 0; i < 400; ++i) {
    const std::string layer = fmt::format("{}/{:0200}", low_, i);
    ASSERT_EQ(mkdir(layer.c_str(), 0755), 0);
    if (!add("lowerdir+", layer)) GTEST_SKIP() << "this kernel takes no layer by itself (before Linux 6.7)";
  }
  ASSERT_TRUE(add("upperdir", target_ + "/up") && add("workdir", target_ + "/work"));
  ASSERT_EQ(syscall(SYS_fsconfig, overlay.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0), 0);
  UniqueFd made(static_cast<int>(syscall(SYS_fsmount, overlay.get(), FSMOUNT_CLOEXEC, 0)));
  ASSERT_EQ(syscall(SYS_move_mount, made.get(), "", AT_FDCWD, over_.c_str(), MOVE_MOUNT_F_EMPTY_PATH), 0);
  made.Reset();
  EXPECT_THAT(Holds(), SizeIs(AgesAreKnown() || GetParam() != KernelAs::kThis ? 1 : 0));
  ASSERT_EQ(umount2(over_.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusOverlayTest, Fault47AContainerMayHaveItWithoutTheVolume) {
  auto container = Container([this](const std::string& place) { return Bind(target_, place); },
                             [](const std::string& place) { return umount2(place.c_str(), 0) == 0; });
  if (AgesAreKnown()) {
    EXPECT_THAT(Holds(), ElementsAre(Is(container->pid(), HoldKind::kOverlay, over_)));
  } else {
    EXPECT_THAT(Holds(), IsEmpty());
  }
  container.reset();
  ExpectFree();
}

// No mount shows the overlay any more: what it is made of cannot be asked.
TEST_P(CensusOverlayTest, Fault63AFileOnAnOverlayThatWasDetachedMayBeInIt) {
  auto holder = std::make_unique<Holder>([this] {
    const std::string options = fmt::format("lowerdir={1},upperdir={0}/up,workdir={0}/work", target_, low_);
    return Unshared(MS_PRIVATE) && mount("overlay", over_.c_str(), "overlay", 0, options.c_str()) == 0 &&
           open((over_ + "/file").c_str(), O_CREAT | O_RDWR, 0600) >= 0 &&
           umount2(over_.c_str(), MNT_DETACH) == 0 && umount2(target_.c_str(), MNT_DETACH) == 0 &&
           umount2(shared_.c_str(), MNT_DETACH) == 0;
  });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(),
              Contains(AllOf(Is(holder->pid(), HoldKind::kOpenFile), Field(&Hold::keeper, "possible"))));
  holder.reset();
  ExpectFree();
}

// Memory that processes share is a file on a mount that is in no namespace, too.
TEST_P(CensusOverlayTest, Fault63WhatLiesOnTheKernelsOwnMountsOrOnOtherFileSystemsIsNoHold) {
  const Holder holder([] {
    const std::string other = NewTestDirectory();
    const int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    const bool attached = segment >= 0 && shmat(segment, nullptr, 0) != reinterpret_cast<void*>(-1);
    shmctl(segment, IPC_RMID, nullptr);
    const mqd_t queue = mq_open("/berth-census-test", O_CREAT | O_RDWR, 0600, nullptr);
    mq_unlink("/berth-census-test");
    return attached && queue >= 0 && memfd_create("memory", MFD_CLOEXEC) >= 0 &&
           mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED &&
           Unshared(MS_SLAVE) && mount("other", other.c_str(), "tmpfs", 0, nullptr) == 0 &&
           open((other + "/file").c_str(), O_CREAT | O_RDWR, 0600) >= 0 &&
           umount2(other.c_str(), MNT_DETACH) == 0;
  });
  EXPECT_THAT(Holds(), IsEmpty());
}

TEST_P(CensusOverlayTest, OneOfAContainerWithLayersOfItsOwnIsNoHold) {
  const auto container = Container(
      [](const std::string& place) {
        return mount("own", place.c_str(), "tmpfs", 0, nullptr) == 0 &&
               mkdir((place + "/up").c_str(), 0755) == 0 && mkdir((place + "/work").c_str(), 0755) == 0;
      },
      [](const std::string& /*place*/) { return true; });
  EXPECT_THAT(Holds(), IsEmpty());
}

// The first of its mounts says where its names were given.
TEST_P(CensusOverlayTest, OneThatOthersHaveCopiesOfIsNamedOnce) {
  const auto overlay = std::make_unique<Overlay>(over_, target_ + "/", low_);
  const Holder copy([this] { return Unshared(MS_SLAVE) && umount2(target_.c_str(), MNT_DETACH) == 0; });
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kOverlay, over_)));
}

// Where its upper directory lies cannot be found out: it may be in any volume that is older.
TEST_P(CensusOverlayTest, Fault47OneWithAnUpperDirectoryThatIsNotFoundCounts) {
  const std::string bind = NewTestDirectory();
  ASSERT_TRUE(Bind(target_, bind));
  auto overlay = std::make_unique<Overlay>(over_, bind + "/inner/", low_);
  ASSERT_EQ(umount2(bind.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(rename((target_ + "/inner").c_str(), (target_ + "/renamed").c_str()), 0);
  for (const char* name : {"/up", "/work"})
    ASSERT_EQ(rename((target_ + name).c_str(), (target_ + name + "2").c_str()), 0);
  CensusObject later = question_.objects[0];
  later.before = MountIdNow(tree_);
  question_.objects.push_back(later);
  if (!AgesAreKnown()) {
    EXPECT_THAT(Holds(), IsEmpty());
    return;
  }
  EXPECT_THAT(Holds(),
              ElementsAre(AllOf(Is(0, HoldKind::kOverlay, over_), Field(&Hold::keeper, "possible"))));
  overlay.reset();
  ExpectFree();
}

TEST_P(CensusOverlayTest, OneOfAnotherVolumeWhoseMountIsGoneIsNoHold) {
  const std::string other = tree_ + "/other";
  ASSERT_EQ(mkdir(other.c_str(), 0755), 0);
  ASSERT_TRUE(Bind(shared_ + "/v2", other));
  const Overlay overlay(over_, other + "/", low_);
  ASSERT_TRUE(overlay.made());
  ASSERT_EQ(umount2(other.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_THAT(Holds(), IsEmpty());
}

TEST_P(CensusOverlayTest, Fault47OneThatWasThereBeforeIsNoHold) {
  const std::string bind = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v2", bind));
  ASSERT_EQ(rename((target_ + "/up").c_str(), (target_ + "/other").c_str()), 0);
  const Overlay overlay(over_, bind + "/", low_);
  ASSERT_TRUE(overlay.made());
  ASSERT_EQ(umount2(bind.c_str(), UMOUNT_NOFOLLOW), 0);
  BeginVolume();
  EXPECT_THAT(Holds(), IsEmpty());
}

TEST_P(CensusKernelUsersTest, Fault24ALoopDeviceThatCannotBeAskedHidesNoOther) {
  ShareDirectory();
  auto server = FuseServer::Mount(NewTestDirectory());
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::string> names;
  // The hung one may come first or last.
  for (const std::string& file : {file_, (*server)->path() + "/hello", file_}) {
    names.push_back(NewTestDirectory() + "/loop");
    ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}", file, names.back())));
  }
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  (*server)->Hang();
  EXPECT_THAT(Holds(), AllOf(SizeIs(2), Each(Field(&Hold::kind, HoldKind::kLoop))));
  (*server)->Resume();
  for (const std::string& name : names)
    ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", name)));
  ExpectFree();
}

TEST_P(CensusKernelUsersTest, Fault24ALoopDeviceCountsWhoseNameLeadsToWhatDoesNotAnswer) {
  ShareDisk();
  auto server = FuseServer::Mount(NewTestDirectory());
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string name = NewTestDirectory() + "/loop";
  ASSERT_TRUE(RunShell(fmt::format(
      "mkdir -p {0}{1} && truncate -s 1M {0}{1}/hello && losetup --find --show {0}{1}/hello > {2}", target_,
      (*server)->path(), name)));
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  (*server)->Hang();
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  (*server)->Resume();
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", name)));
  ExpectFree();
}

TEST_P(CensusKernelUsersTest, Fault24ALoopDeviceCountsWhileItsFileSystemDoesNotAnswer) {
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  auto server = FuseServer::Mount(target_);
  ASSERT_TRUE(server.ok()) << server.status();
  question_.objects = {ObjectAt(target_)};
  const std::string name = NewTestDirectory();
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {}/hello > {}/loop", target_, name)));
  // Its name leads nowhere, and the file system is still mounted for another one.
  const std::string bind = NewTestDirectory();
  ASSERT_TRUE(Bind(target_, bind));
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  recorded_ = {IdOf(bind)};
  question_.objects[0].staged = false;
  (*server)->Hang();
  EXPECT_THAT(Holds(),
              Contains(AllOf(Field(&Hold::kind, HoldKind::kLoop), Field(&Hold::keeper, "possible"))));
  (*server)->Resume();
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}/loop)", name)));
  ASSERT_EQ(umount2(bind.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusOverlayTest, Fault24OneWithALayerThatDoesNotAnswerCountsAndHidesNoOther) {
  const std::string hangs = NewTestDirectory();
  const std::string link = NewTestDirectory() + "/link";
  for (const std::string& name : {hangs + "/link", link})
    ASSERT_EQ(symlink(shared_.c_str(), name.c_str()), 0);
  const std::string first = NewTestDirectory();
  const std::string second = NewTestDirectory();
  const Overlay of_another(first, hangs + "/link/v2/", low_);
  const Overlay of_this(over_, link + "/v1/", low_);
  const Overlay above(second, link + "/v1/inner/", low_);
  ASSERT_TRUE(of_another.made() && of_this.made() && above.made());
  // Whoever follows the first one's name asks a server now.
  auto server = FuseServer::Mount(hangs);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  std::map<std::string, std::string> named;
  for (const Hold& hold : Holds()) named.emplace(hold.where, hold.keeper);
  std::map<std::string, std::string> expected = {{over_, ""}, {second, ""}};
  if (AgesAreKnown()) expected.emplace(first, "possible");
  EXPECT_EQ(named, expected);
  (*server)->Die();
}

// As this kernel alone.
class CensusOverlayNowTest : public CensusOverlayTest {};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusOverlayNowTest, ::testing::Values(KernelAs::kThis), KernelName);

TEST_P(CensusOverlayNowTest, Fault24ManyThatDoNotAnswerMakeItIncomplete) {
  const std::string hangs = NewTestDirectory();
  ASSERT_EQ(symlink(shared_.c_str(), (hangs + "/link").c_str()), 0);
  std::list<Overlay> overlays;
  for (int i = 0; i < 40; ++i) {
    const std::string upper = fmt::format("{}/v2/{}", shared_, i);
    ASSERT_TRUE(RunShell(fmt::format("mkdir -p {0}/up {0}/work", upper)));
    overlays.emplace_back(NewTestDirectory(), fmt::format("{}/link/v2/{}/", hangs, i), low_);
    ASSERT_TRUE(overlays.back().made());
  }
  auto server = FuseServer::Mount(hangs);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  const CensusAnswer answer = RunOn(loop_, census_.Take(question_, Clock::now() + kTestLimit));
  EXPECT_THAT(answer.incomplete, HasSubstr("do not answer"));
  (*server)->Die();
}

}  // namespace
}  // namespace berth
