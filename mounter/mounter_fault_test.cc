// Plugins that fail, lie, hang and are sloppy; and berthd that ends and comes back in order.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/file.h"
#include "base/safe_path.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MounterFaultTest : public MounterTestBase {};

TEST_F(MounterFaultTest, OkWithoutAMountNamesThePluginAndIsUndone) {
  plugin_.LieNext("NodePublishVolume");
  const auto lied = Publish(Request());
  EXPECT_EQ(lied.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(lied.status()),
              HasSubstr("plugin hp answered OK to NodePublishVolume, but nothing is mounted"));
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1",
                                         "NodeUnpublishVolume v1", "NodeUnstageVolume v1"));
  EXPECT_TRUE(Gone());
  EXPECT_THAT(EventTypes(), Contains("plugin.lied"));
}

TEST_F(MounterFaultTest, Fault53ABareStagingDirectoryIsNotPublished) {
  plugin_.StageBare(true);
  const auto lied = Publish(Request());
  EXPECT_EQ(lied.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(lied.status()), HasSubstr("shows a directory of the volumes' tree itself"));
  EXPECT_THAT(EventTypes(), Contains("plugin.lied"));
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.PublishedCount(), 0U);
}

TEST_F(MounterFaultTest, AnotherDirectoryThanTheStagedOneIsNotPublished) {
  const std::string other = NewTestDirectory();
  ASSERT_EQ(mkdir((plugin_.DataPath("v1")).c_str(), 0755), 0);
  plugin_.PublishFrom(other);
  const auto lied = Publish(Request());
  EXPECT_EQ(lied.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(lied.status()), HasSubstr("another directory than the one that was staged"));
  EXPECT_TRUE(Gone());
  // One that lies in what was staged is the plugin's choice.
  const std::string inner = plugin_.DataPath("v1") + "/inner";
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  plugin_.PublishFrom(inner);
  EXPECT_TRUE(Publish(Request()).ok());
}

TEST_F(MounterFaultTest, OkWithoutADeviceIsCaught) {
  PublishRequest request = Request();
  request.use.access_type = AccessType::kBlock;
  plugin_.LieNext("NodePublishVolume");
  EXPECT_THAT(MessageOf(Publish(request).status()), HasSubstr("no block device"));
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, AMountThatIsNotReadOnlyIsCaught) {
  plugin_.IgnoreReadonly(true);
  PublishRequest request = Request();
  request.readonly = true;
  EXPECT_THAT(MessageOf(Publish(request).status()), HasSubstr("not read-only"));
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.PublishedCount(), 0U);
}

TEST_F(MounterFaultTest, OkOnUnpublishWhileStillMountedIsRetried) {
  const auto target = Publish(Request());
  plugin_.LieNext("NodeUnpublishVolume", 2);
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 3);
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_TRUE(Gone());
  EXPECT_THAT(EventTypes(), Contains("plugin.lied"));
}

TEST_F(MounterFaultTest, OkOnUnpublishWhileStillMountedIsOursToUnmountInTheEnd) {
  const auto target = Publish(Request());
  plugin_.LieNext("NodeUnpublishVolume", 100);
  const auto undone = Unpublish(Request());
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_FALSE(LookAt(*target)->exists);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, OkOnUnstageWhileStillMountedIsOursToUnmountInTheEnd) {
  ASSERT_TRUE(Publish(Request()).ok());
  const std::string staging = View().staging_path;
  plugin_.LieNext("NodeUnstageVolume", 100);
  const auto undone = Unpublish(Request());
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_FALSE(LookAt(staging)->exists);
}

TEST_F(MounterFaultTest, ABusyTargetIsNeverCalledFree) {
  const auto target = Publish(Request());
  const int held = open(target->c_str(), O_RDONLY | O_DIRECTORY);
  plugin_.LieNext("NodeUnpublishVolume", 100);
  const auto busy =
      loop_.Run(mounter_->Unpublish(Undo(Request()), Clock::now() + std::chrono::milliseconds(500)));
  EXPECT_FALSE(busy.ok());
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kUnpublishing);
  EXPECT_THAT(View().last_error, HasSubstr("busy"));
  close(held);
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); })) << "finished in the background";
}

