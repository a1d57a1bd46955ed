// The built berthctl's csi command against a CSI plugin on a real socket.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "cli/testing/run_berthctl.h"
#include "cli/testing/temp_dir.h"
#include "csi/csi.grpc.pb.h"

namespace berth::cli {
namespace {

using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;
using grpc::ServerContext;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Answers with what it was given to answer, and keeps what it was asked. Test and server take turns: a test
// looks only once berthctl, and with it the call, has ended.
class FakePlugin final : public ::csi::v1::Identity::Service,
                         public ::csi::v1::Node::Service,
                         public ::csi::v1::SnapshotMetadata::Service {
 public:
  FakePlugin() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<::csi::v1::Identity::Service*>(this));
    builder.RegisterService(static_cast<::csi::v1::Node::Service*>(this));
    builder.RegisterService(static_cast<::csi::v1::SnapshotMetadata::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakePlugin() override { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5)); }
  FakePlugin(const FakePlugin&) = delete;
  FakePlugin& operator=(const FakePlugin&) = delete;

  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] const TempDir& dir() const { return dir_; }

  grpc::Status failure;
  int calls = 0;
  ::csi::v1::NodeStageVolumeRequest stage_request;
  ::csi::v1::NodeUnstageVolumeRequest unstage_request;

  grpc::Status Probe(ServerContext* /*context*/, const ::csi::v1::ProbeRequest* /*request*/,
                     ::csi::v1::ProbeResponse* response) override {
    ++calls;
    response->mutable_ready()->set_value(true);
    return failure;
  }
  grpc::Status NodeGetInfo(ServerContext* /*context*/, const ::csi::v1::NodeGetInfoRequest* /*request*/,
                           ::csi::v1::NodeGetInfoResponse* response) override {
    ++calls;
    response->set_node_id("node-1");
    return failure;
  }
  grpc::Status NodeStageVolume(ServerContext* /*context*/, const ::csi::v1::NodeStageVolumeRequest* request,
                               ::csi::v1::NodeStageVolumeResponse* /*response*/) override {
    ++calls;
    stage_request = *request;
    return failure;
  }
  grpc::Status NodeUnstageVolume(ServerContext* /*context*/,
                                 const ::csi::v1::NodeUnstageVolumeRequest* request,
                                 ::csi::v1::NodeUnstageVolumeResponse* /*response*/) override {
    ++calls;
    unstage_request = *request;
    return failure;
  }
  grpc::Status GetMetadataAllocated(
      ServerContext* /*context*/, const ::csi::v1::GetMetadataAllocatedRequest* request,
      grpc::ServerWriter<::csi::v1::GetMetadataAllocatedResponse>* writer) override {
    ++calls;
    for (int i = 0; i < request->max_results(); ++i) {
      ::csi::v1::GetMetadataAllocatedResponse response;
      response.set_volume_capacity_bytes(i);
      writer->Write(response);
    }
    return failure;
  }

 private:
  TempDir dir_;
  std::string socket_ = dir_.Path("csi.sock");
  std::unique_ptr<grpc::Server> server_;
};

class CsiCommandTest : public testing::Test {
 protected:
  Ended Csi(std::vector<std::string> arguments, RunOptions options = {}) {
    arguments.insert(arguments.begin(), {"csi", "--endpoint", "unix://" + plugin_.socket()});
    return RunBerthctl(std::move(arguments), std::move(options));
  }

  FakePlugin plugin_;
};

TEST_F(CsiCommandTest, AnswersAreJsonWithDefaults) {
  EXPECT_EQ(Csi({"identity", "probe"}).out, "{\n \"ready\": true\n}\n");
  const Ended info = Csi({"node", "get-info", "-o", "json"});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_EQ(info.out, "{\"node_id\":\"node-1\",\"max_volumes_per_node\":\"0\"}\n");
}

