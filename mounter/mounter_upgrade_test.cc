// A state directory of Berth 0.1 (FAULTS row 18), whose tree of volumes was on the disk; and what a reboot
// and a lost journal leave of one of this version.
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
#include "mounter/immutable.h"
#include "mounter/journal.h"
#include "mounter/mount_table.h"
#include "mounter/mount_tree.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

class MounterUpgradeTest : public MounterTestBase {
 protected:
  void SetUp() override {}

  [[nodiscard]] std::string Tree() const { return VolumePaths::TreeIn(options_.state_dir); }
  [[nodiscard]] std::string Directory(const std::string& volume) const {
    return Tree() + "/" + VolumePaths::VolumeKey("hp", volume);
  }
  [[nodiscard]] std::string Identity(const std::string& volume) const {
    return fmt::format("{}/identities/{}.json", options_.state_dir, VolumePaths::VolumeKey("hp", volume));
  }
  [[nodiscard]] bool OnTmpfs() const { return IsTree(*TopMountAt(Tree())); }

  // The tree as Berth 0.1 mounts it, with a mount in it that keeps it from being replaced; and a berthd on
  // it.
  void OpenOnOldTree() {
    MakeDirectory(options_.state_dir);
    MakeDirectory(Tree());
    ASSERT_EQ(mount(Tree().c_str(), Tree().c_str(), nullptr, MS_BIND, nullptr), 0);
    ASSERT_EQ(mount(nullptr, Tree().c_str(), nullptr, MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount(nullptr, Tree().c_str(), nullptr, MS_SHARED, nullptr), 0);
    const std::string keeper = Tree() + "/keeper";
    MakeDirectory(keeper);
    ASSERT_EQ(mount("keeper", keeper.c_str(), "tmpfs", 0, nullptr), 0);
    Open();
    ASSERT_EQ(umount2(keeper.c_str(), UMOUNT_NOFOLLOW), 0);
    ASSERT_EQ(rmdir(keeper.c_str()), 0);
    ASSERT_FALSE(OnTmpfs());
  }
  // The identity files as Berth 0.1 wrote them, of a volume with the consumer "web".
  void WriteOldIdentities(const std::string& volume) {
    ASSERT_EQ(unlink(Identity(volume).c_str()), 0);
    std::ofstream(Directory(volume) + "/identity.json")
        << fmt::format(R"({{"plugin_id": "hp", "volume_id": "{}", "driver_name": "fake.example.com",
 "node_id": "node-1", "stages": true, "capability": {{"access_mode": 7}}, "sent_access_mode": 1}})",
                       volume);
    const std::string component = VolumePaths::PublicationComponent({.consumer = "web", .name = ""});
    std::ofstream(Directory(volume) + "/publish/" + component + "/identity.json") << R"({"consumer": "web"})";
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

