// NodeApi's calls of a plugin's Controller service.
#include <fmt/format.h>

#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using ControllerRpc = csi::ControllerServiceCapability::RPC;
using NodeRpc = csi::NodeServiceCapability::RPC;
using Service = csi::PluginCapability::Service;

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

TEST_F(NodeApiTest, CreateCallsTheControllerOfTheSameDriver) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.Add("node-half");
  fake_->Answer("CreateVolume", Created());
  auto request = Create();
  request.set_plugin_id("node-half");
  request.set_required_bytes(1000);
  (*request.mutable_secrets())["k"] = "s";
  const auto answer = Call(&ControllerApi::CreateVolume, request);
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
  ASSERT_TRUE(Call(&ControllerApi::CreateVolume, Create()).ok());
  csi::CreateVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("CreateVolume", &sent));
  ASSERT_EQ(sent.accessibility_requirements().requisite_size(), 1);
  EXPECT_EQ(sent.accessibility_requirements().requisite(0).segments().at("node"), "n1");
  EXPECT_EQ(sent.accessibility_requirements().preferred(0).segments().at("node"), "n1");
}

TEST_F(NodeApiTest, CreateNeedsTheCapabilitiesForWhatIsAsked) {
  const auto refused = [&](const v1::CreateVolumeRequest& request) {
    const auto answer = Call(&ControllerApi::CreateVolume, request);
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
    EXPECT_TRUE(Call(&ControllerApi::CreateVolume, create).ok());
    EXPECT_TRUE(Call(&ControllerApi::ExpandVolume, Expand()).ok());
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
  const auto answer = Call(&ControllerApi::CreateVolume, request);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(answer.status()), "plugin p: CreateVolume: pool of ******** is full");
}

TEST_F(NodeApiTest, CreateDoesNotBelieveAnEmptyId) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("CreateVolume", csi::CreateVolumeResponse());
  EXPECT_EQ(Call(&ControllerApi::CreateVolume, Create()).status().code(), absl::StatusCode::kInternal);
}

TEST_F(NodeApiTest, CreateWithoutAClientIsUnavailable) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  controllers_.clients.clear();
  EXPECT_EQ(Call(&ControllerApi::CreateVolume, Create()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeApiTest, ControllerCallsWaitWhileThePluginIsHeld) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  PluginSnapshot& plugin = control_.plugins_by_id["p"];
  plugin.paused = true;
  plugin.registered = plugin.ready = false;
  fake_->Answer("CreateVolume", Created());
  int waits = 0;
  controllers_.on_wait = [&] {
    EXPECT_EQ(fake_->Calls("CreateVolume"), 0);
    plugin.paused = ++waits < 3;
    plugin.registered = plugin.ready = true;
  };
  EXPECT_TRUE(Call(&ControllerApi::CreateVolume, Create()).ok());
  EXPECT_EQ(waits, 3);
}

TEST_F(NodeApiTest, AHeldPluginIsWaitedForNoLongerThanTheCaller) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.plugins_by_id["p"].paused = true;
  control_.plugins_by_id["p"].reason = "swapping";
  const CallInfo call{.method = "Test", .deadline = Clock::now() + std::chrono::milliseconds(20)};
  const auto answer = RunOn(loop_, api_.controller.DeleteVolume(ForVolume<v1::DeleteVolumeRequest>(), call));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(answer.status()), HasSubstr("being replaced and takes no calls yet: swapping"));
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
}

TEST_F(NodeApiTest, APluginThatDrainsCreatesNothingAndStillDeletes) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.plugins_by_id["p"].draining = true;
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  const auto created = Call(&ControllerApi::CreateVolume, Create());
  EXPECT_EQ(created.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(created.status()), HasSubstr("being drained"));
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>()).ok());
}

TEST_F(NodeApiTest, DeleteCallsTheController) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>()).ok());
  csi::DeleteVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("DeleteVolume", &sent));
  EXPECT_EQ(sent.volume_id(), "v");
}

TEST_F(NodeApiTest, DeleteIsRefusedWhileTheVolumeIsHeldThroughAnyPluginOfTheDriver) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  control_.Add("node-half");
  mounter_.Add("node-half", "v", "job/7");
  const auto answer = Call(&ControllerApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(answer.status()), AllOf(HasSubstr("through plugin node-half"), HasSubstr("job/7")));
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
}

