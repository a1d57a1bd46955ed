#include "rpc/node_api.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/process.h"
#include "base/testing.h"
#include "csi/testing/fake_plugin.h"
#include "rpc/testing/fakes.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using ControllerRpc = csi::ControllerServiceCapability::RPC;
using NodeRpc = csi::NodeServiceCapability::RPC;
using Service = csi::PluginCapability::Service;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Takes what a watch sends; says that the caller has gone after `take` messages.
class FakeStream final : public StreamWriter<v1::WatchEventsResponse> {
 public:
  std::vector<v1::WatchEventsResponse> sent;
  size_t take = 1'000'000;

  [[nodiscard]] Awaitable<bool> Send(v1::WatchEventsResponse message) override {
    sent.push_back(std::move(message));
    co_return sent.size() < take;
  }
};

class NodeApiTest : public testing::Test {
 protected:
  NodeApiTest() {
    char name[] = "/tmp/berth-rpc-XXXXXX";
    directory_ = mkdtemp(name);
    fake_ = std::make_unique<FakePlugin>(directory_ + "/csi.sock");
    fake_->Start();
    controllers_.clients["p"] = CsiClient::Connect(fake_->socket_path());
  }
  ~NodeApiTest() override {
    controllers_.clients.clear();
    fake_.reset();
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_;
  }

  // The plugin "p", of which the fake is the controller too.
  PluginFacts& AddPlugin(const std::set<int>& controller, const std::set<int>& node = {}) {
    PluginFacts& facts = *control_.Add("p").facts;
    facts.plugin_services.insert(Service::CONTROLLER_SERVICE);
    facts.controller_capabilities = controller;
    facts.node_capabilities = node;
    return facts;
  }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(Awaitable<absl::StatusOr<Response>> (NodeApi::*method)(Request, CallInfo),
                                const Request& request, bool may_change = true) {
    const CallInfo call{.method = "Test",
                        .rights = {.read = true, .change = may_change},
                        .deadline = Clock::now() + std::chrono::seconds(20)};
    return RunOn(loop_, (api_.*method)(request, call));
  }

  absl::Status Watch(uint64_t after, FakeStream& out, const std::string& volume = "") {
    v1::WatchEventsRequest request;
    request.set_after_sequence(after);
    request.set_volume_id(volume);
    return RunOn(loop_, api_.WatchEvents(request, CallInfo{}, out));
  }

  asio::io_context loop_;
  std::string directory_;
  std::unique_ptr<FakePlugin> fake_;
  FakePluginControl control_;
  FakeControllerDirectory controllers_;
  FakeMounter mounter_{loop_.get_executor()};
  EventLog events_{loop_.get_executor(), 10};
  NodeApi api_{{.node_id = "n1",
                .version = "0.1.0",
                .started_at = WallTime(std::chrono::seconds(5)),
                .config_dir = "/etc/b",
                .state_dir = "/var/b",
                .runtime_dir = "/run/b"},
               control_,
               controllers_,
               mounter_,
               events_};
};

v1::CreateVolumeRequest Create() {
  v1::CreateVolumeRequest request;
  request.set_plugin_id("p");
  request.set_name("pvc-1");
  request.add_capabilities();
  return request;
}

csi::CreateVolumeResponse Created() {
  csi::CreateVolumeResponse response;
  response.mutable_volume()->set_volume_id("vol-1");
  response.mutable_volume()->set_capacity_bytes(1024);
  return response;
}

template <class Request>
Request ForVolume(const std::string& volume = "v") {
  Request request;
  request.set_plugin_id("p");
  request.set_volume_id(volume);
  return request;
}

v1::ExpandVolumeRequest Expand() {
  auto request = ForVolume<v1::ExpandVolumeRequest>();
  request.set_required_bytes(2048);
  (*request.mutable_secrets())["k"] = "s";
  return request;
}

csi::ControllerExpandVolumeResponse Expanded(bool node_too) {
  csi::ControllerExpandVolumeResponse response;
  response.set_capacity_bytes(2048);
  response.set_node_expansion_required(node_too);
  return response;
}

