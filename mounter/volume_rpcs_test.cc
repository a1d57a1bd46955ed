#include "mounter/volume_rpcs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

constexpr char kTree[] = "/var/lib/berth/volumes";

TEST(VolumeRpcsTest, PathsBeneathTheTreeAreTranslated) {
  EXPECT_EQ(PathSeenByPlugin("/var/lib/berth/volumes/ab/staging", kTree, "/csi/v"), "/csi/v/ab/staging");
  EXPECT_EQ(PathSeenByPlugin("/var/lib/berth/volumes/ab/staging", kTree, kTree),
            "/var/lib/berth/volumes/ab/staging");
  EXPECT_EQ(PathSeenByPlugin("/var/lib/berth/volumes", kTree, "/csi/v"), "/csi/v");
}

TEST(VolumeRpcsTest, PathsOutsideTheTreeAreNot) {
  for (const char* path : {"", "/", "/var/lib/berth", "/var/lib/berth/volumes2/ab", "/var/lib/berth/volume",
                           "/x/var/lib/berth/volumes/ab", "var/lib/berth/volumes/ab"}) {
    EXPECT_EQ(PathSeenByPlugin(path, kTree, "/csi/v"), path);
  }
}

TEST(VolumeRpcsTest, WithoutAnotherPlaceNothingIsTranslated) {
  EXPECT_EQ(PathSeenByPlugin("/var/lib/berth/volumes/ab", kTree, ""), "/var/lib/berth/volumes/ab");
  EXPECT_EQ(PathSeenByPlugin("/ab", "", "/csi"), "/ab");
}

TEST(VolumeRpcsTest, EveryPathOfARequestIsTranslated) {
  const std::string staging = std::string(kTree) + "/ab/staging";
  const std::string target = std::string(kTree) + "/ab/publish/cd/target";
  ::csi::v1::NodePublishVolumeRequest publish;
  publish.set_staging_target_path(staging);
  publish.set_target_path(target);
  publish = SeenByPlugin(std::move(publish), kTree, "/v");
  EXPECT_EQ(publish.staging_target_path(), "/v/ab/staging");
  EXPECT_EQ(publish.target_path(), "/v/ab/publish/cd/target");
  // A plugin that does not stage is given no staging path, translated or not.
  ::csi::v1::NodeExpandVolumeRequest expand;
  expand.set_volume_path(target);
  expand = SeenByPlugin(std::move(expand), kTree, "/v");
  EXPECT_EQ(expand.volume_path(), "/v/ab/publish/cd/target");
  EXPECT_EQ(expand.staging_target_path(), "");
  ::csi::v1::NodeUnstageVolumeRequest unstage;
  unstage.set_staging_target_path(staging);
  EXPECT_EQ(SeenByPlugin(unstage, kTree, "/v").staging_target_path(), "/v/ab/staging");
  EXPECT_EQ(SeenByPlugin(unstage, kTree, "").staging_target_path(), staging);
}

TEST(VolumeRpcsTest, Fault56AVolumeIsGrownWhereItMayBeWritten) {
  const TempDir temp;
  std::filesystem::create_directory(VolumePaths::TreeIn(temp.path()));
  const auto paths = VolumePaths::Open(temp.path());
  ASSERT_TRUE(paths.ok()) << paths.status();
  VolumeRecord record;
  record.plugin_id = "p";
  record.volume_id = "v";
  EXPECT_EQ(ExpansionPath(record, *paths), std::nullopt);
  PublicationRecord reader;
  reader.component = "r";
  reader.readonly = true;
  reader.state = PublicationState::kPublished;
  record.publications = {reader};
  EXPECT_EQ(ExpansionPath(record, *paths), std::nullopt) << "later";
  record.stages = true;
  record.stage_state = StageState::kStaged;
  EXPECT_EQ(ExpansionPath(record, *paths), paths->StagingPath(record));
  PublicationRecord writer = reader;
  writer.component = "w";
  writer.readonly = false;
  record.publications.push_back(writer);
  EXPECT_EQ(ExpansionPath(record, *paths), paths->TargetPath(record, writer));
  record.use.access_mode = ::csi::v1::VolumeCapability::AccessMode::MULTI_NODE_READER_ONLY;
  EXPECT_EQ(ExpansionPath(record, *paths), std::nullopt) << "never";
}

TEST(VolumeRpcsTest, AMountGroupIsPartOfTheCapability) {
  VolumeRecord record;
  record.use.volume_mount_group = "100";
  EXPECT_EQ(CapabilityOf(record).mount().volume_mount_group(), "100");
}

// CSI 1.13 has no other paths; should a later one have, this is where to think of them.
TEST(VolumeRpcsTest, NoRequestOfTheNodeServiceHasAnotherPath) {
  const auto* node = ::csi::v1::NodeStageVolumeRequest::descriptor()->file()->FindServiceByName("Node");
  ASSERT_NE(node, nullptr);
  for (int i = 0; i < node->method_count(); ++i) {
    const auto* request = node->method(i)->input_type();
    for (int j = 0; j < request->field_count(); ++j) {
      const std::string& name = request->field(j)->name();
      if (name.find("path") == std::string::npos) continue;
      EXPECT_TRUE(name == "staging_target_path" || name == "target_path" || name == "volume_path" ||
                  name == "volume_publish_path")
          << request->name() << "." << name;
    }
  }
}

}  // namespace
}  // namespace berth
