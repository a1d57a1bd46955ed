#include "cli/field_args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/failure.h"
#include "cli/rpc_catalog.h"
#include "csi/csi.pb.h"

namespace berth::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using Mode = ::csi::v1::VolumeCapability::AccessMode;

template <class Request>
Request Fill(const std::vector<std::string>& arguments) {
  Request request;
  for (const std::string& argument : arguments) {
    const absl::Status status = SetField(&request, argument);
    EXPECT_TRUE(status.ok()) << argument << ": " << status;
  }
  return request;
}

// The message of the failure, and its hint.
template <class Request>
std::string Refusal(const std::vector<std::string>& arguments) {
  Request request;
  absl::Status status;
  for (const std::string& argument : arguments) {
    if (!status.ok()) break;
    status = SetField(&request, argument);
  }
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << arguments.back();
  return std::string(status.message()) + " | " + HintOf(status);
}

TEST(SetFieldTest, SetsFieldsOfFields) {
  const auto request = Fill<::csi::v1::NodePublishVolumeRequest>(
      {"volume_id=x=y", "readonly=true", "volume_capability.mount.fs_type=ext4",
       "volume_capability.mount.mount_flags=ro", "volume_capability.mount.mount_flags=noatime",
       "volume_capability.access_mode.mode=SINGLE_NODE_WRITER"});
  EXPECT_EQ(request.volume_id(), "x=y");
  EXPECT_TRUE(request.readonly());
  EXPECT_EQ(request.volume_capability().mount().fs_type(), "ext4");
  EXPECT_THAT(request.volume_capability().mount().mount_flags(), ElementsAre("ro", "noatime"));
  EXPECT_EQ(request.volume_capability().access_mode().mode(), Mode::SINGLE_NODE_WRITER);
}

TEST(SetFieldTest, SetsElementsOfLists) {
  const auto request = Fill<::csi::v1::CreateVolumeRequest>(
      {"volume_capabilities[0].block={}", "volume_capabilities[0].access_mode.mode=5",
       "volume_capabilities[1].mount.fs_type=xfs", "volume_capabilities={\"block\": {}}"});
  ASSERT_EQ(request.volume_capabilities_size(), 3);
  EXPECT_TRUE(request.volume_capabilities(0).has_block());
  EXPECT_EQ(request.volume_capabilities(0).access_mode().mode(), Mode::MULTI_NODE_MULTI_WRITER);
  EXPECT_EQ(request.volume_capabilities(1).mount().fs_type(), "xfs");
  EXPECT_TRUE(request.volume_capabilities(2).has_block());

  const auto group = Fill<::csi::v1::CreateVolumeGroupSnapshotRequest>(
      {"source_volume_ids=a", "source_volume_ids=b", "source_volume_ids[0]=c"});
  EXPECT_THAT(group.source_volume_ids(), ElementsAre("c", "b"));
}

TEST(SetFieldTest, SetsEntriesOfMapsWithAnyKey) {
  auto request = Fill<::csi::v1::CreateVolumeRequest>({"parameters.kind=image",
                                                       "parameters.csi.storage.k8s.io/fstype=ext4",
                                                       "parameters[a=b]=c=d", "parameters.kind=block"});
  EXPECT_EQ(request.parameters().at("kind"), "block");
  EXPECT_EQ(request.parameters().at("csi.storage.k8s.io/fstype"), "ext4");
  EXPECT_EQ(request.parameters().at("a=b"), "c=d");
  EXPECT_EQ(request.parameters_size(), 3);
  ASSERT_TRUE(SetField(&request, R"(parameters={"only": "this"})").ok());
  EXPECT_EQ(request.parameters_size(), 1);
}

TEST(SetFieldTest, TakesUnitsWhereTheFieldCountsBytes) {
  const auto request = Fill<::csi::v1::CreateVolumeRequest>(
      {"capacity_range.required_bytes=64MiB", "capacity_range.limit_bytes=99999999"});
  EXPECT_EQ(request.capacity_range().required_bytes(), 64 << 20);
  EXPECT_EQ(request.capacity_range().limit_bytes(), 99999999);
  EXPECT_EQ(Fill<::csi::v1::CreateVolumeRequest>({"capacity_range.limit_bytes=-9000000000000000001"})
                .capacity_range()
                .limit_bytes(),
            -9000000000000000001);
  EXPECT_THAT(Refusal<::csi::v1::ListVolumesRequest>({"max_entries=4K"}),
              HasSubstr("max_entries: '4K' is not an int32"));
}

