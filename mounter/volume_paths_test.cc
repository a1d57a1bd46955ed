#include "mounter/volume_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/testing/test_area.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VolumePathsTest : public ::testing::Test {
 protected:
  VolumePathsTest() {
    record_.plugin_id = "hp";
    record_.volume_id = "../../etc/\n\x01";
    record_.driver_name = "fake.example.com";
    record_.use.mount_flags = {"password=hunter2"};
    record_.volume_context = {{"token", "hunter2"}};
    publication_.key = {.consumer = "a/b", .name = ".."};
    publication_.component = VolumePaths::PublicationComponent(publication_.key);
    record_.publications.push_back(publication_);
  }

  static std::string MakeTree(const std::string& state_dir) {
    MakeDirectory(VolumePaths::TreeIn(state_dir));
    return VolumePaths::TreeIn(state_dir);
  }
  [[nodiscard]] mode_t ModeOf(const std::string& path) const {
    struct stat info{};
    return lstat(path.c_str(), &info) == 0 ? info.st_mode : 0;
  }
  [[nodiscard]] std::string Volume() const { return tree_ + "/" + Key(); }

  [[nodiscard]] std::string Key() const {
    return VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id);
  }
  [[nodiscard]] std::string Identity() const { return state_dir_ + "/identities/" + Key() + ".json"; }

  std::string state_dir_ = NewTestDirectory();
  std::string tree_ = MakeTree(state_dir_);
  VolumePaths paths_ = *VolumePaths::Open(state_dir_);
  VolumeRecord record_;
  PublicationRecord publication_;
};

TEST_F(VolumePathsTest, MakesTheTreeOfAPublicationButNotItsTarget) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(Volume()), S_IFDIR | 0711U);
  EXPECT_EQ(ModeOf(paths_.StagingPath(record_)), S_IFDIR | 0700U);
  EXPECT_EQ(ModeOf(Identity()), S_IFREG | 0600U);
  EXPECT_EQ(ModeOf(state_dir_ + "/identities"), S_IFDIR | 0700U);
  const std::string target = paths_.TargetPath(record_, publication_);
  EXPECT_EQ(ModeOf(target), 0U);
  EXPECT_EQ(ModeOf(target.substr(0, target.rfind('/'))), S_IFDIR | 0711U);
  EXPECT_EQ(paths_.Make(record_, publication_), absl::OkStatus()) << "again";
}

TEST_F(VolumePathsTest, AfterARebootTheDirectoriesAreMadeAgainAndTheTargetIsNot) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  const std::string directory = target.substr(0, target.rfind('/'));
  struct stat before{};
  ASSERT_EQ(stat(Identity().c_str(), &before), 0);
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  struct stat after{};
  ASSERT_EQ(stat(Identity().c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "not written again";

  ASSERT_EQ(rmdir(paths_.StagingPath(record_).c_str()), 0);
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(paths_.StagingPath(record_)), S_IFDIR | 0700U);
  for (const std::string& path : {paths_.StagingPath(record_), directory, Volume() + "/publish", Volume()}) {
    ASSERT_EQ(rmdir(path.c_str()), 0) << path;
  }
  ASSERT_EQ(paths_.RemakeStaging(record_), absl::OkStatus());
  EXPECT_EQ(ModeOf(Volume()), S_IFDIR | 0711U);
  EXPECT_EQ(ModeOf(paths_.StagingPath(record_)), S_IFDIR | 0700U);
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(directory), S_IFDIR | 0711U);
  EXPECT_EQ(ModeOf(target), 0U) << "the plugin makes it";
}

TEST_F(VolumePathsTest, TheIdentityFileIsMadeDurableAndOneThatHasGoneNeedsNothing) {
  EXPECT_EQ(paths_.SyncIdentities({Key()}), absl::OkStatus()) << "there is nothing";
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  EXPECT_EQ(paths_.SyncIdentities({Key()}), absl::OkStatus());
  // It is opened: in its place a link is refused.
  const std::string aside = state_dir_ + "/aside";
  ASSERT_EQ(rename(Identity().c_str(), aside.c_str()), 0);
  ASSERT_EQ(symlink(aside.c_str(), Identity().c_str()), 0);
  EXPECT_FALSE(paths_.SyncIdentities({Key()}).ok());
}