TEST_F(NodeApiTest, StatusCountsAndNamesProblems) {
  control_.Add("good");
  control_.Add("bad").state = PluginState::kFailed;
  control_.plugins_by_id["bad"].reason = "bad.toml:3: command: missing";
  control_.Add("sick").state = PluginState::kUnhealthy;
  control_.Add("odd").registered = false;
  mounter_.Add("good", "v1", "c");
  mounter_.Add("good", "v2", "c").awaiting_secrets = true;
  mounter_.Add("good", "v3", "c").uncertain = true;
  mounter_.volumes.back().last_error = "DEADLINE_EXCEEDED";
  events_.Append({.type = "a"});
  const auto status = Call(&NodeApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->node_id(), "n1");
  EXPECT_EQ(status->pid(), getpid());
  EXPECT_EQ(status->boot_id(), BootId());
  EXPECT_EQ(status->started_at().seconds(), 5);
  EXPECT_EQ(status->state_dir(), "/var/b");
  EXPECT_EQ(status->plugins(), 4);
  EXPECT_EQ(status->plugins_ready(), 2);
  EXPECT_EQ(status->volumes(), 3);
  EXPECT_EQ(status->publications(), 3);
  EXPECT_EQ(status->last_event_sequence(), 1U);
  EXPECT_THAT(status->problems(), SizeIs(5));
  EXPECT_THAT(status->problems(), Contains("plugin bad has failed: bad.toml:3: command: missing"));
  EXPECT_THAT(status->problems(), Contains(HasSubstr("volume v2 of plugin good waits for its secrets")));
  EXPECT_THAT(status->problems(), Contains(HasSubstr("DEADLINE_EXCEEDED")));
}

TEST_F(NodeApiTest, StatusBoundsTheListOfProblems) {
  for (int i = 0; i < 500; ++i) mounter_.Add("p", fmt::format("v{}", i), "c").uncertain = true;
  const auto status = Call(&NodeApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->problems(), SizeIs(101));
  EXPECT_THAT(status->problems(), Contains("and 400 more"));
}

TEST_F(NodeApiTest, PluginsCountTheirVolumes) {
  control_.Add("a");
  control_.Add("b");
  mounter_.Add("b", "v1", "c");
  const auto list = Call(&NodeApi::ListPlugins, v1::ListPluginsRequest());
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->plugins_size(), 2);
  EXPECT_EQ(list->plugins(0).volumes(), 0);
  EXPECT_EQ(list->plugins(1).volumes(), 1);

  v1::GetPluginRequest request;
  request.set_id("b");
  EXPECT_EQ(Call(&NodeApi::GetPlugin, request)->volumes(), 1);
  request.set_id("zz");
  const auto missing = Call(&NodeApi::GetPlugin, request);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(missing.status()), HasSubstr("there are a, b"));
}

