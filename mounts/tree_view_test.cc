#include "mounts/tree_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/testing/test_area.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPath[] = "/csi/volumes";

class TreeViewTest : public ::testing::Test {
 protected:
  [[nodiscard]] MountInTable At(const std::string& path) const {
    MountInTable mount = tree_;
    mount.target = path;
    return mount;
  }
  MountInTable tree_ = {.target = "/var/lib/berth/volumes",
                        .device_major = 0,
                        .device_minor = 7,
                        .root = "/",
                        .peer_group = 42};
};

TEST_F(TreeViewTest, APeerAtThePathIsUsable) {
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {At(kPath)}, kPath), IsEmpty());
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {At("/other"), At(kPath)}, kPath), IsEmpty());
}

TEST_F(TreeViewTest, AMissingMountIsNamedWithTheWayOut) {
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {}, kPath),
              AllOf(HasSubstr("does not see the tree of volumes at /csi/volumes"), HasSubstr("rshared")));
}

TEST_F(TreeViewTest, ATreeAtAnotherPathIsNamed) {
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {At("/csi/berth/volumes")}, kPath),
              HasSubstr("at /csi/berth/volumes, and not at /csi/volumes: set volumes_path"));
}

TEST_F(TreeViewTest, WithoutPropagationItIsNotUsable) {
  MountInTable mount = At(kPath);
  mount.peer_group = 0;
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {mount}, kPath), HasSubstr("private"));
  mount.follows = tree_.peer_group;
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {mount}, kPath), HasSubstr("a slave (rslave)"));
  mount.peer_group = 43;
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {mount}, kPath), HasSubstr("a slave")) << "shared with others only";
}

TEST_F(TreeViewTest, WhatLiesOnTopCounts) {
  MountInTable other = At(kPath);
  other.device_minor = 8;
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {At(kPath), other}, kPath),
              HasSubstr("another mount at /csi/volumes"));
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {other, At(kPath)}, kPath), IsEmpty());
  MountInTable part = At(kPath);
  part.root = "/abc";
  EXPECT_THAT(WhyTreeIsNotUsable(tree_, {part}, kPath), HasSubstr("another mount"));
}

// A process with mounts of its own.
class TreeViewOfProcessTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus()); }
  void TearDown() override { EXPECT_EQ(TakeDownMountTree(tree_), absl::OkStatus()); }

  std::string WhyNot(const std::function<bool()>& prepare, const std::string& path) const {
    int ready[2];
    int go[2];
    if (pipe(ready) != 0 || pipe(go) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      const bool prepared = unshare(CLONE_NEWNS) == 0 && prepare();
      _exit(prepared && write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1 ? 0 : 1);
    }
    close(ready[1]);
    char byte = 0;
    const bool prepared = read(ready[0], &byte, 1) == 1;
    const auto why = LookForTree(tree_, child, path);
    EXPECT_EQ(write(go[1], "g", 1), 1);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    for (const int fd : {ready[0], go[0], go[1]}) close(fd);
    if (!prepared) return "not prepared";
    return why.ok() ? *why : why.status().ToString();
  }

  std::string parent_ = NewTestDirectory();
  std::string tree_ = parent_ + "/volumes";
};

TEST_F(TreeViewOfProcessTest, IsReadFromItsMountTable) {
  EXPECT_THAT(WhyNot([] { return true; }, ""), IsEmpty());
  EXPECT_THAT(WhyNot([] { return true; }, "/csi/volumes"), HasSubstr("set volumes_path"));
  const auto make = [](unsigned long propagation) {
    return [propagation] { return mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) == 0; };
  };
  EXPECT_THAT(WhyNot(make(MS_PRIVATE), ""), HasSubstr("private"));
  EXPECT_THAT(WhyNot(make(MS_SLAVE), ""), HasSubstr("a slave"));
  const auto unmount = [this, make] { return make(MS_PRIVATE)() && umount2(tree_.c_str(), MNT_DETACH) == 0; };
  EXPECT_THAT(WhyNot(unmount, ""), HasSubstr("does not see"));
  EXPECT_FALSE(LookForTree(tree_, 0x7fffffff, "").ok());
}

// As a container is given the directory above, before there is a tree.
TEST_F(TreeViewOfProcessTest, ATreeThatIsMountedLaterReachesTheDirectoryAbove) {
  ASSERT_EQ(TakeDownMountTree(tree_), absl::OkStatus());
  const std::string container = NewTestDirectory();
  ASSERT_EQ(mount(parent_.c_str(), container.c_str(), nullptr, MS_BIND | MS_REC, nullptr), 0);
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  EXPECT_THAT(WhyNot([] { return true; }, container + "/volumes"), IsEmpty());
  ASSERT_EQ(umount2(container.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace berth
