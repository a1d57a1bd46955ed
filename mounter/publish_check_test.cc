#include "mounter/publish_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  record.publications.push_back(publication);
  return record;
}

TEST(PublishFormTest, AcceptsThePlainRequest) { EXPECT_EQ(CheckForm(Request()), absl::OkStatus()); }

TEST(PublishFormTest, RefusesWhatIsMissingTooLongOrNoText) {
  const std::vector<std::function<void(PublishRequest&)>> mistakes = {
      [](PublishRequest& r) { r.plugin_id = ""; },
      [](PublishRequest& r) { r.volume_id = ""; },
      [](PublishRequest& r) { r.consumer = ""; },
      [](PublishRequest& r) { r.volume_id = std::string(4097, 'x'); },
      [](PublishRequest& r) { r.volume_id = "\xff"; },
      [](PublishRequest& r) { r.consumer = std::string(1025, 'x'); },
      [](PublishRequest& r) { r.name = std::string(1025, 'x'); },
      [](PublishRequest& r) { r.volume_context["k"] = std::string(4096, 'x'); },
      [](PublishRequest& r) { r.volume_context["\xff"] = ""; },
      [](PublishRequest& r) { r.publish_context = {{"k", std::string(4096, 'x')}}; },
      [](PublishRequest& r) { r.secrets["k"] = "\xff"; },
      [](PublishRequest& r) { r.use.fs_type = std::string(129, 'x'); },
      [](PublishRequest& r) { r.use.mount_flags = {std::string(4097, 'x')}; },
      [](PublishRequest& r) { r.use.access_mode = AccessMode::UNKNOWN; },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    PublishRequest request = Request();
    mistakes[i](request);
    EXPECT_EQ(CheckForm(request).code(), absl::StatusCode::kInvalidArgument) << "mistake " << i;
  }
}

TEST(PublishFormTest, AcceptsTheLongestIdsOfAnyText) {
  PublishRequest request = Request();
  request.volume_id = "../" + std::string(4080, '\n') + "ä/..";
  EXPECT_EQ(CheckForm(request), absl::OkStatus());
}

TEST(PublishFormTest, BlockHasNoFileSystemAndNoFlags) {
  PublishRequest request = Request();
  request.use.access_type = AccessType::kBlock;
  EXPECT_EQ(CheckForm(request), absl::OkStatus());
  request.use.fs_type = "ext4";
  EXPECT_THAT(Message(CheckForm(request)), HasSubstr("block volume has no file system"));
  request.use.fs_type = "";
  request.use.mount_flags = {"ro"};
  EXPECT_THAT(Message(CheckForm(request)), HasSubstr("block volume is not mounted"));
}

TEST(PublishFormTest, ReaderModesDemandReadonly) {
  for (const auto mode : {AccessMode::SINGLE_NODE_READER_ONLY, AccessMode::MULTI_NODE_READER_ONLY}) {
    PublishRequest request = Request();
    request.use.access_mode = mode;
    EXPECT_THAT(Message(CheckForm(request)), HasSubstr("ask for readonly"));
    request.readonly = true;
    EXPECT_EQ(CheckForm(request), absl::OkStatus());
  }
}

TEST(PublishFormTest, ErrorsShowNoSecretAndNoFlag) {
  PublishRequest request = Request();
  request.secrets["password"] = std::string("hunter2") + '\xff';
  EXPECT_THAT(Message(CheckForm(request)), Not(HasSubstr("hunter2")));
  request.secrets.clear();
  request.use.mount_flags = {std::string("key=hunter2\xff")};
  EXPECT_THAT(Message(CheckForm(request)), Not(HasSubstr("hunter2")));
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

TEST(CompatibleTest, TheSameRequestIsCompatibleWithItself) {
  EXPECT_EQ(CheckCompatible(Request(), Held(Request())), absl::OkStatus());
}

TEST(CompatibleTest, AnotherCapabilityIsRefusedAndTheHolderNamed) {
  const std::vector<std::function<void(PublishRequest&)>> differences = {
      [](PublishRequest& r) { r.use.access_type = AccessType::kBlock; },
      [](PublishRequest& r) { r.use.access_mode = AccessMode::MULTI_NODE_MULTI_WRITER; },
      [](PublishRequest& r) { r.use.fs_type = "xfs"; },
      [](PublishRequest& r) { r.use.mount_flags = {"noatime"}; },
      [](PublishRequest& r) { r.volume_context["k"] = "v"; },
      [](PublishRequest& r) { r.publish_context.emplace(); },
  };
  for (size_t i = 0; i < differences.size(); ++i) {
    PublishRequest request = Request();
    differences[i](request);
    EXPECT_EQ(CheckCompatible(request, Held(Request())).code(), absl::StatusCode::kAlreadyExists) << i;
    request.consumer = "db";
    const absl::Status refused = CheckCompatible(request, Held(Request()));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << i;
    EXPECT_THAT(Message(refused), HasSubstr("consumer web")) << i;
  }
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