TEST_F(MounterUpgradeTest, Fault18AnOldTreeWithLiveMountsIsUsedUntilItHoldsNone) {
  OpenOnOldTree();
  PublishRequest attached = Request();
  attached.publish_context = std::map<std::string, std::string>{{"devicePath", "/dev/sdx"}};
  const auto target = Publish(attached);
  ASSERT_TRUE(target.ok()) << target.status();
  std::ofstream(*target + "/file") << "data";
  WriteOldIdentities("v1");
  Close();
  Open();
  EXPECT_FALSE(OnTmpfs());
  EXPECT_FALSE(View().uncertain);
  EXPECT_EQ(ReadFile(*target + "/file", 100).value_or("none"), "data");
  EXPECT_FALSE(LookAt(Directory("v1") + "/identity.json")->exists) << "taken over";
  EXPECT_THAT(ReadFile(Identity("v1"), 10'000).value_or("none"), HasSubstr("web"));
  EXPECT_EQ(Publish(attached), target);
  ASSERT_TRUE(Publish(Request("v2")).ok()) << "new ones go there, too";
  const auto findings = loop_.Run(mounter_->Examine(false, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_THAT(*findings, ElementsAre(Field(&Finding::code, "tree.old")));

  ASSERT_TRUE(Unpublish(Request()).ok());
  ASSERT_TRUE(Unpublish(Request("v2")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(Tree()));
  Close();
  Open();
  EXPECT_TRUE(OnTmpfs());
  EXPECT_TRUE(Publish(Request()).ok());
  EXPECT_TRUE(Unpublish(Request()).ok());
}

TEST_F(MounterUpgradeTest, Fault18AnOldTreeIsReadWhenItsJournalIsLost) {
  OpenOnOldTree();
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  WriteOldIdentities("v1");
  Close();
  LoseJournal();
  Open();
  ASSERT_EQ(View().publications.size(), 1U);
  EXPECT_EQ(View().publications[0].consumer, "web");
  EXPECT_EQ(View().publications[0].state, PublicationState::kPublished);
  EXPECT_FALSE(View().publications[0].uncertain);
  EXPECT_EQ(Publish(Request()), target);
  ASSERT_TRUE(Unpublish(Request()).ok());
}

TEST_F(MounterUpgradeTest, Fault18OfAnOldTreeOnlySomebodysFilesAreLeftAfterAReboot) {
  OpenOnOldTree();
  ASSERT_TRUE(Publish(Request()).ok());
  const auto written = Publish(Request("v2"));
  ASSERT_TRUE(written.ok()) << written.status();
  WriteOldIdentities("v1");
  WriteOldIdentities("v2");
  CloseAndReboot();
  // A unit that starts before berthd does.
  std::ofstream(*written + "/precious") << "data";
  Open();
  EXPECT_TRUE(OnTmpfs());
  const std::string beneath = directory_ + "/beneath";
  MakeDirectory(beneath);
  ASSERT_EQ(mount(options_.state_dir.c_str(), beneath.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_FALSE(LookAt(beneath + Directory("v1").substr(options_.state_dir.size()))->exists);
  EXPECT_EQ(
      ReadFile(beneath + written->substr(options_.state_dir.size()) + "/precious", 100).value_or("gone"),
      "data");
  const auto findings = loop_.Run(mounter_->Examine(true, Soon()));
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_THAT(*findings,
              Contains(AllOf(Field(&Finding::code, "tree.leftover"), Field(&Finding::volume_id, "v2"),
                             Field(&Finding::text, HasSubstr("target/precious")))));
  // They are in nobody's way.
  const auto again = Publish(Request("v2"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(IsMounted(*again));
  EXPECT_FALSE(LookAt(*again + "/precious")->exists);
  ASSERT_TRUE(Unpublish(Request()).ok());
  ASSERT_TRUE(Unpublish(Request("v2")).ok());
  EXPECT_TRUE(Gone());

  // Moved away, as the finding says, they leave directories that go at the next start.
  ASSERT_EQ(unlink((beneath + written->substr(options_.state_dir.size()) + "/precious").c_str()), 0);
  Close();
  Open();
  EXPECT_TRUE(std::filesystem::is_empty(beneath + "/volumes"));
  ASSERT_EQ(umount2(beneath.c_str(), MNT_DETACH), 0);
}

class MounterTreeTest : public MounterUpgradeTest {
 protected:
  void SetUp() override { Open(); }
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

TEST_F(MounterTreeTest, Fault21WhatMayLiveOnIsKnownWhenTheJournalIsLost) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  UniqueFd inside(open(target->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UnpublishRequest undo = Undo(Request());
  undo.lazy = true;
  const auto result = loop_.Run(mounter_->Unpublish(undo, Soon()));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(result->may_live_on);
  for (int start = 0; start < 2; ++start) {
    Close();
    LoseJournal();
    Open();
    EXPECT_TRUE(loop_.RunUntil([&] { return View().stage_state == StageState::kAbsent; }))
        << "start " << start << ": " << View().last_error;
    EXPECT_TRUE(View().may_live_on) << "start " << start;
  }
  // Nobody knows any more through what it lives on: only a reboot ends that.
  inside.Reset();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()))->may_live_on);
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
