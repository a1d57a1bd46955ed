// What each RPC answers, through the real program: CSI's error codes, idempotence, paging, access modes,
// attachment, and how the program itself behaves.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "plugins/hostpath/testing/plugin_test.h"

namespace berth::hostpath {
namespace {

using Controller = ::csi::v1::Controller::Stub;
using Node = ::csi::v1::Node::Stub;

// Directory volumes: they work everywhere, and the contract is the same.
class ContractTest : public PluginTest {
 protected:
  void Begin(std::vector<std::string> extra = {}, const std::string& node_id = "node-1") {
    extra.insert(extra.end(), {"--kind", "directory"});
    plugin_.Start(extra, node_id);
  }
  grpc::Status List(int32_t max, const std::string& token, ::csi::v1::ListVolumesResponse* response) {
    ::csi::v1::ListVolumesRequest request;
    request.set_max_entries(max);
    request.set_starting_token(token);
    return plugin_.Call(plugin_.controller(), &Controller::ListVolumes, request, response);
  }
  grpc::Status ListSnaps(const ::csi::v1::ListSnapshotsRequest& request,
                         ::csi::v1::ListSnapshotsResponse* response) {
    return plugin_.Call(plugin_.controller(), &Controller::ListSnapshots, request, response);
  }
  grpc::Status Attach(const std::string& id, const std::string& node, const VolumeCapability& capability,
                      bool read_only, ::csi::v1::ControllerPublishVolumeResponse* response) {
    ::csi::v1::ControllerPublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_node_id(node);
    request.set_readonly(read_only);
    *request.mutable_volume_capability() = capability;
    return plugin_.Call(plugin_.controller(), &Controller::ControllerPublishVolume, request, response);
  }
  grpc::Status Detach(const std::string& id, const std::string& node) {
    ::csi::v1::ControllerUnpublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_node_id(node);
    ::csi::v1::ControllerUnpublishVolumeResponse response;
    return plugin_.Call(plugin_.controller(), &Controller::ControllerUnpublishVolume, request, &response);
  }
};

TEST_F(ContractTest, TellsWhoItIsAndWhatItCan) {
  Begin({"--topology", "example.com/zone=z1", "--max-volumes", "7", "--driver-name", "disk.example.com"});
  ::csi::v1::GetPluginInfoResponse info;
  EXPECT_CALL_OK(plugin_.Call(plugin_.identity(), &::csi::v1::Identity::Stub::GetPluginInfo, {}, &info));
  EXPECT_EQ(info.name(), "disk.example.com");
  EXPECT_FALSE(info.vendor_version().empty());
  ::csi::v1::ProbeResponse probe;
  EXPECT_CALL_OK(plugin_.Call(plugin_.identity(), &::csi::v1::Identity::Stub::Probe, {}, &probe));
  EXPECT_TRUE(probe.ready().value());
  ::csi::v1::NodeGetInfoResponse node;
  EXPECT_CALL_OK(plugin_.Call(plugin_.node(), &Node::NodeGetInfo, {}, &node));
  EXPECT_EQ(node.node_id(), "node-1");
  EXPECT_EQ(node.max_volumes_per_node(), 7);
  EXPECT_EQ(node.accessible_topology().segments().at("example.com/zone"), "z1");
  ::csi::v1::ControllerGetCapabilitiesResponse capabilities;
  EXPECT_CALL_OK(
      plugin_.Call(plugin_.controller(), &Controller::ControllerGetCapabilities, {}, &capabilities));
  for (const auto& capability : capabilities.capabilities()) {
    EXPECT_NE(capability.rpc().type(), ::csi::v1::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME);
  }
}

TEST_F(ContractTest, UnknownVolumesAndSnapshotsAreNotFoundOrAlreadyGone) {
  Begin();
  const std::string none = "no-such-volume";
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Delete(none));
  EXPECT_CALL_OK(DropSnapshot(none));
  EXPECT_CODE(Stage(none, staging, Mounted()), NOT_FOUND);
  EXPECT_CODE(Unstage(none, staging), NOT_FOUND);
  EXPECT_CODE(Publish(none, staging, target, Mounted()), NOT_FOUND);
  EXPECT_CODE(Unpublish(none, target), NOT_FOUND);
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CODE(Stats(none, "some/path", &stats), NOT_FOUND);
  ::csi::v1::NodeExpandVolumeResponse node;
  EXPECT_CODE(NodeExpand(none, "some/path", 0, &node), NOT_FOUND);
  ::csi::v1::ControllerExpandVolumeResponse expanded;
  EXPECT_CODE(Expand(none, kGiB, &expanded), NOT_FOUND);
  ::csi::v1::Snapshot snapshot;
  EXPECT_CODE(Snap(none, "snap", &snapshot), NOT_FOUND);
  ::csi::v1::GetSnapshotRequest get;
  get.set_snapshot_id(none);
  ::csi::v1::GetSnapshotResponse got;
  EXPECT_CODE(plugin_.Call(plugin_.controller(), &Controller::GetSnapshot, get, &got), NOT_FOUND);
  ::csi::v1::ControllerGetVolumeRequest get_volume;
  get_volume.set_volume_id(none);
  ::csi::v1::ControllerGetVolumeResponse got_volume;
  EXPECT_CODE(plugin_.Call(plugin_.controller(), &Controller::ControllerGetVolume, get_volume, &got_volume),
              NOT_FOUND);
  ::csi::v1::ValidateVolumeCapabilitiesRequest validate;
  validate.set_volume_id(none);
  *validate.add_volume_capabilities() = Mounted();
  ::csi::v1::ValidateVolumeCapabilitiesResponse validated;
  EXPECT_CODE(
      plugin_.Call(plugin_.controller(), &Controller::ValidateVolumeCapabilities, validate, &validated),
      NOT_FOUND);
  auto from = CreateRequest("copy", Mounted());
  from.mutable_volume_content_source()->mutable_volume()->set_volume_id(none);
  EXPECT_CODE(Create(from), NOT_FOUND);
  from.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id(none);
  EXPECT_CODE(Create(from), NOT_FOUND);
}

TEST_F(ContractTest, AnIdWithPathsInItIsOnlyLookedUp) {
  Begin();
  const std::string victim = workplace_.path() + "/victim";
  mkdir(victim.c_str(), 0700);
  for (const std::string id : {"../../victim", "/etc", ".", "..", "a/b"}) EXPECT_CALL_OK(Delete(id));
  EXPECT_EQ(access(victim.c_str(), F_OK), 0);
}

TEST_F(ContractTest, CreateRefusesWhatCannotBe) {
  Begin();
  auto request = CreateRequest("pvc", Mounted());
  (*request.mutable_parameters())["colour"] = "red";
  EXPECT_CODE(Create(request), INVALID_ARGUMENT);
  request = CreateRequest("pvc", Mounted(AccessModeEnum::SINGLE_NODE_WRITER, "ntfs"));
  EXPECT_CODE(Create(request), INVALID_ARGUMENT);
  request = CreateRequest("pvc", Raw(), 0, "directory");
  EXPECT_CODE(Create(request), INVALID_ARGUMENT);
  request = CreateRequest("pvc", Mounted());
  (*request.mutable_mutable_parameters())["iops"] = "7";
  EXPECT_CODE(Create(request), INVALID_ARGUMENT);
  request = CreateRequest("pvc", Mounted(), int64_t{1} << 60);
  EXPECT_CODE(Create(request), OUT_OF_RANGE);
  request = CreateRequest("pvc", Mounted());
  (*request.mutable_accessibility_requirements()->add_requisite()->mutable_segments())["zone"] = "elsewhere";
  EXPECT_CODE(Create(request), RESOURCE_EXHAUSTED);
  ::csi::v1::ListVolumesResponse list;
  EXPECT_CALL_OK(List(0, "", &list));
  EXPECT_EQ(list.entries_size(), 0) << "a refused volume left something behind";
}

TEST_F(ContractTest, CreateIsIdempotentByNameAndRefusesWhatDiffers) {
  Begin();
  auto request = CreateRequest("pvc", Mounted(), 10 * kMiB);
  request.mutable_capacity_range()->set_limit_bytes(20 * kMiB);
  const std::string id = MustCreate(request);
  EXPECT_EQ(MustCreate(request), id);
  auto larger = request;
  larger.mutable_capacity_range()->set_required_bytes(15 * kMiB);
  EXPECT_CODE(Create(larger), ALREADY_EXISTS);
  auto smaller = request;
  smaller.mutable_capacity_range()->set_required_bytes(kMiB);
  smaller.mutable_capacity_range()->set_limit_bytes(5 * kMiB);
  EXPECT_CODE(Create(smaller), ALREADY_EXISTS);
  auto block = request;
  *block.mutable_volume_capabilities(0) = Raw();
  EXPECT_CODE(Create(block), ALREADY_EXISTS);
  auto other = request;
  (*other.mutable_parameters())["kind"] = "directory";
  EXPECT_CODE(Create(other), ALREADY_EXISTS);
  auto copy = request;
  copy.mutable_volume_content_source()->mutable_volume()->set_volume_id(id);
  EXPECT_CODE(Create(copy), ALREADY_EXISTS);
  auto elsewhere = request;
  (*elsewhere.mutable_accessibility_requirements()->add_requisite()->mutable_segments())["zone"] = "x";
  EXPECT_CODE(Create(elsewhere), ALREADY_EXISTS);
  auto foreign = request;
  (*foreign.mutable_parameters())["csi.storage.k8s.io/pvc/name"] = "claim";
  EXPECT_EQ(MustCreate(foreign), id);
  EXPECT_CALL_OK(Delete(id));
  EXPECT_NE(MustCreate(larger), id);
}

TEST_F(ContractTest, VolumesAreListedInPages) {
  Begin();
  std::vector<std::string> ids;
  ids.reserve(5);
  for (int i = 0; i < 5; ++i) ids.push_back(MustCreate(CreateRequest("pvc-" + std::to_string(i), Mounted())));
  ::csi::v1::ListVolumesResponse page;
  EXPECT_CALL_OK(List(2, "", &page));
  ASSERT_EQ(page.entries_size(), 2);
  EXPECT_EQ(page.entries(0).volume().volume_id(), ids[0]);
  EXPECT_FALSE(page.entries(0).status().volume_condition().message().empty());
  // The token stands although the volume it was made from goes.
  EXPECT_CALL_OK(Delete(ids[1]));
  ::csi::v1::ListVolumesResponse rest;
  EXPECT_CALL_OK(List(2, page.next_token(), &rest));
  ASSERT_EQ(rest.entries_size(), 2);
  EXPECT_EQ(rest.entries(0).volume().volume_id(), ids[2]);
  ::csi::v1::ListVolumesResponse last;
  EXPECT_CALL_OK(List(0, rest.next_token(), &last));
  ASSERT_EQ(last.entries_size(), 1);
  EXPECT_TRUE(last.next_token().empty());
  ::csi::v1::ListVolumesResponse exact;
  EXPECT_CALL_OK(List(4, "", &exact));
  EXPECT_EQ(exact.entries_size(), 4);
  EXPECT_TRUE(exact.next_token().empty());
  for (const std::string token : {"invalid-token", "after-", "after-99", "after--1", "after-1x", "7"}) {
    EXPECT_CODE(List(0, token, &page), ABORTED);
  }
  EXPECT_CODE(List(-1, "", &page), INVALID_ARGUMENT);
}

TEST_F(ContractTest, SnapshotsAreListedInPagesAndFiltered) {
  Begin();
  const std::string one = MustCreate(CreateRequest("one", Mounted()));
  const std::string two = MustCreate(CreateRequest("two", Mounted()));
  std::vector<std::string> ids;
  ids.reserve(5);
  for (int i = 0; i < 5; ++i) {
    ::csi::v1::Snapshot snapshot;
    EXPECT_CALL_OK(Snap(i < 3 ? one : two, "snap-" + std::to_string(i), &snapshot));
    ids.push_back(snapshot.snapshot_id());
  }
  ::csi::v1::Snapshot repeat;
  EXPECT_CALL_OK(Snap(one, "snap-0", &repeat));
  EXPECT_EQ(repeat.snapshot_id(), ids[0]);
  EXPECT_CODE(Snap(two, "snap-0", &repeat), ALREADY_EXISTS);

  ::csi::v1::ListSnapshotsRequest request;
  ::csi::v1::ListSnapshotsResponse response;
  request.set_max_entries(2);
  request.set_source_volume_id(one);
  EXPECT_CALL_OK(ListSnaps(request, &response));
  EXPECT_EQ(response.entries_size(), 2);
  request.set_starting_token(response.next_token());
  EXPECT_CALL_OK(ListSnaps(request, &response));
  ASSERT_EQ(response.entries_size(), 1);
  EXPECT_EQ(response.entries(0).snapshot().snapshot_id(), ids[2]);
  EXPECT_TRUE(response.next_token().empty());
  request.Clear();
  request.set_snapshot_id(ids[4]);
  EXPECT_CALL_OK(ListSnaps(request, &response));
  ASSERT_EQ(response.entries_size(), 1);
  EXPECT_EQ(response.entries(0).snapshot().source_volume_id(), two);
  request.set_source_volume_id(one);
  EXPECT_CALL_OK(ListSnaps(request, &response));
  EXPECT_EQ(response.entries_size(), 0);
  request.Clear();
  request.set_starting_token("invalid-token");
  EXPECT_CODE(ListSnaps(request, &response), ABORTED);
  // They stay when their volume goes.
  EXPECT_CALL_OK(Delete(one));
  request.Clear();
  request.set_source_volume_id(one);
  EXPECT_CALL_OK(ListSnaps(request, &response));
  EXPECT_EQ(response.entries_size(), 3);
  for (const std::string& id : ids) EXPECT_CALL_OK(DropSnapshot(id));
}

TEST_F(ContractTest, ASingleWriterHasOneTargetOthersHaveSeveral) {
  Begin();
  const std::string id = MustCreate(CreateRequest("pvc", Mounted()));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string one = workplace_.Target("one");
  const std::string two = workplace_.Target("two");
  for (const auto& [mode, several] : {std::pair{AccessModeEnum::SINGLE_NODE_WRITER, false},
                                      std::pair{AccessModeEnum::SINGLE_NODE_READER_ONLY, false},
                                      std::pair{AccessModeEnum::SINGLE_NODE_SINGLE_WRITER, false},
                                      std::pair{AccessModeEnum::SINGLE_NODE_MULTI_WRITER, true},
                                      std::pair{AccessModeEnum::MULTI_NODE_READER_ONLY, true},
                                      std::pair{AccessModeEnum::MULTI_NODE_SINGLE_WRITER, true},
                                      std::pair{AccessModeEnum::MULTI_NODE_MULTI_WRITER, true}}) {
    SCOPED_TRACE(AccessModeEnum::Mode_Name(mode));
    EXPECT_CALL_OK(Stage(id, staging, Mounted(mode)));
    EXPECT_CALL_OK(Publish(id, staging, one, Mounted(mode)));
    EXPECT_CALL_OK(Publish(id, staging, one, Mounted(mode)));
    EXPECT_CODE(Publish(id, staging, one, Mounted(mode), /*read_only=*/true), ALREADY_EXISTS);
    EXPECT_EQ(Publish(id, staging, two, Mounted(mode)).error_code(),
              several ? grpc::StatusCode::OK : grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_CALL_OK(Unpublish(id, one));
    EXPECT_CALL_OK(Unpublish(id, two));
    EXPECT_CALL_OK(Unstage(id, staging));
  }
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ContractTest, NodeCallsInTheWrongOrderAreRefused) {
  Begin();
  const std::string id = MustCreate(CreateRequest("pvc", Mounted()));
  const std::string other = MustCreate(CreateRequest("other", Mounted()));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string second = workplace_.NewStagingPath("2");
  const std::string target = workplace_.Target("one");
  EXPECT_CODE(Publish(id, staging, target, Mounted()), FAILED_PRECONDITION);
  EXPECT_CODE(Publish(id, "", target, Mounted()), FAILED_PRECONDITION);
  EXPECT_CODE(Stage(id, workplace_.path() + "/missing", Mounted()), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Stage(id, staging, Mounted()));
  EXPECT_CODE(Stage(id, staging, Mounted(AccessModeEnum::SINGLE_NODE_READER_ONLY)), ALREADY_EXISTS);
  EXPECT_CODE(Stage(id, second, Mounted()), FAILED_PRECONDITION);
  EXPECT_CODE(Stage(other, staging, Mounted()), FAILED_PRECONDITION);
  EXPECT_CODE(Stage(other, second, Raw()), FAILED_PRECONDITION);
  EXPECT_CODE(Publish(id, second, target, Mounted()), FAILED_PRECONDITION);
  EXPECT_CODE(Publish(id, staging, workplace_.path() + "/missing/target", Mounted()), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unstage(id, second));  // not staged there

  // What is at the target and is not ours is neither covered nor removed; an empty directory is taken.
  mkdir(target.c_str(), 0700);
  WriteText(target + "/file", "notes");
  EXPECT_CODE(Publish(id, staging, target, Mounted()), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_EQ(ReadText(target + "/file"), "notes");
  unlink((target + "/file").c_str());
  EXPECT_CALL_OK(Publish(id, staging, target, Mounted()));
  EXPECT_CALL_OK(Stage(other, second, Mounted()));
  EXPECT_CODE(Publish(other, second, target, Mounted()), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unpublish(other, target));  // not published there
  EXPECT_EQ(access(target.c_str(), F_OK), 0);

  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CODE(Stats(id, second, &stats), NOT_FOUND);
  EXPECT_CODE(Stats(id, "some/path", &stats), NOT_FOUND);
  EXPECT_CALL_OK(Stats(id, staging, &stats));
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Unstage(other, second));
  EXPECT_CALL_OK(Delete(id));
  EXPECT_CALL_OK(Delete(other));
}

TEST_F(ContractTest, NoMoreVolumesAreStagedThanTheNodeMayHave) {
  Begin({"--max-volumes", "1"});
  const std::string one = MustCreate(CreateRequest("one", Mounted()));
  const std::string two = MustCreate(CreateRequest("two", Mounted()));
  const std::string first = workplace_.NewStagingPath("1");
  const std::string second = workplace_.NewStagingPath("2");
  EXPECT_CALL_OK(Stage(one, first, Mounted()));
  EXPECT_CALL_OK(Stage(one, first, Mounted()));
  EXPECT_CODE(Stage(two, second, Mounted()), RESOURCE_EXHAUSTED);
  EXPECT_CALL_OK(Unstage(one, first));
  EXPECT_CALL_OK(Stage(two, second, Mounted()));
  EXPECT_CALL_OK(Unstage(two, second));
  for (const std::string& id : {one, two}) EXPECT_CALL_OK(Delete(id));
}

TEST_F(ContractTest, APoolGivesNoMoreThanItHas) {
  Begin({"--capacity", "100MiB"});
  const auto capacity = [&] {
    ::csi::v1::GetCapacityResponse response;
    EXPECT_CALL_OK(plugin_.Call(plugin_.controller(), &Controller::GetCapacity, {}, &response));
    EXPECT_EQ(response.maximum_volume_size().value(), response.available_capacity());
    return response.available_capacity();
  };
  EXPECT_EQ(capacity(), 100 * kMiB);
  const std::string id = MustCreate(CreateRequest("one", Mounted(), 60 * kMiB));
  EXPECT_EQ(capacity(), 40 * kMiB);
  EXPECT_CODE(Create(CreateRequest("two", Mounted(), 60 * kMiB)), RESOURCE_EXHAUSTED);
  EXPECT_CODE(Create(CreateRequest("two", Mounted(), 101 * kMiB)), OUT_OF_RANGE);
  ::csi::v1::Snapshot snapshot;
  EXPECT_CODE(Snap(id, "snap", &snapshot), RESOURCE_EXHAUSTED);
  ::csi::v1::ControllerExpandVolumeResponse expanded;
  EXPECT_CODE(Expand(id, 120 * kMiB, &expanded), OUT_OF_RANGE);
  EXPECT_CALL_OK(Expand(id, 100 * kMiB, &expanded));
  EXPECT_FALSE(expanded.node_expansion_required());
  EXPECT_EQ(capacity(), 0);
  EXPECT_CALL_OK(Delete(id));
  EXPECT_EQ(capacity(), 100 * kMiB);
  ::csi::v1::GetCapacityRequest elsewhere;
  (*elsewhere.mutable_accessible_topology()->mutable_segments())["zone"] = "x";
  ::csi::v1::GetCapacityResponse response;
  EXPECT_CALL_OK(plugin_.Call(plugin_.controller(), &Controller::GetCapacity, elsewhere, &response));
  EXPECT_EQ(response.available_capacity(), 0);
}

TEST_F(ContractTest, CapabilitiesAreConfirmedOnlyIfAllFit) {
  Begin();
  const std::string id = MustCreate(CreateRequest("pvc", Mounted()));
  ::csi::v1::ValidateVolumeCapabilitiesRequest request;
  ::csi::v1::ValidateVolumeCapabilitiesResponse response;
  const auto validate = [&] {
    response.Clear();
    return plugin_.Call(plugin_.controller(), &Controller::ValidateVolumeCapabilities, request, &response);
  };
  request.set_volume_id(id);
  EXPECT_CODE(validate(), INVALID_ARGUMENT);
  *request.add_volume_capabilities() = Mounted();
  EXPECT_CALL_OK(validate());
  EXPECT_EQ(response.confirmed().volume_capabilities_size(), 1);
  *request.add_volume_capabilities() = Raw();
  EXPECT_CALL_OK(validate());
  EXPECT_FALSE(response.has_confirmed());
  EXPECT_FALSE(response.message().empty());
  request.mutable_volume_capabilities()->RemoveLast();
  (*request.mutable_volume_context())["kind"] = "image";
  EXPECT_CALL_OK(validate());
  EXPECT_FALSE(response.has_confirmed());
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ContractTest, WithoutAttachControllerPublishIsUnimplemented) {
  Begin();
  ::csi::v1::ControllerPublishVolumeResponse response;
  EXPECT_CODE(Attach("any", "node-1", Mounted(), false, &response), UNIMPLEMENTED);
  EXPECT_CODE(Detach("any", "node-1"), UNIMPLEMENTED);
  const ::csi::v1::ControllerModifyVolumeRequest modify;
  ::csi::v1::ControllerModifyVolumeResponse modified;
  EXPECT_CODE(plugin_.Call(plugin_.controller(), &Controller::ControllerModifyVolume, modify, &modified),
              UNIMPLEMENTED);
}

TEST_F(ContractTest, WithAttachNothingIsStagedBeforeControllerPublish) {
  Begin({"--attach", "--max-volumes", "1"});
  const std::string id = MustCreate(CreateRequest("pvc", Mounted()));
  const std::string other = MustCreate(CreateRequest("other", Mounted()));
  const std::string staging = workplace_.NewStagingPath("1");
  EXPECT_CODE(Stage(id, staging, Mounted()), FAILED_PRECONDITION);
  ::csi::v1::ControllerPublishVolumeResponse attached;
  EXPECT_CODE(Attach("none", "node-1", Mounted(), false, &attached), NOT_FOUND);
  EXPECT_CODE(Attach(id, "node-2", Mounted(), false, &attached), NOT_FOUND);
  for (int repeat = 0; repeat < 2; ++repeat)
    EXPECT_CALL_OK(Attach(id, "node-1", Mounted(), false, &attached));
  EXPECT_FALSE(attached.publish_context().empty());
  ::csi::v1::ControllerPublishVolumeResponse unused;
  EXPECT_CODE(Attach(id, "node-1", Mounted(), true, &unused), ALREADY_EXISTS);
  EXPECT_CODE(Attach(id, "node-1", Mounted(AccessModeEnum::SINGLE_NODE_READER_ONLY), false, &unused),
              ALREADY_EXISTS);
  EXPECT_CODE(Attach(other, "node-1", Mounted(), false, &unused), RESOURCE_EXHAUSTED);
  ::csi::v1::ListVolumesResponse list;
  EXPECT_CALL_OK(List(1, "", &list));
  ASSERT_EQ(list.entries(0).status().published_node_ids_size(), 1);
  EXPECT_EQ(list.entries(0).status().published_node_ids(0), "node-1");

  EXPECT_CODE(Stage(id, staging, Mounted()), INVALID_ARGUMENT);  // the publish context is missing
  ::csi::v1::NodeStageVolumeRequest stage;
  stage.set_volume_id(id);
  stage.set_staging_target_path(staging);
  *stage.mutable_volume_capability() = Mounted();
  *stage.mutable_publish_context() = attached.publish_context();
  ::csi::v1::NodeStageVolumeResponse staged;
  EXPECT_CALL_OK(plugin_.Call(plugin_.node(), &Node::NodeStageVolume, stage, &staged));
  EXPECT_CODE(Detach(id, "node-1"), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Detach(id, "node-2"));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CODE(Delete(id), FAILED_PRECONDITION);

  // Another node id over the same state is another node: what is attached to the first stays attached there.
  EXPECT_EQ(plugin_.Terminate(), 0);
  Begin({"--attach"}, "node-2");
  EXPECT_CODE(Attach(id, "node-2", Mounted(), false, &unused), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Detach(id, ""));  // from every node
  EXPECT_CALL_OK(Detach(id, ""));
  EXPECT_CALL_OK(Attach(id, "node-2", Mounted(), false, &unused));
  EXPECT_CALL_OK(Detach(id, "node-2"));
  EXPECT_CALL_OK(Detach("none", "node-2"));
  EXPECT_CALL_OK(Delete(id));
  EXPECT_CALL_OK(Delete(other));
}

TEST_F(ContractTest, ManyVolumesAreServedAtOnce) {
  Begin();
  constexpr int kThreads = 8;
  std::vector<std::string> stagings;
  stagings.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) stagings.push_back(workplace_.NewStagingPath(std::to_string(i)));
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const std::string id = MustCreate(CreateRequest("pvc-" + std::to_string(i), Mounted()));
        const std::string target = workplace_.Target(std::to_string(i));
        EXPECT_CALL_OK(Stage(id, stagings[i], Mounted()));
        EXPECT_CALL_OK(Publish(id, stagings[i], target, Mounted()));
        EXPECT_CALL_OK(Unpublish(id, target));
        EXPECT_CALL_OK(Unstage(id, stagings[i]));
        EXPECT_CALL_OK(Delete(id));
      }
      ++finished;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished, kThreads);
}