TEST_F(NodeApiTest, DeleteIsRefusedWhileTheVolumeIsMountedWithoutARecord) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  mounter_.unrecorded = {{"p", "v"}};
  const auto answer = Call(&ControllerApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
  mounter_.unrecorded.clear();
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, ForVolume<v1::DeleteVolumeRequest>()).ok());
}

Awaitable<void> Keep(Awaitable<absl::StatusOr<v1::PublishVolumeResponse>> call,
                     std::optional<absl::Status>& end) {
  end = (co_await std::move(call)).status();
}
TEST_F(NodeApiTest, Fault60NoDeleteOfAVolumeThatAnotherOneHereShows) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME}).name = "driver.test";
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  const auto deletion = ForVolume<v1::DeleteVolumeRequest>();
  mounter_.Add("p", "same", "web");
  for (const std::string& name : {"p", "driver.test"}) {
    mounter_.other_names = {{{name, deletion.volume_id()}, {"p", "same"}}};
    const absl::Status refused = Call(&ControllerApi::DeleteVolume, deletion).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(refused), HasSubstr("the same as volume same"));
  }
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
  mounter_.other_names.clear();
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, deletion).ok());
}

TEST_F(NodeApiTest, Fault60NoDeleteOfAVolumeThatIsHereThroughAPluginThatDoesNotRun) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME}).name = "driver.test";
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  const auto deletion = ForVolume<v1::DeleteVolumeRequest>();
  mounter_.Add("gone", deletion.volume_id(), "web").driver_name = "driver.test";
  mounter_.recorded_drivers["gone"] = "driver.test";
  const absl::Status refused = Call(&ControllerApi::DeleteVolume, deletion).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("through plugin gone"));
  // Through one that has not said yet what its driver is, the row says it.
  control_.Add("q").facts.reset();
  mounter_.volumes.clear();
  mounter_.Add("q", deletion.volume_id(), "web").driver_name = "other.test";
  mounter_.recorded_drivers = {{"q", "other.test"}};
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, deletion).ok()) << "another driver's volume has the id";
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
  scope.Spawn("publish",
              Keep(api_.volumes.PublishVolume(publish, {.deadline = TimePoint::max()}), published));
  loop_.poll();
  ASSERT_EQ(mounter_.publishing, 1);
  const auto deletion = ForVolume<v1::DeleteVolumeRequest>();
  EXPECT_THAT(Message(Call(&ControllerApi::DeleteVolume, deletion).status()),
              HasSubstr("is being published"));
  mounter_.Release();
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(published.has_value());
  EXPECT_TRUE(Call(&ControllerApi::DeleteVolume, deletion).ok()) << "nothing of the publish may stick";
}

TEST_F(NodeApiTest, PublishIsRefusedWhileTheVolumeIsBeingDeleted) {
  AddPlugin({ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Hang("DeleteVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<absl::Status> deleted;
  scope.Spawn("delete",
              Keep(api_.controller.DeleteVolume(ForVolume<v1::DeleteVolumeRequest>(),
                                                {.deadline = Clock::now() + std::chrono::minutes(5)}),
                   deleted));
  loop_.poll();
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  EXPECT_EQ(Call(&VolumeApi::PublishVolume, publish).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(fake_->WaitForCalls("DeleteVolume", 1));
  RunOn(loop_, scope.Join());
  EXPECT_TRUE(Call(&VolumeApi::PublishVolume, publish).ok()) << "nothing of the deletion may stick";
}

TEST_F(NodeApiTest, ExpandByTheControllerAlone) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c").use.fs_type = "xfs";
  fake_->Answer("ControllerExpandVolume", Expanded(false));
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->capacity_bytes(), 2048);
  EXPECT_FALSE(answer->node_expanded());
  EXPECT_FALSE(answer->node_expansion_pending());
  csi::ControllerExpandVolumeRequest sent;
  ASSERT_TRUE(fake_->LastRequest("ControllerExpandVolume", &sent));
  EXPECT_EQ(sent.volume_capability().mount().fs_type(), "xfs") << "known here, and so passed on";
}

TEST_F(NodeApiTest, ExpandGoesOnAtTheNodeWhereTheVolumeIsHere) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  mounter_.node_capacity = 3000;
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->capacity_bytes(), 3000);
  EXPECT_TRUE(answer->node_expanded());
  EXPECT_THAT(mounter_.steps, ElementsAre("note v", "expand v")) << "noted before it is tried";
  EXPECT_EQ(mounter_.last_range.required_bytes(), 2048);
  EXPECT_EQ(mounter_.last_secrets.at("k"), "s");
}

