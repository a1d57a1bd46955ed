// One volume's way to its goal, step by step: without a queue, so that each try is one of the background.
#include "mounter/volume_driver.h"

#include "mounter/testing/context_test_base.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class VolumeDriverTest : public ContextTestBase {
 protected:
  void SetUp() override {
    ContextTestBase::SetUp();
    context_->recovered = true;
    volume_ = std::make_unique<VolumeState>(*context_, VolumeMachine::Fresh(record_));
    volume_->machine.SetBootId(BootId());
    reconciler_ = std::make_unique<VolumeReconciler>(*volume_);
    driver_ = std::make_unique<VolumeDriver>(*volume_, *reconciler_);
    volume_->machine.RequestPublish(publication_);
  }
  void TearDown() override {
    driver_.reset();
    reconciler_.reset();
    volume_.reset();
    ContextTestBase::TearDown();
  }
  absl::Status Drive() { return loop_.Run(driver_->Drive(publication_.key)); }
  [[nodiscard]] VolumeMachine& Machine() { return volume_->machine; }
  [[nodiscard]] const PublicationRecord* Publication() { return Machine().record().Find(publication_.key); }

  std::unique_ptr<VolumeState> volume_;
  std::unique_ptr<VolumeReconciler> reconciler_;
  std::unique_ptr<VolumeDriver> driver_;
};

TEST_F(VolumeDriverTest, APublicationIsStagedPublishedAndWrittenDown) {
  std::vector<std::string> points;
  context_->options.at_boundary = [&points](std::string_view point) { points.emplace_back(point); };
  ASSERT_EQ(Drive(), absl::OkStatus());
  EXPECT_TRUE(TargetIsMounted());
  EXPECT_EQ(Publication()->state, PublicationState::kPublished);
  EXPECT_NE(Publication()->mount_id, 0U) << "its mount is known by its id from now on";
  EXPECT_NE(Machine().record().staging_mount_id, 0U);
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1"));
  EXPECT_EQ(points.back(), "outcome: written");
  EXPECT_THAT(Events("volume.published"), SizeIs(1));
  points.clear();
  EXPECT_EQ(Drive(), absl::OkStatus());
  EXPECT_EQ(plugin_.Log().size(), 2U) << "it is at its goal";
}

TEST_F(VolumeDriverTest, WhatIsNotWantedAnyMoreIsUndoneToTheLastDirectory) {
  ASSERT_EQ(Drive(), absl::OkStatus());
  ASSERT_TRUE(Machine().RequestUnpublish(publication_.key));
  EXPECT_EQ(Drive(), absl::OkStatus());
  EXPECT_FALSE(Machine().present());
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1",
                                         "NodeUnpublishVolume v1", "NodeUnstageVolume v1"));
  EXPECT_THAT(*context_->paths->List(), IsEmpty());
}

TEST_F(VolumeDriverTest, AFinalErrorIsTheAnswerAndWhatWasBegunIsUndone) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  EXPECT_EQ(Drive().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Machine().present());
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1",
                                         "NodeUnpublishVolume v1", "NodeUnstageVolume v1"));
}

TEST_F(VolumeDriverTest, ATryThatMayHaveHappenedIsNotRepeatedAtOnceAndNotForgotten) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kDone);
  EXPECT_FALSE(Drive().ok());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_EQ(Publication()->state, PublicationState::kPublishing);
  EXPECT_TRUE(Publication()->uncertain);
  EXPECT_EQ(Drive(), absl::OkStatus());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 2);
  EXPECT_TRUE(TargetIsMounted());
}

TEST_F(VolumeDriverTest, AnOkThatTheKernelDoesNotShowIsALie) {
  plugin_.LieNext("NodePublishVolume");
  const absl::Status status = Drive();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(status), HasSubstr("nothing is mounted at"));
  EXPECT_THAT(Events("plugin.lied"), SizeIs(1));
  EXPECT_FALSE(Machine().present());
}

TEST_F(VolumeDriverTest, APublicationWithoutItsSecretsWaitsForThem) {
  publication_.had_secrets = true;
  Machine().RequestPublish(publication_);
  const absl::Status status = Drive();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(status), HasSubstr("needs its secrets again"));
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  volume_->secrets[publication_.key] = {{"k", "v"}};
  Machine().SetSecretsAtHand(publication_.key, true);
  EXPECT_EQ(Drive(), absl::OkStatus());
  EXPECT_EQ(plugin_.LastPublish().secrets().at("k"), "v");
  EXPECT_THAT(volume_->secrets, IsEmpty()) << "it has arrived";
}

TEST_F(VolumeDriverTest, WhatIsBlockedOrComesAfterAShutdownIsNotBegun) {
  Machine().BlockForward(Origin::kCaller, "no lease");
  EXPECT_EQ(Drive(), absl::UnavailableError("no lease"));
  Machine().UnblockForward(Origin::kCaller, BootClock::now());
  Machine().BeginShutdown("berthd is stopping");
  EXPECT_EQ(Drive(), absl::UnavailableError("berthd is stopping"));
  EXPECT_THAT(plugin_.Log(), IsEmpty());
}

TEST_F(VolumeDriverTest, APluginThatIsAwayIsWaitedForUntilTheStepsDeadline) {
  context_->options.rpc_timeout = std::chrono::milliseconds(300);
  plugins_.SetUsable(false);
  const absl::Status status = Drive();
  EXPECT_THAT(MessageOf(status), HasSubstr("backing off"));
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  EXPECT_EQ(Publication()->state, PublicationState::kPublishing) << "it is tried again";
  plugins_.SetUsable(true);
  context_->options.rpc_timeout = std::chrono::seconds(20);
  EXPECT_EQ(Drive(), absl::OkStatus());
}

}  // namespace
}  // namespace berth
