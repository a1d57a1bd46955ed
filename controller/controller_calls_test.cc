#include "controller/controller_calls.h"

#include <fmt/format.h>
#include <google/protobuf/unknown_field_set.h>

#include <set>
#include <thread>

#include "controller/testing/controller_calls_fixture.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Kind = v1::ControllerCall;
using std::chrono::milliseconds;

// What an honest plugin answers to the calls of EveryControllerCall.
void AnswerAll(FakePlugin& fake) {
  csi::ControllerPublishVolumeResponse attached;
  (*attached.mutable_publish_context())["device"] = "sda";
  fake.Answer("ControllerPublishVolume", attached);
  fake.Answer("ControllerUnpublishVolume", csi::ControllerUnpublishVolumeResponse());
  csi::ValidateVolumeCapabilitiesResponse valid;
  *valid.mutable_confirmed()->add_volume_capabilities() = SomeCapability();
  fake.Answer("ValidateVolumeCapabilities", valid);
  csi::CreateVolumeResponse created;
  created.mutable_volume()->set_volume_id("v");
  created.mutable_volume()->set_capacity_bytes(1024);
  fake.Answer("CreateVolume", created);
  fake.Answer("DeleteVolume", csi::DeleteVolumeResponse());
  csi::ListVolumesResponse volumes;
  *volumes.add_entries()->mutable_volume() = created.volume();
  fake.Answer("ListVolumes", volumes);
  csi::ControllerGetVolumeResponse volume;
  *volume.mutable_volume() = created.volume();
  volume.mutable_status()->add_published_node_ids("n");
  fake.Answer("ControllerGetVolume", volume);
  csi::GetCapacityResponse capacity;
  capacity.set_available_capacity(5000);
  fake.Answer("GetCapacity", capacity);
  csi::ControllerExpandVolumeResponse expanded;
  expanded.set_capacity_bytes(2048);
  fake.Answer("ControllerExpandVolume", expanded);
  fake.Answer("ControllerModifyVolume", csi::ControllerModifyVolumeResponse());
  csi::CreateSnapshotResponse snapshot;
  *snapshot.mutable_snapshot() = SomeSnapshot("s", "v");
  fake.Answer("CreateSnapshot", snapshot);
  fake.Answer("DeleteSnapshot", csi::DeleteSnapshotResponse());
  csi::ListSnapshotsResponse snapshots;
  *snapshots.add_entries()->mutable_snapshot() = snapshot.snapshot();
  fake.Answer("ListSnapshots", snapshots);
  csi::GetSnapshotResponse got_snapshot;
  *got_snapshot.mutable_snapshot() = snapshot.snapshot();
  fake.Answer("GetSnapshot", got_snapshot);
  csi::CreateVolumeGroupSnapshotResponse group;
  group.mutable_group_snapshot()->set_group_snapshot_id("g");
  group.mutable_group_snapshot()->mutable_creation_time()->set_seconds(5);
  *group.mutable_group_snapshot()->add_snapshots() = SomeSnapshot("s", "v");
  *group.mutable_group_snapshot()->add_snapshots() = SomeSnapshot("t", "w");
  fake.Answer("CreateVolumeGroupSnapshot", group);
  fake.Answer("DeleteVolumeGroupSnapshot", csi::DeleteVolumeGroupSnapshotResponse());
  csi::GetVolumeGroupSnapshotResponse got_group;
  *got_group.mutable_group_snapshot() = group.group_snapshot();
  fake.Answer("GetVolumeGroupSnapshot", got_group);
}

TEST_F(ControllerCallsTest, EveryKindReachesThePluginAndComesBack) {
  AddAblePlugin();
  AnswerAll(*fake_);
  for (const auto& [call, capability] : EveryControllerCall()) {
    const Result result = Do(call);
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.outcome, v1::OUTCOME_DONE);
    EXPECT_EQ(int{result.answer.answer_case()}, int{call.request_case()}) << call.ShortDebugString();
  }
  EXPECT_EQ(Do(CallOf(Kind::kAttach)).answer.attach().publish_context().at("device"), "sda");
  csi::ControllerUnpublishVolumeRequest detached;
  ASSERT_TRUE(fake_->LastRequest("ControllerUnpublishVolume", &detached));
  EXPECT_EQ(detached.SerializeAsString(), CallOf(Kind::kDetach).detach().SerializeAsString());
}

TEST_F(ControllerCallsTest, WhatIsRefusedNeverLeaves) {
  AnswerAll(*fake_);
  EXPECT_EQ(Do(CallOf(Kind::kAttach)).status.code(), absl::StatusCode::kNotFound) << "no such plugin";
  AddPlugin({});
  const Result lacking = Do(CallOf(Kind::kAttach));
  EXPECT_EQ(lacking.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(lacking.outcome, v1::OUTCOME_REFUSED);
  AddAblePlugin();
  v1::ControllerCall wrong = CallOf(Kind::kAttach);
  wrong.mutable_attach()->clear_node_id();
  const Result refused = Do(wrong);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.outcome, v1::OUTCOME_REFUSED);
  control_.plugins_by_id["p"].ready = false;
  const Result away = Do(CallOf(Kind::kAttach));
  EXPECT_EQ(away.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(away.outcome, v1::OUTCOME_RETRY) << "nothing happened, and it may do later";
  EXPECT_EQ(Do(CallOf(Kind::kGet), milliseconds(-1)).outcome, v1::OUTCOME_RETRY);
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 0);
  EXPECT_EQ(fake_->Calls("ControllerGetVolume"), 0);
}

