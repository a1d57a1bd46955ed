#include "spec/volume_spec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "base/file.h"
#include "base/status.h"
#include "base/toml_reader.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPath = "/etc/berth/volumes.d/data.toml";
constexpr const char* kLeast = "plugin = \"hostpath\"\nvolume = \"v1\"\n";

std::string Error(const std::string& content) {
  const absl::StatusOr<v1::PublishVolumeRequest> request = ParseVolumeSpec(kPath, content);
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << content;
  return std::string(MessageOf(request.status()));
}

std::string DeclaredError(const std::string& content) {
  const absl::StatusOr<DeclaredVolume> volume = ParseDeclaredVolume(kPath, content);
  EXPECT_EQ(volume.status().code(), absl::StatusCode::kInvalidArgument) << content;
  return std::string(MessageOf(volume.status()));
}

v1::PublishVolumeRequest Good(const std::string& content) {
  const absl::StatusOr<v1::PublishVolumeRequest> request = ParseVolumeSpec(kPath, content);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.value_or(v1::PublishVolumeRequest());
}

TEST(VolumeSpecTest, EveryKeyArrivesInTheRequest) {
  const v1::PublishVolumeRequest request = Good(R"(
plugin = "hostpath"
volume = "v1"
consumer = "postgresql"
name = "data"
access_mode = "single-node-writer"
access_type = "mount"
fs_type = "ext4"
mount_flags = ["noatime", "nodev"]
volume_mount_group = "1000"
owner = "root"
group = 7
mode = "2750"
recursive = true
selinux_label = "system_u:object_r:container_file_t:s0"
secrets_file = "/etc/berth/secrets/v1"
unit = "postgresql.service"
remount = true
ephemeral = true
[context]
kind = "ext4"
"odd key" = ""
[publish_context]
device = "/dev/sdb"
[mount_options]
fs_type = "xfs"
mount_flags = ["nodev"]
)");
  EXPECT_EQ(request.plugin_id(), "hostpath");
  EXPECT_EQ(request.volume_id(), "v1");
  EXPECT_EQ(request.consumer(), "postgresql");
  EXPECT_EQ(request.name(), "data");
  EXPECT_EQ(request.capability().access_mode(), v1::SINGLE_NODE_WRITER);
  EXPECT_EQ(request.capability().access_type(), v1::MOUNT);
  EXPECT_EQ(request.capability().fs_type(), "ext4");
  EXPECT_THAT(request.capability().mount_flags(), testing::ElementsAre("noatime", "nodev"));
  EXPECT_EQ(request.capability().volume_mount_group(), "1000");
  EXPECT_FALSE(request.readonly());
  EXPECT_EQ(request.permissions().owner(), 0U);
  EXPECT_EQ(request.permissions().group(), 7U);
  EXPECT_EQ(request.permissions().mode(), 02750U);
  EXPECT_TRUE(request.permissions().recursive());
  EXPECT_EQ(request.permissions().selinux_label(), "system_u:object_r:container_file_t:s0");
  EXPECT_EQ(request.secrets_reference().file(), "/etc/berth/secrets/v1");
  EXPECT_EQ(request.life().unit(), "postgresql.service");
  EXPECT_TRUE(request.remount());
  EXPECT_TRUE(request.ephemeral());
  EXPECT_EQ(request.volume_context().at("kind"), "ext4");
  EXPECT_EQ(request.volume_context().at("odd key"), "");
  EXPECT_EQ(request.publish_context().values().at("device"), "/dev/sdb");
  EXPECT_EQ(request.mount_options().fs_type(), "xfs");
  EXPECT_THAT(request.mount_options().mount_flags().values(), testing::ElementsAre("nodev"));
}

