// Volumes that are in use outside of berthd's mount namespace when they are unpublished, one test for each
// kind: none is reported free before the kernel has released it (FAULTS row 37).
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/testing/disk_image.h"
#include "base/testing/holder.h"
#include "base/unique_fd.h"
#include "mounter/testing/mounter_holders_base.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class MounterHoldersTest : public MounterHoldersBase {};

TEST_F(MounterHoldersTest, Fault37ADirectoryVolumeInAContainerStaysStaged) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ExpectBlockedBy(Container(*target));
}

TEST_F(MounterHoldersTest, Fault37AServiceThatClonedTheTreeIsNamed) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ExpectBlockedBy(std::make_unique<Holder>([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }));
}

// As on a busy machine, if the search does not end in time.
TEST_F(MounterHoldersTest, Fault62ASearchForHoldersThatFailsIsRepeatedInTheCallersTime) {
  Close();
  const std::string directory = NewTestDirectory();
  options_.helper_path = directory + "/helper";
  std::ofstream(options_.helper_path) << fmt::format(R"(#!/bin/sh
if [ "$1" = census ] && ! [ -e {0}/third ]; then
  if [ -e {0}/first ]; then : > {0}/third; else : > {0}/first; fi
  sleep 1
  exit 1
fi
exec {1} "$@"
)",
                                                     directory, BERTH_MOUNT_HELPER);
  ASSERT_EQ(chmod(options_.helper_path.c_str(), 0755), 0);
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  const auto unpublished = Unpublish(Request());
  EXPECT_TRUE(unpublished.ok()) << unpublished.status();
  EXPECT_EQ(access((directory + "/third").c_str(), F_OK), 0) << "two searches have failed";
  EXPECT_TRUE(Gone());
}

TEST_F(MounterHoldersTest, ACopyThatFollowsOursHoldsNothing) {
  ASSERT_TRUE(Publish(Request()).ok());
  const Holder follower([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
  });
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterHoldersTest, Fault37ABtrfsSubvolumeInAContainerStaysStagedAndItsNeighbourDoesNot) {
  const DiskImage disk(directory_ + "/disk", "mkfs.btrfs -q", "128M");
  const std::string top = NewTestDirectory();
  if (!DiskImage::Possible("btrfs")) GTEST_SKIP() << "this system has no btrfs";
  ASSERT_TRUE(disk.made() && disk.Mount(top));
  for (const std::string volume : {"v1", "v2"}) {
    ASSERT_TRUE(DiskImage::Run(fmt::format("btrfs subvolume create {}/{} >/dev/null", top, volume)));
    ASSERT_EQ(
        mount((top + "/" + volume).c_str(), plugin_.DataPath(volume).c_str(), nullptr, MS_BIND, nullptr), 0);
  }
  ASSERT_EQ(umount2(top.c_str(), UMOUNT_NOFOLLOW), 0);
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_TRUE(Publish(Request("v2")).ok());
  for (const std::string volume : {"v1", "v2"}) {
    ASSERT_EQ(umount2(plugin_.DataPath(volume).c_str(), UMOUNT_NOFOLLOW), 0);
  }
  auto container = Container(*target);
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_TRUE(Unpublish(Request("v2")).ok());
  EXPECT_EQ(mounter_->Find("hp", "v2"), std::nullopt);
  plugin_.ClearFaults();
  container.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_F(MounterHoldersTest, Fault37TwoVolumesThatShareASuperblockAreReleasedOneByOne) {
  const std::string shared = NewTestDirectory();
  ASSERT_EQ(mount("shared", shared.c_str(), "tmpfs", 0, nullptr), 0);
  for (const std::string volume : {"v1", "v2"}) {
    ASSERT_EQ(mkdir((shared + "/" + volume).c_str(), 0755), 0);
    ASSERT_EQ(
        mount((shared + "/" + volume).c_str(), plugin_.DataPath(volume).c_str(), nullptr, MS_BIND, nullptr),
        0);
  }
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_TRUE(Publish(Request("v2")).ok());
  auto container = Container(*target);
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_TRUE(Unpublish(Request("v2")).ok()) << "the other one is not used";
  container.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
  for (const std::string volume : {"v1", "v2"}) umount2(plugin_.DataPath(volume).c_str(), UMOUNT_NOFOLLOW);
  umount2(shared.c_str(), UMOUNT_NOFOLLOW);
}

TEST_F(MounterHoldersTest, WhatIsStillStagedForAContainerCanBePublishedAgain) {
  const auto target = Publish(For("web", AccessMode::SINGLE_NODE_MULTI_WRITER));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto container = Container(*target);
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_TRUE(Publish(For("db", AccessMode::SINGLE_NODE_MULTI_WRITER)).ok());
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1) << "its staging is used as it is";
}

TEST_F(MounterHoldersTest, Fault52ASoleWriterIsRefusedWhileAContainerHasTheVolume) {
  for (const bool lazy : {false, true}) {
    const auto target = Publish(For("web", AccessMode::SINGLE_NODE_SINGLE_WRITER));
    ASSERT_TRUE(target.ok()) << target.status();
    auto container = Container(*target);
    UnpublishRequest undo = Undo(Request());
    undo.lazy = lazy;
    EXPECT_EQ(loop_.Run(mounter_->Unpublish(undo, Soon())).ok(), lazy);
    for (const char* time : {"at once", "after a restart"}) {
      for (const char* consumer : {"web", "db"}) {
        const auto refused = Publish(For(consumer, AccessMode::SINGLE_NODE_SINGLE_WRITER));
        EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << consumer << ", " << time;
        EXPECT_THAT(std::string(refused.status().message()),
                    HasSubstr(fmt::format("pid {}", container->pid())));
      }
      Close();
      Open();
    }
    container.reset();
    EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
    EXPECT_TRUE(Publish(For("db", AccessMode::SINGLE_NODE_SINGLE_WRITER)).ok());
    EXPECT_TRUE(Unpublish(For("db", AccessMode::SINGLE_NODE_SINGLE_WRITER)).ok());
  }
}

