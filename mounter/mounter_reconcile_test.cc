// What others do to our mounts, and what a restart of the node does.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/file.h"
#include "base/process.h"
#include "base/safe_path.h"
#include "base/testing/holder.h"
#include "base/testing/sleeper.h"
#include "base/unique_fd.h"
#include "journal/journal.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"
#include "mounts/mount_table.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class MounterReconcileTest : public MounterTestBase {
 protected:
  [[nodiscard]] bool WaitForEvent(const std::string& type, size_t times = 1) {
    return loop_.RunUntil([&] { return CountEvents(type) >= times; });
  }
  [[nodiscard]] size_t CountEvents(const std::string& type) const {
    return static_cast<size_t>(std::ranges::count(EventTypes(), type));
  }
  [[nodiscard]] std::string LastMessage(const std::string& type) const {
    std::string message;
    for (const Event& event : events_.After(0, 10'000).events) {
      if (event.type == type) message = event.message;
    }
    return message;
  }

  // As the end of the node: no mount is left, and the rows are of another boot. The plugin keeps its books.
  void CloseAndReboot() {
    Close();
    const std::string tree = options_.state_dir + "/volumes";
    auto mounts = MountsBeneath(tree, 1000);
    ASSERT_TRUE(mounts.ok()) << mounts.status();
    std::ranges::reverse(*mounts);
    for (const Mount& mount : *mounts) {
      ASSERT_EQ(umount2(mount.target.c_str(), MNT_DETACH), 0) << mount.target;
    }
    EditRows([](VolumeRecord& record) { record.boot_id = "00000000-0000-0000-0000-000000000000"; });
  }

  template <class Edit>
  void EditRows(Edit edit) {
    auto journal = Journal::Open(loop_.executor(), {.path = options_.state_dir + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << journal.status();
    for (const auto& [key, row] : (*journal)->TakeLoaded()) {
      auto record = DecodeRecord(row);
      ASSERT_TRUE(record.ok()) << record.status();
      edit(*record);
      ASSERT_EQ(loop_.Run((*journal)->Put(key, EncodeRecord(*record))), absl::OkStatus());
    }
  }

  [[nodiscard]] bool WaitPublished(const std::string& volume = "v1") {
    return loop_.RunUntil([&] {
      const VolumeView view = View(volume);
      return !view.publications.empty() && !view.uncertain &&
             std::ranges::all_of(view.publications, [](const PublicationView& p) {
               return p.state == PublicationState::kPublished;
             });
    });
  }
};

TEST_F(MounterReconcileTest, Fault26SomebodyElsesUnmountIsNoticedAndTold) {
  const auto target = Publish(Request());
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.lost"));
  EXPECT_TRUE(View().uncertain);
  EXPECT_THAT(View().publications.at(0).last_error, HasSubstr("it was unmounted"));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1) << "no repair was requested";
  EXPECT_EQ(*Publish(Request()), *target);
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_FALSE(View().uncertain);
}

TEST_F(MounterReconcileTest, Fault26SomebodyElsesUnmountIsRepairedWhereThatIsAskedFor) {
  PublishRequest request = Request();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_FALSE(View().uncertain);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 1) << "its books are closed first";
  // And again, as often as it happens.
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.remounted", 2));
  EXPECT_TRUE(IsMounted(*target));
}