TEST_F(MounterFaultTest, NotFoundOnTheWayOutIsSuccessOnceTheKernelAgrees) {
  const auto target = Publish(Request());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::NOT_FOUND, Effect::kDone);
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::NOT_FOUND, Effect::kDone);
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, NotFoundOnTheWayOutWhileStillMountedIsNotBelieved) {
  const auto target = Publish(Request());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::NOT_FOUND, Effect::kNone, 100);
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_FALSE(LookAt(*target)->exists);
}

TEST_F(MounterFaultTest, AbortedAndUnavailableAreRetried) {
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::ABORTED, Effect::kNone);
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone);
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kDone);
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::INTERNAL, Effect::kDone);
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::ABORTED, Effect::kDone);
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, AFinalFailureIsReversedAndItsErrorTold) {
  for (const char* method : {"NodeStageVolume", "NodePublishVolume"}) {
    for (const Effect effect : {Effect::kNone, Effect::kDone}) {
      plugin_.FailNext(method, grpc::StatusCode::INVALID_ARGUMENT, effect);
      const auto failed = Publish(Request());
      EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(MessageOf(failed.status()), HasSubstr(std::string("plugin hp: ") + method + ": "));
      EXPECT_TRUE(Gone());
      EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
    }
  }
}

TEST_F(MounterFaultTest, AFinalFailureOfTheSecondLeavesTheFirst) {
  const auto first = Publish(Request());
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::FAILED_PRECONDITION, Effect::kDone);
  EXPECT_FALSE(Publish(Request("v1", "db")).ok());
  EXPECT_TRUE(IsMounted(*first));
  EXPECT_EQ(View().publications.size(), 1U);
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0);
}

TEST_F(MounterFaultTest, AFailedRollbackGoesOnInTheBackground) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kDone);
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::FAILED_PRECONDITION, Effect::kNone, 3);
  const auto failed = Publish(Request());
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument)
      << "the first error, not the rollback's";
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterFaultTest, AnUncertainPublishGoesForwardInTheBackground) {
  Close();
  options_.rpc_timeout = std::chrono::milliseconds(60);
  Open();
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto uncertain = Publish(Request());
  EXPECT_EQ(uncertain.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(View().uncertain);
  // On a slow machine it may have been the stage that was not answered in time.
  EXPECT_TRUE(loop_.RunUntil([&] {
    const VolumeView view = View();
    return !view.uncertain && !view.publications.empty() &&
           view.publications[0].state == PublicationState::kPublished;
  }));
  EXPECT_TRUE(Publish(Request()).ok());
}

TEST_F(MounterFaultTest, AnUncertainPublishMayBeReversed) {
  Close();
  // Enough for the way back, under a sanitizer on a busy machine, too.
  options_.rpc_timeout = std::chrono::seconds(1);
  options_.retry_limit = std::chrono::hours(1);
  Open();
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_EQ(*Unpublish(Request()), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterFaultTest, AnUnpublishEndsTheRepeatingOfAPublish) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::ABORTED, Effect::kNone, 1000);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") >= 2; }));
  EXPECT_EQ(*Unpublish(Request()), true);
  ASSERT_TRUE(publish->has_value());
  EXPECT_EQ((*publish)->status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, AHangingCallHoldsUpItsOwnVolumeAlone) {
  plugin_.HangNext("NodeStageVolume", Effect::kNone);
  const auto hung = loop_.Start(mounter_->Publish(Request("v1"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  EXPECT_TRUE(Publish(Request("v2")).ok());
  EXPECT_FALSE(hung->has_value());
}

TEST_F(MounterFaultTest, ALeftEmptyTargetIsRemoved) {
  plugin_.LeaveTargets(true);
  const auto target = Publish(Request());
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_FALSE(LookAt(*target)->exists);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, DataInATargetThatIsNoMountAnyMoreAreLeftAndReported) {
  plugin_.LeaveTargets(true);
  const auto target = Publish(Request());
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  std::ofstream(*target + "/precious") << "data";
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_EQ(*ReadFile(*target + "/precious", 100), "data");
  EXPECT_THAT(EventTypes(), Contains("volume.leftover"));
}

TEST_F(MounterFaultTest, AMountLostToSomebodyElseIsMadeAnewWhenAskedFor) {
  const auto target = Publish(Request());
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  const auto again = Publish(Request());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(IsMounted(*again));
}

TEST_F(MounterFaultTest, KnowsItsVolumesAfterARestart) {
  const auto target = Publish(Request());
  Close();
  EXPECT_TRUE(IsMounted(*target));
  Open();
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(*Publish(Request()), *target);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, ALostMountIsShownAfterARestartAndNothingDone) {
  const auto target = Publish(Request());
  Close();
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  const size_t calls = plugin_.Log().size();
  Open();
  EXPECT_TRUE(View().uncertain);
  EXPECT_THAT(View().publications.at(0).last_error, HasSubstr("not mounted any more"));
  EXPECT_EQ(plugin_.Log().size(), calls);
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 1) << "the plugin is called nevertheless";
  EXPECT_TRUE(Gone());
}

TEST_F(MounterFaultTest, AnInterruptedStepIsFinishedAfterARestart) {
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto cut = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 1; }));
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  ASSERT_TRUE(loop_.RunUntil([&] { return cut->has_value(); }));
  EXPECT_EQ((*cut)->status().code(), absl::StatusCode::kUnavailable);
  plugin_.Release();
  Open();
  EXPECT_TRUE(loop_.RunUntil([&] {
    return !View().publications.empty() && View().publications[0].state == PublicationState::kPublished;
  }));
  EXPECT_THAT(EventTypes(), Contains("volume.recovered"));
}