TEST_F(VolumePathsTest, PathsStayShortWhateverTheIds) {
  record_.volume_id = std::string(4096, 'x');
  EXPECT_LE(paths_.TargetPath(record_, publication_).size() - tree_.size() + sizeof("/var/lib/berth/volumes"),
            128U);
  EXPECT_LE(paths_.StagingPath(record_).size() - tree_.size() + sizeof("/var/lib/berth/volumes"), 128U);
}

TEST_F(VolumePathsTest, EveryVolumeAndConsumerHasItsOwnPlace) {
  EXPECT_NE(VolumePaths::VolumeKey("ab", "c"), VolumePaths::VolumeKey("a", "bc"));
  EXPECT_NE(VolumePaths::PublicationComponent({.consumer = "ab", .name = "c"}),
            VolumePaths::PublicationComponent({.consumer = "a", .name = "bc"}));
}

TEST_F(VolumePathsTest, TheIdentityFileTellsWhoseItIsAndNoSecret) {
  record_.publish_context = std::map<std::string, std::string>{{"token", "hunter2"}};
  record_.node_id = "node-7";
  record_.boot_id = "boot";
  record_.still_in_use = true;
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string text = *ReadFile(Identity(), 10'000);
  EXPECT_THAT(text, HasSubstr("fake.example.com"));
  EXPECT_THAT(text, Not(HasSubstr("hunter2")));
  EXPECT_THAT(paths_.DescribeIdentity(Key()), HasSubstr("of plugin hp"));
  EXPECT_THAT(*paths_.ListIdentities(), ElementsAre(Key()));

  const auto said = paths_.ReadIdentity(Key());
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->volume_id, record_.volume_id);
  EXPECT_EQ(said->node_id, "node-7");
  EXPECT_EQ(said->boot_id, "boot");
  EXPECT_TRUE(said->still_in_use);
  ASSERT_TRUE(said->publish_context.has_value()) << "it is attached";
  EXPECT_THAT(*said->publish_context, IsEmpty());
  ASSERT_EQ(said->publications.size(), 1U);
  EXPECT_EQ(said->publications[0].key, publication_.key);
  EXPECT_EQ(said->publications[0].component, publication_.component);
}

TEST_F(VolumePathsTest, TheIdentityFileNamesThePublicationsThatAreThere) {
  PublicationRecord other = publication_;
  other.key.consumer = "other";
  other.component = VolumePaths::PublicationComponent(other.key);
  record_.publications.push_back(other);
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  ASSERT_EQ(paths_.Make(record_, other), absl::OkStatus());
  EXPECT_EQ(paths_.ReadIdentity(Key())->publications.size(), 2U);
  // To be mounted again, it is known still.
  record_.publications[0].remount_after_undo = true;
  ASSERT_EQ(paths_.RemovePublication(record_, record_.publications[0]), absl::OkStatus());
  EXPECT_EQ(paths_.ReadIdentity(Key())->publications.size(), 2U);
  record_.publications[0].remount_after_undo = false;
  ASSERT_EQ(paths_.RemovePublication(record_, record_.publications[0]), absl::OkStatus());
  ASSERT_EQ(paths_.ReadIdentity(Key())->publications.size(), 1U);
  EXPECT_EQ(paths_.ReadIdentity(Key())->publications[0].key.consumer, "other");
}

// The component becomes part of a path.
TEST_F(VolumePathsTest, AComponentThatIsNoneIsNotBelieved) {
  record_.publications[0].component = "../../etc";
  ASSERT_EQ(paths_.WriteIdentity(record_), absl::OkStatus());
  EXPECT_THAT(paths_.ReadIdentity(Key())->publications, IsEmpty());
}