TEST(VolumeSpecTest, MountOptionsOfOneUse) {
  const v1::PublishVolumeRequest none = Good("[mount_options]\nmount_flags = []\n");
  EXPECT_TRUE(none.mount_options().has_mount_flags()) << "none at all, whatever the volume has";
  EXPECT_FALSE(none.mount_options().has_fs_type());
  EXPECT_FALSE(Good("").has_mount_options());
  EXPECT_THAT(Error("[mount_options]\nflags = []\nfs_type = 3\nmount_flags = [\"\"]\n"),
              AllOf(HasSubstr("mount_options.flags: unknown key"), HasSubstr("mount_options.fs_type"),
                    HasSubstr("mount_options.mount_flags[0]: must not be empty")));
  EXPECT_THAT(Error("access_type = \"block\"\n[mount_options]\n"), HasSubstr("only with a file system"));
}

TEST(VolumeSpecTest, WhatIsNotSaidStaysUnset) {
  const v1::PublishVolumeRequest request = Good("");
  EXPECT_TRUE(request.plugin_id().empty());
  EXPECT_TRUE(request.consumer().empty());
  EXPECT_EQ(request.capability().access_mode(), v1::ACCESS_MODE_UNKNOWN);
  EXPECT_FALSE(request.has_permissions());
  EXPECT_FALSE(request.has_secrets_reference());
  EXPECT_FALSE(request.has_life());
  EXPECT_FALSE(request.has_publish_context());
  EXPECT_FALSE(request.remount());
}

TEST(VolumeSpecTest, AnEmptyPublishContextSaysThatItIsAttached) {
  EXPECT_TRUE(Good("[publish_context]\n").has_publish_context());
}

TEST(VolumeSpecTest, EveryMistakeIsNamedAtOnceInTheFilesOrder) {
  const std::string error = Error(R"(plugin = ""
volume = 3
acces_mode = "SINGLE_NODE_WRITER"
access_mode = "sometimes"
access_type = "tape"
mount_flags = ["noatime", ""]
readonly = "yes"
mode = 750
secrets_file = "secrets"
cgroup = "system.slice"
[context]
size = 10
)");
  EXPECT_EQ(
      error,
      "/etc/berth/volumes.d/data.toml:1: plugin: must not be empty\n"
      "/etc/berth/volumes.d/data.toml:2: volume: is an integer, and must be a string\n"
      "/etc/berth/volumes.d/data.toml:3: acces_mode: unknown key; did you mean access_mode?\n"
      "/etc/berth/volumes.d/data.toml:4: access_mode: there is no \"sometimes\"; there are "
      "SINGLE_NODE_WRITER, SINGLE_NODE_READER_ONLY, MULTI_NODE_READER_ONLY, MULTI_NODE_SINGLE_WRITER, "
      "MULTI_NODE_MULTI_WRITER, SINGLE_NODE_SINGLE_WRITER, SINGLE_NODE_MULTI_WRITER\n"
      "/etc/berth/volumes.d/data.toml:5: access_type: must be \"mount\" or \"block\", and is \"tape\"\n"
      "/etc/berth/volumes.d/data.toml:6: mount_flags[1]: must not be empty\n"
      "/etc/berth/volumes.d/data.toml:7: readonly: is a string, and must be true or false\n"
      "/etc/berth/volumes.d/data.toml:8: mode: is an integer, and must be a string of octal digits, from "
      "0000 to 7777, such as 0750\n"
      "/etc/berth/volumes.d/data.toml:9: secrets_file: must be an absolute path\n"
      "/etc/berth/volumes.d/data.toml:10: cgroup: must be an absolute path\n"
      "/etc/berth/volumes.d/data.toml:12: context.size: is an integer, and must be a string");
}

TEST(VolumeSpecTest, SecretsAreNotForThisFile) {
  EXPECT_THAT(Error("[secrets]\npassword = \"hunter2\"\n"),
              AllOf(HasSubstr("do not belong into this file: secrets_file"), Not(HasSubstr("hunter2"))));
}