TEST_F(MounterReconcileTest, OnceItIsLeavingNothingIsMountedAgain) {
  PublishRequest request = Request();
  request.origin = Origin::kDeclared;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  mounter_->BeginShutdown("berthd is stopping");
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.lost"));
  EXPECT_THAT(LastMessage("volume.lost"), HasSubstr("not mounted again, since berthd is stopping"));
  const auto findings = loop_.Run(mounter_->Examine(/*repair=*/true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(mounter_->UnblockForward(Origin::kDeclared, BootClock::now()), 0U);
  // It is released nevertheless.
  const auto undone = Unpublish(request);
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
}

TEST_F(MounterReconcileTest, OnceItIsLeavingNothingIsBegun) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto cut_short = loop_.Start(mounter_->Publish(Request("v2"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 2; }));
  const auto waits = loop_.Start(mounter_->Publish(Request("v2", "db"), Soon()));
  const auto expands = loop_.Start(mounter_->NodeExpand("hp", "v2", {}, {}, Soon()));
  mounter_->BeginShutdown("berthd is stopping");
  EXPECT_TRUE(absl::IsUnavailable(mounter_->CheckNotShuttingDown()));
  ASSERT_TRUE(loop_.RunUntil([&] { return waits->has_value() && expands->has_value(); }));
  for (const absl::Status& status :
       {(*waits)->status(), (*expands)->status(), Publish(Request("v3")).status(),
        Publish(Request("v1", "db")).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("berthd is stopping"));
  }
  // What was sent is waited for, and nothing follows it.
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return cut_short->has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable((*cut_short)->status())) << (*cut_short)->status();
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_TRUE(Unpublish(Request("v2")).ok());
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterReconcileTest, Fault26SomebodyElsesMountOnTopIsNoticedAndUnwound) {
  const auto target = Publish(Request());
  ASSERT_EQ(mount("x", target->c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.overmounted"));
  EXPECT_TRUE(View().uncertain);
  const auto undone = Unpublish(Request());
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_FALSE(LookAt(*target)->exists);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterReconcileTest, AMountOnTopThatGoesAgainIsForgotten) {
  const auto target = Publish(Request());
  ASSERT_EQ(mount("x", target->c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.overmounted"));
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_TRUE(loop_.RunUntil([&] { return !View().uncertain; }));
  EXPECT_THAT(EventTypes(), Not(Contains("volume.lost")));
}

TEST_F(MounterReconcileTest, AMountOnTopIsKnownAfterARestart) {
  const auto target = Publish(Request());
  Close();
  ASSERT_EQ(mount("x", target->c_str(), "tmpfs", 0, nullptr), 0);
  Open();
  EXPECT_THAT(EventTypes(), Contains("volume.overmounted"));
}

TEST_F(MounterReconcileTest, OurOwnMountsAreNotTakenForSomebodyElses) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Publish(Request()).ok());
    ASSERT_TRUE(Publish(Request("v2")).ok());
    ASSERT_TRUE(Unpublish(Request()).ok());
    ASSERT_TRUE(Unpublish(Request("v2")).ok());
  }
  // The kernel's earlier events have been read once it has reported this one.
  ASSERT_TRUE(Publish(Request("v3")).ok());
  ASSERT_EQ(umount2(View("v3").publications.at(0).target_path.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.lost"));
  EXPECT_EQ(CountEvents("volume.lost"), 1U);
  EXPECT_THAT(EventTypes(), Not(Contains("volume.orphan")));
}

TEST_F(MounterReconcileTest, AMountInADirectoryThatNobodyKnowsIsTold) {
  const std::string stranger = options_.state_dir + "/volumes/stranger";
  ASSERT_EQ(mkdir(stranger.c_str(), 0755), 0);
  ASSERT_EQ(mount("x", stranger.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.orphan"));
  EXPECT_TRUE(IsMounted(stranger)) << "left alone";
  ASSERT_EQ(umount2(stranger.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(rmdir(stranger.c_str()), 0);
}

TEST_F(MounterReconcileTest, AnEphemeralVolumeIsNeverUnpublishedToRepairIt) {
  PublishRequest request = Request();
  request.ephemeral = true;
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 0);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.remounted"));
  EXPECT_TRUE(IsMounted(*target));
  // A caller's repeat finds it lost, too.
  Close();
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  EditRows([](VolumeRecord& record) { record.publications.at(0).remount = false; });
  Open();
  request.remount = false;
  ASSERT_TRUE(Publish(request).ok());
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  EXPECT_TRUE(Unpublish(request).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 1);
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0);
}

TEST_F(MounterReconcileTest, ARowThatIsOlderThanAnUnstageIsNotBelieved) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  std::ofstream(*target + "/file") << "data";
  Close();
  VolumeRecord old;
  EditRows([&old](VolumeRecord& record) { old = record; });
  Open();
  // Undone by a berthd that was killed before it could write that down.
  ASSERT_TRUE(Unpublish(Request()).ok());
  Close();
  {
    auto journal = Journal::Open(loop_.executor(), {.path = options_.state_dir + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << journal.status();
    const std::string key = VolumePaths::VolumeKey("hp", "v1");
    ASSERT_EQ(loop_.Run((*journal)->Put(key, EncodeRecord(old))), absl::OkStatus());
  }
  Open();
  EXPECT_TRUE(View().uncertain);
  const auto other = Publish(Request("v1", "db"));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(*ReadFile(*other + "/file", 100), "data") << "not an empty directory";
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 2) << "staged again first";
}

TEST_F(MounterReconcileTest, WhatLiesOverAnEphemeralVolumeIsNotTakenForIt) {
  PublishRequest request = Request();
  request.ephemeral = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_EQ(mount(nullptr, target->c_str(), nullptr, MS_PRIVATE, nullptr), 0);
  ASSERT_EQ(mount("x", target->c_str(), "tmpfs", 0, nullptr), 0);
  const auto again = Publish(request);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition) << again.status();
  EXPECT_THAT(MessageOf(again.status()), HasSubstr(*target));
  EXPECT_TRUE(View().uncertain);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(Publish(request), target);
  EXPECT_FALSE(View().uncertain);
}

TEST_F(MounterReconcileTest, AfterALostJournalARequestIsComparedBeforeItIsBelieved) {
  PublishRequest request = Request();
  request.permissions.set_mode(0750);
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  Close();
  std::ofstream(options_.state_dir + "/journal.db") << "no journal";
  Open();
  PublishRequest other = Request("v1", "db");
  other.use.access_type = AccessType::kBlock;
  EXPECT_EQ(Publish(other).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kPublished);
  // The identity files do not have its permissions.
  EXPECT_EQ(Publish(request), target);
  PublishRequest changed = request;
  changed.permissions.set_mode(0700);
  EXPECT_EQ(Publish(changed).status().code(), absl::StatusCode::kAlreadyExists) << "known again";
  EXPECT_FALSE(View().uncertain);
}

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

TEST_F(MounterReconcileTest, ARepairIsNotTakenForTheWayOut) {
  PublishRequest request = Request();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  plugins_.SetUsable(false);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitForEvent("volume.lost"));
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kUnpublishing);
  EXPECT_TRUE(View().publications.at(0).remount_after_undo);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(request), Shortly())).ok());
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kUnpublishing);
  EXPECT_FALSE(View().publications.at(0).remount_after_undo) << "now it is";
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
}

