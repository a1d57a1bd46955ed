#include "csi/redact.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "csi/csi.pb.h"
#include "csi/recent_secrets.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::HasSubstr;
using testing::Not;

csi::NodePublishVolumeRequest Publish() {
  csi::NodePublishVolumeRequest request;
  request.set_volume_id("vol-1");
  request.set_target_path("/t");
  request.mutable_volume_capability()->mutable_mount()->set_fs_type("ext4");
  request.mutable_volume_capability()->mutable_mount()->add_mount_flags("password=hunter2");
  request.mutable_volume_capability()->mutable_access_mode()->set_mode(
      csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  (*request.mutable_secrets())["token-name"] = "token-value";
  (*request.mutable_volume_context())["b"] = "2";
  (*request.mutable_volume_context())["a"] = "1";
  return request;
}

TEST(StripSecretsTest, TakesKeysAndValuesAndLeavesTheRest) {
  csi::NodePublishVolumeRequest request = Publish();
  StripSecrets(&request);
  csi::NodePublishVolumeRequest expected = Publish();
  expected.clear_secrets();
  EXPECT_EQ(request.SerializeAsString().find("token"), std::string::npos);
  EXPECT_EQ(request.DebugString(), expected.DebugString());
}

// Every message of CSI that has one, not only a list.
TEST(StripSecretsTest, FindsEverySecretFieldOfTheProto) {
  int found = 0;
  const auto* file = csi::ProbeRequest::descriptor()->file();
  for (int m = 0; m < file->message_type_count(); ++m) {
    const Descriptor* type = file->message_type(m);
    const FieldDescriptor* secrets = type->FindFieldByName("secrets");
    if (secrets == nullptr) continue;
    ++found;
    const std::unique_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
    Message* entry = message->GetReflection()->AddMessage(message.get(), secrets);
    entry->GetReflection()->SetString(entry, secrets->message_type()->map_key(), "key");
    entry->GetReflection()->SetString(entry, secrets->message_type()->map_value(), "hunter2");
    EXPECT_THAT(DebugLine(*message), Not(HasSubstr("hunter2"))) << type->name();
    StripSecrets(message.get());
    EXPECT_EQ(message->ByteSizeLong(), 0U) << type->name();
  }
  EXPECT_EQ(found, 22);
}

TEST(StripSecretsTest, TakesWhatOurProtoDoesNotKnow) {
  csi::DeleteVolumeRequest request;
  request.set_volume_id("v");
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "hunter2");
  StripSecrets(&request);
  EXPECT_EQ(request.SerializeAsString().find("hunter2"), std::string::npos);
  EXPECT_EQ(request.volume_id(), "v");
}

