// Other programs change our mounts: berthd notices it, reports it, and repairs it where a publication asks
// for that.
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/file.h"
#include "base/safe_path.h"
#include "journal/journal.h"
#include "mounter/testing/mounter_reconcile_base.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(MounterReconcileTest, AMountInADirectoryOfNoVolumeIsReported) {
  const std::string unknown = options_.state_dir + "/volumes/unknown";
  ASSERT_EQ(mkdir(unknown.c_str(), 0755), 0);
  ASSERT_EQ(mount("x", unknown.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(WaitForEvent("volume.orphan"));
  EXPECT_TRUE(IsMounted(unknown)) << "left alone";
  ASSERT_EQ(umount2(unknown.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(rmdir(unknown.c_str()), 0);
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

}  // namespace
}  // namespace berth