TEST_F(NodeApiTest, LeversReachTheSupervisorAndAnswerWithThePlugin) {
  control_.Add("p");
  v1::StartPluginRequest start;
  start.set_id("p");
  EXPECT_EQ(Call(&NodeApi::StartPlugin, start)->id(), "p");
  v1::StopPluginRequest stop;
  stop.set_id("p");
  stop.set_force(true);
  EXPECT_EQ(Call(&NodeApi::StopPlugin, stop)->id(), "p");
  v1::RestartPluginRequest restart;
  restart.set_id("p");
  control_.next.push_back(absl::FailedPreconditionError("busy"));
  EXPECT_EQ(Call(&NodeApi::RestartPlugin, restart).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(control_.pulled, ElementsAre("start p", "stop p force", "restart p"));
  EXPECT_EQ(Call(&NodeApi::StartPlugin, v1::StartPluginRequest()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeApiTest, VolumesAreFiltered) {
  control_.Add("p").facts->name = "driver.p";
  control_.Add("q").facts->name = "driver.q";
  mounter_.Add("p", "v1", "anna");
  mounter_.Add("p", "v2", "bert");
  mounter_.Add("q", "v3", "anna");
  const auto ids = [&](const std::string& plugin, const std::string& consumer) {
    v1::ListVolumesRequest request;
    request.set_plugin_id(plugin);
    request.set_consumer(consumer);
    std::vector<std::string> found;
    const auto list = Call(&NodeApi::ListVolumes, request);
    EXPECT_TRUE(list.ok()) << list.status();
    for (const v1::Volume& volume : list->volumes()) found.push_back(volume.volume_id());
    return found;
  };
  EXPECT_THAT(ids("", ""), ElementsAre("v1", "v2", "v3"));
  EXPECT_THAT(ids("p", ""), ElementsAre("v1", "v2"));
  EXPECT_THAT(ids("driver.q", ""), ElementsAre("v3"));
  EXPECT_THAT(ids("", "anna"), ElementsAre("v1", "v3"));
  EXPECT_THAT(ids("q", "bert"), IsEmpty());
}

TEST_F(NodeApiTest, AVolumeOfAPluginThatIsGoneIsStillReached) {
  mounter_.Add("p", "v", "c");
  EXPECT_TRUE(Call(&NodeApi::GetVolume, ForVolume<v1::GetVolumeRequest>()).ok());
  v1::UnpublishVolumeRequest request = ForVolume<v1::UnpublishVolumeRequest>();
  request.set_consumer("c");
  const auto undone = Call(&NodeApi::UnpublishVolume, request);
  ASSERT_TRUE(undone.ok()) << undone.status();
  EXPECT_TRUE(undone->was_published());
}

TEST_F(NodeApiTest, GetVolumeOfNothingIsNotFound) {
  control_.Add("p");
  EXPECT_EQ(Call(&NodeApi::GetVolume, ForVolume<v1::GetVolumeRequest>()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(NodeApiTest, MountFlagsAreHiddenFromReaders) {
  control_.Add("p");
  mounter_.Add("p", "v", "c").use.mount_flags = {"password=hush"};
  const auto request = ForVolume<v1::GetVolumeRequest>();
  EXPECT_THAT(Call(&NodeApi::GetVolume, request, true)->capability().mount_flags(),
              ElementsAre("password=hush"));
  EXPECT_THAT(Call(&NodeApi::GetVolume, request, false)->capability().mount_flags(), ElementsAre("(hidden)"));
  const auto list = Call(&NodeApi::ListVolumes, v1::ListVolumesRequest(), false);
  EXPECT_THAT(list->volumes(0).capability().mount_flags(), ElementsAre("(hidden)"));
}

TEST_F(NodeApiTest, PublishAnswersWithTargetAndVolume) {
  control_.Add("p");
  auto request = ForVolume<v1::PublishVolumeRequest>();
  request.set_consumer("c");
  request.set_plugin_id("driver.test");
  const auto answer = Call(&NodeApi::PublishVolume, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->target_path(), "/volumes/v");
  EXPECT_EQ(answer->volume().plugin_id(), "p");
  EXPECT_EQ(answer->volume().state(), v1::PUBLISHED);
}

TEST_F(NodeApiTest, PublishDoesNotRepeatASecretThatAPluginQuotes) {
  control_.Add("p");
  auto request = ForVolume<v1::PublishVolumeRequest>();
  request.set_consumer("c");
  (*request.mutable_secrets())["password"] = "hunter22";
  mounter_.next_error = absl::InternalError("login with hunter22 failed");
  EXPECT_EQ(Message(Call(&NodeApi::PublishVolume, request).status()), "login with *** failed");
  EXPECT_EQ(mounter_.last_secrets.at("password"), "hunter22");
}

TEST_F(NodeApiTest, StatsComeFromTheMounter) {
  control_.Add("p").facts->node_capabilities = {NodeRpc::GET_VOLUME_STATS};
  csi::VolumeUsage& usage = *mounter_.stats.add_usage();
  usage.set_unit(csi::VolumeUsage::BYTES);
  usage.set_total(100);
  const auto stats = Call(&NodeApi::GetVolumeStats, ForVolume<v1::GetVolumeStatsRequest>());
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->usage(0).total(), 100);
}

TEST_F(NodeApiTest, StatsOfAPluginWithoutThemAreRefused) {
  control_.Add("p");
  const auto stats = Call(&NodeApi::GetVolumeStats, ForVolume<v1::GetVolumeStatsRequest>());
  EXPECT_EQ(stats.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(stats.status()), HasSubstr("GET_VOLUME_STATS"));
}

TEST_F(NodeApiTest, CreateCallsTheControllerOfTheSameDriver) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.Add("node-half");
  fake_->Answer("CreateVolume", Created());
  auto request = Create();
  request.set_plugin_id("node-half");
  request.set_required_bytes(1000);
  (*request.mutable_secrets())["k"] = "s";
  const auto answer = Call(&NodeApi::CreateVolume, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->volume_id(), "vol-1");
  csi::CreateVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("CreateVolume", &sent));
  EXPECT_EQ(sent.name(), "pvc-1");
  EXPECT_EQ(sent.capacity_range().required_bytes(), 1000);
  EXPECT_EQ(sent.secrets().at("k"), "s");
  EXPECT_FALSE(sent.has_accessibility_requirements());
}

TEST_F(NodeApiTest, CreateAsksForAVolumeThatCanBeUsedHere) {
  PluginFacts& facts = AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  facts.plugin_services.insert(Service::VOLUME_ACCESSIBILITY_CONSTRAINTS);
  facts.topology = {{"node", "n1"}};
  fake_->Answer("CreateVolume", Created());
  ASSERT_TRUE(Call(&NodeApi::CreateVolume, Create()).ok());
  csi::CreateVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("CreateVolume", &sent));
  ASSERT_EQ(sent.accessibility_requirements().requisite_size(), 1);
  EXPECT_EQ(sent.accessibility_requirements().requisite(0).segments().at("node"), "n1");
  EXPECT_EQ(sent.accessibility_requirements().preferred(0).segments().at("node"), "n1");
}

TEST_F(NodeApiTest, CreateNeedsTheCapabilitiesForWhatIsAsked) {
  const auto refused = [&](const v1::CreateVolumeRequest& request) {
    const auto answer = Call(&NodeApi::CreateVolume, request);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
    return Message(answer.status());
  };
  AddPlugin({});
  EXPECT_THAT(refused(Create()), HasSubstr("CREATE_DELETE_VOLUME"));
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  auto request = Create();
  request.set_source_volume_id("v0");
  EXPECT_THAT(refused(request), HasSubstr("CLONE_VOLUME"));
  request.clear_source_volume_id();
  request.set_source_snapshot_id("s0");
  EXPECT_THAT(refused(request), HasSubstr("CREATE_DELETE_SNAPSHOT"));
  EXPECT_EQ(fake_->Calls("CreateVolume"), 0);
}

TEST_F(NodeApiTest, LateAccessModesAreSentOnlyToThoseWhoKnowThem) {
  using Mode = csi::VolumeCapability::AccessMode;
  fake_->Answer("CreateVolume", Created());
  fake_->Answer("ControllerExpandVolume", Expanded(false));
  mounter_.Add("p", "v", "c").use.access_mode = Mode::SINGLE_NODE_SINGLE_WRITER;
  auto create = Create();
  create.mutable_capabilities(0)->set_access_mode(v1::SINGLE_NODE_SINGLE_WRITER);
  create.add_capabilities()->set_access_mode(v1::SINGLE_NODE_MULTI_WRITER);
  create.add_capabilities()->set_access_mode(v1::MULTI_NODE_MULTI_WRITER);
  const auto sent = [&](const std::set<int>& capabilities) {
    AddPlugin(capabilities);
    csi::CreateVolumeRequest created;
    csi::ControllerExpandVolumeRequest expanded;
    EXPECT_TRUE(Call(&NodeApi::CreateVolume, create).ok());
    EXPECT_TRUE(Call(&NodeApi::ExpandVolume, Expand()).ok());
    EXPECT_TRUE(fake_->LastRequest("CreateVolume", &created));
    EXPECT_TRUE(fake_->LastRequest("ControllerExpandVolume", &expanded));
    std::vector<Mode::Mode> modes;
    for (const auto& capability : created.volume_capabilities())
      modes.push_back(capability.access_mode().mode());
    modes.push_back(expanded.volume_capability().access_mode().mode());
    return modes;
  };
  EXPECT_THAT(sent({ControllerRpc::CREATE_DELETE_VOLUME, ControllerRpc::EXPAND_VOLUME}),
              ElementsAre(Mode::SINGLE_NODE_WRITER, Mode::SINGLE_NODE_WRITER, Mode::MULTI_NODE_MULTI_WRITER,
                          Mode::SINGLE_NODE_WRITER));
  EXPECT_THAT(sent({ControllerRpc::CREATE_DELETE_VOLUME, ControllerRpc::EXPAND_VOLUME,
                    ControllerRpc::SINGLE_NODE_MULTI_WRITER}),
              ElementsAre(Mode::SINGLE_NODE_SINGLE_WRITER, Mode::SINGLE_NODE_MULTI_WRITER,
                          Mode::MULTI_NODE_MULTI_WRITER, Mode::SINGLE_NODE_SINGLE_WRITER));
}

TEST_F(NodeApiTest, CreatePassesThePluginsErrorOnWithoutSecrets) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Fail("CreateVolume", {grpc::StatusCode::RESOURCE_EXHAUSTED, "pool of hunter22 is full"});
  auto request = Create();
  (*request.mutable_secrets())["password"] = "hunter22";
  const auto answer = Call(&NodeApi::CreateVolume, request);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(answer.status()), "plugin p: CreateVolume: pool of *** is full");
}

