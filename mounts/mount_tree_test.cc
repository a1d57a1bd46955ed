#include "mounts/mount_tree.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/immutable.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

size_t MountsWithSource(const std::string& directory, const std::string& source) {
  const auto mounts = MountsBeneath(directory, 1000);
  EXPECT_TRUE(mounts.ok()) << mounts.status();
  return static_cast<size_t>(std::ranges::count(*mounts, source, &Mount::source));
}

class MountTreeTest : public ::testing::Test {
 protected:
  void TearDown() override {
    while (umount2(tree_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
  }
  [[nodiscard]] std::string Source() const {
    const auto top = TopMountAt(tree_);
    return top.ok() ? top->source : top.status().ToString();
  }
  [[nodiscard]] static ino_t Inode(int fd) {
    struct stat info{};
    return fstat(fd, &info) == 0 ? info.st_ino : 0;
  }

  std::string parent_ = NewTestDirectory();
  std::string tree_ = parent_ + "/volumes";
};

TEST_F(MountTreeTest, IsASharedTmpfsOfItsOwn) {
  const auto tree = SetUpMountTree(tree_);
  ASSERT_EQ(tree.status(), absl::OkStatus());
  EXPECT_TRUE(LookAt(tree_)->mount_root);
  const auto mounts = MountsBeneath(tree_, 10);
  ASSERT_TRUE(mounts.ok());
  ASSERT_EQ(mounts->size(), 1U);
  EXPECT_TRUE(mounts->front().shared);
  EXPECT_TRUE(IsTree(mounts->front())) << mounts->front().source << " " << mounts->front().fs_type;
  struct stat info{};
  ASSERT_EQ(stat(tree_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFDIR | 0700U);
  struct statfs bounds{};
  ASSERT_EQ(statfs(tree_.c_str(), &bounds), 0);
  EXPECT_GE(bounds.f_files, 100'000U) << "10,000 publications, and more";
  EXPECT_LE(bounds.f_files, 1'000'000U);
  EXPECT_LE(bounds.f_blocks * bounds.f_bsize, uint64_t{1} << 30);
  // A plugin may make one at a block volume's target.
  const std::string device = tree_ + "/null";
  ASSERT_EQ(mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)), 0);
  const UniqueFd null(open(device.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(null.valid()) << strerror(errno);
  ASSERT_EQ(unlink(device.c_str()), 0);
}

TEST_F(MountTreeTest, ATreeThatSomebodyHasOpenedIsClosedToOtherUsers) {
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  ASSERT_EQ(chmod(tree_.c_str(), 0711), 0);
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  struct stat info{};
  ASSERT_EQ(stat(tree_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFDIR | 0700U);
}

TEST_F(MountTreeTest, TheDirectoryBeneathItIsReachedAtEveryStart) {
  MakeDirectory(tree_);
  const UniqueFd before(open(tree_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int start = 1; start <= 2; ++start) {
    const auto tree = SetUpMountTree(tree_);
    ASSERT_EQ(tree.status(), absl::OkStatus());
    ASSERT_TRUE(tree->valid());
    EXPECT_EQ(Inode(tree->get()), Inode(before.get())) << "start " << start;
  }
}

TEST_F(MountTreeTest, WhatIsImmutableBeneathItCanBeWrittenByNobodyAndIsMountedAllTheSame) {
  MakeDirectory(tree_);
  const UniqueFd directory(open(tree_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const absl::Status set = MakeImmutable(directory.get());
  if (!set.ok()) GTEST_SKIP() << "the file system of the tests has no such flag: " << set;
  EXPECT_TRUE(*IsImmutable(directory.get()));
  EXPECT_EQ(mkdir((tree_ + "/x").c_str(), 0755), -1);
  EXPECT_EQ(errno, EPERM);
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  EXPECT_EQ(mkdir((tree_ + "/x").c_str(), 0755), 0);
  ASSERT_EQ(rmdir((tree_ + "/x").c_str()), 0);
  ASSERT_EQ(TakeDownMountTree(tree_), absl::OkStatus());
  EXPECT_EQ(mkdir((tree_ + "/x").c_str(), 0755), -1) << "until the next start";
  ASSERT_EQ(MakeMutable(directory.get()), absl::OkStatus());
  // One that holds something is left as it is.
  MakeDirectory(tree_ + "/x");
  EXPECT_EQ(MakeImmutable(directory.get()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*IsImmutable(directory.get()));
}

TEST_F(MountTreeTest, Fault18VolumesOfABerthdThatWasNeverReleasedAreRefusedAndNothingChanged) {
  const std::string volume = tree_ + "/0123456789abcdef0123456789abcdef";
  MakeDirectory(tree_);
  MakeDirectory(volume);
  std::ofstream(volume + "/identity.json") << "{}";
  const auto tree = SetUpMountTree(tree_);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(tree.status().message()), ::testing::HasSubstr("never released"));
  EXPECT_FALSE(LookAt(tree_)->mount_root);
  EXPECT_EQ(ReadFile(volume + "/identity.json", 100).value_or("gone"), "{}");
}

TEST_F(MountTreeTest, ALaterStartFindsItAndStacksNothing) {
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  EXPECT_EQ(MountsBeneath(tree_, 10)->size(), 1U);
}

TEST_F(MountTreeTest, AnOperatorsOwnDiskIsCoveredUnlessItHoldsMountsAndIsNeverUnmounted) {
  ASSERT_EQ(mkdir(tree_.c_str(), 0755), 0);
  ASSERT_EQ(mount("mine", tree_.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(mount(nullptr, tree_.c_str(), nullptr, MS_PRIVATE, nullptr), 0);
  MakeDirectory(tree_ + "/v");
  ASSERT_EQ(mount("x", (tree_ + "/v").c_str(), "tmpfs", 0, nullptr), 0);
  const auto refused = SetUpMountTree(tree_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr(tree_ + "/v is mounted in it"));
  EXPECT_EQ(Source(), "mine");
  ASSERT_EQ(umount2((tree_ + "/v").c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(TakeDownMountTree(tree_), absl::OkStatus());
  EXPECT_EQ(Source(), "mine");

  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  EXPECT_EQ(Source(), kTreeSource);
  EXPECT_EQ(TakeDownMountTree(tree_), absl::OkStatus());
  EXPECT_EQ(Source(), "mine");
}

TEST_F(MountTreeTest, IsNotTakenDownWhileAFileIsLeftInIt) {
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  std::ofstream(tree_ + "/precious") << "data";
  EXPECT_EQ(TakeDownMountTree(tree_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadFile(tree_ + "/precious", 100).value_or("gone"), "data");
}

// The area is a shared mount, as the root of a real host is.
TEST_F(MountTreeTest, AMountInItIsNotDoubledBeneathIt) {
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  const std::string target = tree_ + "/v";
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  ASSERT_EQ(mount("berth-token", target.c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_EQ(MountsWithSource(parent_, "berth-token"), 1U);
  EXPECT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountTreeTest, AnOlderNamespaceSeesWhatIsMountedInIt) {
  // The other namespace exists before the tree does, and receives mounts without sending any.
  int ready[2];
  int go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    const bool slave =
        unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
    if (!slave || write(ready[1], "r", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(2);
    const auto facts = LookAt(tree_ + "/v");
    _exit(facts.ok() && facts->mount_root ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  const std::string target = tree_ + "/v";
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  ASSERT_EQ(mount("x", target.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
}

TEST_F(MountTreeTest, IsTakenDownOnlyWhenNothingIsMountedInIt) {
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  const std::string target = tree_ + "/v";
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  ASSERT_EQ(mount("x", target.c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_FALSE(TakeDownMountTree(tree_).ok());
  EXPECT_TRUE(LookAt(target)->mount_root);
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(rmdir(target.c_str()), 0);
  EXPECT_EQ(TakeDownMountTree(tree_), absl::OkStatus());
  EXPECT_FALSE(LookAt(tree_)->mount_root);
  EXPECT_EQ(TakeDownMountTree(tree_), absl::OkStatus()) << "again";
}

TEST_F(MountTreeTest, RefusesASymlink) {
  ASSERT_EQ(symlink("/tmp", tree_.c_str()), 0);
  EXPECT_EQ(SetUpMountTree(tree_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MountTreeTest, WorksInAUserNamespace) {
  // The child cannot map itself to root: without a mapping the directory would have no owner.
  ASSERT_EQ(mkdir(tree_.c_str(), 0777), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(3);
    const absl::Status status = SetUpMountTree(tree_).status();
    if (!status.ok()) fprintf(stderr, "%s\n", status.ToString().c_str());
    _exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(MountTableTest, TellsWhetherAMountIsReadonly) {
  const std::string directory = NewTestDirectory();
  EXPECT_EQ(MountIsReadonly(directory).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(mount("x", directory.c_str(), "tmpfs", 0, nullptr), 0);
  const auto writable = MountIsReadonly(directory);
  ASSERT_TRUE(writable.ok()) << writable.status();
  if (!writable->has_value()) {
    ASSERT_EQ(umount2(directory.c_str(), UMOUNT_NOFOLLOW), 0);
    GTEST_SKIP() << "this kernel has no statmount";
  }
  EXPECT_FALSE(**writable);
  // The mount's own flag.
  ASSERT_EQ(mount(nullptr, directory.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_TRUE(**MountIsReadonly(directory));
  // The superblock's.
  ASSERT_EQ(mount(nullptr, directory.c_str(), nullptr, MS_BIND | MS_REMOUNT, nullptr), 0);
  ASSERT_EQ(mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_TRUE(**MountIsReadonly(directory));
  ASSERT_EQ(umount2(directory.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST(MountTableTest, KeepsToItsDirectoryAndItsLimit) {
  const std::string directory = NewTestDirectory();
  const std::string odd = directory + "/with blank\nand newline";
  const std::string sibling = directory + "x";
  ASSERT_EQ(mkdir(odd.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(sibling.c_str(), 0755), 0);
  for (const auto& path : {odd, sibling}) ASSERT_EQ(mount("x", path.c_str(), "tmpfs", 0, nullptr), 0);
  const auto mounts = MountsBeneath(directory, 10);
  ASSERT_TRUE(mounts.ok());
  ASSERT_EQ(mounts->size(), 1U) << "a sibling whose name begins alike is not beneath";
  EXPECT_EQ(mounts->front().target, odd);
  EXPECT_EQ(MountsBeneath(directory, 0).status().code(), absl::StatusCode::kResourceExhausted);
  for (const auto& path : {odd, sibling}) ASSERT_EQ(umount2(path.c_str(), UMOUNT_NOFOLLOW), 0);
}

}  // namespace
}  // namespace berth