TEST_F(ControllerCallsTest, OnceAStopHasBegunNothingIsChangedButForADetach) {
  AddAblePlugin();
  AnswerAll(*fake_);
  mounter_.leaving = "berthd is stopping";
  const std::set<v1::ControllerCall::RequestCase> go_on = {
      Kind::kDetach,      Kind::kValidate,      Kind::kList,        Kind::kGet,
      Kind::kGetCapacity, Kind::kListSnapshots, Kind::kGetSnapshot, Kind::kGetGroupSnapshot};
  for (const auto& [call, capability] : EveryControllerCall()) {
    const Result result = Do(call);
    if (go_on.contains(call.request_case())) {
      EXPECT_TRUE(result.status.ok()) << result.status << call.ShortDebugString();
      continue;
    }
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << call.ShortDebugString();
    EXPECT_EQ(result.outcome, v1::OUTCOME_RETRY) << call.ShortDebugString();
  }
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 0);
  EXPECT_EQ(fake_->Calls("CreateVolume"), 0);
}

TEST_F(ControllerCallsTest, AbortedAndUnavailableAreTriedAgain) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->FailNext("ControllerPublishVolume", {grpc::StatusCode::ABORTED, "an operation is pending"});
  fake_->FailNext("ControllerPublishVolume", {grpc::StatusCode::UNAVAILABLE, "the storage is away"});
  const Result result = Do(CallOf(Kind::kAttach));
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 3);
}

TEST_F(ControllerCallsTest, AtTheDeadlineAChangeIsUncertainAndAQuestionIsNot) {
  AddAblePlugin();
  for (const char* rpc : {"ControllerPublishVolume", "DeleteVolume", "ControllerGetVolume"}) {
    fake_->Fail(rpc, {grpc::StatusCode::ABORTED, "an operation is pending"});
  }
  const Result attach = Do(CallOf(Kind::kAttach), milliseconds(600));
  // The last try may just be under way.
  EXPECT_THAT(attach.status.code(), AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(attach.outcome, v1::OUTCOME_UNCERTAIN);
  EXPECT_GT(fake_->Calls("ControllerPublishVolume"), 1);
  EXPECT_EQ(Do(CallOf(Kind::kDelete), milliseconds(400)).outcome, v1::OUTCOME_UNCERTAIN);
  EXPECT_EQ(Do(CallOf(Kind::kGet), milliseconds(400)).outcome, v1::OUTCOME_RETRY);
}

TEST_F(ControllerCallsTest, APluginThatNeverAnswersIsLeftAtTheDeadline) {
  AddAblePlugin();
  fake_->Hang("CreateVolume");
  const Result result = Do(CallOf(Kind::kCreate), milliseconds(500));
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(result.outcome, v1::OUTCOME_UNCERTAIN);
  fake_->Hang("ControllerGetVolume");
  EXPECT_EQ(Do(CallOf(Kind::kGet), milliseconds(500)).outcome, v1::OUTCOME_RETRY);
  EXPECT_TRUE(fake_->WaitForCancelled("ControllerGetVolume", 1)) << "the answer to a question is not needed";
  EXPECT_EQ(fake_->Cancelled("CreateVolume"), 0) << "what changes something goes on";
}

TEST_F(ControllerCallsTest, TheSameRequestJoinsWhatThePluginIsAtWorkOn) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->Hang("CreateVolume");
  EXPECT_EQ(Do(CallOf(Kind::kCreate), milliseconds(50)).outcome, v1::OUTCOME_UNCERTAIN);
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> joined;
  std::optional<Result> other;
  Begin(scope, CallOf(Kind::kCreate), joined);
  v1::ControllerCall unlike = CallOf(Kind::kCreate);
  unlike.mutable_create()->mutable_capacity_range()->set_required_bytes(1);
  Begin(scope, unlike, other);
  csi::CreateVolumeResponse created;
  created.mutable_volume()->set_volume_id("made once");
  fake_->AnswerHung("CreateVolume", created);
  fake_->Answer("CreateVolume", created);
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ(joined->outcome, v1::OUTCOME_DONE) << joined->status;
  EXPECT_EQ(joined->answer.create().volume().volume_id(), "made once");
  EXPECT_EQ(fake_->Calls("CreateVolume"), 2) << "one of the two that are alike, and the other one";
  ASSERT_TRUE(other.has_value());
  EXPECT_TRUE(other->status.ok()) << other->status;
}