TEST_F(MounterHoldersTest, Fault52OneWriterOfANodeMayComeBackAndAnotherMayNot) {
  const auto target = Publish(For("web", AccessMode::SINGLE_NODE_WRITER));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto container = Container(*target);
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_EQ(Publish(For("db", AccessMode::SINGLE_NODE_WRITER)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Publish(For("web", AccessMode::SINGLE_NODE_WRITER)).ok());
}

TEST_F(MounterHoldersTest, Fault52ASoleWriterIsRefusedAfterALostJournal) {
  const auto target = Publish(For("web", AccessMode::SINGLE_NODE_SINGLE_WRITER));
  ASSERT_TRUE(target.ok()) << target.status();
  auto container = Container(*target);
  EXPECT_FALSE(Unpublish(Request()).ok());
  Close();
  std::ofstream(options_.state_dir + "/journal.db", std::ios::trunc) << "this is no database";
  Open();
  // Its identity file still names the consumer; and that does not end the question.
  for (const char* time : {"as it was found", "unpublished once more"}) {
    const auto refused = Publish(For("db", AccessMode::SINGLE_NODE_SINGLE_WRITER));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << time;
    EXPECT_FALSE(Unpublish(Request()).ok()) << time;
  }
  container.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

// Nothing says any more that the volume was here, but the kernel.
TEST_F(MounterHoldersTest, AnUnpublishOfAVolumeWithoutARecordAsksTheKernel) {
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request("v9")), Soon())).ok()) << "it was never here";
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  auto holder = std::make_unique<Holder>([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  });
  Close();
  const std::string key = VolumePaths::VolumeKey("hp", "v1");
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(umount2((options_.state_dir + "/volumes/" + key + "/staging").c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(unlink((options_.state_dir + "/identities/" + key + ".json").c_str()), 0);
  std::ofstream(options_.state_dir + "/journal.db", std::ios::trunc) << "this is no database";
  Open();
  ASSERT_TRUE(Gone());
  const auto unknown = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnavailable) << unknown.status();
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr(fmt::format("pid {}", holder->pid())));
  // As for a delete or a detach.
  EXPECT_EQ(loop_.Run(mounter_->CheckUnrecorded("hp", "v1", Soon())).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(loop_.Run(mounter_->CheckUnrecorded("hp", "v9", Soon())).ok()) << "another volume";
  // A publish that waits for its plugin is no record.
  plugins_.SetUsable(false);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  EXPECT_EQ(loop_.Run(mounter_->CheckUnrecorded("hp", "v1", Soon())).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon())).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  plugins_.SetUsable(true);
  holder.reset();
  EXPECT_TRUE(loop_.Run(mounter_->CheckUnrecorded("hp", "v1", Soon())).ok());
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon())).ok());
}

// The driver undoes its staging meanwhile, and a mount namespace that was made before has a copy of it.
TEST_F(MounterHoldersTest, Fault51WhatWasStagedWhenBerthdWasCutOffIsHeldWhileACopyOfItIsThere) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto cut_off = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.StagedCount() == 1; }));
  auto holder = std::make_unique<Holder>([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  });
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  plugin_.Release();
  const std::string key = VolumePaths::VolumeKey("hp", "v1");
  ASSERT_EQ(umount2((options_.state_dir + "/volumes/" + key + "/staging").c_str(), UMOUNT_NOFOLLOW), 0);
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  Open();
  for (const char* time : {"first", "after a restart"}) {
    const auto undone = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
    EXPECT_FALSE(undone.ok() && !undone->still_in_use) << time;
    EXPECT_FALSE(Gone()) << time;
    Close();
    Open();
  }
  holder.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

// The kernel has two things of it: the device, and the mount of its node.
TEST_F(MounterHoldersTest, AContainerWithARawVolumeIsListedOnce) {
  PublishRequest raw = Request();
  raw.use.access_type = AccessType::kBlock;
  const auto target = Publish(raw);
  ASSERT_TRUE(target.ok()) << target.status();
  auto container = Container(*target, /*block=*/true);
  UnpublishRequest lazy = Undo(raw);
  lazy.lazy = true;
  const auto result = loop_.Run(mounter_->Unpublish(lazy, Soon()));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->still_in_use);
  ASSERT_EQ(View().holders.size(), 1U) << result->used_by;
  EXPECT_EQ(View().holders[0].pid, container->pid());
  container.reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_F(MounterHoldersTest, AForcedUnpublishDoesNotWaitForTheContainer) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  const auto container = Container(*target);
  UnpublishRequest lazy = Undo(Request());
  lazy.lazy = true;
  const auto result = loop_.Run(mounter_->Unpublish(lazy, Soon()));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->still_in_use);
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 1);
  EXPECT_TRUE(View().still_in_use);
}

}  // namespace
}  // namespace berth