TEST(VolumeSpecTest, ContradictionsAreMistakes) {
  EXPECT_THAT(Error("access_type = \"block\"\nfs_type = \"ext4\"\nmode = \"0700\"\n"),
              AllOf(HasSubstr("data.toml:2: fs_type: only with a file system"),
                    HasSubstr("data.toml:3: mode: only with a file system")));
  EXPECT_THAT(Error("readonly = true\nowner = 5\n"), HasSubstr("owner: not with readonly = true"));
  EXPECT_THAT(Error("recursive = true\nmode = \"0700\"\n"), HasSubstr("recursive: goes with owner or group"));
  EXPECT_THAT(Error("secrets_file = \"/a\"\nsecrets_credential = \"b\"\n"),
              HasSubstr("secrets_credential: not together with secrets_file"));
  EXPECT_THAT(Error("secrets_credential = \"a/b\"\n"), HasSubstr("without a slash"));
  EXPECT_THAT(Error("cgroup = \"/sys/fs/cgroup/a\"\nunit = \"b.service\"\npid = 3\n"),
              AllOf(HasSubstr("data.toml:1: cgroup: not together with pid"),
                    HasSubstr("data.toml:2: unit: not together with pid")));
}

TEST(VolumeSpecTest, OwnersWhoDoNotExistAndModesThatAreNoneAreMistakes) {
  EXPECT_THAT(Error("owner = \"no-such-user-here\"\ngroup = -1\n"),
              AllOf(HasSubstr("data.toml:1: owner: there is no user no-such-user-here on this node"),
                    HasSubstr("data.toml:2: group: '-1' is neither a group's name nor a number")));
  EXPECT_THAT(Error("owner = true\n"), HasSubstr("owner: is true or false, and must be a name or a number"));
  EXPECT_THAT(Error("mode = \"0888\"\n"), HasSubstr("mode: '0888' is no mode"));
}

TEST(VolumeSpecTest, WhatIsNotTomlSaysWhere) {
  EXPECT_THAT(Error("plugin = \"x\"\nvolume = \n"), HasSubstr("data.toml:2: not TOML"));
}

TEST(VolumeSpecTest, AFileIsReadAndAMissingOneIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ReadVolumeSpec("/nonexistent/volume.toml").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadVolumeSpec("/dev/null").status()));
  EXPECT_TRUE(ReadDeclaredVolume(std::string(SPEC_SOURCE_DIR) + "/example-volume.toml").ok());
}

TEST(VolumeSpecTest, ADeclaredVolumeIsCompleteWithoutAConsumer) {
  const absl::StatusOr<DeclaredVolume> volume = ParseDeclaredVolume(kPath, kLeast);
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->request.consumer(), "declared/data");
  EXPECT_TRUE(volume->request.remount());
  EXPECT_FALSE(volume->attach.has_value());
}

TEST(VolumeSpecTest, ADeclaredVolumeMayChooseItsOwn) {
  const absl::StatusOr<DeclaredVolume> volume = ParseDeclaredVolume(
      kPath, std::string(kLeast) + "consumer = \"web\"\nremount = false\nattach = false\n");
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->request.consumer(), "web");
  EXPECT_FALSE(volume->request.remount());
  EXPECT_EQ(volume->attach, false);
}

TEST(VolumeSpecTest, ADeclaredVolumeMustNameItsPluginAndItsVolume) {
  EXPECT_THAT(DeclaredError("readonly = true\n"), AllOf(HasSubstr("data.toml:1: plugin: is missing"),
                                                        HasSubstr("data.toml:1: volume: is missing")));
  EXPECT_THAT(DeclaredError(std::string(kLeast) + "pid = 4\n"), HasSubstr("pid: not in volumes.d"));
  EXPECT_THAT(DeclaredError(std::string(kLeast) + "attach = true\n[publish_context]\n"),
              HasSubstr("attach: not together with publish_context"));
}

TEST(VolumeSpecTest, AttachIsForVolumesDOnly) {
  EXPECT_THAT(Error("attach = true\n"), HasSubstr("attach: only for files in volumes.d"));
}

