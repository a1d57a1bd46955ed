// One reverse step by itself: what the plugin answers, what the kernel shows, and what is done about it.
#include "mounter/reverse_call.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "base/unique_fd.h"
#include "mounter/testing/context_test_base.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kUnpublish = "NodeUnpublishVolume";

class ReverseCallTest : public ContextTestBase {
 protected:
  void SetUp() override {
    ContextTestBase::SetUp();
    StageAndPublish();
    progress_ = {.waiting = [](std::string) {},
                 .sending = [](std::string_view) {},
                 .detached = [this](uint64_t mount_id) { detached_.push_back(mount_id); }};
  }
  StepReport Unpublish(StepInput input = {}, TimePoint deadline = Soon()) {
    auto call = ReverseCall::Unpublish(*context_, record_, publication_, progress_, deadline);
    return loop_.Run(call.Run(std::move(input)));
  }
  StepReport Unstage() {
    auto call = ReverseCall::Unstage(*context_, record_, progress_, Soon());
    return loop_.Run(call.Run({}));
  }

  StepProgress progress_;
  std::vector<uint64_t> detached_;
};

TEST_F(ReverseCallTest, IsDoneOnceThePluginHasUnmountedIt) {
  const StepReport report = Unpublish();
  EXPECT_EQ(report.outcome, CallOutcome::kDone) << report.error;
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 1);
  EXPECT_EQ(Unstage().outcome, CallOutcome::kDone);
}

TEST_F(ReverseCallTest, AnOkWithoutEffectIsReportedOnceAndAskedAgain) {
  plugin_.LieNext(kUnpublish);
  EXPECT_EQ(Unpublish().outcome, CallOutcome::kDone);
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 2);
  EXPECT_THAT(Events("plugin.lied"), SizeIs(1));
}

TEST_F(ReverseCallTest, AfterThreeLiesItIsUnmountedWithoutThePlugin) {
  plugin_.LieNext(kUnpublish, 3);
  EXPECT_EQ(Unpublish().outcome, CallOutcome::kDone);
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 3);
}

TEST_F(ReverseCallTest, WhatOthersHaveMountedOverItGoesBeforeThePluginIsCalled) {
  ASSERT_EQ(mount("over", Target().c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_EQ(Unpublish().outcome, CallOutcome::kDone);
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 1);
  EXPECT_THAT(Events("plugin.lied"), IsEmpty());
}

TEST_F(ReverseCallTest, AnErrorOfThePluginsNamesWhoKeepsItBusy) {
  const UniqueFd held(open(Target().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  plugin_.FailNext(kUnpublish, grpc::StatusCode::INTERNAL, Effect::kNone);
  const StepReport report = Unpublish();
  EXPECT_NE(report.outcome, CallOutcome::kDone);
  EXPECT_THAT(MessageOf(report.error), HasSubstr("kept busy by"));
  ASSERT_THAT(report.holders, SizeIs(1));
  EXPECT_EQ(report.holders[0].pid, getpid());
  EXPECT_TRUE(TargetIsMounted()) << "--lazy was not requested";
  EXPECT_THAT(detached_, IsEmpty());
}

TEST_F(ReverseCallTest, LazyDetachesWhatIsBusyAndThePluginLearnsOfIt) {
  const UniqueFd held(open(Target().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  plugin_.FailNext(kUnpublish, grpc::StatusCode::INTERNAL, Effect::kNone);
  const StepReport report = Unpublish({.lazy = true});
  EXPECT_EQ(report.outcome, CallOutcome::kDone) << report.error;
  EXPECT_TRUE(report.detached_lazily);
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 2);
  EXPECT_THAT(detached_, ::testing::ElementsAre(publication_.mount_id));
  EXPECT_THAT(Events("volume.still_in_use"), SizeIs(1));
}

TEST_F(ReverseCallTest, WithoutItsPluginNothingIsCalled) {
  auto call = ReverseCall::Unpublish(*context_, record_, publication_, progress_, Soon());
  EXPECT_EQ(loop_.Run(call.UnmountWithoutPlugin(false)).outcome, CallOutcome::kDone);
  EXPECT_FALSE(TargetIsMounted());
  EXPECT_EQ(plugin_.Calls(kUnpublish), 0);
}

TEST_F(ReverseCallTest, APluginThatIsAwayCannotAndNothingIsDone) {
  plugins_.SetUsable(false);
  const StepReport report = Unpublish({}, Clock::now() + std::chrono::milliseconds(200));
  EXPECT_NE(report.outcome, CallOutcome::kDone);
  EXPECT_TRUE(report.plugin_cannot);
  EXPECT_THAT(MessageOf(report.error), HasSubstr("backing off"));
  EXPECT_TRUE(TargetIsMounted());
}

TEST_F(ReverseCallTest, APluginThatIsGoneIsSaidWithWhatReleasesTheVolume) {
  plugins_.removed = true;
  const StepReport report = Unpublish();
  EXPECT_TRUE(report.plugin_cannot);
  EXPECT_THAT(MessageOf(report.error), HasSubstr("--force"));
  EXPECT_TRUE(TargetIsMounted());
}

TEST_F(ReverseCallTest, AStepThatAnUpdateHasDroppedIsDoneWithoutThePlugin) {
  ASSERT_EQ(Unpublish().outcome, CallOutcome::kDone);
  plugins_.facts.node_capabilities = {};
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::UNIMPLEMENTED, Effect::kNone);
  EXPECT_EQ(Unstage().outcome, CallOutcome::kDone);
  EXPECT_FALSE(context_->paths->LookAtStaged(record_)->mount_root);
  EXPECT_THAT(Events("volume.undone_without_plugin"), SizeIs(1));
}

TEST_F(ReverseCallTest, APluginThatHangsWithNothingMountedIsRestartedWhereItsFileAsksForIt) {
  plugins_.restart_after = std::chrono::milliseconds(1);
  plugin_.HangNext(kUnpublish, Effect::kDone);
  const StepReport report = Unpublish();
  EXPECT_EQ(plugins_.restarts, 1);
  EXPECT_EQ(report.outcome, CallOutcome::kUncertain);
  EXPECT_THAT(MessageOf(report.error), HasSubstr("itself hangs in NodeUnpublishVolume"));
  EXPECT_THAT(Events("plugin.hung"), SizeIs(1));
}

}  // namespace
}  // namespace berth
