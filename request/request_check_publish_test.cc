#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/from_text.h"
#include "request/request_check.h"
#include "request/testing/refused.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using CsiMode = ::csi::v1::VolumeCapability::AccessMode;

v1::PublishVolumeRequest GoodPublish() {
  v1::PublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("vol");
  request.set_consumer("job/1");
  return request;
}

TEST(CheckPublishTest, TakesTheLeastThatMakesSense) {
  const auto checked = CheckPublish(GoodPublish());
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->use, VolumeUse{});
  EXPECT_EQ(checked->use.access_mode, CsiMode::SINGLE_NODE_MULTI_WRITER);
  EXPECT_EQ(checked->publish_context, std::nullopt);
}

TEST(CheckPublishTest, TakesEverything) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.set_name("data");
  request.set_readonly(true);
  request.mutable_capability()->set_access_mode(v1::MULTI_NODE_READER_ONLY);
  request.mutable_capability()->set_fs_type("xfs");
  request.mutable_capability()->add_mount_flags("noatime");
  (*request.mutable_volume_context())["a"] = "1";
  request.mutable_publish_context();
  (*request.mutable_secrets())["key"] = "hush";
  const auto checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->name, "data");
  EXPECT_TRUE(checked->readonly);
  EXPECT_EQ(checked->use.access_mode, CsiMode::MULTI_NODE_READER_ONLY);
  EXPECT_EQ(checked->use.fs_type, "xfs");
  EXPECT_THAT(checked->use.mount_flags, ElementsAre("noatime"));
  EXPECT_THAT(checked->volume_context, ElementsAre(Pair("a", "1")));
  ASSERT_TRUE(checked->publish_context.has_value()) << "present though empty: it is attached";
  EXPECT_TRUE(checked->publish_context->empty());
  EXPECT_THAT(checked->secrets, ElementsAre(Pair("key", "hush")));
}

TEST(CheckPublishTest, LabelsOfAConsumerHaveALimitTogether) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  request.set_consumer("c");
  (*request.mutable_consumer_labels())["pod.uid"] = std::string(RequestLimits::kLabelBytes - 7, 'u');
  EXPECT_EQ(CheckPublish(request)->consumer_labels.size(), 1U);
  (*request.mutable_consumer_labels())["x"] = "";
  EXPECT_EQ(std::string(CheckPublish(request).status().message()),
            "consumer_labels: 4097 bytes long, at most 4096 are taken");
}

TEST(CheckPublishTest, NamesEveryMistakeAtOnce) {
  v1::PublishVolumeRequest request;
  request.set_consumer("two\nlines");
  request.mutable_capability()->set_access_mode(static_cast<v1::AccessMode>(42));
  request.mutable_capability()->set_access_type(v1::BLOCK);
  request.mutable_capability()->set_fs_type("ext4");
  request.mutable_capability()->add_mount_flags("password=hush");
  (*request.mutable_secrets())[""] = "hush";
  EXPECT_THAT(Refused(CheckPublish(request)),
              AllOf(HasSubstr("plugin_id: must not be empty"), HasSubstr("volume_id: must not be empty"),
                    HasSubstr("consumer: must not hold control characters"),
                    HasSubstr("capability.access_mode: 42 is no access mode"),
                    HasSubstr("capability.fs_type: not with BLOCK"),
                    HasSubstr("capability.mount_flags: not with BLOCK"),
                    HasSubstr("secrets: a key must not be empty"), Not(HasSubstr("hush"))));
}