TEST_F(ControllerCallsTest, ACallThatIsJoinedKeepsItsPlaceInLine) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->Hang("ControllerModifyVolume");
  fake_->Hang("ControllerPublishVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> earlier;
  std::optional<Result> hasty;
  std::optional<Result> joined;
  std::optional<Result> detach;
  Begin(scope, CallOf(Kind::kModify), earlier);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerModifyVolume", 1));
  Begin(scope, CallOf(Kind::kAttach), hasty, milliseconds(50));
  Begin(scope, CallOf(Kind::kAttach), joined);
  Begin(scope, CallOf(Kind::kDetach), detach);
  while (!hasty) loop_.run_one();
  loop_.poll();
  EXPECT_EQ(hasty->outcome, v1::OUTCOME_RETRY);
  fake_->AnswerHung("ControllerModifyVolume", csi::ControllerModifyVolumeResponse());
  const auto calls = [this](const char* rpc) { return fake_->Calls(rpc); };
  while (calls("ControllerPublishVolume") + calls("ControllerUnpublishVolume") == 0) {
    loop_.run_one_for(milliseconds(10));
  }
  EXPECT_EQ(calls("ControllerUnpublishVolume"), 0) << "it was asked for after the attach";
  fake_->Answer("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  fake_->AnswerHung("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(joined && detach);
  EXPECT_TRUE(joined->status.ok()) << joined->status;
  EXPECT_TRUE(detach->status.ok()) << detach->status;
}

TEST_F(ControllerCallsTest, NothingLeavesAfterItsCallerWasToldThatItDidNot) {
  AddAblePlugin();
  AnswerAll(*fake_);
  PluginSnapshot& plugin = control_.plugins_by_id["p"];
  plugin.paused = true;
  const TimePoint deadline = Clock::now() + milliseconds(20);
  controllers_.on_wait = [&plugin, deadline] {
    while (Clock::now() < deadline) std::this_thread::yield();
    plugin.paused = false;
  };
  const Result late = RunOn(loop_, calls_.Call(CallOf(Kind::kAttach), deadline));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.outcome, v1::OUTCOME_RETRY);
  EXPECT_TRUE(Do(CallOf(Kind::kDetach)).status.ok()) << "it is the next";
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 0);
}

TEST_F(ControllerCallsTest, ARequestDoesNotJoinPastAnotherOne) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->Hang("ControllerPublishVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> attach;
  std::optional<Result> detach;
  std::optional<Result> again;
  Begin(scope, CallOf(Kind::kAttach), attach);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerPublishVolume", 1));
  Begin(scope, CallOf(Kind::kDetach), detach);
  Begin(scope, CallOf(Kind::kAttach), again);
  fake_->Answer("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  fake_->AnswerHung("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  RunOn(loop_, scope.WaitEmpty());
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume"), 1);
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 2) << "it is attached in the end, as was asked last";
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->status.ok()) << again->status;
}

TEST_F(ControllerCallsTest, NothingIsTriedForWhoeverHasGone) {
  AddAblePlugin();
  fake_->Fail("ControllerPublishVolume", {grpc::StatusCode::UNAVAILABLE, "away"});
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> attach;
  Begin(scope, CallOf(Kind::kAttach), attach);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerPublishVolume", 1));
  RunOn(loop_, scope.Join());
  const int before = fake_->Calls("ControllerPublishVolume");
  RunOn(loop_, SleepUntil(Clock::now() + milliseconds(50)));
  EXPECT_LE(fake_->Calls("ControllerPublishVolume"), before + 1) << "but for one that was under way";
  fake_->Answer("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  EXPECT_TRUE(Do(CallOf(Kind::kAttach)).status.ok());
}

TEST_F(ControllerCallsTest, AFullPoolOrNodeIsToldAtOnce) {
  AddAblePlugin();
  const std::pair<Kind::RequestCase, const char*> kinds[] = {
      {Kind::kAttach, "ControllerPublishVolume"},
      {Kind::kCreate, "CreateVolume"},
      {Kind::kCreateSnapshot, "CreateSnapshot"},
      {Kind::kCreateGroupSnapshot, "CreateVolumeGroupSnapshot"},
  };
  for (const auto& [kind, rpc] : kinds) {
    fake_->Fail(rpc, {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"});
    const Result result = Do(CallOf(kind));
    EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted) << rpc;
    EXPECT_EQ(result.outcome, v1::OUTCOME_FAILED) << rpc;
    EXPECT_EQ(fake_->Calls(rpc), 1) << rpc;
  }
}

TEST_F(ControllerCallsTest, ADetachThatThePluginKnowsNothingOfIsNoSuccess) {
  AddAblePlugin();
  fake_->Fail("ControllerUnpublishVolume", {grpc::StatusCode::NOT_FOUND, "no such volume"});
  EXPECT_EQ(Do(CallOf(Kind::kDetach)).outcome, v1::OUTCOME_RETRY);
  fake_->FailNext("ControllerUnpublishVolume", {grpc::StatusCode::UNAVAILABLE, "lost on the way"});
  EXPECT_EQ(Do(CallOf(Kind::kDetach)).outcome, v1::OUTCOME_UNCERTAIN) << "the first try may have done it";
}

TEST_F(ControllerCallsTest, OnlyACallThatNeverLeftGoesToAnotherController) {
  AddAblePlugin("p");
  AddAblePlugin("q");
  FakePlugin other(directory_ + "/other.sock");
  other.Start();
  controllers_.clients["q"] = CsiClient::Connect(other.socket_path());
  AnswerAll(*fake_);
  AnswerAll(other);
  control_.plugins_by_id["p"].ready = false;
  EXPECT_TRUE(Do(CallOf(Kind::kAttach)).status.ok());
  EXPECT_EQ(other.Calls("ControllerPublishVolume"), 1);

  control_.plugins_by_id["p"].ready = true;
  fake_->FailNext("ControllerPublishVolume", {grpc::StatusCode::UNAVAILABLE, "going away"});
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> result;
  Begin(scope, CallOf(Kind::kAttach), result);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerPublishVolume", 1));
  control_.plugins_by_id["p"].ready = false;
  // Its answer and a try or two, for which it is not ready.
  RunOn(loop_, SleepUntil(Clock::now() + milliseconds(30)));
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(other.Calls("ControllerPublishVolume"), 1) << "the first one may have done it";
  control_.plugins_by_id["p"].ready = true;
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->status.ok()) << result->status;
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 2);
  controllers_.clients.erase("q");
}

