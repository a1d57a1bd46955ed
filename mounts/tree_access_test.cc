#include "mounts/tree_access.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/testing/as_user.h"
#include "base/testing/test_area.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

// Numbers without a user here.
constexpr uid_t kNobodys = 64'998;
constexpr uid_t kNamed = 64'997;
constexpr gid_t kNamedGroup = 64'996;
constexpr uid_t kPlugins = 64'995;

AclEntry User(uid_t id) { return {.kind = AclEntry::Kind::kUser, .id = id}; }
AclEntry Group(gid_t id) { return {.kind = AclEntry::Kind::kGroup, .id = id}; }

class TreeAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
    MakeDirectory(tree_ + "/volume");
  }
  void TearDown() override {
    while (umount2(tree_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
  }
  [[nodiscard]] bool Passes(uid_t uid, gid_t gid) const {
    const auto look = [this] { return access((tree_ + "/volume").c_str(), X_OK) == 0 ? 0 : errno; };
    const int found = As(uid, gid, look);
    EXPECT_TRUE(found == 0 || found == EACCES) << found;
    return found == 0;
  }
  // Also those who may pass do not list the tree, let alone write into it.
  [[nodiscard]] bool Lists(uid_t uid, gid_t gid) const {
    return As(uid, gid, [this] { return access(tree_.c_str(), R_OK) == 0 ? 0 : errno; }) == 0;
  }

  std::string tree_ = NewTestDirectory() + "/volumes";
  TreeAccess access_{tree_};
};

TEST_F(TreeAccessTest, LetsThroughWhomItNamesAndNobodyElse) {
  EXPECT_FALSE(Passes(kNobodys, kNobodys));
  ASSERT_EQ(access_.SetNamed({User(kNamed), Group(kNamedGroup)}), absl::OkStatus());
  EXPECT_TRUE(Passes(kNamed, kNobodys));
  EXPECT_TRUE(Passes(kNobodys, kNamedGroup));
  EXPECT_FALSE(Passes(kNobodys, kNobodys));
  EXPECT_FALSE(Passes(kNobodys, 0)) << "the owner's group is not named";
  EXPECT_FALSE(Lists(kNamed, kNamedGroup));
}

TEST_F(TreeAccessTest, TakesBackWhatIsNotNamedAnyMore) {
  ASSERT_EQ(access_.SetNamed({User(kNamed), Group(kNamedGroup)}), absl::OkStatus());
  ASSERT_EQ(access_.SetNamed({Group(kNamedGroup)}), absl::OkStatus());
  EXPECT_FALSE(Passes(kNamed, kNobodys));
  EXPECT_TRUE(Passes(kNobodys, kNamedGroup));
  ASSERT_EQ(access_.SetNamed({}), absl::OkStatus());
  EXPECT_FALSE(Passes(kNobodys, kNamedGroup));
  struct stat info{};
  ASSERT_EQ(stat(tree_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFDIR | 0700U);
}

TEST_F(TreeAccessTest, APluginsUserPassesWhileOneOfItsProcessesRuns) {
  ASSERT_EQ(access_.SetNamed({User(kNamed)}), absl::OkStatus());
  // Two plugins of one user.
  ASSERT_EQ(access_.SetPlugin("/run/a/csi.sock", kPlugins), absl::OkStatus());
  ASSERT_EQ(access_.SetPlugin("/run/b/csi.sock", kPlugins), absl::OkStatus());
  EXPECT_TRUE(Passes(kPlugins, kNobodys));
  EXPECT_TRUE(Passes(kNamed, kNobodys));
  ASSERT_EQ(access_.SetPlugin("/run/a/csi.sock", std::nullopt), absl::OkStatus());
  EXPECT_TRUE(Passes(kPlugins, kNobodys));
  ASSERT_EQ(access_.SetNamed({}), absl::OkStatus());
  EXPECT_TRUE(Passes(kPlugins, kNobodys)) << "whatever the file names";
  ASSERT_EQ(access_.SetPlugin("/run/b/csi.sock", std::nullopt), absl::OkStatus());
  EXPECT_FALSE(Passes(kPlugins, kNobodys));
}

// So that plugins that run on are not shut out while berthd is restarted.
TEST_F(TreeAccessTest, TheNextBerthdFindsItAsItWas) {
  ASSERT_EQ(access_.SetNamed({User(kNamed)}), absl::OkStatus());
  ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
  EXPECT_TRUE(Passes(kNamed, kNobodys));
  EXPECT_FALSE(Passes(kNobodys, kNobodys));
}

}  // namespace
}  // namespace berth
