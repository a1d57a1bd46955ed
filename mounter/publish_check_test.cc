#include "mounter/publish_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/from_text.h"
#include "mounter/root_permissions.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;
using ControllerRpc = ::csi::v1::ControllerServiceCapability::RPC;
using NodeRpc = ::csi::v1::NodeServiceCapability::RPC;

PublishRequest Request() {
  PublishRequest request;
  request.plugin_id = "hp";
  request.volume_id = "v1";
  request.consumer = "web";
  return request;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

VolumeRecord Held(const PublishRequest& by) {
  VolumeRecord record;
  record.plugin_id = by.plugin_id;
  record.volume_id = by.volume_id;
  record.use = by.use;
  record.volume_context = by.volume_context;
  record.publish_context = by.publish_context;
  PublicationRecord publication;
  publication.key = {.consumer = by.consumer, .name = by.name};
  publication.readonly = by.readonly;
  publication.ephemeral = by.ephemeral;
  publication.permissions = by.permissions;
  publication.state = PublicationState::kPublished;
  record.publications.push_back(publication);
  return record;
}

TEST(RuntimeTest, WhatItCannotUseIsRefusedInPlainWords) {
  PublishRequest request = Request();
  request.runtime = FromText<RuntimeAbility>(R"(name: "tiny 1.0" mount: true fs_types: ["ext4", "xfs"])");
  EXPECT_EQ(CheckRuntime(request), absl::OkStatus());
  request.use.fs_type = "xfs";
  EXPECT_EQ(CheckRuntime(request), absl::OkStatus());
  request.use.fs_type = "btrfs";
  const absl::Status file_system = CheckRuntime(request);
  EXPECT_EQ(file_system.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(file_system),
            "\"tiny 1.0\" cannot use a volume with file system btrfs, only with ext4, xfs");
  // As berthd.toml(5) has it.
  *request.runtime = FromText<RuntimeAbility>(R"(name: "tiny 1.0" mount: true fs_types: ["nfs", "fuse"])");
  for (const char* asked : {"nfs", "nfs4", "fuse", "fuse.sshfs"}) {
    request.use.fs_type = asked;
    EXPECT_EQ(CheckRuntime(request), absl::OkStatus()) << asked;
  }
  request.use.fs_type = "nfs3";
  EXPECT_EQ(CheckRuntime(request).code(), absl::StatusCode::kFailedPrecondition);
  request.use.fs_type = "";
  request.readonly = true;
  EXPECT_THAT(Message(CheckRuntime(request)), HasSubstr("cannot keep a volume read-only"));
  request.readonly = false;
  request.use.access_type = AccessType::kBlock;
  EXPECT_THAT(Message(CheckRuntime(request)), HasSubstr("cannot use block devices"));
  request.runtime = FromText<RuntimeAbility>("block: true readonly: true");
  EXPECT_EQ(CheckRuntime(request), absl::OkStatus());
  request.use.access_type = AccessType::kMount;
  EXPECT_THAT(Message(CheckRuntime(request)), HasSubstr("the consumer's runtime cannot use mounted volumes"));
}

TEST(RuntimeTest, WhatThePluginChoseIsComparedOnceItIsMounted) {
  PublishRequest request = Request();
  EXPECT_FALSE(LeavesFileSystemOpen(request)) << "it can use every one";
  request.runtime = FromText<RuntimeAbility>(
      R"(name: "tiny 1.0" mount: true fs_types: ["ext4", "nfs", "fuse.sshfs", "fuseblk"])");
  EXPECT_TRUE(LeavesFileSystemOpen(request));
  for (const char* shown : {"ext4", "nfs", "nfs4", "fuse.sshfs", "fuse", "fuseblk.ntfs"}) {
    EXPECT_EQ(CheckFileSystem(request, shown), absl::OkStatus()) << shown;
  }
  for (const char* shown : {"", "ext3", "nfs3", "fuse.ceph", "xfs"}) {
    EXPECT_EQ(CheckFileSystem(request, shown).code(), absl::StatusCode::kFailedPrecondition) << shown;
  }
  EXPECT_EQ(Message(CheckFileSystem(request, "xfs")),
            "plugin hp has mounted a file system of type xfs, which \"tiny 1.0\" cannot use, only ext4, nfs, "
            "fuse.sshfs, fuseblk: ask for one of these (--fs), or use another runtime");
  request.use.fs_type = "ext4";
  EXPECT_FALSE(LeavesFileSystemOpen(request)) << "it was compared before";
  request.use.fs_type = "";
  request.use.access_type = AccessType::kBlock;
  EXPECT_FALSE(LeavesFileSystemOpen(request)) << "it has no file system";
}

TEST(AttachRuleTest, NeedsAControllerThatPublishes) {
  PluginFacts facts;
  facts.plugin_services = {::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE};
  EXPECT_EQ(CheckAttached(Request(), facts), absl::OkStatus()) << "a controller alone does not mean it";
  facts.controller_capabilities = {ControllerRpc::PUBLISH_UNPUBLISH_VOLUME};
  const absl::Status refused = CheckAttached(Request(), facts);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("--publish-context"));
  PublishRequest attached = Request();
  attached.publish_context.emplace();
  EXPECT_EQ(CheckAttached(attached, facts), absl::OkStatus()) << "present, though empty";
}