TEST_F(ContractTest, OneNameMakesOneVolumeHoweverManyAskAtOnce) {
  Begin();
  std::mutex mutex;
  std::set<std::string> ids;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      ::csi::v1::Volume volume;
      const grpc::Status status = Create(CreateRequest("the one", Mounted()), &volume);
      if (!status.ok()) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
        return;
      }
      const std::lock_guard lock(mutex);
      ids.insert(volume.volume_id());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(ids.size(), 1);
  EXPECT_CALL_OK(Delete(*ids.begin()));
}

// --- The program ---

class ProgramTest : public PluginTest {
 protected:
  std::vector<std::string> Arguments(const std::string& endpoint) {
    return {"--endpoint", endpoint, "--node-id", "n", "--state-dir", workplace_.StateDir()};
  }
};

TEST_F(ProgramTest, ServesDirectoryVolumesInAUserNamespace) {
  if (std::system("/usr/bin/unshare --user --map-root-user --mount true 2>/dev/null") != 0) {
    GTEST_SKIP() << "this machine allows no user namespaces (a chroot, or user.max_user_namespaces)";
  }
  plugin_.RunBy({"/usr/bin/unshare", "--user", "--map-root-user", "--mount"});
  plugin_.Start();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_CODE(Create(CreateRequest("image", Mounted(), 0, "image")), INVALID_ARGUMENT);
  EXPECT_CODE(Create(CreateRequest("raw", Raw())), INVALID_ARGUMENT);
  const std::string id = MustCreate(CreateRequest("pvc", Mounted()));
  const std::string staging = workplace_.NewStagingPath("1");
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(Stage(id, staging, Mounted()));
  EXPECT_CALL_OK(Publish(id, staging, target, Mounted(), /*read_only=*/true));
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats(id, target, &stats));
  EXPECT_FALSE(stats.volume_condition().abnormal()) << stats.volume_condition().message();
  EXPECT_CALL_OK(Unpublish(id, target));
  EXPECT_CALL_OK(Unstage(id, staging));
  EXPECT_CALL_OK(Delete(id));
}

