#include "mounter/mount_namespaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/testing.h"
#include "mounter/mount_tree.h"
#include "mounter/testing/holder.h"
#include "mounter/testing/test_area.h"

namespace berth {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::chrono::seconds kScanWithinTest{20};

// A volume tree with one file system mounted in it, of which a second directory is mounted too.
class MountNamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetUpMountTree(tree_).ok());
    ASSERT_EQ(mkdir(target_.c_str(), 0755), 0);
    ASSERT_EQ(mount("x", target_.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(mkdir((target_ + "/inner").c_str(), 0755), 0);
    const auto objects = ObjectsAt(target_, tree_);
    ASSERT_TRUE(objects.ok()) << objects.status();
    ASSERT_THAT(*objects, SizeIs(1));
    object_ = objects->front();
  }
  void TearDown() override {
    umount2(target_.c_str(), MNT_DETACH);
    umount2(tree_.c_str(), MNT_DETACH);
    RunOn(loop_, scope_.Join());
  }

  FoundMounts Scan(const std::vector<KernelObject>& objects) {
    auto found = ScanMountNamespaces(objects, tree_, Clock::now() + kScanWithinTest);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *std::move(found) : FoundMounts{};
  }
  // Of those that were found, the ones in the namespace of `pid`.
  static std::vector<FoundMount> In(const FoundMounts& found, pid_t pid) {
    std::vector<FoundMount> mounts;
    std::ranges::copy_if(found.mounts, std::back_inserter(mounts),
                         [pid](const FoundMount& m) { return m.pid == pid; });
    return mounts;
  }

  std::string tree_ = NewTestDirectory();
  std::string target_ = tree_ + "/target";
  KernelObject object_;
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
};

TEST_F(MountNamespacesTest, OurOwnMountIsFoundOnce) {
  const FoundMounts found = Scan({object_});
  ASSERT_THAT(found.mounts, SizeIs(1));
  EXPECT_TRUE(found.mounts[0].own_namespace);
  EXPECT_EQ(found.mounts[0].target, target_);
}

TEST_F(MountNamespacesTest, ACopyThatReceivesOurUnmountsFollows) {
  const Holder follower([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
  });
  const auto mounts = In(Scan({object_}), follower.pid());
  ASSERT_THAT(mounts, SizeIs(1));
  EXPECT_TRUE(mounts[0].follows_tree);
  EXPECT_FALSE(mounts[0].own_namespace);
}

TEST_F(MountNamespacesTest, ACopyThatFollowsAFollowerFollows) {
  const Holder follower([] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
      return false;
    // As a container engine in a container does: shared again, then cloned as a slave of that.
    if (mount(nullptr, "/", nullptr, MS_REC | MS_SHARED, nullptr) != 0) return false;
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
  });
  const auto mounts = In(Scan({object_}), follower.pid());
  ASSERT_THAT(mounts, SizeIs(1));
  EXPECT_TRUE(mounts[0].follows_tree);
}

TEST_F(MountNamespacesTest, ABindElsewhereInANamespaceThatFollowsDoesNotFollow) {
  const std::string data = NewTestDirectory();
  const Holder container([&] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
           mount(target_.c_str(), data.c_str(), nullptr, MS_BIND, nullptr) == 0;
  });
  const auto mounts = In(Scan({object_}), container.pid());
  ASSERT_THAT(mounts, SizeIs(2));
  const auto bind = std::ranges::find(mounts, data, &FoundMount::target);
  ASSERT_NE(bind, mounts.end());
  EXPECT_FALSE(bind->follows_tree) << "its parent is the container's own root";
}

TEST_F(MountNamespacesTest, APrivateCopyDoesNotFollow) {
  const Holder cloned([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  });
  const auto mounts = In(Scan({object_}), cloned.pid());
  ASSERT_THAT(mounts, SizeIs(1));
  EXPECT_FALSE(mounts[0].follows_tree);
}

TEST_F(MountNamespacesTest, AMountOfADirectoryInItCountsAndOneBesideItDoesNot) {
  const std::string inner = NewTestDirectory();
  const Holder container([&] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount((target_ + "/inner").c_str(), inner.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           umount2(target_.c_str(), MNT_DETACH) == 0;
  });
  EXPECT_THAT(In(Scan({object_}), container.pid()), SizeIs(1));
  KernelObject beside = object_;
  beside.root = "/other";
  const FoundMounts found = Scan({beside});
  EXPECT_THAT(found.mounts, IsEmpty());
  EXPECT_TRUE(found.mounted_elsewhere.contains(object_.device));
}

TEST_F(MountNamespacesTest, ADeviceNumberThatIsAnothersByNowIsNoUse) {
  KernelObject before = object_;
  before.fs_type = "nfs4";
  const FoundMounts found = Scan({before});
  EXPECT_THAT(found.mounts, IsEmpty());
  EXPECT_TRUE(found.reused.contains(object_.device));
}

TEST_F(MountNamespacesTest, ReleasesAtOnceShareAScan) {
  MountNamespaces namespaces(loop_.get_executor(), scope_, tree_);
  constexpr size_t kReleases = 50;
  size_t answered = 0;
  TaskScope releases(loop_.get_executor(), "releases");
  const auto release = [](MountNamespaces* from, KernelObject object, size_t* done) -> Awaitable<void> {
    const auto found = co_await from->Find({object}, Clock::now() + kScanWithinTest);
    if (found.ok() && found->mounts.size() == 1) ++*done;
  };
  for (size_t i = 0; i < kReleases; ++i) releases.Spawn("release", release(&namespaces, object_, &answered));
  RunOn(loop_, releases.WaitEmpty());
  EXPECT_EQ(answered, kReleases);
  EXPECT_LE(namespaces.scans(), 2U) << "one may have begun before the others came";
}

TEST_F(MountNamespacesTest, WhatCannotBeReadInTimeIsAnError) {
  EXPECT_EQ(ScanMountNamespaces({object_}, tree_, Clock::now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace berth