TEST(StripSecretsTest, EndsAtADepthThatNobodyNeeds) {
  google::protobuf::Value root;
  google::protobuf::Value* deepest = &root;
  for (int i = 0; i < 5000; ++i) deepest = deepest->mutable_list_value()->add_values();
  deepest->set_string_value("hunter2");
  EXPECT_THAT(DebugLine(root, 100'000), Not(HasSubstr("hunter2")));
  StripSecrets(&root);
  EXPECT_EQ(root.SerializeAsString().find("hunter2"), std::string::npos);
}

TEST(DebugLineTest, ShowsEverythingButWhatIsSensitive) {
  EXPECT_EQ(DebugLine(Publish()),
            "NodePublishVolumeRequest {volume_id: \"vol-1\", target_path: \"/t\", volume_capability: "
            "{mount: {fs_type: \"ext4\", mount_flags: ***stripped***}, access_mode: {mode: "
            "SINGLE_NODE_WRITER}}, secrets: ***stripped***, volume_context: ***stripped***}");
}

// Every message of CSI that has a map, not only a list.
TEST(DebugLineTest, ShowsNoContextAndNoParameters) {
  int found = 0;
  const auto check = [&found](const Descriptor* type, auto& self) -> void {
    for (int n = 0; n < type->nested_type_count(); ++n) self(type->nested_type(n), self);
    for (int f = 0; f < type->field_count(); ++f) {
      const FieldDescriptor* field = type->field(f);
      if (!field->is_map() || field->name() == "segments" || field->name() == "manifest") continue;
      ++found;
      const std::unique_ptr<Message> message(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
      Message* entry = message->GetReflection()->AddMessage(message.get(), field);
      entry->GetReflection()->SetString(entry, field->message_type()->map_key(), "hunter1");
      entry->GetReflection()->SetString(entry, field->message_type()->map_value(), "hunter2");
      EXPECT_EQ(DebugLine(*message), type->name() + " {" + field->name() + ": ***stripped***}");
    }
  };
  const auto* file = csi::ProbeRequest::descriptor()->file();
  for (int m = 0; m < file->message_type_count(); ++m) check(file->message_type(m), check);
  EXPECT_GE(found, 37);
}

TEST(DebugLineTest, ShowsTopologyAndManifest) {
  csi::Topology topology;
  (*topology.mutable_segments())["zone"] = "b";
  (*topology.mutable_segments())["rack"] = "7";
  EXPECT_EQ(DebugLine(topology), R"(Topology {segments: {"rack": "7", "zone": "b"}})");
}

TEST(DebugLineTest, RedactsWhatIsKnownAsASecretWhereverItStands) {
  // Longer than what is shown of a value.
  const std::string token = "hunter2-" + std::string(1000, 'x');
  const SecretSet secrets({token});
  csi::NodePublishVolumeRequest request = Publish();
  request.set_staging_target_path("/s?" + token);
  EXPECT_THAT(DebugLine(request, 2048, &secrets), Not(HasSubstr("hunter2")));
  EXPECT_THAT(DebugLine(request, 2048, &secrets), HasSubstr("/s?"));
}

TEST(DebugLineTest, ShowsListsNumbersAndUnknownEnumValues) {
  csi::NodeGetVolumeStatsResponse response;
  auto* usage = response.add_usage();
  usage->set_total(10);
  usage->set_unit(csi::VolumeUsage::BYTES);
  response.add_usage()->set_unit(static_cast<csi::VolumeUsage::Unit>(9));
  response.mutable_volume_condition()->set_abnormal(true);
  EXPECT_EQ(DebugLine(response),
            "NodeGetVolumeStatsResponse {usage: [{total: 10, unit: BYTES}, {unit: 9}], volume_condition: "
            "{abnormal: true}}");
}

TEST(DebugLineTest, StaysOnOneLineOfPrintableText) {
  csi::DeleteVolumeRequest request;
  request.set_volume_id("a\nb\x1b[31m");
  EXPECT_EQ(DebugLine(request), R"(DeleteVolumeRequest {volume_id: "a\x0ab\x1b[31m"})");
}

TEST(DebugLineTest, IsBoundedWhateverTheMessageHolds) {
  csi::NodeGetInfoResponse response;
  response.set_node_id(std::string(3 << 20, 'x'));
  auto& segments = *response.mutable_accessible_topology()->mutable_segments();
  for (int i = 0; i < 20'000; ++i) segments[std::to_string(i)] = "value";
  const std::string line = DebugLine(response, 500);
  EXPECT_LE(line.size(), 500 + std::string("…").size());
  EXPECT_THAT(line, HasSubstr("segments"));
  EXPECT_LE(DebugLine(response).size(), 2048 + std::string("…").size());
}

TEST(DebugLineTest, CutsBetweenCharacters) {
  csi::DeleteVolumeRequest request;
  request.set_volume_id("ääääää");
  const std::string whole = DebugLine(request);
  for (size_t limit = 0; limit < whole.size(); ++limit) {
    const std::string line = DebugLine(request, limit);
    ASSERT_TRUE(line.ends_with("…"));
    const std::string kept = line.substr(0, line.size() - std::string("…").size());
    EXPECT_EQ(kept, whole.substr(0, kept.size()));
    EXPECT_LE(kept.size(), limit);
    EXPECT_GE(kept.size() + 1, limit);  // Nothing here is longer than two bytes.
  }
}

}  // namespace
}  // namespace berth
