// Real files in a directory of the test's own.
#include "declared/declared_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class DeclaredFilesTest : public testing::Test {
 protected:
  std::vector<DeclaredFile> Read() {
    auto files = ReadDeclaredFiles(dir_.path());
    EXPECT_TRUE(files.ok()) << files.status();
    return files.value_or(std::vector<DeclaredFile>{});
  }
  DeclaredReload Take() { return TakeIn(Read(), &set_); }

  TempDir dir_;
  DeclaredSet set_;
};

TEST_F(DeclaredFilesTest, ReadsWhatIsDeclared) {
  dir_.Write("data.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nreadonly = true\n");
  dir_.Write("notes.txt", "not ours");
  dir_.Write(".hidden.toml", "not ours");
  const std::vector<DeclaredFile> files = Read();
  ASSERT_EQ(files.size(), 1);
  ASSERT_TRUE(files[0].use.ok()) << files[0].use.status();
  const PublishRequest& request = files[0].use->request;
  EXPECT_EQ(request.plugin_id, "nfs");
  EXPECT_EQ(request.volume_id, "v1");
  EXPECT_EQ(request.consumer, "declared/data");
  EXPECT_EQ(request.origin, Origin::kDeclared);
  EXPECT_TRUE(request.readonly);
  EXPECT_TRUE(request.remount);
  EXPECT_EQ(files[0].request.volume_id(), "v1");
}

TEST_F(DeclaredFilesTest, BrokenFileNamesEveryMistakeAndHarmsNoOther) {
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\n");
  dir_.Write("b.toml", "plugin = 3\nvolume = \"v2\"\ncolour = \"red\"\n");
  dir_.Write("c.toml", "volume = \n");
  const std::vector<DeclaredFile> files = Read();
  ASSERT_EQ(files.size(), 3);
  EXPECT_TRUE(files[0].use.ok());
  EXPECT_THAT(std::string(MessageOf(files[1].use.status())),
              AllOf(HasSubstr("b.toml:1: plugin"), HasSubstr("b.toml:3: colour: unknown key")));
  EXPECT_THAT(std::string(MessageOf(files[2].use.status())), HasSubstr("c.toml:1: not TOML"));
}

TEST_F(DeclaredFilesTest, TwoFilesCannotDeclareTheSameUse) {
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"web\"\n");
  dir_.Write("b.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"web\"\n");
  dir_.Write("c.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"web\"\nname = \"again\"\n");
  const std::vector<DeclaredFile> files = Read();
  ASSERT_EQ(files.size(), 3);
  EXPECT_TRUE(files[0].use.ok());
  EXPECT_THAT(std::string(MessageOf(files[1].use.status())), HasSubstr("a.toml declares the same volume"));
  EXPECT_TRUE(files[2].use.ok());
}

// A copy of a file with a name that sorts first.
TEST_F(DeclaredFilesTest, OfTwoFilesThatDeclareTheSameUseTheOneInUseKeepsIt) {
  dir_.Write("db-test.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"db\"\nreadonly = true\n");
  dir_.Write("db.toml", "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"db\"\n");
  const auto files = ReadDeclaredFiles(dir_.path(), {"db.toml", "gone.toml"});
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2);
  EXPECT_EQ((*files)[0].name, "db-test.toml");
  EXPECT_THAT(std::string(MessageOf((*files)[0].use.status())),
              AllOf(HasSubstr("db-test.toml"), HasSubstr("db.toml declares the same volume")));
  EXPECT_TRUE((*files)[1].use.ok()) << (*files)[1].use.status();
}

TEST_F(DeclaredFilesTest, MissingDirectoryIsTold) {
  EXPECT_TRUE(absl::IsNotFound(ReadDeclaredFiles(dir_.Path("none")).status()));
}

