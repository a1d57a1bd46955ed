// Who may do what over the socket, by what the kernel says of the peer.
#include <fmt/format.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <map>
#include <sstream>

#include "rpc/testing/node_server_fixture.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST_F(NodeServerTest, RootReadsAndChanges) {
  Start();
  const auto root = node_.Root();
  EXPECT_TRUE(GetStatus(*root).ok());
  EXPECT_TRUE(Publish(*root, "v").ok());
  EXPECT_EQ(node_.OnLoop([this] { return node_.mounter().volumes.size(); }), 1U);
}

TEST_F(NodeServerTest, AReaderReadsAndDoesNotChange) {
  Start();
  const auto reader = node_.Reader();
  EXPECT_TRUE(GetStatus(*reader).ok());
  const grpc::Status denied = Publish(*reader, "v");
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(),
              AllOf(HasSubstr("PublishVolume needs the right to change, which berthd-ro.sock does not give"),
                    HasSubstr(node_.path())));
  EXPECT_EQ(node_.OnLoop([this] { return node_.mounter().volumes.size(); }), 0U);
}

TEST_F(NodeServerTest, TheGroupOfASocketDecidesAlsoASupplementaryOne) {
  Start();
  for (const auto& [right, group] :
       {std::pair{Right::kChange, ServedNode::kChangers}, std::pair{Right::kRead, ServedNode::kReaders},
        std::pair{Right::kClaim, ServedNode::kClaimers}}) {
    const std::string path = node_.path(right);
    EXPECT_TRUE(ConnectTo(path).valid()) << path;
    EXPECT_TRUE(ConnectAs(path, kNobody, group).valid()) << path;
    EXPECT_TRUE(ConnectAs(path, kNobody, kNobody, {7, group}).valid()) << path;
    EXPECT_FALSE(ConnectAs(path, kNobody, kNobody).valid()) << path;
  }
  EXPECT_TRUE(GetStatus(*node_.Reader()).ok());
  EXPECT_TRUE(
      Publish(*ServedNode::Client(ConnectAs(node_.path(), kNobody, ServedNode::kChangers)), "v").ok());
  EXPECT_FALSE(ConnectAs(node_.path(), kNobody, ServedNode::kReaders).valid());
}