TEST_F(CsiCommandTest, AMethodHasSeveralNames) {
  for (const char* name : {"NodeGetInfo", "node-get-info", "get-info", "GETINFO", "info"}) {
    EXPECT_EQ(Csi({"node", name}).exit_code, 0) << name;
  }
  EXPECT_EQ(plugin_.calls, 5);
}

TEST_F(CsiCommandTest, TheEndpointIsWrittenInSeveralWaysOrComesFromTheEnvironment) {
  for (const std::string& endpoint :
       {plugin_.socket(), "unix:" + plugin_.socket(), "unix://" + plugin_.socket()}) {
    EXPECT_EQ(RunBerthctl({"csi", "--endpoint", endpoint, "identity", "probe"}).exit_code, 0) << endpoint;
    EXPECT_EQ(
        RunBerthctl({"csi", "identity", "probe"}, {.environment = {"CSI_ENDPOINT=" + endpoint}}).exit_code,
        0);
  }
  const Ended none = RunBerthctl({"csi", "identity", "probe"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("CSI_ENDPOINT"));
  EXPECT_EQ(RunBerthctl({"csi", "--endpoint", "tcp://localhost:1", "identity", "probe"}).exit_code, 2);
}

TEST_F(CsiCommandTest, TheRequestIsPutTogetherFromJsonArgumentsAndSecrets) {
  const std::string request = plugin_.dir().Write(
      "request.json", R"({"volume_id": "from-file", "staging_target_path": "/staging"})", 0600);
  const std::string secrets = plugin_.dir().Write("secrets.json", R"({"password": "hunter2"})", 0600);
  const Ended run =
      Csi({"node", "stage-volume", "--request", "@" + request, "volume_id=v1",
           "volume_capability.mount.fs_type=ext4", "volume_capability.access_mode.mode=SINGLE_NODE_WRITER",
           "volume_context.kind=image", "--secrets-file", secrets});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "{}\n");
  ::csi::v1::NodeStageVolumeRequest expected;
  expected.set_volume_id("v1");
  expected.set_staging_target_path("/staging");
  expected.mutable_volume_capability()->mutable_mount()->set_fs_type("ext4");
  expected.mutable_volume_capability()->mutable_access_mode()->set_mode(
      ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  (*expected.mutable_volume_context())["kind"] = "image";
  (*expected.mutable_secrets())["password"] = "hunter2";
  EXPECT_TRUE(MessageDifferencer::Equals(plugin_.stage_request, expected))
      << plugin_.stage_request.DebugString();

  EXPECT_EQ(
      Csi({"node", "unstage-volume", "--request", "-"}, {.input = R"({"volumeId": "piped"})"}).exit_code, 0);
  EXPECT_EQ(plugin_.unstage_request.volume_id(), "piped");
  EXPECT_EQ(Csi({"node", "unstage-volume", "--request", R"({"volume_id": "inline"})"}).exit_code, 0);
  EXPECT_EQ(plugin_.unstage_request.volume_id(), "inline");
}

TEST_F(CsiCommandTest, AStreamIsPrintedOneAnswerALine) {
  const Ended run = Csi({"snapshot-metadata", "get-metadata-allocated", "snapshot_id=s", "max_results=3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 3);
  size_t at = 0;
  for (int i = 0; i < 3; ++i) {
    const size_t end = run.out.find('\n', at);
    ::csi::v1::GetMetadataAllocatedResponse response;
    ASSERT_TRUE(JsonStringToMessage(run.out.substr(at, end - at), &response).ok());
    EXPECT_EQ(response.volume_capacity_bytes(), i);
    at = end + 1;
  }
  plugin_.failure = {grpc::StatusCode::NOT_FOUND, "no such snapshot"};
  const Ended broken = Csi({"snapshot-metadata", "get-metadata-allocated", "max_results=1"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_EQ(std::count(broken.out.begin(), broken.out.end(), '\n'), 1)
      << "what came before the failure is kept";
  EXPECT_THAT(broken.err, HasSubstr("NOT_FOUND: GetMetadataAllocated: no such snapshot"));
}

TEST_F(CsiCommandTest, ThePluginsRefusalEndsWith1) {
  plugin_.failure = {grpc::StatusCode::UNAVAILABLE, "the storage is away"};
  const Ended run = Csi({"identity", "probe"});
  EXPECT_EQ(run.exit_code, 1) << "answered, so reached";
  EXPECT_THAT(run.err, StartsWith("berthctl: UNAVAILABLE: Probe: the storage is away\n  "));
  const Ended absent = Csi({"controller", "list-volumes"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("UNIMPLEMENTED"));
}

TEST_F(CsiCommandTest, APluginThatDoesNotListenEndsWith3) {
  const Ended run = RunBerthctl({"csi", "--endpoint", "unix:///nonexistent/csi.sock", "identity", "probe"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, StartsWith("berthctl: cannot reach a plugin at /nonexistent/csi.sock: No such file"));
}

TEST_F(CsiCommandTest, WrongUsageEndsWith2AndAsksNobody) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"node"},
      {"nod", "get-info"},
      {"node", "get-inof"},
      {"node", "stage-volume", "volumeid"},
      {"node", "stage-volume", "volume=v"},
      {"node", "stage-volume", "secrets.password=hunter2"},
      {"node", "stage-volume", "--request", "{"},
      {"node", "stage-volume", "--request", R"({"nonsense": 1})"},
      {"node", "stage-volume", "--request", "@/nonexistent"},
      {"node", "stage-volume", "--request", R"({"secrets": {"password": "hunter2"}})"},
      {"node", "stage-volume", "--request", "-", "--secrets-file", "-"},
      {"node", "unstage-volume", "--secrets-file", "/dev/null"},
  };
  for (const auto& arguments : wrong) {
    const Ended run = Csi(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("\n  "), Not(HasSubstr("hunter2"))))
        << testing::PrintToString(arguments);
  }
  EXPECT_THAT(Csi({"node", "get-inof"}).err, HasSubstr("did you mean get-info?"));
  EXPECT_EQ(plugin_.calls, 0);
}

TEST_F(CsiCommandTest, SecretsAreShownNowhere) {
  const std::string secrets = plugin_.dir().Write("secrets", "password=hunter2\n", 0600);
  plugin_.failure = {grpc::StatusCode::UNAUTHENTICATED, "hunter2 is not it"};
  const Ended run = Csi({"node", "stage-volume", "volume_id=v", "--secrets-file", secrets});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("*** is not it"), Not(HasSubstr("hunter2"))));
  const std::string broken =
      plugin_.dir().Write("broken.json", R"({"secrets": {"password": "hunter2",,}})", 0600);
  const Ended unreadable = Csi({"node", "stage-volume", "--request", "@" + broken});
  EXPECT_EQ(unreadable.exit_code, 2);
  EXPECT_THAT(unreadable.err, Not(HasSubstr("hunter2")));
}

TEST(CsiListTest, NamesEveryRpcAndItsFieldsWithoutAPlugin) {
  const Ended all = RunBerthctl({"csi", "--list"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr("NodePublishVolume"), HasSubstr("group-controller"),
                             HasSubstr("ControllerGetVolume (alpha)"),
                             HasSubstr("GetMetadataDelta (alpha) (stream)")));
  const Ended one = RunBerthctl({"csi", "--list", "node", "stage-volume"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("volume_capability.mount.fs_type"), HasSubstr("--secrets-file")));
  const Ended json = RunBerthctl({"csi", "--list", "-o", "json"});
  google::protobuf::Struct document;
  ASSERT_TRUE(JsonStringToMessage(json.out, &document).ok());
  EXPECT_EQ(document.fields().at("rpcs").list_value().values_size(), 36);
  EXPECT_EQ(RunBerthctl({"csi", "--list", "nod"}).exit_code, 2);
}

}  // namespace
}  // namespace berth::cli
