// Hostile names, and a tree with foreign changes (FAULTS row 27): ids are opaque, and nothing outside our own
// tree is ever touched.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "base/file.h"
#include "base/safe_path.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_paths.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Names that would mean something as a path, a line or a format.
std::vector<std::string> HostileNames(size_t limit) {
  return {".",
          "..",
          "../../../etc",
          "/",
          "/etc/passwd",
          "a/b",
          "a\nb",
          "\x7f\x01\x1b[2J",
          std::string("a\0b", 3),
          "%s%n{}",
          "\u202egpj",
          "identity.json",
          "volumes/../../journal.db",
          std::string(limit, 'x')};
}

class MounterNamesTest : public MounterTestBase {
 protected:
  [[nodiscard]] std::string Tree() const { return options_.state_dir + "/volumes"; }
  [[nodiscard]] std::vector<std::string> InTree() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Tree())) names.push_back(entry.path());
    return names;
  }
  void ExpectPlainTarget(const std::string& target, std::set<std::string>* targets) const {
    EXPECT_THAT(target, StartsWith(Tree() + "/"));
    EXPECT_EQ(std::filesystem::path(target).lexically_normal().string(), target);
    EXPECT_LE(target.size() - options_.state_dir.size() + sizeof("/var/lib/berth"), 128U);
    EXPECT_TRUE(LookAt(target)->mount_root);
    EXPECT_TRUE(targets->insert(target).second) << "another one's";
  }
};

TEST_F(MounterNamesTest, Fault27IdsOfVolumesAreOpaqueAndSurviveBerthd) {
  const std::vector<std::string> names = HostileNames(4096);
  std::set<std::string> targets;
  for (const std::string& name : names) {
    const auto target = Publish(Request(name));
    ASSERT_TRUE(target.ok()) << target.status();
    ExpectPlainTarget(*target, &targets);
  }
  Close();
  Open();
  for (const std::string& name : names) {
    ASSERT_EQ(View(name).volume_id, name) << "byte for byte";
    EXPECT_FALSE(View(name).uncertain);
    const auto undone = Unpublish(Request(name));
    ASSERT_TRUE(undone.ok()) << undone.status();
    EXPECT_TRUE(*undone);
  }
  EXPECT_TRUE(Gone());
  EXPECT_THAT(InTree(), IsEmpty());
}

TEST_F(MounterNamesTest, Fault27NamesOfConsumersAndUsesAreOpaque) {
  std::set<std::string> targets;
  std::vector<PublishRequest> requests;
  for (const std::string& name : HostileNames(1024)) {
    PublishRequest by_consumer = Request("v1", name);
    requests.push_back(by_consumer);
    PublishRequest by_name = Request("v1");
    by_name.name = name;
    requests.push_back(by_name);
  }
  for (const PublishRequest& request : requests) {
    const auto target = Publish(request);
    ASSERT_TRUE(target.ok()) << target.status();
    ExpectPlainTarget(*target, &targets);
  }
  for (const PublishRequest& request : requests) ASSERT_TRUE(Unpublish(request).ok());
  EXPECT_TRUE(Gone());
  EXPECT_THAT(InTree(), IsEmpty());
}

TEST_F(MounterNamesTest, Fault27APluginsLinkInPlaceOfAMountIsNamedAndRemoved) {
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 1; }));
  const std::string target =
      fmt::format("{}/{}/publish/{}/target", Tree(), VolumePaths::VolumeKey("hp", "v1"),
                  VolumePaths::PublicationComponent({.consumer = "web", .name = ""}));
  ASSERT_EQ(symlink(View().staging_path.c_str(), target.c_str()), 0) << strerror(errno);
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_THAT(MessageOf((*publish)->status()),
              AllOf(HasSubstr("plugin hp answered OK to NodePublishVolume"), HasSubstr("which was removed")));
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << "it can be undone";
}

