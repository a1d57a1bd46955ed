// What a restart of the node does to volumes.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "base/testing/sleeper.h"
#include "mounter/testing/mounter_reconcile_base.h"
#include "mounter/volume_record.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class MounterRebootTest : public MounterReconcileTest {
 protected:
  static PublishRequest Of(Origin origin, const std::string& volume) {
    PublishRequest request = Request(volume);
    request.origin = origin;
    return request;
  }
};

TEST_F(MounterRebootTest, Fault19DeclaredVolumesAreMountedAgainAtOnce) {
  const auto target = Publish(Of(Origin::kDeclared, "v1"));
  std::ofstream(*target + "/file") << "data";
  CloseAndReboot();
  plugins_.SetUsable(false);
  Open();
  EXPECT_FALSE(IsMounted(*target));
  plugins_.SetUsable(true);
  ASSERT_TRUE(WaitPublished());
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_EQ(*ReadFile(*target + "/file", 100), "data") << "not an empty directory: the plugin kept books";
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
}

TEST_F(MounterRebootTest, Fault19ACallersVolumeWaitsForItsWord) {
  const auto target = Publish(Request());
  std::ofstream(*target + "/file") << "data";
  const size_t calls = plugin_.Log().size();
  CloseAndReboot();
  Open();
  EXPECT_EQ(plugin_.Log().size(), calls);
  EXPECT_THAT(View().publications.at(0).blocked->text, HasSubstr("the node was restarted"));
  EXPECT_THAT(EventTypes(), Contains("volume.blocked"));
  // So it does after another end of berthd, in the same boot.
  Close();
  Open();
  EXPECT_EQ(plugin_.Log().size(), calls);
  EXPECT_THAT(View().publications.at(0).blocked->text, HasSubstr("the node was restarted"));
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(*ReadFile(*target + "/file", 100), "data");
  EXPECT_FALSE(View().publications.at(0).blocked.has_value());
}

TEST_F(MounterRebootTest, Fault19WhatIsHeldMayBeUnpublished) {
  ASSERT_TRUE(Publish(Request()).ok());
  CloseAndReboot();
  Open();
  EXPECT_EQ(*Unpublish(Request()), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U) << "the plugin was called";
}

TEST_F(MounterRebootTest, Fault38AScheduledVolumeIsBlockedUntilItsSchedulerConfirmsIt) {
  for (const char* volume : {"v1", "v2", "v3"}) {
    ASSERT_TRUE(Publish(Of(Origin::kScheduler, volume)).ok());
  }
  CloseAndReboot();
  Open();
  EXPECT_EQ(CountEvents("node.awaiting_scheduler"), 1U);
  EXPECT_THAT(LastMessage("node.awaiting_scheduler"), HasSubstr("3 volumes"));
  EXPECT_THAT(EventTypes(), Not(Contains("volume.blocked")));
  EXPECT_THAT(View("v2").publications.at(0).blocked->text, HasSubstr("scheduler"));
  // One is not wanted any more: that does not wait.
  EXPECT_EQ(*Unpublish(Request("v3")), true);
  mounter_->UnblockForward(Origin::kDeclared, BootTime{});
  EXPECT_TRUE(View("v2").publications.at(0).blocked.has_value());
  const size_t calls = plugin_.Log().size();
  EXPECT_EQ(mounter_->UnblockForward(Origin::kScheduler, BootTime{}), 2U);
  EXPECT_THAT(View("v2").publications.at(0).blocked->text, HasSubstr("scheduler"))
      << "a lease alone is not enough";
  const auto confirm = [this](const std::string& volume) {
    return *loop_.Run(mounter_->Confirm({{"hp", volume, "web", ""}}, Soon()));
  };
  EXPECT_THAT(confirm("v3"), SizeIs(1)) << "it is gone";
  EXPECT_THAT(confirm("v1"), IsEmpty());
  ASSERT_TRUE(WaitPublished("v1"));
  EXPECT_TRUE(IsMounted(View("v1").publications.at(0).target_path));
  EXPECT_FALSE(IsMounted(View("v2").publications.at(0).target_path)) << "it was left out";
  const std::vector<std::string> log = plugin_.Log();
  EXPECT_EQ(std::count_if(log.begin() + static_cast<std::ptrdiff_t>(calls), log.end(),
                          [](const std::string& call) { return call.ends_with(" v2"); }),
            0);
  // Also over another end of berthd.
  Close();
  Open();
  EXPECT_EQ(mounter_->UnblockForward(Origin::kScheduler, BootTime{}), 1U);
  EXPECT_THAT(View("v2").publications.at(0).blocked->text, HasSubstr("scheduler"));
  ASSERT_TRUE(Publish(Of(Origin::kScheduler, "v2")).ok()) << "it is requested again";
  EXPECT_TRUE(IsMounted(View("v2").publications.at(0).target_path));
}

TEST_F(MounterRebootTest, Fault19WhatWasBeingUndoneIsStillUndone) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request()), Shortly())).ok());
  CloseAndReboot();
  Open();
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

// The kernel may have given its number again, in the same tick of the new boot.
TEST_F(MounterRebootTest, GivingUpEndsNoStrangerWithTheNumberOfAConsumerOfAnotherBoot) {
  const Sleeper bystander;
  const auto started = StartTimeOf(bystander.pid());
  ASSERT_TRUE(started.ok());
  for (const char* volume : {"v1", "v2"}) {
    PublishRequest request = Of(Origin::kScheduler, volume);
    request.life = ProcessLife(bystander.pid());
    ASSERT_TRUE(Publish(request).ok());
  }
  plugins_.SetUsable(false);
  // One was being undone when the node went; the other is released now.
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request("v2")), Shortly())).ok());
  CloseAndReboot();
  for (int starts = 0; starts < 2; ++starts) {
    Open();
    for (const char* volume : {"v1", "v2"}) {
      const auto forced_release = loop_.Run(mounter_->ForceRelease(
          {"hp", volume}, Origin::kScheduler, Clock::now() + std::chrono::milliseconds(50)));
      EXPECT_FALSE(forced_release.ok()) << "its plugin has not let it go";
    }
    EXPECT_EQ(kill(bystander.pid(), 0), 0);
    EXPECT_EQ(waitpid(bystander.pid(), nullptr, WNOHANG), 0) << "a process that had nothing to do with it";
    Close();
  }
  plugins_.SetUsable(true);
  Open();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
}

TEST_F(MounterRebootTest, GivingUpEndsNoUnitThatWasStartedWithTheNewBoot) {
  ASSERT_TRUE(Publish(Of(Origin::kScheduler, "v1")).ok());
  CloseAndReboot();
  EditRows([](VolumeRecord& record) {
    // What would be refused in words, had anybody asked for its end.
    record.publications[0].life = UnitLife("berth-plugins.slice");
  });
  Open();
  EXPECT_THAT(View().publications.at(0).blocked->text, HasSubstr("scheduler"));
  const auto forced_release = loop_.Run(mounter_->ForceRelease({"hp", "v1"}, Origin::kScheduler, Soon()));
  EXPECT_TRUE(forced_release.ok()) << forced_release.status();
  EXPECT_TRUE(Gone());
}

TEST_F(MounterRebootTest, WhatIsMountedAgainSurvivesAPluginThatRefusesFirst) {
  const auto target = Publish(Of(Origin::kDeclared, "v1"));
  CloseAndReboot();
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::FAILED_PRECONDITION, Effect::kNone, 2);
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kDone, 2);
  Open();
  ASSERT_TRUE(WaitPublished()) << View().last_error;
  EXPECT_TRUE(IsMounted(*target));
}

}  // namespace
}  // namespace berth