TEST_F(NodeServerTest, OnTheSocketForClaimsEveryOtherMethodIsDenied) {
  Start();
  const auto stub = node_.Claimer();
  const auto* service = v1::GetStatusRequest::descriptor()->file()->FindServiceByName("Node");
  ASSERT_NE(service, nullptr);
  int tried = 0;
  const auto denied = [&](auto method, const auto& request, auto response) {
    Call call;
    const grpc::Status status = (stub.get()->*method)(&call.context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    ++tried;
  };
  using Stub = v1::Node::Stub;
  denied(&Stub::GetStatus, v1::GetStatusRequest(), v1::GetStatusResponse());
  denied(&Stub::ListPlugins, v1::ListPluginsRequest(), v1::ListPluginsResponse());
  denied(&Stub::GetPlugin, v1::GetPluginRequest(), v1::Plugin());
  denied(&Stub::StartPlugin, v1::StartPluginRequest(), v1::Plugin());
  denied(&Stub::StopPlugin, v1::StopPluginRequest(), v1::Plugin());
  denied(&Stub::RestartPlugin, v1::RestartPluginRequest(), v1::Plugin());
  denied(&Stub::DrainPlugin, v1::DrainPluginRequest(), v1::Plugin());
  denied(&Stub::SwapPlugin, v1::SwapPluginRequest(), v1::Plugin());
  denied(&Stub::Reload, v1::ReloadRequest(), v1::ReloadResponse());
  denied(&Stub::ListVolumes, v1::ListVolumesRequest(), v1::ListVolumesResponse());
  denied(&Stub::ListDeclaredVolumes, v1::ListDeclaredVolumesRequest(), v1::ListDeclaredVolumesResponse());
  denied(&Stub::GetVolume, v1::GetVolumeRequest(), v1::Volume());
  denied(&Stub::PublishVolume, v1::PublishVolumeRequest(), v1::PublishVolumeResponse());
  denied(&Stub::UnpublishVolume, v1::UnpublishVolumeRequest(), v1::UnpublishVolumeResponse());
  denied(&Stub::EndConsumer, v1::EndConsumerRequest(), v1::EndConsumerResponse());
  denied(&Stub::ListConsumerMounts, v1::ListConsumerMountsRequest(), v1::ListConsumerMountsResponse());
  denied(&Stub::ExplainVolume, v1::ExplainVolumeRequest(), v1::ExplainVolumeResponse());
  denied(&Stub::Examine, v1::ExamineRequest(), v1::ExamineResponse());
  denied(&Stub::CreateVolume, v1::CreateVolumeRequest(), v1::CreateVolumeResponse());
  denied(&Stub::DeleteVolume, v1::DeleteVolumeRequest(), v1::DeleteVolumeResponse());
  denied(&Stub::ExpandVolume, v1::ExpandVolumeRequest(), v1::ExpandVolumeResponse());
  denied(&Stub::ListStorageVolumes, v1::ListStorageVolumesRequest(), v1::ListStorageVolumesResponse());
  denied(&Stub::GetVolumeStats, v1::GetVolumeStatsRequest(), v1::GetVolumeStatsResponse());
  denied(&Stub::GetConsumerStats, v1::GetConsumerStatsRequest(), v1::GetConsumerStatsResponse());
  denied(&Stub::DrainNode, v1::DrainNodeRequest(), v1::DrainNodeResponse());
  const auto stream_denied = [&](auto method, const auto& request, auto response) {
    Call call;
    const auto stream = (stub.get()->*method)(&call.context, request);
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
    ++tried;
  };
  stream_denied(&Stub::WatchEvents, v1::WatchEventsRequest(), v1::WatchEventsResponse());
  stream_denied(&Stub::ReadPluginLog, v1::ReadPluginLogRequest(), v1::ReadPluginLogResponse());
  stream_denied(&Stub::WatchLog, v1::WatchLogRequest(), v1::WatchLogResponse());
  EXPECT_EQ(tried + 2, service->method_count()) << "a method was added: try it here";
}

TEST(NodeMethodsTest, TheProtocolSaysWhatRightEachNeeds) {
  std::map<std::string, std::string> needed{{"Examine", "[read; with `repair`: change]"}};
#define BERTH_METHOD(part, name, response, right)               \
  needed[#name] = Right::right == Right::kRead     ? "[read]"   \
                  : Right::right == Right::kChange ? "[change]" \
                                                   : "[claim]";
#define BERTH_STREAM(part, name, right) BERTH_METHOD(part, name, , right)
#include "rpc/node_methods.inc"
#undef BERTH_METHOD
#undef BERTH_STREAM
  std::map<std::string, std::string> said;
  std::ifstream proto(BERTH_NODE_PROTO);
  std::string first;  // line of the comment
  for (std::string line; std::getline(proto, line);) {
    if (line.starts_with("  // ") && first.empty()) first = line.substr(5);
    if (line.starts_with("  rpc "))
      said[line.substr(6, line.find('(') - 6)] = first.substr(0, first.find(']') + 1);
    if (!line.starts_with("  // ")) first.clear();
  }
  EXPECT_EQ(said, needed);
}

TEST_F(NodeServerTest, AReaderDoesNotDrainTheNode) {
  Start();
  const auto drain = [](v1::Node::Stub& stub, v1::DrainNodeResponse* response) {
    Call call;
    v1::DrainNodeRequest request;
    request.set_reason("why");
    return stub.DrainNode(&call.context, request, response);
  };
  v1::DrainNodeResponse response;
  EXPECT_EQ(drain(*node_.Reader(), &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(drain(*node_.Root(), &response).ok());
  EXPECT_EQ(response.drain().reason(), "why");
  EXPECT_EQ(Publish(*node_.Root(), "v").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(NodeServerTest, AClaimerClaimsAndNothingElseAndTheSchedulerIsToldWhoItIs) {
  Start();
  node_.OnLoop([this] {
    node_.mounter().mounts.push_back(
        {.plugin_id = "p", .volume_id = "v", .consumer = "ns/job", .source_path = "/volumes/v"});
    node_.scheduler().answer.set_plugin_id("p");
    node_.scheduler().answer.set_volume_id("v");
    return true;
  });
  const auto claim = [](v1::Node::Stub& stub, v1::ClaimVolumeResponse* response) {
    Call call;
    v1::ClaimVolumeRequest request;
    request.set_namespace_("ns");
    request.set_volume("db");
    request.set_consumer("job");
    const auto reader = stub.ClaimVolume(&call.context, request);
    while (reader->Read(response)) continue;
    return reader->Finish();
  };
  v1::ClaimVolumeResponse response;
  const grpc::Status denied = claim(*node_.Reader(), &response);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(),
              AllOf(HasSubstr("ClaimVolume needs the right to claim"), HasSubstr("/claim.sock")));
  EXPECT_EQ(node_.OnLoop([this] { return node_.scheduler().asks.size(); }), 0U);

  const auto claimer = node_.Claimer();
  EXPECT_TRUE(claim(*claimer, &response).ok());
  EXPECT_EQ(response.mount().source_path(), "/volumes/v");
  EXPECT_EQ(GetStatus(*claimer).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Publish(*claimer, "v").error_code(), grpc::StatusCode::PERMISSION_DENIED);

  EXPECT_TRUE(claim(*node_.Root(), &response).ok());

  const auto asks = node_.OnLoop([this] { return node_.scheduler().asks; });
  ASSERT_EQ(asks.size(), 2U);
  EXPECT_EQ(asks[0].uid(), kNobody);
  EXPECT_EQ(asks[0].gid(), ServedNode::kClaimers);
  EXPECT_EQ(asks[1].uid(), 0U);
}

TEST_F(NodeServerTest, AClaimIsWithdrawnWhenItsCallerGoes) {
  Start();
  node_.OnLoop([this] { return node_.scheduler().hang = true; });
  const auto claimer = node_.Claimer();
  grpc::ClientContext context;
  auto status = std::async(std::launch::async, [&] {
    v1::ClaimVolumeRequest request;
    request.set_namespace_("ns");
    request.set_volume("db");
    request.set_consumer("job");
    return claimer->ClaimVolume(&context, request)->Finish();
  });
  EXPECT_TRUE(node_.Eventually([this] { return node_.scheduler().waiting == 1; }));
  context.TryCancel();
  EXPECT_EQ(status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(node_.Eventually([this] { return node_.scheduler().withdrawn == 1; }));
}

// With what berthd logs meanwhile.
class NodeServerRefusalTest : public NodeServerTest {
 protected:
  void SetUp() override {
    NodeServerTest::SetUp();
    if (IsSkipped()) return;
    const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    node_.OnLoop([&] {
      spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
      return true;
    });
    Start();
  }
  void TearDown() override {
    node_.OnLoop([this] {
      spdlog::set_default_logger(before_);
      return true;
    });
  }

  // Lines about a peer without rights, for answered calls: the loop logs before it answers.
  std::vector<std::string> Refusals() { return Lines("needs the right to"); }
  std::vector<std::string> Lines(const std::string& part) {
    std::istringstream lines(node_.OnLoop([this] { return text_.str(); }));
    std::vector<std::string> refusals;
    for (std::string line; std::getline(lines, line);) {
      if (line.find(part) != std::string::npos) refusals.push_back(line);
    }
    return refusals;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(NodeServerRefusalTest, RefusalsOfAUserAreLoggedOnceHoweverOftenHeConnects) {
  EXPECT_TRUE(GetStatus(*node_.Reader()).ok());
  EXPECT_THAT(Refusals(), SizeIs(0));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(Publish(*node_.Reader(), "payroll").ok());
  std::vector<std::string> refusals = Refusals();
  ASSERT_THAT(refusals, SizeIs(1));
  EXPECT_THAT(refusals[0], AllOf(HasSubstr("PublishVolume needs the right to change"),
                                 HasSubstr(fmt::format("uid 65534, pid {}", getpid()))));
  EXPECT_THAT(refusals[0], Not(AnyOf(HasSubstr("payroll"), HasSubstr("hush"), HasSubstr("job/1"))));

  const auto another =
      ServedNode::Client(ConnectAs(node_.path(Right::kRead), kNobody - 1, ServedNode::kReaders));
  EXPECT_FALSE(Publish(*another, "v").ok());
  EXPECT_THAT(Refusals(), SizeIs(2)) << "another user has a line of his own";
  EXPECT_TRUE(Publish(*node_.Root(), "v").ok());
}

TEST_F(NodeServerRefusalTest, ClaimsDoNotFillTheLog) {
  for (int i = 0; i < 20; ++i) {
    Call call;
    v1::ClaimVolumeRequest request;
    request.set_namespace_("ns");
    request.set_volume("db");
    request.set_consumer("job");
    EXPECT_FALSE(node_.Claimer()->ClaimVolume(&call.context, request)->Finish().ok());
  }
  EXPECT_THAT(Lines("ClaimVolume"), SizeIs(0));
}

TEST_F(NodeServerTest, RightsStayWithTheConnectionWhileDescriptorsAreReused) {
  Start();
  for (int i = 0; i < 50; ++i) {
    const auto reader = node_.Reader();
    EXPECT_EQ(Publish(*reader, "v").error_code(), grpc::StatusCode::PERMISSION_DENIED);
    const auto root = node_.Root();
    EXPECT_TRUE(Publish(*root, fmt::format("v{}", i)).ok());
  }
}

TEST_F(NodeServerTest, MountFlagsAreHiddenFromReaders) {
  Start();
  const auto root = node_.Root();
  ASSERT_TRUE(Publish(*root, "v").ok());
  const auto flags = [](v1::Node::Stub& stub) {
    Call call;
    v1::GetVolumeRequest request;
    request.set_plugin_id("p");
    request.set_volume_id("v");
    v1::Volume volume;
    EXPECT_TRUE(stub.GetVolume(&call.context, request, &volume).ok());
    return volume.capability().mount_flags();
  };
  EXPECT_THAT(flags(*root), ElementsAre("password=hush"));
  EXPECT_THAT(flags(*node_.Reader()), ElementsAre("(hidden)"));
}

TEST_F(NodeServerTest, AReaderExaminesAndDoesNotRepair) {
  Start();
  node_.OnLoop([this] {
    node_.mounter().findings = {{.code = "mount.missing", .repair = "publish it again"}};
    return true;
  });
  const auto examine = [](v1::Node::Stub& stub, bool repair) {
    Call call;
    v1::ExamineRequest request;
    request.set_repair(repair);
    v1::ExamineResponse response;
    const grpc::Status status = stub.Examine(&call.context, request, &response);
    EXPECT_EQ(response.findings_size(), status.ok() ? 1 : 0);
    return status;
  };
  const auto reader = node_.Reader();
  EXPECT_TRUE(examine(*reader, false).ok());
  const grpc::Status denied = examine(*reader, true);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(), HasSubstr("Examine needs the right to change"));
  EXPECT_TRUE(examine(*node_.Root(), true).ok());
}

TEST_F(NodeServerTest, AReaderMayAskButNotEndAConsumer) {
  Start();
  ASSERT_TRUE(Publish(*node_.Root(), "v").ok());
  const auto reader = node_.Reader();
  const auto end = [](v1::Node::Stub& stub) {
    Call call;
    v1::EndConsumerRequest request;
    request.set_consumer("job/1");
    v1::EndConsumerResponse response;
    return stub.EndConsumer(&call.context, request, &response);
  };
  EXPECT_EQ(end(*reader).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  {
    Call call;
    v1::ExplainVolumeRequest request;
    request.set_plugin_id("p");
    request.set_volume_id("v");
    v1::ExplainVolumeResponse response;
    EXPECT_TRUE(reader->ExplainVolume(&call.context, request, &response).ok());
    EXPECT_THAT(response.volume().capability().mount_flags(), ElementsAre("(hidden)"));
  }
  {
    Call call;
    v1::GetConsumerStatsRequest request;
    request.set_consumer("job/1");
    v1::GetConsumerStatsResponse response;
    EXPECT_TRUE(reader->GetConsumerStats(&call.context, request, &response).ok());
    EXPECT_EQ(response.volumes_size(), 1);
  }
  EXPECT_TRUE(end(*node_.Root()).ok());
  EXPECT_EQ(node_.OnLoop([this] { return node_.mounter().volumes.size(); }), 0U);
}

}  // namespace
}  // namespace berth