// A symbolic link stands in our way, to a foreign directory that looks just like what should be there.
class MounterSymlinkTest : public MounterNamesTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    MounterNamesTest::SetUp();
    for (const char* directory : {"", "/staging", "/publish", "/target"}) {
      ASSERT_EQ(mkdir((outside_ + directory).c_str(), 0755), 0);
    }
    const std::string publication = outside_ + "/publish/" + Component();
    ASSERT_EQ(mkdir(publication.c_str(), 0755), 0);
    ASSERT_EQ(mkdir((publication + "/target").c_str(), 0755), 0);
    std::ofstream(outside_ + "/identity.json") << "precious";
    std::ofstream(outside_ + "/publish/identity.json") << "precious";
    before_ = Outside();
  }
  void TearDown() override {
    EXPECT_EQ(Outside(), before_) << "nothing outside our tree is touched";
    MounterNamesTest::TearDown();
  }

  static std::string Component() {
    return VolumePaths::PublicationComponent({.consumer = "web", .name = ""});
  }
  // Where the link lies, and what it stands for.
  [[nodiscard]] std::string Place() const {
    const std::string volume = Tree() + "/" + VolumePaths::VolumeKey("hp", "v1");
    const std::string_view place = GetParam();
    if (place == "Volume") return volume;
    if (place == "Publish") return volume + "/publish";
    if (place == "Publication") return volume + "/publish/" + Component();
    if (place == "Target") return volume + "/publish/" + Component() + "/target";
    return volume + "/staging";
  }
  [[nodiscard]] std::string LeadsTo() const {
    const std::string_view place = GetParam();
    if (place == "Publish") return outside_ + "/publish";
    if (place == "Publication") return outside_ + "/publish/" + Component();
    if (place == "Target") return outside_ + "/target";
    if (place == "Staging") return outside_ + "/staging";
    return outside_;
  }
  // Every path out there with its mode, size and content, and what is mounted on it.
  [[nodiscard]] std::vector<std::string> Outside() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(outside_)) {
      struct stat info{};
      EXPECT_EQ(lstat(entry.path().c_str(), &info), 0);
      const auto content = ReadFile(entry.path().string(), 100);
      all.push_back(fmt::format("{} {:o} {}:{} {}", entry.path().string(), info.st_mode, info.st_uid,
                                info.st_gid, content.ok() ? *content : ""));
    }
    const auto mounts = MountsBeneath(outside_, 100);
    EXPECT_TRUE(mounts.ok()) << mounts.status();
    for (const Mount& mount : *mounts) all.push_back("mounted: " + mount.target);
    std::ranges::sort(all);
    return all;
  }

  const std::string outside_ = directory_ + "/outside";
  std::vector<std::string> before_;
};

TEST_P(MounterSymlinkTest, Fault27ASymlinkInTheWayIsNotFollowedByAPublish) {
  const std::string place = Place();
  std::filesystem::create_directories(std::filesystem::path(place).parent_path());
  ASSERT_EQ(symlink(LeadsTo().c_str(), place.c_str()), 0) << strerror(errno);
  const auto refused = loop_.Run(mounter_->Publish(Request(), Clock::now() + std::chrono::milliseconds(300)));
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(plugin_.Log(), Not(Contains("NodePublishVolume v1"))) << "no plugin is given such a path";
  EXPECT_EQ(Outside(), before_);
  ASSERT_EQ(unlink(place.c_str()), 0) << "left where it was";
  ASSERT_TRUE(Unpublish(Request()).ok());
  ASSERT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_TRUE(Unpublish(Request()).ok());
}

TEST_P(MounterSymlinkTest, Fault27ASymlinkSwappedInIsNotFollowedByAnUnpublish) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  const std::string place = Place();
  // A directory with a mount on it cannot be renamed: it was unmounted before the swap.
  const std::string staging = View().staging_path;
  for (const std::string& path : {*target, staging}) {
    if (path == place) ASSERT_EQ(umount2(path.c_str(), UMOUNT_NOFOLLOW), 0) << strerror(errno);
  }
  ASSERT_EQ(rename(place.c_str(), (place + ".away").c_str()), 0) << strerror(errno);
  ASSERT_EQ(symlink(LeadsTo().c_str(), place.c_str()), 0) << strerror(errno);
  const auto refused =
      loop_.Run(mounter_->Unpublish(Undo(Request()), Clock::now() + std::chrono::milliseconds(300)));
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(View().volume_id.empty()) << "it is not called free";
  EXPECT_EQ(Outside(), before_);
  ASSERT_EQ(unlink(place.c_str()), 0) << "left where it was";
  ASSERT_EQ(rename((place + ".away").c_str(), place.c_str()), 0);
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
  EXPECT_THAT(InTree(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Places, MounterSymlinkTest,
                         ::testing::Values("Volume", "Publish", "Publication", "Target", "Staging"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace berth