TEST_F(NodeApiTest, ExpandKeepsTheControllersCapacityWhereTheNodeTellsNone) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  EXPECT_EQ(Call(&ControllerApi::ExpandVolume, Expand())->capacity_bytes(), 2048);
}

TEST_F(NodeApiTest, ExpandOwesTheNodesPartOfAVolumeThatIsNotHere) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
  EXPECT_TRUE(answer->node_expansion_noted());
  EXPECT_FALSE(answer->node_expanded());
  EXPECT_THAT(mounter_.steps, ElementsAre("note v")) << "and nothing is tried";
  EXPECT_THAT(mounter_.owed_elsewhere, ElementsAre(Pair(Pair("p", "v"), 2048)));

  mounter_.Add("p", "v", "c");
  mounter_.next_error = absl::NotFoundError("staged, but not published");
  answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
  EXPECT_EQ(mounter_.volumes[0].pending_expansion_bytes, 2048);
}

TEST_F(NodeApiTest, AnExpansionThatCannotBeNotedIsDoneAndSaysSo) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  mounter_.owe_error = absl::ResourceExhaustedError("too many are pending");
  auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
  EXPECT_FALSE(answer->node_expansion_noted()) << "to be repeated when the volume is published";
  mounter_.Add("p", "v", "c");
  answer = Call(&ControllerApi::ExpandVolume, Expand());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << "it is here";
}

TEST_F(NodeApiTest, Fault56ExpandOwesTheNodesPartAlsoAfterAWrongAnswer) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  csi::ControllerExpandVolumeResponse wrong = Expanded(true);
  wrong.set_capacity_bytes(-1);
  fake_->Answer("ControllerExpandVolume", wrong);
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  EXPECT_TRUE(absl::IsInternal(answer.status())) << answer.status();
  EXPECT_THAT(mounter_.owed_elsewhere, ElementsAre(Pair(Pair("p", "v"), Expand().required_bytes())));
}

TEST_F(NodeApiTest, ExpandIsNotedWhereThePluginServesThisNode) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  control_.plugins_by_id["p"].facts->has_node_service = false;
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_pending());
  EXPECT_FALSE(answer->node_expansion_noted()) << "nothing here would ever do it";
  EXPECT_THAT(mounter_.owed_elsewhere, IsEmpty());

  control_.Add("half");
  control_.plugins_by_id["half"].facts->name = control_.plugins_by_id["p"].facts->name;
  answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expansion_noted());
  EXPECT_THAT(mounter_.owed_elsewhere, ElementsAre(Pair(Pair("half", "v"), 2048)))
      << "under the id through which it will be published";
}

TEST_F(NodeApiTest, NothingIsOwedToAVolumeThatWasDeleted) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME, ControllerRpc::CREATE_DELETE_VOLUME});
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  ASSERT_TRUE(Call(&ControllerApi::ExpandVolume, Expand()).ok());
  ASSERT_THAT(mounter_.owed_elsewhere, SizeIs(1));
  v1::DeleteVolumeRequest deletion;
  deletion.set_plugin_id("p");
  deletion.set_volume_id("v");
  fake_->Fail("DeleteVolume", grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  EXPECT_FALSE(Call(&ControllerApi::DeleteVolume, deletion).ok());
  EXPECT_THAT(mounter_.owed_elsewhere, SizeIs(1)) << "it is there still, perhaps";
  fake_->Answer("DeleteVolume", csi::DeleteVolumeResponse());
  const auto deleted = Call(&ControllerApi::DeleteVolume, deletion);
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_THAT(mounter_.owed_elsewhere, IsEmpty());
}

TEST_F(NodeApiTest, ExpandThatFailsAtTheNodeSaysThatTheStorageHasGrown) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME});
  mounter_.Add("p", "v", "c");
  mounter_.next_error = absl::InternalError("resize2fs");
  fake_->Answer("ControllerExpandVolume", Expanded(true));
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(answer.status()),
              AllOf(HasSubstr("has grown to 2048 bytes"), HasSubstr("is pending"), HasSubstr("resize2fs")));
  EXPECT_EQ(mounter_.volumes[0].pending_expansion_bytes, 2048);
}