TEST_F(MounterReconcileTest, PluginsAreAskedAtAnIntervalWhetherSomethingIsWrongWithAVolume) {
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

TEST_F(MounterReconcileTest, AnExpansionIsOwedUntilItIsDone) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 2);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 3);
  EXPECT_TRUE(IsMounted(*target)) << "that it failed undid nothing";
  EXPECT_THAT(EventTypes(), Contains("volume.expanded"));
}

TEST_F(MounterReconcileTest, AnExpansionThatIsOwedOutlivesBerthd) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  Close();
  Open();
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
}

TEST_F(MounterReconcileTest, AnExpansionThatIsOwedOutlivesTheVolumesStay) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
  Close();
  plugin_.ClearFaults();
  Open();
  const size_t before = plugin_.Log().size();
  ASSERT_TRUE(Publish(Request()).ok());
  auto calls = plugin_.Log();
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  EXPECT_THAT(calls, ElementsAre("NodeStageVolume v1", "NodeExpandVolume v1", "NodePublishVolume v1"));
  EXPECT_EQ(View().pending_expansion_bytes, 0);
  // Done is done.
  const int expansions = plugin_.Calls("NodeExpandVolume");
  ASSERT_TRUE(Unpublish(Request()).ok());
  Close();
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), expansions);
}

TEST_F(MounterReconcileTest, AnExpansionIsOwedToAVolumeThatIsNotHere) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 10)), absl::OkStatus()) << "of long ago";
  EXPECT_TRUE(Gone()) << "it is not here by that";
  Close();
  Open();
  EXPECT_THAT(MessageOf(loop_.Run(mounter_->Explain("hp", "v1", Soon())).status()),
              HasSubstr("an expansion to 1048576 bytes is pending"));
  // A use of it that fails takes nothing away.
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_TRUE(Gone());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  plugin_.ClearFaults();
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
}

TEST_F(MounterReconcileTest, AnExpansionThatIsRefusedWhereItIsStagedIsTriedWhereItIsPublished) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(View().pending_expansion_bytes, 0);
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 2);
}

TEST_F(MounterReconcileTest, NothingIsOwedToAVolumeThatWasDeleted) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_EQ(loop_.Run(mounter_->CancelPendingExpansion("hp", "v1")), absl::OkStatus());
  EXPECT_EQ(loop_.Run(mounter_->CancelPendingExpansion("hp", "v2")), absl::OkStatus()) << "nothing was";
  Close();
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 0);
}

}  // namespace
}  // namespace berth