TEST_F(DeclaredFilesTest, ReloadTellsWhatIsNewGoneChangedAndBroken) {
  dir_.Write("same.toml", "plugin = \"p\"\nvolume = \"v1\"\n");
  dir_.Write("changed.toml", "plugin = \"p\"\nvolume = \"v2\"\n");
  dir_.Write("touched.toml", "plugin = \"p\"\nvolume = \"v3\"\n");
  dir_.Write("gone.toml", "plugin = \"p\"\nvolume = \"v4\"\n");
  dir_.Write("broken.toml", "plugin = \"p\"\nvolume = \"v5\"\n");
  EXPECT_THAT(Take().declared,
              ElementsAre("broken.toml", "changed.toml", "gone.toml", "same.toml", "touched.toml"));
  dir_.Write("changed.toml", "plugin = \"p\"\nvolume = \"v2\"\nreadonly = true\n");
  dir_.Write("touched.toml", "# a word\nplugin = \"p\"\nvolume = \"v3\"\nremount = false\n");
  dir_.Remove("gone.toml");
  dir_.Write("broken.toml", "plugin = \n");
  dir_.Write("fresh.toml", "plugin = \"p\"\nvolume = \"v6\"\n");
  const DeclaredReload report = Take();
  EXPECT_THAT(report.declared, ElementsAre("fresh.toml"));
  EXPECT_THAT(report.withdrawn, ElementsAre("gone.toml"));
  EXPECT_THAT(report.changed, ElementsAre("changed.toml"));
  EXPECT_THAT(report.broken, ElementsAre(StartsWith(dir_.path() + "/broken.toml:1: ")));
  EXPECT_EQ(set_.uses.at("broken.toml").request.volume_id, "v5") << "it declares what it did";
  EXPECT_FALSE(set_.uses.at("touched.toml").request.remount);
  // Repaired to its old content: nothing has changed.
  dir_.Write("broken.toml", "plugin = \"p\"\nvolume = \"v5\"\n");
  const DeclaredReload again = Take();
  EXPECT_THAT(again.declared, IsEmpty());
  EXPECT_THAT(again.changed, IsEmpty());
  EXPECT_THAT(again.broken, IsEmpty());
  // Broken, and then gone: withdrawn.
  dir_.Write("fresh.toml", "plugin = \n");
  EXPECT_THAT(Take().withdrawn, IsEmpty());
  dir_.Remove("fresh.toml");
  EXPECT_THAT(Take().withdrawn, ElementsAre("fresh.toml"));
}

TEST_F(DeclaredFilesTest, TwoFilesCannotHaveOnePath) {
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\npath = \"/srv/db\"\n");
  dir_.Write("b.toml", "plugin = \"nfs\"\nvolume = \"v2\"\npath = \"/srv/db\"\n");
  dir_.Write("c.toml", "plugin = \"nfs\"\nvolume = \"v3\"\npath = \"/srv/db/inner\"\n");
  dir_.Write("d.toml", "plugin = \"nfs\"\nvolume = \"v4\"\npath = \"/srv/db2\"\n");
  const std::vector<DeclaredFile> files = Read();
  ASSERT_EQ(files.size(), 4);
  ASSERT_TRUE(files[0].use.ok()) << files[0].use.status();
  EXPECT_EQ(files[0].use->request.path.path, "/srv/db");
  EXPECT_THAT(std::string(MessageOf(files[1].use.status())),
              AllOf(HasSubstr("b.toml: path: /srv/db"), HasSubstr("a.toml mounts another volume")));
  EXPECT_THAT(std::string(MessageOf(files[2].use.status())), HasSubstr("none in another"));
  EXPECT_TRUE(files[3].use.ok()) << files[3].use.status();
}

TEST_F(DeclaredFilesTest, NoPathIsInADirectoryOfBerthds) {
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\npath = \"/var/lib/berth/volumes\"\n");
  dir_.Write("b.toml", "plugin = \"nfs\"\nvolume = \"v2\"\npath = \"/var/lib\"\n");
  const auto files = ReadDeclaredFiles(dir_.path(), {}, {"/var/lib/berth", "/run/berth"});
  ASSERT_TRUE(files.ok());
  for (const DeclaredFile& file : *files) {
    EXPECT_THAT(std::string(MessageOf(file.use.status())), HasSubstr("which is berthd's own")) << file.name;
  }
}

TEST_F(DeclaredFilesTest, AnotherPathTakesNoOtherMount) {
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\npath = \"/srv/db\"\n");
  const std::string before = Read().at(0).use->mount_digest;
  dir_.Write("a.toml", "plugin = \"nfs\"\nvolume = \"v1\"\npath = \"/srv/other\"\n");
  EXPECT_EQ(Read().at(0).use->mount_digest, before);
}

}  // namespace
}  // namespace berth