std::string Example() {
  const absl::StatusOr<std::string> text =
      ReadFile(std::string(SPEC_SOURCE_DIR) + "/example-volume.toml", 100'000);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(VolumeSpecTest, TheExampleIsValidWithEveryKeyUncommented) {
  const std::string example = Example();
  const v1::PublishVolumeRequest as_is = Good(example);
  EXPECT_EQ(as_is.plugin_id(), "hostpath");
  std::string all = std::regex_replace(example, std::regex("(^|\n)#(?=[a-z_]+ = |\\[)"), "$1");
  // Of those that exclude each other one stays.
  all = std::regex_replace(
      all, std::regex("\n(secrets_credential|pid|cgroup|attach|path|path_options) = [^\n]*"), "");
  const v1::PublishVolumeRequest request = Good(all);
  EXPECT_EQ(request.consumer(), "postgresql");
  EXPECT_EQ(request.volume_context().at("kind"), "ext4");
  EXPECT_EQ(request.permissions().mode(), 0750U);
  EXPECT_EQ(request.secrets_reference().file(), "/etc/berth/secrets/vol-1");
}

TEST(VolumeSpecTest, TheExampleAndTheManualShowEveryKey) {
  const std::string example = Example();
  const absl::StatusOr<std::string> manual =
      ReadFile(std::string(SPEC_SOURCE_DIR) + "/../docs/man/berth-volume.toml.5", 100'000);
  ASSERT_TRUE(manual.ok()) << manual.status();
  // An unknown key is answered with those there are.
  const std::string error = Error("qqqqqqqqqqqqqqqqqqqq = 1\n");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(error, match, std::regex("there are ([a-z_, ]+)"))) << error;
  const std::string list = match[1];
  const std::regex word("[a-z_]+");
  size_t keys = 0;
  for (std::sregex_iterator i(list.begin(), list.end(), word), end; i != end; ++i) {
    const std::string key = i->str();
    ++keys;
    EXPECT_TRUE(std::regex_search(example, std::regex("\n#?(" + key + " = |\\[" + key + "\\]\n)"))) << key;
    EXPECT_TRUE(std::regex_search(*manual, std::regex("Cm .*\\b" + key + "\\b"))) << key;
  }
  EXPECT_EQ(keys, 29U);
}

TEST(DeclaredVolumeTest, Path) {
  const auto volume = ParseDeclaredVolume("/d/db.toml",
                                          "plugin = \"p\"\nvolume = \"v\"\npath = \"/srv/db\"\n"
                                          "path_options = [\"suid\"]\n");
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->path, "/srv/db");
  EXPECT_TRUE(volume->path_suid);
  EXPECT_FALSE(volume->path_dev);
}

TEST(DeclaredVolumeTest, PathMistakesNameFileLineKeyAndWhatIsRight) {
  const auto mistakes = [](const std::string& more) {
    const auto volume = ParseDeclaredVolume("/d/db.toml", "plugin = \"p\"\nvolume = \"v\"\n" + more);
    return std::string(volume.status().message());
  };
  for (const char* path :
       {"srv/db", "/", "/srv/db/", "/srv//db", "/srv/../db", "/srv/.", "/proc/x", "/sys", "/dev/x", ""}) {
    EXPECT_THAT(mistakes(std::string("path = \"") + path + "\"\n"),
                testing::HasSubstr("/d/db.toml:3: path: "))
        << path;
  }
  EXPECT_EQ(mistakes("path = \"/devices/x\"\n"), "");
  EXPECT_THAT(mistakes("path = \"/srv/db\"\naccess_type = \"block\"\n"),
              testing::HasSubstr("only with a file system"));
  EXPECT_THAT(
      mistakes("path = \"/srv/db\"\npath_options = [\"exec\"]\n"),
      testing::HasSubstr("/d/db.toml:4: path_options: there is no \"exec\"; there are \"suid\" and \"dev\""));
  EXPECT_THAT(mistakes("path_options = [\"suid\"]\n"), testing::HasSubstr("goes with path"));
  const auto spec = ParseVolumeSpec("v.toml", "path = \"/srv/db\"\n");
  EXPECT_THAT(std::string(spec.status().message()),
              testing::HasSubstr("v.toml:1: path: only for files in volumes.d"));
}

}  // namespace
}  // namespace berth
