#include "cli/publish_options.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/runtimes.h"

namespace berth::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PublishOptions Least() {
  PublishOptions options;
  options.plugin = "nfs";
  options.volume = "v1";
  options.consumer = "job-1";
  return options;
}

v1::PublishVolumeRequest FromFile() {
  v1::PublishVolumeRequest file;
  file.set_plugin_id("hostpath");
  file.set_volume_id("from-file");
  file.set_consumer("c");
  file.set_readonly(true);
  file.mutable_capability()->set_fs_type("ext4");
  file.mutable_capability()->add_mount_flags("noatime");
  file.mutable_capability()->set_volume_mount_group("5");
  file.mutable_secrets_reference()->set_file("/etc/secret");
  file.mutable_life()->set_unit("a.service");
  file.set_remount(true);
  (*file.mutable_volume_context())["a"] = "1";
  (*file.mutable_volume_context())["b"] = "2";
  return file;
}

v1::PublishVolumeRequest Good(const v1::PublishVolumeRequest& file, const PublishOptions& options) {
  const absl::StatusOr<v1::PublishVolumeRequest> request = WithOptions(file, options);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.value_or(v1::PublishVolumeRequest());
}

std::string Wrong(const PublishOptions& options) {
  const absl::Status status = WithOptions({}, options).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  return std::string(MessageOf(status));
}

TEST(PublishOptionsTest, WithoutOptionsTheFileIsTheRequest) {
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(Good(FromFile(), {}), FromFile()));
}

TEST(PublishOptionsTest, OptionsTakeThePlaceOfWhatTheFileSays) {
  PublishOptions options;
  options.volume = "other";
  options.readonly = false;
  options.capability.fs = "xfs";
  options.capability.mount_flags = {"nodev", "nosuid"};
  options.secrets_reference = "credential:nfs";
  options.pid = 77;
  options.remount = false;
  options.context = {"b=3", "c=4"};
  options.mode = "0750";
  const v1::PublishVolumeRequest request = Good(FromFile(), options);
  EXPECT_EQ(request.plugin_id(), "hostpath");
  EXPECT_EQ(request.volume_id(), "other");
  EXPECT_FALSE(request.readonly());
  EXPECT_EQ(request.capability().fs_type(), "xfs");
  EXPECT_THAT(request.capability().mount_flags(), ElementsAre("nodev", "nosuid"));
  EXPECT_EQ(request.capability().volume_mount_group(), "5");
  EXPECT_EQ(request.secrets_reference().credential(), "nfs");
  EXPECT_EQ(request.life().pid(), 77);
  EXPECT_FALSE(request.remount());
  EXPECT_EQ(request.volume_context().at("a"), "1");
  EXPECT_EQ(request.volume_context().at("b"), "3");
  EXPECT_EQ(request.volume_context().at("c"), "4");
  EXPECT_EQ(request.permissions().mode(), 0750U);
}

TEST(PublishOptionsTest, SecretsOfTheCommandLineReplaceTheFilesReference) {
  PublishOptions options;
  options.secrets_file = "/somewhere";
  EXPECT_FALSE(Good(FromFile(), options).has_secrets_reference());
}

TEST(PublishOptionsTest, ABlockDeviceHasNothingOfTheFilesFileSystem) {
  PublishOptions options;
  options.capability.block = true;
  const v1::PublishVolumeRequest request = Good(FromFile(), options);
  EXPECT_EQ(request.capability().access_type(), v1::BLOCK);
  EXPECT_TRUE(request.capability().fs_type().empty());
  EXPECT_TRUE(request.capability().mount_flags().empty());
  EXPECT_TRUE(request.capability().volume_mount_group().empty());
}