TEST_F(NodeApiTest, CreateDoesNotBelieveAnEmptyId) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("CreateVolume", csi::CreateVolumeResponse());
  EXPECT_EQ(Call(&NodeApi::CreateVolume, Create()).status().code(), absl::StatusCode::kInternal);
}

TEST_F(NodeApiTest, CreateWithoutAClientIsUnavailable) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  controllers_.clients.clear();
  EXPECT_EQ(Call(&NodeApi::CreateVolume, Create()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeApiTest, DeleteCallsTheController) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  EXPECT_TRUE(Call(&NodeApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>()).ok());
  csi::DeleteVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("DeleteVolume", &sent));
  EXPECT_EQ(sent.volume_id(), "v");
}

TEST_F(NodeApiTest, DeleteIsRefusedWhileTheVolumeIsHeldThroughAnyPluginOfTheDriver) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.Add("node-half");
  mounter_.Add("node-half", "v", "job/7");
  const auto answer = Call(&NodeApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(answer.status()), AllOf(HasSubstr("through plugin node-half"), HasSubstr("job/7")));
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
}

Awaitable<void> Keep(Awaitable<absl::StatusOr<v1::PublishVolumeResponse>> call,
                     std::optional<absl::Status>& end) {
  end = (co_await std::move(call)).status();
}
Awaitable<void> Keep(Awaitable<absl::StatusOr<v1::DeleteVolumeResponse>> call,
                     std::optional<absl::Status>& end) {
  end = (co_await std::move(call)).status();
}

