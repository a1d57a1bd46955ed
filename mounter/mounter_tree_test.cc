// What a reboot and a lost journal leave of the tree of volumes.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/unique_fd.h"
#include "journal/journal.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_paths.h"
#include "mounts/immutable.h"
#include "mounts/mount_table.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

class MounterTreeTest : public MounterTestBase {
 protected:
  void SetUp() override { Open(); }

  [[nodiscard]] std::string Tree() const { return VolumePaths::TreeIn(options_.state_dir); }
  [[nodiscard]] std::string Directory(const std::string& volume) const {
    return Tree() + "/" + VolumePaths::VolumeKey("hp", volume);
  }
  [[nodiscard]] std::string Identity(const std::string& volume) const {
    return fmt::format("{}/identities/{}.json", options_.state_dir, VolumePaths::VolumeKey("hp", volume));
  }

  void LoseJournal() { std::ofstream(options_.state_dir + "/journal.db") << "no journal"; }
  // The end of the node: no mount is left, and the rows are of another boot.
  void CloseAndReboot() {
    Close();
    auto mounts = MountsBeneath(Tree(), 1000);
    ASSERT_TRUE(mounts.ok()) << mounts.status();
    std::ranges::reverse(*mounts);
    for (const Mount& mount : *mounts)
      ASSERT_EQ(umount2(mount.target.c_str(), MNT_DETACH), 0) << mount.target;
    auto journal = Journal::Open(loop_.executor(), {.path = options_.state_dir + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << journal.status();
    for (const auto& [key, row] : (*journal)->TakeLoaded()) {
      auto record = DecodeRecord(row);
      ASSERT_TRUE(record.ok()) << record.status();
      record->boot_id = "00000000-0000-0000-0000-000000000000";
      ASSERT_EQ(loop_.Run((*journal)->Put(key, EncodeRecord(*record))), absl::OkStatus());
    }
  }
};

TEST_F(MounterTreeTest, Fault46NobodyWritesWhereAVolumeIsToBeBeforeBerthdStarts) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  CloseAndReboot();
  EXPECT_FALSE(LookAt(*target)->exists) << "no directory is left that could be taken for the volume";
  EXPECT_TRUE(std::filesystem::is_empty(Tree()));
  const UniqueFd other(open(NewTestDirectory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const absl::Status possible = MakeImmutable(other.get());
  if (!possible.ok()) GTEST_SKIP() << "the file system of the tests has no such flag: " << possible;
  std::error_code error;
  EXPECT_FALSE(std::filesystem::create_directories(*target, error));
  EXPECT_EQ(error.value(), EPERM);
  Open();
  EXPECT_TRUE(Publish(Request()).ok());
  EXPECT_TRUE(Unpublish(Request()).ok());
  Close();
  // An orderly end opens nothing.
  EXPECT_FALSE(IsMounted(Tree()));
  EXPECT_FALSE(std::filesystem::create_directories(*target, error));
}

TEST_F(MounterTreeTest, FilesBeneathTheTreeAreNamedAndInNobodysWay) {
  Close();
  const UniqueFd top(open(Tree().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  [[maybe_unused]] const absl::Status open_again = MakeMutable(top.get());
  std::filesystem::create_directories(Directory("v1") + "/publish");
  std::ofstream(Directory("v1") + "/publish/precious") << "data";
  std::ofstream(Identity("v1")) << R"({"plugin_id": "hp", "volume_id": "v1"})";
  Open();
  EXPECT_TRUE(LookAt(Identity("v1"))->exists) << "it says which volume's they are";
  const auto findings = loop_.Run(mounter_->Examine(true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_THAT(*findings, Contains(AllOf(Field(&Finding::code, "tree.leftover"),
                                        Field(&Finding::text, HasSubstr("publish/precious")))));
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(IsMounted(*target));
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
  Close();
  EXPECT_EQ(ReadFile(Directory("v1") + "/publish/precious", 100).value_or("gone"), "data");
}

TEST_F(MounterTreeTest, AReverseCallAfterARebootFindsItsDirectories) {
  ASSERT_TRUE(Publish(Request()).ok());
  const std::string staging = View().staging_path;
  const std::string parent = std::filesystem::path(View().publications.at(0).target_path).parent_path();
  CloseAndReboot();
  std::vector<std::string> seen;
  options_.at_boundary = [&](std::string_view point) {
    if (point == "rpc NodeUnpublishVolume: sending") {
      seen.emplace_back(LookAt(parent)->exists && LookAt(staging)->exists ? "unpublish" : "no directories");
    }
    if (point == "rpc NodeUnstageVolume: sending") {
      seen.emplace_back(LookAt(staging)->exists ? "unstage" : "no directory");
    }
  };
  Open();
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
  EXPECT_THAT(seen, ElementsAre("unpublish", "unstage"));
  EXPECT_TRUE(std::filesystem::is_empty(Tree()));
}

TEST_F(MounterTreeTest, Fault21WhatStillInUseIsKnownWhenTheJournalIsLost) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  UniqueFd inside(open(target->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UnpublishRequest undo = Undo(Request());
  undo.lazy = true;
  const auto result = loop_.Run(mounter_->Unpublish(undo, Soon()));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(result->still_in_use);
  for (int start = 0; start < 2; ++start) {
    Close();
    LoseJournal();
    Open();
    EXPECT_TRUE(loop_.RunUntil([&] { return View().stage_state == StageState::kAbsent; }))
        << "start " << start << ": " << View().last_error;
    EXPECT_TRUE(View().still_in_use) << "start " << start;
  }
  // It is not known what keeps it in use: only a reboot ends that.
  inside.Reset();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()))->still_in_use);
  CloseAndReboot();
  Open();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  EXPECT_FALSE(LookAt(Identity("v1"))->exists);
}

TEST_F(MounterTreeTest, IdentityFilesFollowTheJournal) {
  ASSERT_TRUE(Publish(Request()).ok());
  Close();
  // A power cut took one away before it was durable, and one of a volume that has left is still there.
  const std::string right = *ReadFile(Identity("v1"), 10'000);
  ASSERT_EQ(unlink(Identity("v1").c_str()), 0);
  std::ofstream(Identity("left")) << R"({"plugin_id": "hp", "volume_id": "left"})";
  Open();
  EXPECT_EQ(ReadFile(Identity("v1"), 10'000).value_or("none"), right);
  EXPECT_FALSE(LookAt(Identity("left"))->exists);
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_FALSE(LookAt(Identity("v1"))->exists);
}

}  // namespace
}  // namespace berth
