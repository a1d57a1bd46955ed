// Volumes that their plugins report as abnormal, and file systems that have ended or do not answer.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/testing/holder.h"
#include "mounter/testing/mounter_reconcile_base.h"
#include "mounts/mount_table.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class MounterHealthTest : public MounterReconcileTest {};

TEST_F(MounterHealthTest, PluginsAreAskedAtAnIntervalWhetherSomethingIsWrongWithAVolume) {
  using Rpc = ::csi::v1::NodeServiceCapability::RPC;
  options_.health_interval = std::chrono::milliseconds(20);
  Close();
  plugins_.facts.node_capabilities.insert({Rpc::GET_VOLUME_HEALTH, Rpc::GET_VOLUME_STATS});
  Open();
  plugin_.SayHealth(::csi::v1::DEGRADED, "DiskFailed");
  ASSERT_TRUE(Publish(Request()).ok());
  ASSERT_TRUE(WaitForEvent("volume.abnormal"));
  EXPECT_THAT(LastMessage("volume.abnormal"), HasSubstr("DEGRADED (DiskFailed)"));
  ASSERT_EQ(View().condition->statuses.size(), 1U);
  EXPECT_EQ(View().condition->statuses[0].type, "DEGRADED");
  ASSERT_TRUE(loop_.Run(mounter_->Stats("hp", "v1", Soon())).ok());
  EXPECT_TRUE(View().condition->abnormal) << "stats of CSI 1.13 say nothing of it";
  plugin_.SayHealth(std::nullopt);
  ASSERT_TRUE(WaitForEvent("volume.normal"));
  EXPECT_FALSE(View().condition->abnormal);

  plugins_.facts.node_capabilities.erase(Rpc::GET_VOLUME_HEALTH);
  plugins_.facts.node_capabilities.insert(Rpc::VOLUME_CONDITION);
  plugin_.SayCondition(true, "as before 1.13");
  EXPECT_TRUE(loop_.RunUntil([&] { return View().condition->message == "as before 1.13"; }));
  ASSERT_TRUE(Unpublish(Request()).ok());
}

class MounterDeadMountTest : public MounterReconcileTest {
 protected:
  void SetUp() override {
    options_.health_interval = std::chrono::milliseconds(50);
    Open();
    ASSERT_EQ(mkdir(plugin_.DataPath("v1").c_str(), 0755), 0);
    Serve();
  }
  void TearDown() override {
    fuse_.reset();
    MounterReconcileTest::TearDown();
  }
  void Serve() {
    auto fuse = FuseServer::Mount(plugin_.DataPath("v1"));
    ASSERT_TRUE(fuse.ok()) << fuse.status();
    fuse_ = *std::move(fuse);
  }

  std::unique_ptr<FuseServer> fuse_;
};

TEST_F(MounterDeadMountTest, ADeadFileSystemIsToldWithTheConsumerThatMustRestart) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead"));
  EXPECT_THAT(LastMessage("volume.dead"), HasSubstr("consumer web has to be restarted"));
  EXPECT_THAT(View().publications.at(0).dead, Not(IsEmpty()));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "only reported: no repair was requested";
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterDeadMountTest, Fault24AHungFileSystemIsNotCalledDeadAndNotRepairedUntilItIs) {
  options_.health_patience = std::chrono::milliseconds(500);
  Close();
  Open();
  PublishRequest request = Request();
  request.remount = true;  // of what is dead, not of what hangs
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  fuse_->Hang();
  ASSERT_TRUE(WaitForEvent("volume.hung"));
  EXPECT_THAT(LastMessage("volume.hung"), HasSubstr("its server may come back"));
  EXPECT_THAT(View().publications.at(0).hung, Not(IsEmpty()));
  EXPECT_THAT(View().publications.at(0).dead, IsEmpty());
  const auto findings = loop_.Run(mounter_->Examine(/*repair=*/true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  ASSERT_EQ(std::ranges::count(*findings, "mount.hung", &Finding::code), 1);
  for (const Finding& finding : *findings) {
    EXPECT_FALSE(finding.repaired) << finding.code;
    if (finding.code == "mount.hung") EXPECT_THAT(finding.advice, HasSubstr("bring its server back"));
  }
  EXPECT_EQ(CountEvents("volume.dead"), 0U);

  fuse_->Resume();
  ASSERT_TRUE(WaitForEvent("volume.alive"));
  EXPECT_THAT(View().publications.at(0).hung, IsEmpty());
  EXPECT_EQ(*ReadFile(*target + "/hello", 100), "hello\n");

  fuse_->Hang();
  ASSERT_TRUE(WaitForEvent("volume.hung", 2));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "nothing was repaired while it hung";
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead"));
  fuse_.reset();
  Serve();
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  ASSERT_TRUE(WaitPublished());
  EXPECT_THAT(View().publications.at(0).hung, IsEmpty());
  EXPECT_EQ(*ReadFile(*target + "/hello", 100), "hello\n");
}

TEST_F(MounterDeadMountTest, ADeadFileSystemIsMountedAgainFromTheStagingUp) {
  PublishRequest request = Request();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  fuse_->Die();
  fuse_.reset();
  Serve();
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  ASSERT_TRUE(WaitPublished());
  EXPECT_EQ(*ReadFile(*target + "/hello", 100), "hello\n");
  EXPECT_THAT(View().publications.at(0).dead, IsEmpty());
  EXPECT_THAT(plugin_.Log(),
              ElementsAre("NodeStageVolume v1", "NodePublishVolume v1", "NodeUnpublishVolume v1",
                          "NodeUnstageVolume v1", "NodeStageVolume v1", "NodePublishVolume v1"));
}

TEST_F(MounterDeadMountTest, OfASchedulerThatIsNotHeardADeadFileSystemIsMountedAgainOnceItIs) {
  PublishRequest request = Request();
  request.remount = true;
  request.origin = Origin::kScheduler;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  mounter_->BlockForward(Origin::kScheduler, "no valid lease of the scheduler since today");
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead"));
  fuse_.reset();
  Serve();
  EXPECT_FALSE(
      loop_.RunUntil([&] { return CountEvents("volume.remounted") > 0; }, std::chrono::milliseconds(300)))
      << "several rounds later";
  EXPECT_THAT(View().publications.at(0).blocked->text, HasSubstr("no valid lease"));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  ASSERT_TRUE(WaitPublished());
  EXPECT_EQ(*ReadFile(*target + "/hello", 100), "hello\n");
}

TEST_F(MounterDeadMountTest, WhatDiesWhileAnotherIsBeingPublishedIsMountedAgainAfterwards) {
  PublishRequest request = Request();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  PublishRequest another = Request("v1", "db");
  another.remount = true;
  const auto second = loop_.Start(mounter_->Publish(another, Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 2; }));
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead"));
  fuse_.reset();
  Serve();
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "not in the middle of a step";
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return second->has_value(); }));
  ASSERT_TRUE((*second)->ok()) << (*second)->status();
  ASSERT_TRUE(WaitForEvent("volume.remounted", 2));
  ASSERT_TRUE(WaitPublished());
  for (const std::string& path : {*target, ***second}) {
    EXPECT_EQ(*ReadFile(path + "/hello", 100), "hello\n");
  }
}