TEST(CheckPublishTest, BoundsEveryLength) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.set_plugin_id(std::string(RequestLimits::kPluginName + 1, 'p'));
  request.set_volume_id(std::string(RequestLimits::kVolumeId + 1, 'v'));
  request.set_consumer(std::string(RequestLimits::kConsumer + 1, 'c'));
  request.set_name(std::string(RequestLimits::kConsumer + 1, 'n'));
  request.mutable_capability()->set_fs_type(std::string(RequestLimits::kFsType + 1, 'f'));
  request.mutable_capability()->add_mount_flags(std::string(RequestLimits::kMountFlags + 1, 'm'));
  (*request.mutable_volume_context())["k"] = std::string(RequestLimits::kMapBytes, 'x');
  for (size_t i = 0; i <= RequestLimits::kMapEntries; ++i) {
    (*request.mutable_publish_context()->mutable_values())[std::to_string(i)] = "";
  }
  const std::string message = Refused(CheckPublish(request));
  for (const char* field :
       {"plugin_id: 257 bytes", "volume_id: 4097 bytes", "consumer: 1025 bytes", "name: 1025 bytes",
        "capability.fs_type: 129 bytes", "capability.mount_flags: 4097 bytes", "volume_context: 65537 bytes",
        "publish_context.values: 1025 entries"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
  EXPECT_LT(message.size(), 2000U) << "the values themselves must not come back";
}

TEST(CheckPublishTest, TakesAVolumeIdOfAnyCharacters) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.set_volume_id("../a\nb/\x01");
  const auto checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->volume_id, "../a\nb/\x01");
}

TEST(CheckUnpublishTest, AllNamesAndOneNameExcludeEachOther) {
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  request.set_consumer("c");
  request.set_all_names(true);
  EXPECT_TRUE(CheckUnpublish(request).ok());
  request.set_name("n");
  EXPECT_THAT(Refused(CheckUnpublish(request)), HasSubstr("name: not with all_names"));
}

TEST(CheckPublishTest, TakesEveryKindOfLifeAndReference) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.mutable_life()->set_pid(4711);
  request.mutable_secrets_reference()->set_file("/etc/berth/secrets/smb");
  auto checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->life, ProcessLife(4711));
  EXPECT_EQ(checked->secrets_reference, request.secrets_reference());

  request.mutable_life()->set_cgroup("/sys/fs/cgroup/web.slice");
  request.mutable_secrets_reference()->set_credential("smb");
  checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->life, CgroupLife("/sys/fs/cgroup/web.slice"));
  EXPECT_EQ(checked->secrets_reference, request.secrets_reference());

  request.mutable_life()->set_unit("web@1\\x2d.service");
  checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->life, UnitLife("web@1\\x2d.service"));
}

TEST(CheckPublishTest, TakesPermissionsRuntimeAndPolicies) {
  v1::PublishVolumeRequest request = GoodPublish();
  v1::RootPermissions& permissions = *request.mutable_permissions();
  permissions.set_owner(0);
  permissions.set_group(500);
  permissions.set_mode(02770);
  permissions.set_recursive(true);
  permissions.set_selinux_label("system_u:object_r:container_file_t:s0:c1,c2");
  request.mutable_runtime()->set_name("podman 4.3");
  request.mutable_runtime()->set_mount(true);
  request.mutable_runtime()->add_fs_types("xfs");
  request.set_remount(true);
  request.set_ephemeral(true);
  const auto checked = CheckPublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->permissions, permissions);
  EXPECT_EQ(checked->runtime, request.runtime());
  EXPECT_TRUE(checked->remount);
  EXPECT_TRUE(checked->ephemeral);
  EXPECT_EQ(checked->origin, Origin::kCaller);
}

TEST(CheckPublishTest, WhatIsNotSetIsNotAskedFor) {
  const auto checked = CheckPublish(GoodPublish());
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->life, ConsumerLife());
  EXPECT_EQ(checked->permissions, RootPermissions());
  EXPECT_EQ(checked->secrets_reference, SecretsReference());
  EXPECT_FALSE(checked->runtime.has_value());
}

