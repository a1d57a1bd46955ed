// One volume under two names: through two plugins of one driver, or as two ids of one directory (FAULTS row
// 60).
#include <sys/mount.h>
#include <sys/stat.h>

#include <string>

#include "mounter/testing/mounter_test_base.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

class MounterSameVolumeTest : public MounterTestBase {
 protected:
  void TearDown() override {
    MounterTestBase::TearDown();
    umount2(plugin_.DataPath("b").c_str(), UMOUNT_NOFOLLOW);
  }
  // What the storage knows as a and b is one directory.
  void MakeOne() {
    for (const std::string& volume : {"a", "b"}) {
      ASSERT_EQ(mkdir(plugin_.DataPath(volume).c_str(), 0755), 0);
    }
    ASSERT_EQ(mount(plugin_.DataPath("a").c_str(), plugin_.DataPath("b").c_str(), nullptr, MS_BIND, nullptr),
              0);
  }
  static PublishRequest Through(const std::string& plugin, AccessMode::Mode mode) {
    PublishRequest request = Request("v1", "of " + plugin);
    request.plugin_id = plugin;
    request.use.access_mode = mode;
    return request;
  }
  static PublishRequest Of(const std::string& volume,
                           AccessMode::Mode mode = AccessMode::SINGLE_NODE_WRITER) {
    PublishRequest request = Request(volume, "of " + volume);
    request.use.access_mode = mode;
    return request;
  }
  void ExpectRefused(const PublishRequest& request, const std::string& by) {
    const absl::Status refused = Publish(request).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("is the same"), HasSubstr(by)));
  }
  // The volume with this id has left, and this one is the same.
  [[nodiscard]] std::string ShownBy(const std::string& volume, const std::string& name) const {
    const auto other = mounter_->ShownBy(volume, name);
    return other ? other->volume_id : "none";
  }
};

TEST_F(MounterSameVolumeTest, Fault60OneDriverUnderTwoPluginIdsHasOneExclusiveUser) {
  for (const auto& [first, second] :
       {std::pair(AccessMode::SINGLE_NODE_SINGLE_WRITER, AccessMode::SINGLE_NODE_SINGLE_WRITER),
        std::pair(AccessMode::SINGLE_NODE_SINGLE_WRITER, AccessMode::SINGLE_NODE_WRITER),
        std::pair(AccessMode::SINGLE_NODE_WRITER, AccessMode::SINGLE_NODE_SINGLE_WRITER)}) {
    const int staged = plugin_.Calls("NodeStageVolume");
    ASSERT_TRUE(Publish(Through("hp", first)).ok());
    ExpectRefused(Through("hp2", second), "plugin hp ");
    EXPECT_EQ(plugin_.Calls("NodeStageVolume"), staged + 1) << "the second was not begun";
    ASSERT_TRUE(Publish(Through("hp", first)).ok()) << "a repeat is the same use";
    ASSERT_TRUE(Unpublish(Through("hp", first)).ok());
    ASSERT_TRUE(Publish(Through("hp2", second)).ok());
    ASSERT_TRUE(Unpublish(Through("hp2", second)).ok());
  }
}

TEST_F(MounterSameVolumeTest, Fault60TwoIdsOfOneDirectoryHaveOneExclusiveUser) {
  MakeOne();
  ASSERT_TRUE(Publish(Of("a")).ok());
  ExpectRefused(Of("b", AccessMode::SINGLE_NODE_SINGLE_WRITER), "volume a of plugin hp");
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1) << "it was seen once it was staged";
  EXPECT_EQ(plugin_.StagedCount(), 1U) << "its staging was undone";
  EXPECT_FALSE(mounter_->Find("hp", "b"));
  ASSERT_TRUE(Unpublish(Of("a")).ok());
  ASSERT_TRUE(Publish(Of("b", AccessMode::SINGLE_NODE_SINGLE_WRITER)).ok());
  ExpectRefused(Of("a"), "volume b of plugin hp");
}

TEST_F(MounterSameVolumeTest, Fault60ItIsSeenAtTheTargetWhereNothingWasMountedBefore) {
  MakeOne();
  plugins_.facts.node_capabilities = {};
  ASSERT_TRUE(Publish(Of("a", AccessMode::SINGLE_NODE_SINGLE_WRITER)).ok());
  plugin_.PublishFrom(plugin_.DataPath("a"));
  ExpectRefused(Of("b"), "volume a of plugin hp");
  EXPECT_EQ(plugin_.PublishedCount(), 1U) << "it was undone";
}

TEST_F(MounterSameVolumeTest, Fault60WhatHasLeftIsNotFreeWhileAnotherNameShowsIt) {
  MakeOne();
  ASSERT_TRUE(Publish(Of("a")).ok());
  ASSERT_TRUE(Publish(Of("b")).ok()) << "one share under two ids is common";
  EXPECT_EQ(ShownBy("a", "hp"), "none") << "it has a row of its own";
  ASSERT_TRUE(Unpublish(Of("a")).ok()) << "the other does not hold it up";
  EXPECT_FALSE(mounter_->Find("hp", "a"));
  EXPECT_EQ(ShownBy("a", "hp"), "b");
  Close();
  Open();
  EXPECT_EQ(ShownBy("a", "fake.example.com"), "b") << "it is in the journal";
  ASSERT_TRUE(Unpublish(Of("b")).ok());
  EXPECT_EQ(ShownBy("a", "hp"), "none");
}

}  // namespace
}  // namespace berth