TEST_F(MounterDeadMountTest, ADeadFileSystemIsMountedAgainAtTheDoctorsHandWhateverItsPolicy) {
  const auto target = Publish(Request());
  const auto second = Publish(Request("v1", "db"));
  ASSERT_TRUE(target.ok() && second.ok());
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead", 2)) << "one for each consumer";
  fuse_.reset();
  Serve();
  auto findings = loop_.Run(mounter_->Examine(false, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(std::ranges::count(*findings, "mount.dead", &Finding::code), 2);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "nothing is repaired unasked";
  findings = loop_.Run(mounter_->Examine(true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  for (const Finding& finding : *findings) {
    if (finding.code == "mount.dead") EXPECT_TRUE(finding.repaired) << finding.repair_error;
  }
  ASSERT_TRUE(WaitForEvent("volume.remounted", 2));
  ASSERT_TRUE(WaitPublished());
  for (const std::string& path : {*target, *second}) EXPECT_EQ(*ReadFile(path + "/hello", 100), "hello\n");
  for (const PublicationView& publication : View().publications) EXPECT_THAT(publication.dead, IsEmpty());
}

TEST_F(MounterDeadMountTest, WhatTheKernelKeepsAfterTheLastUnmountIsNotCalledFree) {
  ASSERT_TRUE(Publish(Request()).ok());
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  // The plugin's mounts are the only ones of it.
  ASSERT_EQ(umount2(plugin_.DataPath("v1").c_str(), UMOUNT_NOFOLLOW), 0);
  const auto first = loop_.Run(mounter_->Unpublish(Undo(Request("v1", "db")), Soon()));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->still_in_use) << "it is staged, and in use";
  {
    const Holder elsewhere([] {
      return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    });
    for (const char* time : {"first", "second"}) {
      const auto busy = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
      EXPECT_EQ(busy.status().code(), absl::StatusCode::kUnavailable) << time;
      EXPECT_THAT(busy.status().message(), HasSubstr(fmt::format("still used by pid {}", elsewhere.pid())))
          << time;
    }
    EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0) << "it stays staged";
  }
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << "it is released by itself";
}

TEST_F(MounterDeadMountTest, ADeadEphemeralVolumeIsToldAndNeverUnpublished) {
  PublishRequest request = Request();
  request.ephemeral = true;
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  fuse_->Die();
  ASSERT_TRUE(WaitForEvent("volume.dead"));
  EXPECT_THAT(LastMessage("volume.dead"), Not(HasSubstr("mounting it again")));
  EXPECT_THAT(View().publications.at(0).dead, Not(IsEmpty()));
  // Whatever would be done about it has been done once another has gone the same way.
  ASSERT_TRUE(Publish(Request("v2")).ok());
  const auto findings = loop_.Run(mounter_->Examine(true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(std::ranges::count(*findings, true, &Finding::repaired), 0);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "that would delete it";
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_TRUE(Unpublish(request).ok()) << "at a caller's request";
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 1);
}

}  // namespace
}  // namespace berth