TEST_F(NodeApiTest, DeleteIsRefusedWhileTheVolumeIsBeingPublished) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  mounter_.hang = true;
  mounter_.next_error = absl::UnavailableError("and then it fails");
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<absl::Status> published;
  scope.Spawn("publish", Keep(api_.PublishVolume(publish, {.deadline = TimePoint::max()}), published));
  loop_.poll();
  ASSERT_EQ(mounter_.publishing, 1);
  const auto deletion = ForVolume<v1::DeleteVolumeRequest>();
  EXPECT_THAT(Message(Call(&NodeApi::DeleteVolume, deletion).status()), HasSubstr("is being published"));
  mounter_.Release();
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(published.has_value());
  EXPECT_TRUE(Call(&NodeApi::DeleteVolume, deletion).ok()) << "nothing of the publish may stick";
}

TEST_F(NodeApiTest, PublishIsRefusedWhileTheVolumeIsBeingDeleted) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Hang("DeleteVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<absl::Status> deleted;
  scope.Spawn("delete", Keep(api_.DeleteVolume(ForVolume<v1::DeleteVolumeRequest>(),
                                               {.deadline = Clock::now() + std::chrono::minutes(5)}),
                             deleted));
  loop_.poll();
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  EXPECT_EQ(Call(&NodeApi::PublishVolume, publish).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(fake_->WaitForCalls("DeleteVolume", 1));
  RunOn(loop_, scope.Join());
  EXPECT_TRUE(Call(&NodeApi::PublishVolume, publish).ok()) << "nothing of the deletion may stick";
}

TEST_F(NodeApiTest, ExpandByTheControllerAlone) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c").use.fs_type = "xfs";
  fake_->Answer("ControllerExpandVolume", Expanded(false));
  const auto answer = Call(&NodeApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->capacity_bytes(), 2048);
  EXPECT_FALSE(answer->node_expanded());
  EXPECT_FALSE(answer->node_expansion_pending());
  csi::ControllerExpandVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("ControllerExpandVolume", &sent));
  EXPECT_EQ(sent.volume_capability().mount().fs_type(), "xfs") << "known here, and so told";
}

TEST_F(NodeApiTest, ExpandGoesOnAtTheNodeWhereTheVolumeIsHere) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  mounter_.node_capacity = 3000;
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  const auto answer = Call(&NodeApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->capacity_bytes(), 3000);
  EXPECT_TRUE(answer->node_expanded());
  EXPECT_EQ(mounter_.last_range.required_bytes(), 2048);
  EXPECT_EQ(mounter_.last_secrets.at("k"), "s");
}

TEST_F(NodeApiTest, ExpandKeepsTheControllersCapacityWhereTheNodeTellsNone) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  EXPECT_EQ(Call(&NodeApi::ExpandVolume, Expand())->capacity_bytes(), 2048);
}