TEST(AttachRuleTest, AnEphemeralVolumeIsNotAttached) {
  PluginFacts facts;
  facts.plugin_services = {::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE};
  facts.controller_capabilities = {ControllerRpc::PUBLISH_UNPUBLISH_VOLUME};
  PublishRequest request = Request();
  request.ephemeral = true;
  EXPECT_EQ(CheckAttached(request, facts), absl::OkStatus());
}

TEST(PluginRuleTest, AMountGroupOnlyWhereThePluginHasThem) {
  PluginFacts facts;
  PublishRequest request = Request();
  request.use.volume_mount_group = "100";
  const absl::Status refused = CheckPlugin(request, facts, nullptr, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("VOLUME_MOUNT_GROUP"));
  facts.node_capabilities = {NodeRpc::VOLUME_MOUNT_GROUP};
  EXPECT_EQ(CheckPlugin(request, facts, nullptr, 0), absl::OkStatus());
}

TEST(PluginRuleTest, ALabelOnlyWhereSelinuxIsOn) {
  PublishRequest request = Request();
  request.permissions.set_selinux_label("system_u:object_r:container_file_t:s0");
  const absl::Status status = CheckPlugin(request, {}, nullptr, 0);
  EXPECT_EQ(status.code(), SelinuxIsOn() ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
}

TEST(PluginRuleTest, NoMoreVolumesThanThePluginTakes) {
  PluginFacts facts;
  facts.max_volumes_per_node = 2;
  EXPECT_EQ(CheckPlugin(Request(), facts, nullptr, 1), absl::OkStatus());
  EXPECT_EQ(CheckPlugin(Request(), facts, nullptr, 2).code(), absl::StatusCode::kResourceExhausted);
  const VolumeRecord held = Held(Request());
  EXPECT_EQ(CheckPlugin(Request(), facts, &held, 2), absl::OkStatus()) << "it is one of them";
  for (const int64_t unlimited : {int64_t{0}, int64_t{-1}}) {
    facts.max_volumes_per_node = unlimited;
    EXPECT_EQ(CheckPlugin(Request(), facts, nullptr, 1000), absl::OkStatus());
  }
}

TEST(PluginRuleTest, AVolumeThatIsHeldUnderAnotherNodeIdTakesNoNewPublication) {
  PluginFacts facts;
  facts.node_id = "new";
  VolumeRecord held = Held(Request());
  held.node_id = "old";
  EXPECT_EQ(CheckPlugin(Request(), facts, &held, 1), absl::OkStatus()) << "what has begun goes on";
  PublishRequest second = Request();
  second.consumer = "db";
  EXPECT_THAT(Message(CheckPlugin(second, facts, &held, 1)), HasSubstr("in use as node \"old\""));
}

TEST(CompatibleTest, TheSameRequestIsCompatibleWithItself) {
  EXPECT_EQ(CheckCompatible(Request(), Held(Request())), absl::OkStatus());
}

TEST(CompatibleTest, AnotherCapabilityIsRefusedAndTheHolderNamed) {
  const std::vector<std::function<void(PublishRequest&)>> differences = {
      [](PublishRequest& r) { r.use.access_type = AccessType::kBlock; },
      [](PublishRequest& r) { r.use.access_mode = AccessMode::MULTI_NODE_MULTI_WRITER; },
      [](PublishRequest& r) { r.use.fs_type = "xfs"; },
      [](PublishRequest& r) { r.use.mount_flags = {"noatime"}; },
      [](PublishRequest& r) { r.use.volume_mount_group = "5"; },
      [](PublishRequest& r) { r.volume_context["k"] = "v"; },
      [](PublishRequest& r) { r.publish_context.emplace(); },
  };
  VolumeRecord held = Held(Request());
  held.stages = true;
  for (size_t i = 0; i < differences.size(); ++i) {
    PublishRequest request = Request();
    differences[i](request);
    EXPECT_EQ(CheckCompatible(request, held).code(), absl::StatusCode::kAlreadyExists) << i;
    request.consumer = "db";
    const absl::Status refused = CheckCompatible(request, held);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << i;
    EXPECT_THAT(Message(refused), HasSubstr("consumer web")) << i;
  }
}

TEST(CompatibleTest, MountFlagsAreAPublicationsOwnUnlessThePluginStages) {
  PublishRequest other = Request();
  other.use.mount_flags = {"noatime"};
  VolumeRecord unstaged = Held(Request());
  unstaged.stages = false;
  EXPECT_THAT(Message(CheckCompatible(other, unstaged)), HasSubstr("with other mount flags"));
  other.name = "second";
  EXPECT_EQ(CheckCompatible(other, unstaged), absl::OkStatus());
  VolumeRecord staged = Held(Request());
  staged.stages = true;
  EXPECT_THAT(Message(CheckCompatible(other, staged)), HasSubstr("applies when it stages the volume"));

  PublicationRecord second = unstaged.publications[0];
  second.key.name = "second";
  second.mount_flags = other.use.mount_flags;
  unstaged.publications.push_back(second);
  EXPECT_EQ(CheckCompatible(other, unstaged), absl::OkStatus()) << "the same again";
  other.use.mount_flags.clear();
  EXPECT_EQ(CheckCompatible(other, unstaged).code(), absl::StatusCode::kAlreadyExists);
}

TEST(CompatibleTest, ReadonlyIsAPublicationsOwn) {
  PublishRequest request = Request();
  request.readonly = true;
  EXPECT_EQ(CheckCompatible(request, Held(Request())).code(), absl::StatusCode::kAlreadyExists);
  request.name = "second";
  EXPECT_EQ(CheckCompatible(request, Held(Request())), absl::OkStatus());
}

TEST(CompatibleTest, SingleWriterAllowsOnePublication) {
  PublishRequest request = Request();
  request.use.access_mode = AccessMode::SINGLE_NODE_SINGLE_WRITER;
  const VolumeRecord held = Held(request);
  EXPECT_EQ(CheckCompatible(request, held), absl::OkStatus());
  request.name = "second";
  const absl::Status refused = CheckCompatible(request, held);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("one publication at a time"));
}