TEST(CheckPublishTest, OptionsOfTheRequestReplaceThoseOfTheVolumeEachAsAWhole) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.mutable_capability()->set_fs_type("ext4");
  request.mutable_capability()->add_mount_flags("noatime");
  request.mutable_capability()->add_mount_flags("nodev");
  request.mutable_mount_options();
  EXPECT_EQ(CheckPublish(request)->use.fs_type, "ext4");
  EXPECT_THAT(CheckPublish(request)->use.mount_flags, ElementsAre("noatime", "nodev"));
  request.mutable_mount_options()->set_fs_type("xfs");
  EXPECT_EQ(CheckPublish(request)->use.fs_type, "xfs");
  EXPECT_THAT(CheckPublish(request)->use.mount_flags, ElementsAre("noatime", "nodev"));
  request.mutable_mount_options()->mutable_mount_flags()->add_values("ro");
  EXPECT_THAT(CheckPublish(request)->use.mount_flags, ElementsAre("ro"));
  request.mutable_mount_options()->mutable_mount_flags()->clear_values();
  EXPECT_THAT(CheckPublish(request)->use.mount_flags, IsEmpty());
}

TEST(CheckPublishTest, NamesEveryMistakeOfTheNewerFieldsAtOnce) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.set_readonly(true);
  request.mutable_capability()->set_access_type(v1::BLOCK);
  request.mutable_capability()->set_volume_mount_group("500");
  request.mutable_mount_options()->set_fs_type("xfs");
  request.mutable_mount_options()->mutable_mount_flags()->add_values("password=hush");
  v1::RootPermissions& permissions = *request.mutable_permissions();
  permissions.set_mode(010000);
  permissions.set_recursive(true);
  permissions.set_selinux_label("container_file_t");
  request.mutable_life()->set_pid(-1);
  request.mutable_runtime()->add_fs_types("");
  (*request.mutable_secrets())["key"] = "hush";
  request.mutable_secrets_reference()->set_file("secrets.json");
  request.set_ephemeral(true);
  request.mutable_publish_context();
  EXPECT_THAT(Refused(CheckPublish(request)),
              AllOf(HasSubstr("capability.volume_mount_group: not with BLOCK"),
                    HasSubstr("mount_options.fs_type: not with BLOCK"),
                    HasSubstr("mount_options.mount_flags: not with BLOCK"),
                    HasSubstr("permissions: not with BLOCK"), HasSubstr("permissions: not with readonly"),
                    HasSubstr("permissions.mode: 010000, at most 07777 is taken"),
                    HasSubstr("permissions.recursive: only with owner or group"),
                    HasSubstr("permissions.selinux_label: must be user:role:type"),
                    HasSubstr("life.pid: -1 is no process id"),
                    HasSubstr("runtime: says that it can use neither mount nor block"),
                    HasSubstr("runtime.fs_types[0]: must not be empty"),
                    HasSubstr("secrets_reference: not with secrets"),
                    HasSubstr("secrets_reference.file: must be an absolute path"),
                    HasSubstr("publish_context: not with ephemeral"), Not(HasSubstr("hush"))));
}

TEST(CheckPublishTest, ReaderModesDemandReadonly) {
  for (const auto mode : {v1::SINGLE_NODE_READER_ONLY, v1::MULTI_NODE_READER_ONLY}) {
    v1::PublishVolumeRequest request = GoodPublish();
    request.mutable_capability()->set_access_mode(mode);
    EXPECT_THAT(Refused(CheckPublish(request)), HasSubstr("readonly: must be set"));
    request.set_readonly(true);
    EXPECT_TRUE(CheckPublish(request).ok());
  }
}

TEST(CheckPublishTest, AnEphemeralVolumeIsMountedOnThisNodeAloneAndNeverAttached) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.set_ephemeral(true);
  EXPECT_TRUE(CheckPublish(request).ok());
  std::string& word = (*request.mutable_volume_context())["csi.storage.k8s.io/ephemeral"];
  word = "true";
  EXPECT_TRUE(CheckPublish(request).ok()) << "what the node would set anyhow";
  word = "false";
  request.mutable_capability()->set_access_type(v1::BLOCK);
  request.mutable_capability()->set_access_mode(v1::MULTI_NODE_MULTI_WRITER);
  request.mutable_publish_context();
  EXPECT_THAT(
      Refused(CheckPublish(request)),
      AllOf(HasSubstr("contradicts ephemeral"), HasSubstr("ephemeral: not with BLOCK"),
            HasSubstr("which is for several nodes"), HasSubstr("publish_context: not with ephemeral")));
}

