#include "mounter/volume_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "mounter/testing/test_area.h"

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

  [[nodiscard]] mode_t ModeOf(const std::string& path) const {
    struct stat info{};
    return lstat(path.c_str(), &info) == 0 ? info.st_mode : 0;
  }
  [[nodiscard]] std::string Volume() const {
    return tree_ + "/" + VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id);
  }

  std::string tree_ = NewTestDirectory();
  VolumePaths paths_ = *VolumePaths::Open(tree_);
  VolumeRecord record_;
  PublicationRecord publication_;
};

TEST_F(VolumePathsTest, MakesTheTreeOfAPublicationButNotItsTarget) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(Volume()), S_IFDIR | 0711U);
  EXPECT_EQ(ModeOf(paths_.StagingPath(record_)), S_IFDIR | 0700U);
  EXPECT_EQ(ModeOf(Volume() + "/identity.json"), S_IFREG | 0600U);
  const std::string target = paths_.TargetPath(record_, publication_);
  EXPECT_EQ(ModeOf(target), 0U);
  EXPECT_EQ(ModeOf(target.substr(0, target.rfind('/'))), S_IFDIR | 0711U);
  EXPECT_EQ(paths_.Make(record_, publication_), absl::OkStatus()) << "again";
}

TEST_F(VolumePathsTest, WhateverIsMissingIsMadeAgainAndOnlyThen) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  const std::string directory = target.substr(0, target.rfind('/'));
  struct stat before{};
  ASSERT_EQ(stat((directory + "/identity.json").c_str(), &before), 0);
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  struct stat after{};
  ASSERT_EQ(stat((directory + "/identity.json").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "not written again";

  for (const std::string& file : {Volume() + "/identity.json", directory + "/identity.json"}) {
    ASSERT_EQ(unlink(file.c_str()), 0);
    ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
    EXPECT_EQ(ModeOf(file), S_IFREG | 0600U);
  }
  ASSERT_EQ(rmdir(paths_.StagingPath(record_).c_str()), 0);
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(paths_.StagingPath(record_)), S_IFDIR | 0700U);
  ASSERT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
  ASSERT_EQ(paths_.Remake(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(directory), S_IFDIR | 0711U);
}

TEST_F(VolumePathsTest, AllThatWasMadeIsMadeDurableAndWhatHasGoneNeedsNothing) {
  const std::string volume = VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id);
  EXPECT_EQ(paths_.Sync(volume, publication_.component), absl::OkStatus()) << "there is nothing";
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  EXPECT_EQ(paths_.Sync(volume, publication_.component), absl::OkStatus());
  // Each of them is opened: in the place of any of them a link is refused.
  const std::string target = paths_.TargetPath(record_, publication_);
  const std::string directory = target.substr(0, target.rfind('/'));
  for (const std::string& path : {Volume() + "/identity.json", directory + "/identity.json", directory,
                                  Volume() + "/publish", Volume()}) {
    const std::string aside = tree_ + "/aside";
    ASSERT_EQ(rename(path.c_str(), aside.c_str()), 0) << path;
    ASSERT_EQ(symlink(aside.c_str(), path.c_str()), 0) << path;
    EXPECT_FALSE(paths_.Sync(volume, publication_.component).ok()) << path;
    ASSERT_EQ(unlink(path.c_str()), 0) << path;
    ASSERT_EQ(rename(aside.c_str(), path.c_str()), 0) << path;
  }
  EXPECT_EQ(paths_.Sync(volume, publication_.component), absl::OkStatus());
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
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string text = *ReadFile(Volume() + "/identity.json", 10'000);
  EXPECT_THAT(text, HasSubstr("fake.example.com"));
  EXPECT_THAT(text, Not(HasSubstr("hunter2")));
  EXPECT_THAT(paths_.DescribeDirectory(VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id)),
              HasSubstr("of plugin hp"));
  EXPECT_THAT(*paths_.List(), ElementsAre(VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id)));
}

TEST_F(VolumePathsTest, RemovesAllThatItMade) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  ASSERT_EQ(mkdir(paths_.TargetPath(record_, publication_).c_str(), 0755), 0);
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());
  EXPECT_THAT(*paths_.List(), IsEmpty());
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus()) << "again";
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus()) << "again";
}

TEST_F(VolumePathsTest, RemovesWhatAKilledBerthdLeftOfAnIdentityFileAndNothingElse) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  const std::string directory = target.substr(0, target.rfind('/'));
  std::ofstream(Volume() + "/identity.json.a1B2c3") << "{";
  std::ofstream(directory + "/identity.json.a1B2c3") << "{";
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus()) << "with a publication that was never begun";
  EXPECT_THAT(*paths_.List(), IsEmpty());

  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  std::ofstream(directory + "/identity.json.a1B2c3") << "{";
  EXPECT_EQ(paths_.RemovePublication(record_, publication_), absl::OkStatus());
  EXPECT_EQ(ModeOf(directory), 0U);
  EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());

  for (const char* name : {"/identity.json.old", "/identity.json.a1B2c34", "/other.a1B2c3"}) {
    ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
    std::ofstream(Volume() + name) << "precious";
    EXPECT_EQ(paths_.RemoveVolume(record_).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(*ReadFile(Volume() + name, 100), "precious");
    ASSERT_EQ(unlink((Volume() + name).c_str()), 0);
    EXPECT_EQ(paths_.RemoveVolume(record_), absl::OkStatus());
  }
}

TEST_F(VolumePathsTest, LeavesATargetThatHoldsData) {
  ASSERT_EQ(paths_.Make(record_, publication_), absl::OkStatus());
  const std::string target = paths_.TargetPath(record_, publication_);
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  std::ofstream(target + "/precious") << "data";
  EXPECT_EQ(paths_.RemovePublication(record_, publication_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(paths_.RemoveVolume(record_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*ReadFile(target + "/precious", 100), "data");
  EXPECT_NE(ModeOf(Volume() + "/identity.json"), 0U) << "still tells whose the data are";
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