Awaitable<void> DeleteLocally(NodeApi& api) {
  const CallInfo info{.deadline = Clock::now() + std::chrono::minutes(5)};
  std::ignore = co_await api.controller.DeleteVolume(ForVolume<v1::DeleteVolumeRequest>(), info);
}

Awaitable<void> PublishLocally(NodeApi& api, v1::PublishVolumeRequest request) {
  const CallInfo info{.deadline = TimePoint::max()};
  std::ignore = co_await api.volumes.PublishVolume(std::move(request), info);
}

TEST_F(ControllerCallsTest, OneCallAtATimeAboutAVolumeWhoeverAsks) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->Hang("DeleteVolume");
  TaskScope locally(loop_.get_executor(), "locally");
  locally.Spawn("delete", DeleteLocally(api_));
  loop_.poll();
  ASSERT_TRUE(fake_->WaitForCalls("DeleteVolume", 1));
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> attach;
  Begin(scope, CallOf(Kind::kAttach), attach);
  v1::ControllerCall other = CallOf(Kind::kAttach);
  other.mutable_attach()->set_volume_id("another");
  EXPECT_TRUE(Do(other).status.ok()) << "other volumes do not wait";
  EXPECT_EQ(fake_->Calls("ControllerPublishVolume"), 1);
  EXPECT_FALSE(attach.has_value());
  const Result late = Do(CallOf(Kind::kDetach), milliseconds(10));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.outcome, v1::OUTCOME_RETRY) << "it never left";
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume"), 0);
  RunOn(loop_, locally.Join());
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(attach.has_value());
  EXPECT_TRUE(attach->status.ok()) << attach->status;
}