TEST_F(ProgramTest, RemovesASocketThatNobodyAnswersOn) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(fd.valid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  workplace_.Socket().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  plugin_.Start();
  ::csi::v1::ProbeResponse probe;
  EXPECT_CALL_OK(plugin_.Call(plugin_.identity(), &::csi::v1::Identity::Stub::Probe, {}, &probe));
  struct stat info{};
  ASSERT_EQ(stat(workplace_.Socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(ProgramTest, RefusesAPathThatIsNoSocket) {
  WriteText(workplace_.Socket(), "precious");
  EXPECT_EQ(plugin_.RunToItsEnd(Arguments("unix://" + workplace_.Socket())), 1);
  EXPECT_EQ(ReadText(workplace_.Socket()), "precious");
}

TEST_F(ProgramTest, RefusesAStateDirectoryThatIsInUse) {
  plugin_.Start();
  PluginProcess second(workplace_);
  EXPECT_EQ(second.RunToItsEnd(Arguments("unix://" + workplace_.path() + "/other.sock")), 1);
}

TEST_F(ProgramTest, TellsWrongUsageFromFailure) {
  EXPECT_EQ(plugin_.RunToItsEnd({"--version"}), 0);
  EXPECT_EQ(plugin_.RunToItsEnd({"--help"}), 0);
  EXPECT_EQ(plugin_.RunToItsEnd({"--no-such-option"}), 2);
  EXPECT_EQ(plugin_.RunToItsEnd(Arguments("tcp://127.0.0.1:1")), 2);
  EXPECT_EQ(plugin_.RunToItsEnd(Arguments("unix://relative")), 2);
}

}  // namespace
}  // namespace berth::hostpath
