#include "supervisor/placed_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/testing/temp_dir.h"
#include "supervisor/testing/plugin_files.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PlacedFilesTest : public ::testing::Test {
 protected:
  PlacedFilesTest() { EXPECT_TRUE(MakeDirectories(people_, 0755).ok()); }

  absl::Status Write(const std::string& id, const std::string& content) {
    return WritePlacedFile(people_, paths_, id, content);
  }
  std::vector<PluginFile> Load() { return LoadPluginDir(people_, paths_, {}).value(); }

  TempDir temp_;
  const std::string people_ = temp_.Path("etc/plugins.d");
  const PluginPaths paths_{.runtime_dir = temp_.Path("run"),
                           .state_dir = temp_.Path("state"),
                           .node_id = "n",
                           .credentials_dir = ""};
};

TEST_F(PlacedFilesTest, AFileIsAPluginUntilItIsRemoved) {
  EXPECT_EQ(Load().size(), 0U);
  ASSERT_EQ(Write("nfs", kLeastPluginFile), absl::OkStatus());
  ASSERT_EQ(Write("nfs", std::string(kLeastPluginFile) + "enabled = false"), absl::OkStatus());
  const std::vector<PluginFile> files = Load();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].id, "nfs");
  ASSERT_TRUE(files[0].config.ok()) << files[0].config.status();
  EXPECT_FALSE(files[0].config->enabled) << "the later one counts";
  EXPECT_TRUE(IsPlacedFile(paths_, files[0].path));
  EXPECT_THAT(ReadFile(files[0].path, 1 << 20).value(), HasSubstr("# Placed by this node's scheduler"));
  struct stat info{};
  ASSERT_EQ(stat(files[0].path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U) << "its environment may hold what is not for everybody";

  EXPECT_TRUE(RemovePlacedFile(paths_, "nfs").value());
  EXPECT_FALSE(RemovePlacedFile(paths_, "nfs").value());
  EXPECT_EQ(Load().size(), 0U);
}

TEST_F(PlacedFilesTest, APersonsFileIsNeverChangedWhateverItsNameOrMistakes) {
  temp_.Write("etc/plugins.d/other.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("etc/plugins.d/ceph.toml", "kind = \n");
  for (const char* id : {"nfs", "ceph"}) {
    const absl::Status refused = Write(id, kLeastPluginFile);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(people_));
  }
  EXPECT_EQ(Load().size(), 2U);
  EXPECT_EQ(Write("smb", kLeastPluginFile), absl::OkStatus());
  EXPECT_FALSE(IsPlacedFile(paths_, people_ + "/other.toml"));
}

TEST_F(PlacedFilesTest, EveryMistakeIsNamedByItsLine) {
  const auto check = [this](const std::string& id, const std::string& content) {
    const auto checked = CheckPlacedFile(paths_, id, content);
    EXPECT_EQ(checked.status().code(), absl::StatusCode::kInvalidArgument) << content.substr(0, 80);
    return std::string(checked.status().message());
  };
  EXPECT_TRUE(CheckPlacedFile(paths_, "nfs", kLeastPluginFile).ok());
  EXPECT_THAT(check("nfs", std::string(kLeastPluginFile) + "colour = \"red\"\nshape = 1\n"),
              testing::AllOf(HasSubstr("nfs.toml:3: colour"), HasSubstr("nfs.toml:4: shape")));
  EXPECT_THAT(check("nfs", std::string("id = \"ceph\"\n") + kLeastPluginFile), HasSubstr("must be \"nfs\""));
  EXPECT_THAT(check("nfs", std::string(size_t{65} << 10, '#')), HasSubstr("bytes long"));
  for (const char* id : {"", "../nfs", "NFS", "a/b", ".hidden"}) {
    EXPECT_THAT(check(id, kLeastPluginFile), StartsWith("id: "));
    EXPECT_FALSE(RemovePlacedFile(paths_, id).ok());
    EXPECT_FALSE(Write(id, kLeastPluginFile).ok());
  }
}

}  // namespace
}  // namespace berth