TEST_F(NodeApiTest, ExpandOfAPluginThatOnlyTheNodeExpands) {
  AddPlugin({}, {NodeRpc::EXPAND_VOLUME});
  EXPECT_EQ(Call(&ControllerApi::ExpandVolume, Expand()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  mounter_.Add("p", "v", "c");
  mounter_.node_capacity = 2048;
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->node_expanded());
  EXPECT_EQ(answer->capacity_bytes(), 2048);
  EXPECT_EQ(fake_->Calls("ControllerExpandVolume"), 0);
}

TEST_F(NodeApiTest, ExpandOfAPluginThatCannot) {
  AddPlugin({});
  const auto answer = Call(&ControllerApi::ExpandVolume, Expand());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(answer.status()), HasSubstr("EXPAND_VOLUME"));
}

TEST_F(NodeApiTest, ExpandDoesNotPassOverAControllerThatIsOnlyAway) {
  AddPlugin({ControllerRpc::EXPAND_VOLUME}, {NodeRpc::EXPAND_VOLUME});
  control_.plugins_by_id["p"].ready = false;
  mounter_.Add("p", "v", "c");
  EXPECT_EQ(Call(&ControllerApi::ExpandVolume, Expand()).status().code(), absl::StatusCode::kUnavailable);
}

csi::ListVolumesResponse Stored() {
  csi::ListVolumesResponse response;
  auto& used = *response.add_entries();
  used.mutable_volume()->set_volume_id("v");
  used.mutable_volume()->set_capacity_bytes(1024);
  (*used.mutable_volume()->mutable_volume_context())["share"] = "a";
  used.mutable_status()->add_published_node_ids("node-7");
  used.mutable_status()->mutable_volume_condition()->set_abnormal(true);
  used.mutable_status()->mutable_volume_condition()->set_message("degraded");
  response.add_entries()->mutable_volume()->set_volume_id("unused");
  return response;
}

TEST_F(NodeApiTest, ListStorageVolumesShowsWhatTheStorageHas) {
  AddPlugin({ControllerRpc::LIST_VOLUMES});
  mounter_.Add("p", "v", "job-1");
  csi::ListVolumesResponse page = Stored();
  page.set_next_token("more");
  fake_->AnswerNext("ListVolumes", page);
  fake_->Answer("ListVolumes", csi::ListVolumesResponse());
  v1::ListStorageVolumesRequest request;
  request.set_plugin_id("p");
  const auto answer = Call(&ControllerApi::ListStorageVolumes, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->volumes_size(), 2);
  const v1::StorageVolume& used = answer->volumes(0);
  EXPECT_EQ(used.volume_id(), "v");
  EXPECT_EQ(used.capacity_bytes(), 1024);
  EXPECT_THAT(used.volume_context(), ElementsAre(Pair("share", "a")));
  EXPECT_THAT(used.published_node_ids(), ElementsAre("node-7"));
  EXPECT_TRUE(used.condition().abnormal());
  EXPECT_EQ(used.condition().message(), "degraded");
  EXPECT_TRUE(used.used_here());
  EXPECT_EQ(answer->volumes(1).volume_id(), "unused");
  EXPECT_FALSE(answer->volumes(1).used_here());
  EXPECT_FALSE(answer->volumes(1).has_condition());
  EXPECT_EQ(answer->next_page_token(), "");
}

TEST_F(NodeApiTest, ListStorageVolumesHidesTheContextFromThoseWhoMayOnlyRead) {
  AddPlugin({ControllerRpc::LIST_VOLUMES});
  fake_->Answer("ListVolumes", Stored());
  v1::ListStorageVolumesRequest request;
  request.set_plugin_id("p");
  const auto answer = Call(&ControllerApi::ListStorageVolumes, request, /*may_change=*/false);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->volumes(0).volume_context(), IsEmpty());
}

TEST_F(NodeApiTest, ListStorageVolumesSaysWhatIsWrong) {
  v1::ListStorageVolumesRequest request;
  request.set_page_token(std::string(10'000, 'x'));
  const auto empty = Call(&ControllerApi::ListStorageVolumes, request).status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(empty), AllOf(HasSubstr("plugin_id"), HasSubstr("page_token")));

  AddPlugin({});
  request.set_plugin_id("p");
  request.set_page_token("");
  const auto unable = Call(&ControllerApi::ListStorageVolumes, request).status();
  EXPECT_EQ(unable.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(unable), HasSubstr("LIST_VOLUMES"));
}

}  // namespace
}  // namespace berth
