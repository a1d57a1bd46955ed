// Other programs change a volume's staging mount while the volume is published.
#include <fcntl.h>
#include <sys/mount.h>

#include <fstream>
#include <string>

#include "base/file.h"
#include "base/unique_fd.h"
#include "mounter/testing/mounter_reconcile_base.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What a plain driver binds is whatever lies at the staging path.
class MounterStagingTest : public MounterReconcileTest {
 protected:
  void SetUp() override {
    Open();
    const auto target = Publish(Request());
    ASSERT_TRUE(target.ok()) << target.status();
    target_ = *target;
    std::ofstream(target_ + "/file") << "data";
    staging_ = View().staging_path;
    // Else what is mounted over it would be mounted over what was bound from it, too.
    ASSERT_EQ(mount(nullptr, staging_.c_str(), nullptr, MS_PRIVATE, nullptr), 0);
  }
  void ExpectWell(const absl::StatusOr<std::string>& target) {
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(ReadFile(*target + "/file", 100).value_or("nothing"), "data") << "not the node's own disk";
    EXPECT_EQ(ReadFile(target_ + "/file", 100).value_or("nothing"), "data") << "what was bound stays";
    EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume") + plugin_.Calls("NodeUnstageVolume"), 0);
    EXPECT_FALSE(View().uncertain) << View().last_error;
    EXPECT_THAT(EventTypes(), Not(Contains("plugin.lied")));
  }

  std::string target_;
  std::string staging_;
};

TEST_F(MounterStagingTest, AStagingThatSomebodyUnmountsIsToldAndMadeAgainForTheNextConsumer) {
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.lost"));
  EXPECT_THAT(View().last_error, HasSubstr("staging is not mounted any more"));
  EXPECT_FALSE(View().publications.at(0).uncertain) << "it is a mount of its own";
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1) << "it is not needed now";
  ExpectWell(Publish(Request("v1", "db")));
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 2);
}

TEST_F(MounterStagingTest, AStagingThatIsGoneIsSeenBeforeTheKernelHasToldOfIt) {
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectWell(Publish(Request("v1", "db")));
  EXPECT_EQ(CountEvents("volume.lost"), 1U);
}

TEST_F(MounterStagingTest, AStagingThatGoesBeforeAPublishIsRepeatedIsMadeAgainFirst) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::ABORTED, Effect::kNone);
  const auto second = loop_.Start(mounter_->Publish(Request("v1", "db"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 2; }));
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(loop_.RunUntil([&] { return second->has_value(); }));
  ExpectWell(**second);
}

TEST_F(MounterStagingTest, AStagingThatGoesWhileAPublishWaitsForItsTurnIsMadeAgainFirst) {
  Close();
  options_.calls_per_plugin = 1;
  Open();
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto slow = loop_.Start(mounter_->Publish(Request("v2"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 2; }));
  const auto waits = [&] {
    const auto answer = loop_.Run(mounter_->Publish(Request("v1", "db"), Shortly()));
    return MessageOf(answer.status()).find("NodePublishVolume waits") != std::string::npos;
  };
  ASSERT_TRUE(loop_.RunUntil(waits));
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  plugin_.Release();
  ExpectWell(Publish(Request("v1", "db")));
  ASSERT_TRUE(loop_.RunUntil([&] { return slow->has_value(); }));
  EXPECT_TRUE((*slow)->ok());
}

TEST_F(MounterStagingTest, AMountOverTheStagingIsToldAndTakenAwayForTheNextConsumer) {
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.overmounted"));
  EXPECT_TRUE(View().uncertain);
  ExpectWell(Publish(Request("v1", "db")));
}

TEST_F(MounterStagingTest, AMountInPlaceOfTheStagingIsNotTakenForIt) {
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  ExpectWell(Publish(Request("v1", "db")));
}

TEST_F(MounterStagingTest, AMountOverTheStagingThatIsBusyIsNotPublishedFrom) {
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  const UniqueFd held(open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto waits = loop_.Start(mounter_->Publish(Request("v1", "db"), Soon()));
  const std::string why = "what is mounted over the volume's staging has to be unmounted first";
  ASSERT_TRUE(loop_.RunUntil([&] { return View().last_error.find(why) != std::string::npos; }));
  EXPECT_THAT(View().last_error, HasSubstr("kept busy by")) << "and by which process";
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_TRUE(Unpublish(Request("v1", "db")).ok()) << "nothing of it was begun";
  ASSERT_TRUE(loop_.RunUntil([&] { return waits->has_value(); }));
  EXPECT_FALSE((*waits)->ok());
}

TEST_F(MounterStagingTest, AMountOverTheStagingThatGoesAgainIsForgotten) {
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.overmounted"));
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_TRUE(loop_.RunUntil([&] { return !View().uncertain; }));
  ExpectWell(Publish(Request("v1", "db")));
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
}

TEST_F(MounterStagingTest, WhatHappensToTheStagingWhileBerthdIsAwayIsKnownAfterARestart) {
  Close();
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  Open();
  EXPECT_THAT(EventTypes(), Contains("volume.overmounted"));
  ExpectWell(Publish(Request("v1", "db")));
}

TEST_F(MounterStagingTest, AMountOverTheStagingIsNoLieOfThePluginThatUnstages) {
  ASSERT_EQ(mount("x", staging_.c_str(), "tmpfs", 0, nullptr), 0);
  const auto undone = Unpublish(Request());
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_THAT(EventTypes(), Not(Contains("plugin.lied")));
  EXPECT_EQ(plugin_.StagedCount(), 0U);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterStagingTest, APluginThatBelievesItsBooksRatherThanTheKernelIsNotPublishedFrom) {
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  plugin_.LieNext("NodeStageVolume", 2);
  for (int i = 0; i < 2; ++i) {
    const auto refused = Publish(Request("v1", "db"));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInternal) << refused.status();
    EXPECT_THAT(MessageOf(refused.status()), HasSubstr("is not there again"));
  }
  EXPECT_EQ(CountEvents("plugin.lied"), 2U);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_TRUE(IsMounted(target_));
}

TEST_F(MounterStagingTest, WhatIsMountedAgainWithItsStagingIsUnstagedFirst) {
  PublishRequest request = Request();
  request.remount = true;
  ASSERT_TRUE(Publish(request).ok());
  ASSERT_EQ(umount2(staging_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  EXPECT_EQ(*ReadFile(target_ + "/file", 100), "data");
  EXPECT_THAT(plugin_.Log(),
              ElementsAre("NodeStageVolume v1", "NodePublishVolume v1", "NodeUnpublishVolume v1",
                          "NodeUnstageVolume v1", "NodeStageVolume v1", "NodePublishVolume v1"));
}

}  // namespace
}  // namespace berth