TEST(PublishOptionsTest, MountOptionsOfThisUse) {
  v1::PublishVolumeRequest file = FromFile();
  file.mutable_mount_options()->set_fs_type("ext3");
  file.mutable_mount_options()->mutable_mount_flags()->add_values("ro");
  PublishOptions options;
  options.use_fs = "xfs";
  options.use_mount_flags = {"nodev", "nosuid"};
  v1::PublishVolumeRequest request = Good(file, options);
  EXPECT_EQ(request.mount_options().fs_type(), "xfs");
  EXPECT_THAT(request.mount_options().mount_flags().values(), ElementsAre("nodev", "nosuid"));
  EXPECT_EQ(request.capability().fs_type(), FromFile().capability().fs_type()) << "the volume's stays";
  options.use_mount_flags = {""};
  request = Good(file, options);
  EXPECT_TRUE(request.mount_options().has_mount_flags());
  EXPECT_TRUE(request.mount_options().mount_flags().values().empty());
  EXPECT_THAT(Good(file, {}).mount_options().mount_flags().values(), ElementsAre("ro"));

  options = PublishOptions();
  options.capability.block = true;
  EXPECT_FALSE(Good(file, options).has_mount_options());
  options = Least();
  options.capability.block = true;
  options.use_mount_flags = {"nodev"};
  EXPECT_THAT(Wrong(options), HasSubstr("need a file system"));
}

TEST(PublishOptionsTest, OwnersAreLookedUp) {
  PublishOptions options = Least();
  options.owner = "root";
  options.group = "12";
  options.recursive = true;
  options.selinux_label = "l";
  const v1::PublishVolumeRequest request = Good({}, options);
  EXPECT_EQ(request.permissions().owner(), 0U);
  EXPECT_EQ(request.permissions().group(), 12U);
  EXPECT_TRUE(request.permissions().recursive());
  EXPECT_EQ(request.permissions().selinux_label(), "l");
  EXPECT_FALSE(Good({}, Least()).has_permissions());
}

TEST(PublishOptionsTest, WhatIsMissingOrDoesNotGoTogetherIsToldBeforeAnythingIsAsked) {
  for (const char* missing : {"plugin", "volume", "consumer"}) {
    PublishOptions options = Least();
    (missing == std::string("plugin")   ? options.plugin
     : missing == std::string("volume") ? options.volume
                                        : options.consumer)
        .clear();
    EXPECT_THAT(Wrong(options), HasSubstr(std::string("--") + missing + " is missing"));
  }
  PublishOptions options = Least();
  options.owner = "no-such-user-here";
  EXPECT_THAT(Wrong(options), HasSubstr("--owner: there is no user no-such-user-here"));
  options = Least();
  options.recursive = true;
  EXPECT_THAT(Wrong(options), HasSubstr("--recursive needs --owner"));
  options = Least();
  options.mode = "0700";
  options.readonly = true;
  EXPECT_THAT(Wrong(options), HasSubstr("do not go with --readonly"));
  options = Least();
  options.mode = "0700";
  options.capability.block = true;
  EXPECT_THAT(Wrong(options), HasSubstr("go with a file system"));
  options = Least();
  options.mount_group = "5";
  options.capability.block = true;
  EXPECT_THAT(Wrong(options), HasSubstr("--mount-group go with a file system"));
}

TEST(PublishOptionsTest, SecretsReferences) {
  EXPECT_EQ(ParseSecretsReference("file:/etc/x").value_or(v1::SecretsReference()).file(), "/etc/x");
  EXPECT_EQ(ParseSecretsReference("credential:x").value_or(v1::SecretsReference()).credential(), "x");
  for (const char* wrong : {"", "/etc/x", "file:x", "credential:", "credential:a/b", "env:X"}) {
    EXPECT_EQ(ExitCodeOf(ParseSecretsReference(wrong).status()), ExitCode::kUsage) << wrong;
  }
}

TEST(PublishOptionsTest, Runtimes) {
  const v1::RuntimeAbility rootless = AbilityOf("podman-rootless");
  EXPECT_EQ(rootless.name(), "podman-rootless");
  EXPECT_TRUE(rootless.mount());
  EXPECT_FALSE(rootless.block());
  EXPECT_TRUE(rootless.readonly());
  EXPECT_FALSE(AbilityOf("vm").mount());
  const v1::RuntimeAbility own = AbilityOf("our-own");
  EXPECT_EQ(own.name(), "our-own");
  EXPECT_FALSE(own.mount() || own.block() || own.readonly()) << "berthd knows, or it is not known";
}

}  // namespace
}  // namespace berth::cli