TEST(CompatibleTest, OneWriterAmongManyNodesIsOneWriterHere) {
  PublishRequest request = Request();
  request.use.access_mode = AccessMode::MULTI_NODE_SINGLE_WRITER;
  const VolumeRecord held = Held(request);
  request.consumer = "db";
  const absl::Status refused = CheckCompatible(request, held);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("for writing by consumer web"));
  request.readonly = true;
  EXPECT_EQ(CheckCompatible(request, held), absl::OkStatus());
  EXPECT_EQ(CheckCompatible(request, Held(request)), absl::OkStatus());
}

TEST(CompatibleTest, AnEphemeralVolumeIsOneConsumersAlone) {
  PublishRequest ephemeral = Request();
  ephemeral.ephemeral = true;
  EXPECT_EQ(CheckCompatible(ephemeral, Held(ephemeral)), absl::OkStatus());
  EXPECT_EQ(CheckCompatible(ephemeral, Held(Request())).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CheckCompatible(Request(), Held(ephemeral)).code(), absl::StatusCode::kAlreadyExists);
  PublishRequest second = Request();
  second.consumer = "db";
  EXPECT_EQ(CheckCompatible(second, Held(ephemeral)).code(), absl::StatusCode::kFailedPrecondition);
  second.ephemeral = true;
  EXPECT_EQ(CheckCompatible(second, Held(Request())).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckCompatible(second, Held(ephemeral)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CompatibleTest, OtherPermissionsWouldNotBeSet) {
  PublishRequest request = Request();
  request.permissions.set_mode(0700);
  EXPECT_EQ(CheckCompatible(request, Held(request)), absl::OkStatus());
  EXPECT_THAT(Message(CheckCompatible(request, Held(Request()))), HasSubstr("other permissions"));
}

TEST(CompatibleTest, ARecordMadeAnewLearnsWhatTheLostOneKnew) {
  PublishRequest request = Request();
  request.use.mount_flags = {"noatime"};
  request.volume_context["k"] = "v";
  request.publish_context.emplace();
  VolumeRecord rebuilt = Held(Request());
  rebuilt.rebuilt = true;
  EXPECT_EQ(CheckCompatible(request, rebuilt), absl::OkStatus());
  request.use.access_type = AccessType::kBlock;
  EXPECT_EQ(CheckCompatible(request, rebuilt).code(), absl::StatusCode::kAlreadyExists);
}

TEST(SoleWriterTest, DependsOnTheModeAndOnWhoseTheLastUseWas) {
  PublishRequest request = Request();
  VolumeRecord record;
  const auto wants = [&](AccessMode::Mode mode) {
    request.use.access_mode = mode;
    return WantsSoleWriter(request, record);
  };
  record.past_consumers = {request.consumer};
  EXPECT_TRUE(wants(AccessMode::SINGLE_NODE_SINGLE_WRITER)) << "also of the same consumer";
  EXPECT_FALSE(wants(AccessMode::SINGLE_NODE_WRITER));
  EXPECT_FALSE(wants(AccessMode::MULTI_NODE_SINGLE_WRITER));
  // Another one's, one of more than are known, or an unknown one's.
  for (const std::vector<std::string>& past :
       {std::vector<std::string>{request.consumer, "other"}, {request.consumer, ""}, {}}) {
    record.past_consumers = past;
    EXPECT_TRUE(wants(AccessMode::SINGLE_NODE_WRITER));
    EXPECT_TRUE(wants(AccessMode::MULTI_NODE_SINGLE_WRITER));
    EXPECT_FALSE(wants(AccessMode::SINGLE_NODE_MULTI_WRITER));
    EXPECT_FALSE(wants(AccessMode::MULTI_NODE_MULTI_WRITER));
    EXPECT_FALSE(wants(AccessMode::MULTI_NODE_READER_ONLY));
    request.readonly = true;
    EXPECT_FALSE(wants(AccessMode::MULTI_NODE_SINGLE_WRITER)) << "it does not write";
    request.readonly = false;
  }
}

TEST(ModeForTest, FinerModesOnlyToPluginsThatKnowThem) {
  PluginFacts old_plugin;
  PluginFacts new_plugin;
  new_plugin.node_capabilities = {NodeRpc::SINGLE_NODE_MULTI_WRITER};
  for (const auto mode : {AccessMode::SINGLE_NODE_SINGLE_WRITER, AccessMode::SINGLE_NODE_MULTI_WRITER}) {
    EXPECT_EQ(ModeFor(mode, old_plugin), AccessMode::SINGLE_NODE_WRITER);
    EXPECT_EQ(ModeFor(mode, new_plugin), mode);
  }
  EXPECT_EQ(ModeFor(AccessMode::MULTI_NODE_MULTI_WRITER, old_plugin), AccessMode::MULTI_NODE_MULTI_WRITER);
}

}  // namespace
}  // namespace berth