TEST_F(NodeApiTest, ExpandOwesTheNodesPartOfAVolumeThatIsNotHere) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  auto answer = Call(&NodeApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
  EXPECT_FALSE(answer->node_expanded());

  mounter_.Add("p", "v", "c");
  mounter_.next_error = absl::NotFoundError("staged, but not published");
  answer = Call(&NodeApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
}

TEST_F(NodeApiTest, ExpandThatFailsAtTheNodeSaysThatTheStorageHasGrown) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  mounter_.next_error = absl::InternalError("resize2fs");
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  const auto answer = Call(&NodeApi::ExpandVolume, Expand());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(answer.status()), AllOf(HasSubstr("has grown to 2048 bytes"), HasSubstr("resize2fs")));
}

TEST_F(NodeApiTest, ExpandOfAPluginThatOnlyTheNodeExpands) {
  AddPlugin({}, {NodeRpc::EXPAND_VOLUME});
  EXPECT_EQ(Call(&NodeApi::ExpandVolume, Expand()).status().code(), absl::StatusCode::kFailedPrecondition);
  mounter_.Add("p", "v", "c");
  mounter_.node_capacity = 2048;
  const auto answer = Call(&NodeApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expanded());
  EXPECT_EQ(answer->capacity_bytes(), 2048);
  EXPECT_EQ(fake_->Calls("ControllerExpandVolume"), 0);
}

TEST_F(NodeApiTest, ExpandOfAPluginThatCannot) {
  AddPlugin({});
  const auto answer = Call(&NodeApi::ExpandVolume, Expand());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(answer.status()), HasSubstr("EXPAND_VOLUME"));
}

TEST_F(NodeApiTest, ExpandDoesNotPassOverAControllerThatIsOnlyAway) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME}, {NodeRpc::EXPAND_VOLUME});
  control_.plugins_by_id["p"].ready = false;
  mounter_.Add("p", "v", "c");
  EXPECT_EQ(Call(&NodeApi::ExpandVolume, Expand()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeApiTest, WatchBeginsWithTheOldestThatIsKeptAndMissesNothing) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t"});  // 10 are kept.
  FakeStream out;
  EXPECT_TRUE(Watch(0, out).ok());
  ASSERT_THAT(out.sent, SizeIs(10));
  EXPECT_EQ(out.sent[0].event().sequence(), 16U);
  EXPECT_EQ(out.sent[0].missed(), 0U);
}

TEST_F(NodeApiTest, WatchResumesAndTellsWhatWasMissed) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t"});
  FakeStream late;
  EXPECT_TRUE(Watch(5, late).ok());
  ASSERT_THAT(late.sent, SizeIs(10));
  EXPECT_EQ(late.sent[0].missed(), 10U);
  EXPECT_EQ(late.sent[1].missed(), 0U);
  FakeStream in_time;
  EXPECT_TRUE(Watch(20, in_time).ok());
  ASSERT_THAT(in_time.sent, SizeIs(5));
  EXPECT_EQ(in_time.sent[0].event().sequence(), 21U);
  EXPECT_EQ(in_time.sent[0].missed(), 0U);
  FakeStream done;
  EXPECT_TRUE(Watch(25, done).ok());
  EXPECT_THAT(done.sent, IsEmpty());
}

TEST_F(NodeApiTest, WatchFiltersAndStillTellsWhatWasMissed) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t", .volume_id = i == 20 ? "v" : "w"});
  FakeStream one;
  EXPECT_TRUE(Watch(5, one, "v").ok());
  ASSERT_THAT(one.sent, SizeIs(1));
  EXPECT_EQ(one.sent[0].event().sequence(), 21U);
  EXPECT_EQ(one.sent[0].missed(), 10U);
  FakeStream none;
  EXPECT_TRUE(Watch(5, none, "x").ok());
  ASSERT_THAT(none.sent, SizeIs(1));
  EXPECT_FALSE(none.sent[0].has_event());
  EXPECT_EQ(none.sent[0].missed(), 10U);
}

TEST_F(NodeApiTest, WatchFromAFutureNumberIsRefused) {
  events_.Append({.type = "t"});
  FakeStream out;
  EXPECT_EQ(Watch(2, out).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(NodeApiTest, WatchEndsWhenItsCallerHasGone) {
  for (int i = 0; i < 5; ++i) events_.Append({.type = "t"});
  FakeStream out;
  out.take = 2;
  EXPECT_EQ(Watch(0, out).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(out.sent, SizeIs(2));
}

}  // namespace
}  // namespace berth