TEST(SetFieldTest, NamesTheUnknownFieldAndTheNearestOne) {
  const std::string refusal =
      Refusal<::csi::v1::NodePublishVolumeRequest>({"volume_capability.mount.fstyp=ext4"});
  EXPECT_THAT(refusal, HasSubstr("MountVolume has no field 'fstyp'"));
  EXPECT_THAT(refusal, HasSubstr("did you mean fs_type"));
  EXPECT_THAT(refusal, HasSubstr("Its fields: fs_type, mount_flags, volume_mount_group"));
  EXPECT_THAT(Refusal<::csi::v1::ProbeRequest>({"a=b"}), HasSubstr("no fields at all"));
}

TEST(SetFieldTest, SaysWhatWouldBeRight) {
  using Publish = ::csi::v1::NodePublishVolumeRequest;
  using Create = ::csi::v1::CreateVolumeRequest;
  EXPECT_THAT(Refusal<Publish>({"readonly=yes"}), HasSubstr("readonly: 'yes' is neither true nor false"));
  EXPECT_THAT(Refusal<Publish>({"volume_capability.access_mode.mode=WRITER"}),
              HasSubstr("volume_capability.access_mode.mode: there is no 'WRITER'"));
  EXPECT_THAT(Refusal<Publish>({"volume_capability.access_mode.mode=WRITER"}),
              HasSubstr("SINGLE_NODE_WRITER"));
  EXPECT_THAT(Refusal<Publish>({"volume_id"}), HasSubstr("volume_id: it needs a value"));
  EXPECT_THAT(Refusal<Publish>({"volume_id.x=1"}),
              HasSubstr("volume_id: it is string and has nothing beneath it"));
  EXPECT_THAT(Refusal<Publish>({"volume_capability"}), HasSubstr("set its fields"));
  EXPECT_THAT(Refusal<Publish>({"volume_capability=ext4"}), HasSubstr("not the JSON of a VolumeCapability"));
  EXPECT_THAT(Refusal<Publish>({"volume_context"}), HasSubstr("volume_context.KEY=VALUE"));
  EXPECT_THAT(Refusal<Publish>({"volume_context[a=b"}), HasSubstr("volume_context[KEY]=VALUE"));
  EXPECT_THAT(Refusal<Create>({"capacity_range.required_bytes=huge"}),
              HasSubstr("capacity_range.required_bytes: "));
  EXPECT_THAT(Refusal<Create>({"volume_capabilities.block={}"}), HasSubstr("volume_capabilities[0]"));
  EXPECT_THAT(Refusal<Create>({"volume_capabilities[1].block={}"}),
              HasSubstr("element 0 comes before element 1"));
  for (const char* argument :
       {"volume_capabilities[x].block={}", "volume_capabilities[", "volume_capabilities[]={}",
        "volume_capabilities[-1]={}", "volume_capabilities[0"}) {
    EXPECT_THAT(Refusal<Create>({argument}), HasSubstr("volume_capabilities")) << argument;
  }
  EXPECT_THAT(Refusal<Create>({"name=\xff"}), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal<Create>({"parameters={\"a\": {}}"}), HasSubstr("not the JSON of a map of string"));
  EXPECT_THAT(Refusal<Create>({"parameters=" + std::string(100'000, '[')}),
              HasSubstr("nested more than 100"));
  for (const char* argument : {"", "=", "=x", ".", "[0]", "a..b=c", "parameters.=x"}) {
    EXPECT_FALSE(Refusal<Create>({argument}).empty());
  }
}

TEST(SetFieldTest, RefusesTwoMembersOfOneOneof) {
  const std::string refusal = Refusal<::csi::v1::NodePublishVolumeRequest>(
      {"volume_capability.mount.fs_type=ext4", "volume_capability.block={}"});
  EXPECT_THAT(refusal, HasSubstr("'mount' is set already"));
}

TEST(SetFieldTest, RefusesSecretsWithoutShowingThem) {
  for (const char* argument : {"secrets.password=hunter2", "secrets={\"password\": \"hunter2\"}"}) {
    const std::string refusal = Refusal<::csi::v1::NodeStageVolumeRequest>({argument});
    EXPECT_THAT(refusal, HasSubstr("--secrets-file"));
    EXPECT_THAT(refusal, Not(HasSubstr("hunter2")));
  }
}

TEST(SetFieldTest, AFailureLeavesTheMessageAsItWas) {
  ::csi::v1::CreateVolumeRequest request;
  ASSERT_TRUE(SetField(&request, "name=v1").ok());
  const std::string before = request.SerializeAsString();
  ASSERT_FALSE(SetField(&request, "volume_capabilities[0].mount.nonsense=1").ok());
  EXPECT_EQ(request.SerializeAsString(), before);
}

TEST(FieldPathsTest, ListsWhatCanBeSet) {
  const auto paths = FieldPaths(::csi::v1::NodeStageVolumeRequest::descriptor());
  EXPECT_THAT(paths, Contains(Field(&FieldPath::path, "volume_capability.mount.fs_type")));
  EXPECT_THAT(paths, Contains(Field(&FieldPath::path, "volume_capability.block")));
  EXPECT_THAT(paths, Contains(testing::AllOf(Field(&FieldPath::path, "secrets.KEY"),
                                             Field(&FieldPath::secret, true))));
}

// Every path that is listed can be set: the list cannot promise what the parser refuses.
TEST(FieldPathsTest, EveryPathOfEveryRpcCanBeSet) {
  for (const auto* service : CsiServices()) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* type = service->method(i)->input_type();
      for (const FieldPath& path : FieldPaths(type)) {
        if (path.secret) continue;
        std::string value = path.type == "{}" ? "{}" : "1";
        if (path.type == "bool") value = "true";
        const std::unique_ptr<google::protobuf::Message> message(
            google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
        const absl::Status status = SetField(message.get(), path.path + "=" + value);
        EXPECT_TRUE(status.ok()) << type->name() << ": " << path.path << ": " << status;
        EXPECT_GT(message->ByteSizeLong(), 0U) << path.path;
      }
    }
  }
}

TEST(RpcCatalogTest, EveryRpcIsFoundByEachOfItsNames) {
  int count = 0;
  for (const auto* service : CsiServices()) {
    EXPECT_EQ(*FindService(ShortName(service)), service);
    EXPECT_EQ(*FindService(service->name()), service);
    for (int i = 0; i < service->method_count(); ++i, ++count) {
      const auto* method = service->method(i);
      EXPECT_EQ(*FindMethod(service, method->name()), method);
      EXPECT_EQ(*FindMethod(service, ShortName(method)), method) << ShortName(method);
      EXPECT_EQ(*FindMethod(service, ShortName(service) + "-" + ShortName(method)), method);
    }
  }
  EXPECT_EQ(count, 36) << "CSI 1.13 has so many RPCs";
}

TEST(RpcCatalogTest, NamesAreTakenInEveryWriting) {
  const auto* node = *FindService("NODE");
  for (const char* name : {"NodePublishVolume", "nodepublishvolume", "node-publish-volume", "publish-volume",
                           "PUBLISH_VOLUME"}) {
    ASSERT_TRUE(FindMethod(node, name).ok()) << name;
    EXPECT_EQ((*FindMethod(node, name))->name(), "NodePublishVolume");
  }
  EXPECT_EQ((*FindMethod(node, "volume-stats"))->name(), "NodeGetVolumeStats");
  EXPECT_EQ(ShortName(*FindService("GroupController")), "group-controller");
}

TEST(RpcCatalogTest, ATypoGetsSuggestions) {
  const auto method = FindMethod(*FindService("node"), "pubish-volume");
  EXPECT_THAT(std::string(method.status().message()), HasSubstr("did you mean publish-volume"));
  EXPECT_EQ(ExitCodeOf(method.status()), ExitCode::kUsage);
  EXPECT_THAT(HintOf(FindService("nod").status()), HasSubstr("snapshot-metadata"));
  EXPECT_THAT(std::string(FindService("nod").status().message()), HasSubstr("did you mean node"));
}

TEST(RpcCatalogTest, MarksAlphaRpcs) {
  const auto* controller = *FindService("controller");
  EXPECT_TRUE(IsAlpha(*FindMethod(controller, "ControllerGetVolume")));
  EXPECT_FALSE(IsAlpha(*FindMethod(controller, "CreateVolume")));
  EXPECT_TRUE(IsAlpha(*FindMethod(*FindService("snapshot-metadata"), "GetMetadataDelta")));
}

}  // namespace
}  // namespace berth::cli