TEST_F(MounterFaultTest, AStepThatNeededSecretsWaitsForThemAfterARestart) {
  const PublishRequest request = CutOffWithSecrets("NodeStageVolume", Effect::kNone);
  EXPECT_TRUE(View().awaiting_secrets);
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1) << "not repeated without them";
  const auto without = Publish(Request());
  EXPECT_EQ(without.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(without.status()), HasSubstr("repeat the publish with them"));
  ASSERT_TRUE(Publish(request).ok());
  EXPECT_EQ(plugin_.LastStage().secrets().at("k"), "hunter2");
  EXPECT_FALSE(View().awaiting_secrets);
}

TEST_F(MounterFaultTest, WhatAwaitsSecretsMayBeUnpublishedWithoutThem) {
  const PublishRequest request = CutOffWithSecrets("NodePublishVolume", Effect::kDone);
  EXPECT_TRUE(View().awaiting_secrets);
  EXPECT_EQ(*Unpublish(request), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterFaultTest, ADirectoryOfNoVolumeIsReportedAndStays) {
  ASSERT_TRUE(Publish(Request()).ok());
  Close();
  const std::string unknown = options_.state_dir + "/volumes/unknown";
  ASSERT_EQ(mkdir(unknown.c_str(), 0755), 0);
  Open();
  EXPECT_THAT(EventTypes(), Contains("volume.orphan"));
  EXPECT_EQ(rmdir(unknown.c_str()), 0) << "it was left";
}

TEST_F(MounterFaultTest, AMountInADirectoryOfNoVolumeIsReportedAndStays) {
  ASSERT_TRUE(Publish(Request()).ok());
  Close();
  const std::string unknown = options_.state_dir + "/volumes/unknown";
  const std::string inside = unknown + "/inside";
  ASSERT_EQ(mkdir(unknown.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(inside.c_str(), 0755), 0);
  ASSERT_EQ(mount("foreign", inside.c_str(), "tmpfs", 0, nullptr), 0);
  const auto before = std::ranges::count(EventTypes(), "volume.orphan");
  Open();
  EXPECT_EQ(std::ranges::count(EventTypes(), "volume.orphan") - before, 2) << "the directory and the mount";
  EXPECT_EQ(umount2(inside.c_str(), UMOUNT_NOFOLLOW), 0) << "it was left";
}

TEST_F(MounterFaultTest, AFullDiskRefusesNewWorkAndLeavesNothingBehind) {
  Close();
  ASSERT_EQ(mount("small", options_.state_dir.c_str(), "tmpfs", 0, "size=16m"), 0);
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v2", 1 << 20)), absl::OkStatus());
  std::ofstream fill(options_.state_dir + "/fill");
  while (fill.write(std::string(4096, 'x').data(), 4096).flush()) {
  }
  fill.close();
  const auto refused = Publish(Request("v2"));
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(mounter_->Find("hp", "v2").has_value());
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1) << "nothing is asked of the plugin without a durable intent";
  EXPECT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v3", 1 << 20)).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(unlink((options_.state_dir + "/fill").c_str()), 0);
  EXPECT_TRUE(Publish(Request("v2")).ok());
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 1) << "what was refused took nothing away";
  EXPECT_TRUE(Unpublish(Request("v1")).ok() && Unpublish(Request("v2")).ok());
  Close();
  ASSERT_EQ(umount2(options_.state_dir.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace berth