TEST_F(ControllerCallsTest, ACallThatWasCancelledGoesOnAtThePluginWithNothingBesideIt) {
  AddAblePlugin();
  AnswerAll(*fake_);
  fake_->Hang("ControllerPublishVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> attach;
  Begin(scope, CallOf(Kind::kAttach), attach);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerPublishVolume", 1));
  RunOn(loop_, scope.Join());
  const Result early = Do(CallOf(Kind::kDetach), milliseconds(20));
  EXPECT_EQ(early.outcome, v1::OUTCOME_RETRY);
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume"), 0) << "the attach is under way still";
  EXPECT_EQ(fake_->Cancelled("ControllerPublishVolume"), 0);
  fake_->AnswerHung("ControllerPublishVolume", csi::ControllerPublishVolumeResponse());
  EXPECT_TRUE(Do(CallOf(Kind::kDetach)).status.ok());
}

TEST_F(ControllerCallsTest, ShutdownCancelsWhatIsUnderWay) {
  AddAblePlugin();
  fake_->Hang("ControllerPublishVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> attach;
  Begin(scope, CallOf(Kind::kAttach), attach);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerPublishVolume", 1));
  RunOn(loop_, calls_.Shutdown());
  RunOn(loop_, scope.WaitEmpty());
  ASSERT_TRUE(attach.has_value());
  EXPECT_EQ(attach->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(attach->outcome, v1::OUTCOME_UNCERTAIN);
  EXPECT_TRUE(fake_->WaitForCancelled("ControllerPublishVolume", 1));
}

TEST_F(ControllerCallsTest, AVolumeInUseHereIsNotDeleted) {
  AddAblePlugin();
  AnswerAll(*fake_);
  mounter_.Add("p", "v", "job/7");
  const Result held = Do(CallOf(Kind::kDelete));
  EXPECT_EQ(held.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(held.outcome, v1::OUTCOME_REFUSED);
  EXPECT_THAT(Message(held.status), HasSubstr("job/7"));
  EXPECT_EQ(fake_->Calls("DeleteVolume"), 0);
  mounter_.volumes.clear();

  fake_->Hang("DeleteVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> deletion;
  Begin(scope, CallOf(Kind::kDelete), deletion);
  ASSERT_TRUE(fake_->WaitForCalls("DeleteVolume", 1));
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  EXPECT_EQ(NodeApiTest::Call(&VolumeApi::PublishVolume, publish).status().code(),
            absl::StatusCode::kAborted);
  fake_->AnswerHung("DeleteVolume", csi::DeleteVolumeResponse());
  RunOn(loop_, scope.WaitEmpty());
  EXPECT_TRUE(NodeApiTest::Call(&VolumeApi::PublishVolume, publish).ok()) << "nothing of it may stick";
}

v1::ControllerCall DetachFrom(const std::string& node_id) {
  v1::ControllerCall call = CallOf(Kind::kDetach);
  call.mutable_detach()->set_node_id(node_id);
  call.set_all_nodes(node_id.empty());
  return call;
}

TEST_F(ControllerCallsTest, AVolumeInUseHereIsNotDetachedFromThisNode) {
  AddAblePlugin();
  AnswerAll(*fake_);
  control_.Add("node-half").facts->node_id = "here";
  mounter_.Add("node-half", "v", "job/7");
  for (const char* node_id : {"here", ""}) {
    const Result held = Do(DetachFrom(node_id));
    EXPECT_EQ(held.status.code(), absl::StatusCode::kFailedPrecondition) << node_id;
    EXPECT_EQ(held.outcome, v1::OUTCOME_REFUSED);
    EXPECT_THAT(Message(held.status),
                AllOf(HasSubstr("node-half"), HasSubstr("job/7"), HasSubstr("unpublish it first")));
  }
  mounter_.volumes[0].publications.clear();
  EXPECT_EQ(Do(DetachFrom("here")).outcome, v1::OUTCOME_REFUSED) << "staged still";
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume"), 0);
  EXPECT_TRUE(Do(DetachFrom("another")).status.ok()) << "is that node's matter";
  mounter_.volumes.clear();
  EXPECT_TRUE(Do(DetachFrom("here")).status.ok());
  EXPECT_TRUE(Do(DetachFrom("")).status.ok());
}

TEST_F(ControllerCallsTest, WhoeverHoldsAVolumeOfAnUnknownDriverIsWaitedFor) {
  AddAblePlugin();
  AnswerAll(*fake_);
  control_.Add("node-half").facts.reset();
  mounter_.Add("node-half", "v", "job/7");
  for (const Kind::RequestCase kind : {Kind::kDetach, Kind::kDelete}) {
    const Result early = Do(CallOf(kind));
    EXPECT_EQ(early.status.code(), absl::StatusCode::kUnavailable) << early.status;
    EXPECT_EQ(early.outcome, v1::OUTCOME_RETRY);
  }
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume") + fake_->Calls("DeleteVolume"), 0);
  control_.Add("node-half").facts->name = "driver.other";
  EXPECT_TRUE(Do(CallOf(Kind::kDetach)).status.ok()) << "only its id is the same";
}

TEST_F(ControllerCallsTest, AVolumeThatIsMountedHereWithoutARecordIsNeitherDeletedNorDetached) {
  AddAblePlugin();
  AnswerAll(*fake_);
  control_.Add("node-half").facts->node_id = "here";
  mounter_.unrecorded = {{"node-half", "v"}};
  for (const v1::ControllerCall& call : {CallOf(Kind::kDelete), DetachFrom("here"), DetachFrom("")}) {
    const Result mounted = Do(call);
    EXPECT_EQ(mounted.status.code(), absl::StatusCode::kUnavailable) << mounted.status;
    EXPECT_EQ(mounted.outcome, v1::OUTCOME_RETRY);
    EXPECT_THAT(Message(mounted.status), HasSubstr("no record"));
  }
  EXPECT_EQ(fake_->Calls("ControllerUnpublishVolume") + fake_->Calls("DeleteVolume"), 0);
  EXPECT_TRUE(Do(DetachFrom("another")).status.ok()) << "is that node's matter";
  control_.Add("not-yet").facts.reset();
  mounter_.unrecorded = {{"not-yet", "v"}};
  EXPECT_EQ(Do(CallOf(Kind::kDelete)).outcome, v1::OUTCOME_RETRY) << "it may be of the same driver";
  EXPECT_EQ(Do(DetachFrom("another")).outcome, v1::OUTCOME_RETRY) << "and of this node";
  mounter_.unrecorded.clear();
  EXPECT_TRUE(Do(CallOf(Kind::kDelete)).status.ok());
}

TEST_F(ControllerCallsTest, APublishAndADetachFromThisNodeKeepEachOtherOut) {
  AddAblePlugin().node_id = "here";
  AnswerAll(*fake_);
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  mounter_.hang = true;
  mounter_.next_error = absl::UnavailableError("and then it fails");
  TaskScope scope(loop_.get_executor(), "test");
  scope.Spawn("publish", PublishLocally(api_, publish));
  loop_.restart();
  loop_.poll();
  ASSERT_EQ(mounter_.publishing, 1);
  EXPECT_THAT(Message(Do(DetachFrom("here")).status), HasSubstr("is being published"));
  EXPECT_TRUE(Do(DetachFrom("another")).status.ok());
  mounter_.Release();
  RunOn(loop_, scope.WaitEmpty());

  control_.Add("unknown").facts.reset();
  auto elsewhere = publish;
  elsewhere.set_plugin_id("unknown");
  for (const char* node_id : {"here", "another"}) {
    const int before = fake_->Calls("ControllerUnpublishVolume");
    fake_->Hang("ControllerUnpublishVolume");
    std::optional<Result> detach;
    Begin(scope, DetachFrom(node_id), detach);
    ASSERT_TRUE(fake_->WaitForCalls("ControllerUnpublishVolume", before + 1));
    const absl::Status status = NodeApiTest::Call(&VolumeApi::PublishVolume, publish).status();
    const bool ours = node_id == std::string("here");
    EXPECT_EQ(status.code(), ours ? absl::StatusCode::kAborted : absl::StatusCode::kOk) << status;
    if (ours) {
      EXPECT_EQ(NodeApiTest::Call(&VolumeApi::PublishVolume, elsewhere).status().code(),
                absl::StatusCode::kAborted)
          << "it may be the same one";
    }
    fake_->AnswerHung("ControllerUnpublishVolume", csi::ControllerUnpublishVolumeResponse());
    RunOn(loop_, scope.WaitEmpty());
  }
  EXPECT_TRUE(NodeApiTest::Call(&VolumeApi::PublishVolume, publish).ok()) << "nothing of it may stick";
}

TEST_F(ControllerCallsTest, OfflineExpansionIsForVolumesThatNobodyUses) {
  using Expansion = csi::PluginCapability::VolumeExpansion;
  PluginFacts& facts = AddAblePlugin();
  AnswerAll(*fake_);
  mounter_.Add("p", "v", "job/7");
  auto locally = ForVolume<v1::ExpandVolumeRequest>();
  locally.set_required_bytes(2000);
  facts.volume_expansion = {Expansion::OFFLINE};
  const Result held = Do(CallOf(Kind::kExpand));
  EXPECT_EQ(held.outcome, v1::OUTCOME_REFUSED);
  const absl::Status api = NodeApiTest::Call(&ControllerApi::ExpandVolume, locally).status();
  for (const absl::Status& status : {held.status, api}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("VolumeExpansion OFFLINE"), HasSubstr("job/7"), HasSubstr("unpublish")));
  }
  EXPECT_EQ(fake_->Calls("ControllerExpandVolume"), 0);
  for (const int also : {Expansion::ONLINE, Expansion::UNKNOWN}) {
    facts.volume_expansion = {also == Expansion::ONLINE ? Expansion::OFFLINE : also, also};
    EXPECT_TRUE(Do(CallOf(Kind::kExpand)).status.ok());
    EXPECT_TRUE(NodeApiTest::Call(&ControllerApi::ExpandVolume, locally).ok());
  }

  facts.volume_expansion = {Expansion::OFFLINE};
  mounter_.volumes.clear();
  fake_->Hang("ControllerExpandVolume");
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> expand;
  const int before = fake_->Calls("ControllerExpandVolume");
  Begin(scope, CallOf(Kind::kExpand), expand);
  ASSERT_TRUE(fake_->WaitForCalls("ControllerExpandVolume", before + 1));
  auto publish = ForVolume<v1::PublishVolumeRequest>();
  publish.set_consumer("c");
  EXPECT_EQ(NodeApiTest::Call(&VolumeApi::PublishVolume, publish).status().code(),
            absl::StatusCode::kAborted);
  csi::ControllerExpandVolumeResponse expanded;
  expanded.set_capacity_bytes(2048);
  fake_->AnswerHung("ControllerExpandVolume", expanded);
  RunOn(loop_, scope.WaitEmpty());
  EXPECT_TRUE(NodeApiTest::Call(&VolumeApi::PublishVolume, publish).ok());
}

TEST_F(ControllerCallsTest, WhatIsOwedToADeletedVolumeIsStruck) {
  AddAblePlugin();
  AnswerAll(*fake_);
  mounter_.owed_elsewhere[{"p", "v"}] = 5;
  EXPECT_TRUE(Do(CallOf(Kind::kDelete)).status.ok());
  EXPECT_THAT(mounter_.owed_elsewhere, IsEmpty());
}

TEST_F(ControllerCallsTest, TheNodesPartOfAnExpansionIsOwedWhereTheVolumeIsHeld) {
  AddAblePlugin();
  csi::ControllerExpandVolumeResponse expanded;
  expanded.set_capacity_bytes(2048);
  expanded.set_node_expansion_required(true);
  fake_->Answer("ControllerExpandVolume", expanded);
  Result result = Do(CallOf(Kind::kExpand));
  EXPECT_TRUE(result.answer.expand().node_expansion_required());
  EXPECT_THAT(mounter_.steps, IsEmpty()) << "another node may have it";
  mounter_.Add("p", "v", "c");
  result = Do(CallOf(Kind::kExpand));
  EXPECT_EQ(result.outcome, v1::OUTCOME_DONE);
  EXPECT_THAT(mounter_.steps, ElementsAre("note v"));
  EXPECT_EQ(mounter_.volumes[0].pending_expansion_bytes, 2048);
}

TEST_F(ControllerCallsTest, LateAccessModesGoOnlyToThoseWhoKnowThem) {
  using Mode = csi::VolumeCapability::AccessMode;
  AnswerAll(*fake_);
  v1::ControllerCall call = CallOf(Kind::kAttach);
  call.mutable_attach()->mutable_volume_capability()->mutable_access_mode()->set_mode(
      Mode::SINGLE_NODE_SINGLE_WRITER);
  csi::ControllerPublishVolumeRequest sent;
  AddAblePlugin();
  ASSERT_TRUE(Do(call).status.ok());
  ASSERT_TRUE(fake_->LastRequest("ControllerPublishVolume", &sent));
  EXPECT_EQ(sent.volume_capability().access_mode().mode(), Mode::SINGLE_NODE_SINGLE_WRITER);
  AddPlugin({csi::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME});
  ASSERT_TRUE(Do(call).status.ok());
  ASSERT_TRUE(fake_->LastRequest("ControllerPublishVolume", &sent));
  EXPECT_EQ(sent.volume_capability().access_mode().mode(), Mode::SINGLE_NODE_WRITER);
}

TEST_F(ControllerCallsTest, AWrongAnswerIsNotBelieved) {
  AddAblePlugin();
  const auto wrong = [this](Kind::RequestCase kind, const std::string& rpc,
                            const google::protobuf::Message& answer, const std::string& why) {
    fake_->Answer(rpc, answer);
    const Result result = Do(CallOf(kind));
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal) << rpc << " " << result.status;
    EXPECT_THAT(Message(result.status),
                AllOf(HasSubstr("plugin p: its answer to " + rpc + " is wrong"), HasSubstr(why)));
    return result.outcome;
  };
  csi::CreateVolumeResponse created;
  EXPECT_EQ(wrong(Kind::kCreate, "CreateVolume", created, "has no id"), v1::OUTCOME_UNCERTAIN);
  created.mutable_volume()->set_volume_id("v");
  created.mutable_volume()->set_capacity_bytes(10);
  wrong(Kind::kCreate, "CreateVolume", created, "the volume v exists now");
  csi::ControllerPublishVolumeResponse attached;
  (*attached.mutable_publish_context())["k"] = std::string(100'000, 'x');
  wrong(Kind::kAttach, "ControllerPublishVolume", attached, "a publish context of 1 entries");
  csi::ValidateVolumeCapabilitiesResponse valid;
  valid.mutable_confirmed();
  wrong(Kind::kValidate, "ValidateVolumeCapabilities", valid, "it confirms no capability");
  csi::ListVolumesResponse list;
  list.add_entries()->mutable_volume()->set_volume_id("v");
  list.mutable_entries(0)->mutable_volume()->set_capacity_bytes(-1);
  EXPECT_EQ(wrong(Kind::kList, "ListVolumes", list, "-1 bytes"), v1::OUTCOME_RETRY);
  csi::ControllerGetVolumeResponse volume;
  volume.mutable_volume()->set_volume_id("w");
  wrong(Kind::kGet, "ControllerGetVolume", volume, "it is about volume w, not v");
  csi::GetCapacityResponse capacity;
  capacity.set_available_capacity(-1);
  wrong(Kind::kGetCapacity, "GetCapacity", capacity, "a negative size");
  csi::ControllerExpandVolumeResponse expanded;
  expanded.set_capacity_bytes(1999);
  wrong(Kind::kExpand, "ControllerExpandVolume", expanded, "2000 were required");

  csi::CreateSnapshotResponse snapshot;
  wrong(Kind::kCreateSnapshot, "CreateSnapshot", snapshot, "the snapshot has no id");
  *snapshot.mutable_snapshot() = SomeSnapshot("s", "w");
  wrong(Kind::kCreateSnapshot, "CreateSnapshot", snapshot, "it is about volume w, not v");
  csi::GetSnapshotResponse got;
  *got.mutable_snapshot() = SomeSnapshot("s", "v");
  got.mutable_snapshot()->clear_creation_time();
  wrong(Kind::kGetSnapshot, "GetSnapshot", got, "no creation_time");
  csi::ListSnapshotsResponse snapshots;
  *snapshots.add_entries()->mutable_snapshot() = SomeSnapshot("s", "v");
  snapshots.mutable_entries(0)->mutable_snapshot()->set_size_bytes(-5);
  wrong(Kind::kListSnapshots, "ListSnapshots", snapshots, "a size of -5 bytes");

  csi::CreateVolumeGroupSnapshotResponse group;
  group.mutable_group_snapshot()->set_group_snapshot_id("g");
  group.mutable_group_snapshot()->mutable_creation_time();
  *group.mutable_group_snapshot()->add_snapshots() = SomeSnapshot("s", "v");
  wrong(Kind::kCreateGroupSnapshot, "CreateVolumeGroupSnapshot", group, "not one of each volume");
  csi::GetVolumeGroupSnapshotResponse got_group;
  *got_group.mutable_group_snapshot() = group.group_snapshot();
  got_group.mutable_group_snapshot()->mutable_snapshots(0)->set_group_snapshot_id("h");
  wrong(Kind::kGetGroupSnapshot, "GetVolumeGroupSnapshot", got_group, "of another group");
}

TEST_F(ControllerCallsTest, AnAnswerThatIsTooLongToBeHandedOnIsNot) {
  AddAblePlugin();
  csi::CreateVolumeResponse created;
  created.mutable_volume()->set_volume_id("v");
  csi::Topology topology;
  (*topology.mutable_segments())["zone"] = std::string(100, 'z');
  const size_t count = (size_t{3} << 20) / topology.ByteSizeLong();
  for (size_t i = 0; i < count; ++i) *created.mutable_volume()->add_accessible_topology() = topology;
  fake_->Answer("CreateVolume", created);
  const Result made = Do(CallOf(Kind::kCreate));
  EXPECT_EQ(made.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(made.status), AllOf(HasSubstr("is too long"), HasSubstr("the volume v exists now")));
  EXPECT_EQ(made.outcome, v1::OUTCOME_UNCERTAIN);
  EXPECT_EQ(made.answer.ByteSizeLong(), 0U);

  csi::ControllerGetVolumeResponse got;
  *got.mutable_volume() = created.volume();
  fake_->Answer("ControllerGetVolume", got);
  EXPECT_EQ(Do(CallOf(Kind::kGet)).outcome, v1::OUTCOME_FAILED) << "the same again will not do";

  created.mutable_volume()->mutable_accessible_topology()->DeleteSubrange(0, 2000);
  fake_->Answer("CreateVolume", created);
  EXPECT_TRUE(Do(CallOf(Kind::kCreate)).status.ok());
}

TEST_F(ControllerCallsTest, AConfirmationIsComparedWithWhatWasAsked) {
  using Mode = csi::VolumeCapability::AccessMode;
  AddPlugin({});  // knows no late access modes
  v1::ControllerCall call = CallOf(Kind::kValidate);
  csi::ValidateVolumeCapabilitiesRequest& asked = *call.mutable_validate();
  csi::VolumeCapability& late = *asked.mutable_volume_capabilities(0);
  late.mutable_access_mode()->set_mode(Mode::SINGLE_NODE_SINGLE_WRITER);
  late.mutable_mount()->add_mount_flags("noatime");
  late.mutable_mount()->add_mount_flags("ro");
  *asked.add_volume_capabilities() = SomeCapability();
  asked.mutable_volume_capabilities(1)->mutable_mount()->clear_fs_type();
  (*asked.mutable_parameters())["tier"] = "gold";
  csi::ValidateVolumeCapabilitiesResponse answer;
  auto& confirmed = *answer.mutable_confirmed();
  *confirmed.add_volume_capabilities() = late;
  confirmed.mutable_volume_capabilities(0)->mutable_access_mode()->set_mode(Mode::SINGLE_NODE_WRITER);
  confirmed.mutable_volume_capabilities(0)->mutable_mount()->mutable_mount_flags()->SwapElements(0, 1);
  *confirmed.add_volume_capabilities() = SomeCapability();
  const auto told = [&] {
    fake_->Answer("ValidateVolumeCapabilities", answer);
    const Result result = Do(call);
    EXPECT_EQ(result.outcome, v1::OUTCOME_DONE) << result.status;
    EXPECT_NE(result.answer.validate().has_confirmed(), !result.answer.validate().message().empty());
    return result.answer.validate().message();
  };
  EXPECT_EQ(told(), "") << "as it was sent, in any order, with a file system of the plugin's choice";
  (*confirmed.mutable_parameters())["tier"] = "gold";
  EXPECT_EQ(told(), "");
  (*confirmed.mutable_parameters())["tier"] = "tin";
  (*confirmed.mutable_volume_context())["k"] = "never asked about";
  EXPECT_THAT(told(), HasSubstr("volume_context, parameters"));
  confirmed.clear_parameters();
  confirmed.clear_volume_context();
  confirmed.mutable_volume_capabilities(0)->mutable_mount()->mutable_mount_flags()->RemoveLast();
  answer.set_message("too old for flags");
  EXPECT_THAT(told(), AllOf(HasSubstr("volume_capabilities[0]: too old"), Not(HasSubstr("capabilities[1]"))));
}

TEST_F(ControllerCallsTest, NoSecretComesBack) {
  AddAblePlugin();
  v1::ControllerCall call = CallOf(Kind::kValidate);
  (*call.mutable_validate()->mutable_secrets())["password"] = "hunter22";
  fake_->Fail("ValidateVolumeCapabilities", {grpc::StatusCode::INTERNAL, "login with hunter22 failed"});
  EXPECT_THAT(Message(Do(call).status), AllOf(HasSubstr("***"), Not(HasSubstr("hunter22"))));

  csi::ValidateVolumeCapabilitiesResponse answer;
  answer.set_message("tried hunter22");
  csi::VolumeCapability& capability = *answer.mutable_confirmed()->add_volume_capabilities();
  capability = SomeCapability();
  capability.mutable_mount()->add_mount_flags("password=hunter22");
  *call.mutable_validate()->mutable_volume_capabilities(0) = capability;
  answer.GetReflection()->MutableUnknownFields(&answer)->AddLengthDelimited(999, "hunter22");
  fake_->Answer("ValidateVolumeCapabilities", answer);
  const Result result = Do(call);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_THAT(result.answer.SerializeAsString(), Not(HasSubstr("hunter22")));
  EXPECT_THAT(result.answer.validate().confirmed().volume_capabilities(0).mount().mount_flags(),
              ElementsAre("(hidden)"));
}

}  // namespace
}  // namespace berth