// The plugin would delete the volume when it is unpublished, and this node would not know that.
TEST(CheckPublishTest, TheWordForEphemeralVolumesIsTheNodesToSet) {
  v1::PublishVolumeRequest request = GoodPublish();
  (*request.mutable_volume_context())["csi.storage.k8s.io/ephemeral"] = "true";
  EXPECT_THAT(Refused(CheckPublish(request)), HasSubstr("volume_context: csi.storage.k8s.io/ephemeral is"));
}

TEST(CheckPublishTest, AGroupIsSaidOnceAndALabelIsOne) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.mutable_permissions()->set_group(5);
  request.mutable_capability()->set_volume_mount_group("5");
  request.mutable_permissions()->set_selinux_label("a: label :b");
  EXPECT_THAT(Refused(CheckPublish(request)),
              AllOf(HasSubstr("permissions.group: not with volume_mount_group"),
                    HasSubstr("permissions.selinux_label: must be")));
}

TEST(CheckPublishTest, AContextOfSixtyThousandBytesIsTaken) {
  v1::PublishVolumeRequest request = GoodPublish();
  (*request.mutable_volume_context())["k"] = std::string(60'000, 'x');
  (*request.mutable_publish_context()->mutable_values())["k"] = std::string(60'000, 'x');
  EXPECT_TRUE(CheckPublish(request).ok());
}

TEST(CheckPublishTest, Fault27NamesThatAreMissingOrTooLongAreRefused) {
  struct Case {
    std::string volume = "v1";
    std::string consumer = "web";
    std::string name;
    const char* named;
  };
  for (const Case& one :
       {Case{.volume = std::string(4097, 'x'), .named = "volume_id"},
        Case{.volume = std::string(1 << 20, 'x'), .named = "volume_id"},
        Case{.volume = "", .named = "volume_id"},
        Case{.consumer = std::string(1025, 'x'), .named = "consumer"},
        Case{.consumer = "", .named = "consumer"}, Case{.name = std::string(1025, 'x'), .named = "name"}}) {
    v1::PublishVolumeRequest request = GoodPublish();
    v1::UnpublishVolumeRequest undo;
    undo.set_plugin_id("p");
    request.set_name(one.name);
    request.set_volume_id(one.volume);
    request.set_consumer(one.consumer);
    undo.set_volume_id(one.volume);
    undo.set_consumer(one.consumer);
    undo.set_name(one.name);
    for (const std::string& refused : {Refused(CheckPublish(request)), Refused(CheckUnpublish(undo))}) {
      EXPECT_THAT(refused, HasSubstr(one.named));
      EXPECT_LT(refused.size(), 1000U);
    }
  }
}

TEST(CheckPublishTest, WhatIsHalfSaidIsNotGuessed) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.mutable_life();
  request.mutable_secrets_reference();
  EXPECT_THAT(Refused(CheckPublish(request)),
              AllOf(HasSubstr("life: names neither pid nor cgroup nor unit"),
                    HasSubstr("secrets_reference: names neither file nor credential")));
}

TEST(CheckPublishTest, RefusesPathsThatLeadElsewhere) {
  const auto refused = [](const std::string& cgroup, const std::string& file) {
    v1::PublishVolumeRequest request = GoodPublish();
    request.mutable_life()->set_cgroup(cgroup);
    request.mutable_secrets_reference()->set_file(file);
    return Refused(CheckPublish(request));
  };
  EXPECT_THAT(refused("/sys/fs/cgroup/../x", "/etc/berth/.."),
              AllOf(HasSubstr("life.cgroup: must not go through .."),
                    HasSubstr("secrets_reference.file: must not go through ..")));
  EXPECT_THAT(refused("web.slice", "/a\nb"),
              AllOf(HasSubstr("life.cgroup: must be an absolute path"),
                    HasSubstr("secrets_reference.file: must not hold control characters")));
  EXPECT_THAT(refused("/" + std::string(RequestLimits::kPath, 'c'), ""),
              AllOf(HasSubstr("life.cgroup: 4096 bytes long"), HasSubstr("secrets_reference.file: must be")));
}

TEST(CheckPublishTest, RefusesNamesThatAreNone) {
  const auto refused = [](const std::string& unit, const std::string& credential) {
    v1::PublishVolumeRequest request = GoodPublish();
    request.mutable_life()->set_unit(unit);
    request.mutable_secrets_reference()->set_credential(credential);
    return Refused(CheckPublish(request));
  };
  for (const char* unit : {"web", ".service", "web.", "a b.service", "a/b.service"}) {
    for (const char* credential : {".", "..", "a/b"}) {
      EXPECT_THAT(refused(unit, credential),
                  AllOf(HasSubstr("life.unit: must be a unit's whole name"),
                        HasSubstr("secrets_reference.credential: must be the name of a file")))
          << unit << " " << credential;
    }
  }
  EXPECT_THAT(refused("", ""), AllOf(HasSubstr("life.unit: must be a unit's whole name"),
                                     HasSubstr("secrets_reference.credential: must not be empty")));
}

TEST(CheckPublishTest, RefusesAnIdThatTheKernelTakesForNone) {
  v1::PublishVolumeRequest request = GoodPublish();
  request.mutable_permissions()->set_owner(0xFFFFFFFF);
  request.mutable_permissions()->set_group(0xFFFFFFFF);
  EXPECT_THAT(Refused(CheckPublish(request)), AllOf(HasSubstr("permissions.owner: 4294967295 is no id"),
                                                    HasSubstr("permissions.group: 4294967295 is no id")));
}

TEST(CheckUnpublishTest, CarriesTheOperatorsLevers) {
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  request.set_consumer("c");
  auto checked = CheckUnpublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_FALSE(checked->wait_for_consumer || checked->force || checked->lazy);
  request.set_wait(true);
  request.set_force(true);
  request.set_lazy(true);
  checked = CheckUnpublish(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_TRUE(checked->wait_for_consumer && checked->force && checked->lazy);
}

TEST(CheckClaimTest, PassesOnHowTheVolumeWillBeUsed) {
  const auto request = FromText<v1::ClaimVolumeRequest>(
      R"(namespace: "jobs" volume: "data" consumer: "web" runtime: "vm" replaces: ["old-1", "old-2"]
         capability { access_mode: SINGLE_NODE_SINGLE_WRITER fs_type: "ext4" }
         mount_options { mount_flags { values: "noatime" } })");
  const auto ask = CheckClaim(request);
  ASSERT_TRUE(ask.ok()) << ask.status();
  EXPECT_EQ(ask->capability().access_mode(), v1::SINGLE_NODE_SINGLE_WRITER);
  EXPECT_EQ(ask->capability().fs_type(), "ext4");
  EXPECT_THAT(ask->mount_options().mount_flags().values(), ElementsAre("noatime"));
  EXPECT_EQ(ask->runtime(), "vm");
  EXPECT_THAT(ask->replaces(), ElementsAre("old-1", "old-2"));
}

TEST(CheckClaimTest, EveryMistakeInTheUseIsNamed) {
  auto request = FromText<v1::ClaimVolumeRequest>(
      R"(namespace: "jobs" volume: "data" consumer: "web" replaces: [""]
         capability { access_type: BLOCK fs_type: "ext4" } mount_options { mount_flags { } })");
  EXPECT_THAT(Refused(CheckClaim(request)), AllOf(HasSubstr("capability.fs_type: not with BLOCK"),
                                                  HasSubstr("mount_options.mount_flags: not with BLOCK"),
                                                  HasSubstr("replaces[0]: must not be empty")));
  for (int i = 0; i < 17; ++i) request.add_replaces("c");
  EXPECT_THAT(Refused(CheckClaim(request)), HasSubstr("replaces: 18, at most 16"));
}

}  // namespace
}  // namespace berth