TEST_F(VolumePathsTest, ThatTheKernelStillHasAVolumeIsInItsIdentityFileUntilItIsReleased) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  ASSERT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
  record_.publications.clear();
  record_.still_in_use = true;
  ASSERT_EQ(paths_.WriteIdentity(record_), absl::OkStatus());
  const auto identity = paths_.ReadIdentity(Key());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_TRUE(identity->still_in_use);
  ASSERT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());
  EXPECT_THAT(*paths_.ListIdentities(), IsEmpty());
}

TEST_F(VolumePathsTest, RemovesAllThatItMade) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  ASSERT_EQ(mkdir(paths_.TargetPath(record_, publication_).c_str(), 0755), 0);
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());
  EXPECT_THAT(*paths_.List(), IsEmpty());
  EXPECT_THAT(*paths_.ListIdentities(), IsEmpty());
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus()) << "again";
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus()) << "again";
  // With a publication that was never begun.
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());
  EXPECT_THAT(*paths_.List(), IsEmpty());
}

TEST_F(VolumePathsTest, RemovesWhatAKilledBerthdLeftOfAnIdentityFileAndNothingElse) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  std::ofstream(Identity() + ".a1B2c3") << "{";
  const std::vector<std::string> others = {Identity() + ".old", Identity() + ".a1B2c34",
                                           state_dir_ + "/identities/other.a1B2c3",
                                           state_dir_ + "/identities/other.json"};
  for (const std::string& other : others) std::ofstream(other) << "precious";
  EXPECT_EQ(paths_.RemoveUnfinishedIdentities(), absl::OkStatus());
  EXPECT_EQ(ModeOf(Identity() + ".a1B2c3"), 0U);
  for (const std::string& other : others) EXPECT_EQ(*ReadFile(other, 100), "precious");
  EXPECT_THAT(*paths_.ListIdentities(), ElementsAre(Key()));
}

TEST_F(VolumePathsTest, LeavesATargetThatHoldsData) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  std::ofstream(target + "/precious") << "data";
  EXPECT_EQ(paths_.RemovePublication(record_, publication_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(paths_.RemoveVolume(record_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*ReadFile(target + "/precious", 100), "data");
  EXPECT_NE(ModeOf(Identity()), 0U) << "still says which volume's the data are";
}

TEST_F(VolumePathsTest, RemovesAnEmptyFileOnlyAtABlockTarget) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  std::ofstream(target).close();
  EXPECT_EQ(paths_.RemovePublication(record_, publication_).code(), absl::StatusCode::kFailedPrecondition);
  record_.use.access_type = AccessType::kBlock;
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
}

TEST_F(VolumePathsTest, LeavesAFileWithBytesAndADeviceAtABlockTarget) {
  record_.use.access_type = AccessType::kBlock;
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  std::ofstream(target) << "data";
  EXPECT_EQ(paths_.RemovePublication(record_, publication_).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(unlink(target.c_str()), 0);
  ASSERT_EQ(mknod(target.c_str(), S_IFBLK | 0600, 0x7c8), 0);
  EXPECT_EQ(paths_.RemovePublication(record_, publication_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(S_ISBLK(ModeOf(target)));
}

TEST_F(VolumePathsTest, NeverFollowsASymlinkOutOfTheTree) {
  const std::string outside = NewTestDirectory();
  ASSERT_EQ(mkdir((outside + "/staging").c_str(), 0755), 0);
  ASSERT_EQ(symlink(outside.c_str(), Volume().c_str()), 0);
  EXPECT_FALSE(paths_.Make(record_, publication_).ok());
  EXPECT_FALSE(paths_.RemoveVolume(record_).ok());
  EXPECT_NE(ModeOf(outside + "/staging"), 0U);
}

TEST_F(VolumePathsTest, NeverRemovesThroughAMount) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  ASSERT_EQ(mount("x", target.c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_TRUE(paths_.LookAtTarget(record_, publication_)->mount_root);
  EXPECT_FALSE(paths_.RemovePublication(record_, publication_).ok());
  EXPECT_TRUE(paths_.LookAtTarget(record_, publication_)->mount_root);
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
}

}  // namespace
}  // namespace berth
