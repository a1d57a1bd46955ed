// The main way of a volume: a Mounter, a real plugin behind a real socket, real mounts.
#include "mounter/mounter.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/testing/from_text.h"
#include "mounter/root_permissions.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounts/mount_helper.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

class MounterTest : public MounterTestBase {
 protected:
  // With this in its words, and nothing done.
  void ExpectRefused(const PublishRequest& request, const std::string& words) {
    const auto refused = Publish(request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(refused.status()), HasSubstr(words));
    EXPECT_THAT(plugin_.Log(), IsEmpty());
    EXPECT_TRUE(Gone());
  }
};

TEST_F(MounterTest, PublishesAndUnpublishesLeavingNothing) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(IsMounted(*target));
  std::ofstream(*target + "/file") << "data";
  EXPECT_EQ(*ReadFile(plugin_.DataPath("v1") + "/file", 100), "data");
  const VolumeView view = View();
  EXPECT_EQ(view.stage_state, StageState::kStaged);
  ASSERT_EQ(view.publications.size(), 1U);
  EXPECT_EQ(view.publications[0].state, PublicationState::kPublished);
  EXPECT_EQ(view.publications[0].target_path, *target);
  EXPECT_TRUE(view.publications[0].published_at.has_value());
  EXPECT_THAT(mounter_->HeldThrough("hp"), ElementsAre("volume v1 by consumer web"));

  EXPECT_EQ(*Unpublish(Request()), true);
  EXPECT_TRUE(Gone());
  EXPECT_FALSE(LookAt(*target)->exists);
  EXPECT_EQ(rmdir((options_.state_dir + "/volumes").c_str()), -1) << "still the tree's mount";
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1",
                                         "NodeUnpublishVolume v1", "NodeUnstageVolume v1"));
  EXPECT_THAT(EventTypes(), ElementsAre("volume.staged", "volume.published", "volume.unpublished",
                                        "volume.unstaged", "volume.free"));
  EXPECT_EQ(*ReadFile(plugin_.DataPath("v1") + "/file", 100), "data");
  Close();
  EXPECT_FALSE(IsMounted(options_.state_dir + "/volumes")) << "nothing was left in it";
}

TEST_F(MounterTest, TwoDurableCommitsAPublish) {
  Close();
  std::vector<std::string> points;
  options_.at_boundary = [&points](std::string_view point) { points.emplace_back(point); };
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_THAT(points, ElementsAre("intent: writing", "intent: written", "rpc NodeStageVolume: sending",
                                  "rpc NodeStageVolume: answered", "rpc NodePublishVolume: sending",
                                  "rpc NodePublishVolume: answered", "outcome: writing", "outcome: written"));
  points.clear();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_THAT(points, IsEmpty()) << "a repeat that the kernel confirms";
  Close();
}

TEST_F(MounterTest, UnpublishingTheUnknownSucceeds) {
  EXPECT_EQ(*Unpublish(Request()), false);
  EXPECT_THAT(plugin_.Log(), IsEmpty());
}

TEST_F(MounterTest, TwoConsumersShareOneStaging) {
  const auto first = Publish(Request("v1", "web"));
  const auto second = Publish(Request("v1", "db"));
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(IsMounted(*first) && IsMounted(*second));
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
  EXPECT_TRUE(Unpublish(Request("v1", "web")).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0);
  EXPECT_TRUE(IsMounted(*second));
  EXPECT_TRUE(Unpublish(Request("v1", "db")).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 1);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, AConsumerMayUseAVolumeTwiceAndReleaseBothAtOnce) {
  PublishRequest first = Request();
  PublishRequest second = Request();
  second.name = "again";
  ASSERT_TRUE(Publish(first).ok() && Publish(second).ok());
  UnpublishRequest undo = Undo(first);
  undo.all_names = true;
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(undo, Soon()))->was_published);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, ARepeatAnswersTheSameAndAsksNobody) {
  const auto target = Publish(Request());
  const auto again = Publish(Request());
  EXPECT_EQ(*target, *again);
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
}

TEST_F(MounterTest, IdenticalRequestsJoin) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto first = loop_.Start(mounter_->Publish(Request(), Soon()));
  const auto second = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  const auto other = loop_.Start(mounter_->Publish(Request("v2"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return other->has_value(); })) << "another volume is not held up";
  EXPECT_TRUE((*other)->ok()) << (*other)->status();
  EXPECT_EQ(View().running, "NodeStageVolume");
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value() && second->has_value(); }));
  ASSERT_TRUE((*first)->ok()) << (*first)->status();
  EXPECT_EQ(***first, ***second);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 2) << "one for each volume";
}

TEST_F(MounterTest, ACallersDeadlineEndsItsWaitAndNotTheWork) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto late = loop_.Run(mounter_->Publish(Request(), Shortly()));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(late.status()), HasSubstr("the same request joins it"));
  const auto joined = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return joined->has_value(); }));
  EXPECT_TRUE((*joined)->ok()) << (*joined)->status();
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
}

TEST_F(MounterTest, AnotherRequestForTheVolumeWaitsItsTurn) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  const auto undo = loop_.Start(mounter_->Unpublish(Undo(Request()), Soon()));
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value() && undo->has_value(); }));
  EXPECT_TRUE((*publish)->ok());
  EXPECT_TRUE((**undo)->was_published);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, TheQueueOfAVolumeHasALimit) {
  Close();
  options_.queue_per_volume = 2;
  Open();
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  std::vector<std::shared_ptr<std::optional<absl::StatusOr<std::string>>>> answers;
  answers.push_back(loop_.Start(mounter_->Publish(Request("v1", "0"), Soon())));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  for (const char* consumer : {"1", "2"}) {
    answers.push_back(loop_.Start(mounter_->Publish(Request("v1", consumer), Soon())));
  }
  EXPECT_EQ(Publish(Request("v1", "3")).status().code(), absl::StatusCode::kResourceExhausted);
  plugin_.Release();
  for (const auto& answer : answers) {
    ASSERT_TRUE(loop_.RunUntil([&] { return answer->has_value(); }));
    EXPECT_TRUE((*answer)->ok()) << (*answer)->status();
  }
}

TEST_F(MounterTest, AnIncompatibleUseIsRefusedAndTheHolderNamed) {
  ASSERT_TRUE(Publish(Request()).ok());
  PublishRequest block = Request("v1", "db");
  block.use.access_type = AccessType::kBlock;
  const auto refused = Publish(block);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("consumer web"));
  PublishRequest changed = Request();
  changed.readonly = true;
  EXPECT_EQ(Publish(changed).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(View().publications.size(), 1U);
}

TEST_F(MounterTest, AfterTheLastPublicationAnotherUseIsFree) {
  ASSERT_TRUE(Publish(Request()).ok());
  ASSERT_TRUE(Unpublish(Request()).ok());
  PublishRequest block = Request("v1", "db");
  block.use.access_type = AccessType::kBlock;
  EXPECT_TRUE(Publish(block).ok());
}

TEST_F(MounterTest, PublishesABlockDevice) {
  PublishRequest request = Request();
  request.use.access_type = AccessType::kBlock;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(S_ISBLK(LookAt(*target)->mode));
  EXPECT_TRUE(plugin_.LastPublish().volume_capability().has_block());
  EXPECT_TRUE(Unpublish(request).ok());
  EXPECT_FALSE(LookAt(*target)->exists);
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, PublishesReadOnly) {
  PublishRequest request = Request();
  request.readonly = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_NE(mkdir((*target + "/x").c_str(), 0755), 0);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(MounterTest, WithoutStagingThePluginIsAskedForNone) {
  plugins_.facts.node_capabilities = {};
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.LastPublish().staging_target_path(), "");
  EXPECT_EQ(View().staging_path, "");
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodePublishVolume v1", "NodeUnpublishVolume v1"));
}

TEST_F(MounterTest, TheRecordKnowsThePluginByItsDriverAlsoWhileItIsAway) {
  plugins_.facts.name = "driver.test";
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  Close();
  Open();
  EXPECT_THAT(mounter_->PluginsOf("v1", "driver.test"), ElementsAre("hp"));
  EXPECT_THAT(mounter_->PluginsOf("v1", "hp"), ElementsAre("hp"));
  EXPECT_THAT(mounter_->PluginsOf("v1", "other"), IsEmpty());
  EXPECT_THAT(mounter_->PluginsOf("v2", "driver.test"), IsEmpty());
  plugins_.SetUsable(true);
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_THAT(mounter_->PluginsOf("v1", "driver.test"), IsEmpty());
}

TEST_F(MounterTest, AVolumeKeepsTheLabelThatItWasGivenLast) {
  plugins_.facts.name = "driver.test";
  PublishRequest request = Request();
  request.label = "jobs/first";
  ASSERT_TRUE(Publish(request).ok());
  EXPECT_EQ(View().label, "jobs/first");
  request.label = "jobs/db";
  ASSERT_TRUE(Publish(request).ok());
  request.label.clear();
  ASSERT_TRUE(Publish(request).ok());
  Close();
  Open();
  EXPECT_EQ(View().label, "jobs/db");
}

TEST_F(MounterTest, WithoutStagingEachUseHasItsOwnMountFlagsAlsoAfterARestart) {
  plugins_.facts.node_capabilities = {};
  ASSERT_TRUE(Publish(Request()).ok());
  PublishRequest second = Request();
  second.name = "second";
  second.use.mount_flags = {"noatime"};
  ASSERT_TRUE(Publish(second).ok());
  EXPECT_THAT(plugin_.LastPublish().volume_capability().mount().mount_flags(), ElementsAre("noatime"));
  Close();
  Open();
  EXPECT_TRUE(Publish(second).ok()) << "it is the same";
  EXPECT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.PublishedCount(), 2U);
  PublishRequest other = second;
  other.use.mount_flags = {"nodev"};
  EXPECT_EQ(Publish(other).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Unpublish(second).ok());
  ASSERT_TRUE(Unpublish(Request()).ok());
}

TEST_F(MounterTest, TeardownFollowsTheCapabilitiesThatWereRecorded) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.facts.node_capabilities = {};
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 1);
  EXPECT_EQ(plugin_.StagedCount(), 0U);
}

TEST_F(MounterTest, PassesEverythingOn) {
  PublishRequest request = Request();
  request.use = {.access_mode = AccessMode::SINGLE_NODE_MULTI_WRITER,
                 .access_type = AccessType::kMount,
                 .fs_type = "xfs",
                 .mount_flags = {"noatime", "nodev"}};
  request.volume_context = {{"a", "b"}};
  request.publish_context = std::map<std::string, std::string>{{"device", "/dev/x"}};
  request.secrets = {{"user", "hunter2"}};
  ASSERT_TRUE(Publish(request).ok());
  const auto stage = plugin_.LastStage();
  const auto publish = plugin_.LastPublish();
  EXPECT_EQ(stage.volume_context().at("a"), "b");
  EXPECT_EQ(stage.publish_context().at("device"), "/dev/x");
  EXPECT_EQ(stage.secrets().at("user"), "hunter2");
  EXPECT_EQ(stage.staging_target_path(), View().staging_path);
  EXPECT_EQ(publish.staging_target_path(), View().staging_path);
  EXPECT_EQ(publish.volume_context().at("a"), "b");
  EXPECT_EQ(publish.publish_context().at("device"), "/dev/x");
  EXPECT_EQ(publish.secrets().at("user"), "hunter2");
  EXPECT_EQ(publish.volume_capability().mount().fs_type(), "xfs");
  EXPECT_THAT(publish.volume_capability().mount().mount_flags(), ElementsAre("noatime", "nodev"));
  EXPECT_EQ(publish.volume_capability().access_mode().mode(), AccessMode::SINGLE_NODE_WRITER)
      << "the plugin does not know the finer modes";
}

TEST_F(MounterTest, AnAttachIsDemandedInPlainWords) {
  plugins_.facts.plugin_services = {::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE};
  plugins_.facts.controller_capabilities = {
      ::csi::v1::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME};
  ExpectRefused(Request(), "--publish-context");
  PublishRequest attached = Request();
  attached.publish_context.emplace();
  EXPECT_TRUE(Publish(attached).ok());
}

TEST_F(MounterTest, AMountGroupIsRefusedBeforeAnythingIsDoneWhereThePluginHasNone) {
  PublishRequest request = Request();
  request.use.volume_mount_group = "100";
  ExpectRefused(request, "VOLUME_MOUNT_GROUP");

  plugins_.facts.node_capabilities.insert(::csi::v1::NodeServiceCapability::RPC::VOLUME_MOUNT_GROUP);
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(plugin_.LastPublish().volume_capability().mount().volume_mount_group(), "100");
  plugins_.facts.node_capabilities.erase(::csi::v1::NodeServiceCapability::RPC::VOLUME_MOUNT_GROUP);
  EXPECT_EQ(Publish(request), target) << "what stands is found, whatever the plugin says now";
}

TEST_F(MounterTest, ALabelIsRefusedBeforeAnythingIsDoneWhereSelinuxIsOff) {
  if (SelinuxIsOn()) GTEST_SKIP() << "SELinux is on here";
  PublishRequest request = Request();
  request.permissions.set_selinux_label("system_u:object_r:container_file_t:s0");
  ExpectRefused(request, "SELinux is not on");
}

TEST_F(MounterTest, APluginsVolumeLimitIsKept) {
  plugins_.facts.max_volumes_per_node = 1;
  const auto target = Publish(Request("v1"));
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(Publish(Request("v2")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Publish(Request("v1")), target) << "a repeat is no second volume";
  EXPECT_TRUE(Publish(Request("v1", "db")).ok()) << "a second use is no exception";
  ASSERT_TRUE(Unpublish(Request("v1")).ok() && Unpublish(Request("v1", "db")).ok());
  EXPECT_TRUE(Publish(Request("v2")).ok());
}

TEST_F(MounterTest, ARepeatOfWhatIsUnderWayIsNotCountedAgainstTheLimit) {
  plugins_.facts.max_volumes_per_node = 1;
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto first = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  EXPECT_EQ(Publish(Request("v2")).status().code(), absl::StatusCode::kResourceExhausted);
  // Not identical, so it does not join; it waits its turn and finds what the first one made.
  PublishRequest repeat = Request();
  repeat.remount = true;
  const auto second = loop_.Start(mounter_->Publish(repeat, Soon()));
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value() && second->has_value(); }));
  ASSERT_TRUE((*first)->ok()) << (*first)->status();
  ASSERT_TRUE((*second)->ok()) << (*second)->status();
  EXPECT_EQ(***first, ***second);

  // Begun and never come to its end.
  ASSERT_TRUE(Unpublish(Request()).ok());
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  const auto late = loop_.Run(mounter_->Publish(Request(), Shortly()));
  EXPECT_FALSE(late.ok());
  plugin_.ClearFaults();
  const auto again = Publish(Request());
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(MounterTest, AFileSystemThatTheRuntimeCannotUseIsUndoneAndNamed) {
  PublishRequest request = Request();
  request.runtime =
      FromText<RuntimeAbility>(R"(name: "tiny" mount: true fs_types: "zonefs" fs_types: "cramfs")");
  const auto refused = Publish(request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("\"tiny\" cannot use, only zonefs, cramfs"));
  EXPECT_TRUE(Gone());
  EXPECT_THAT(plugin_.Log(), ElementsAre("NodeStageVolume v1", "NodePublishVolume v1",
                                         "NodeUnpublishVolume v1", "NodeUnstageVolume v1"));

  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(Publish(request).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsMounted(*target)) << "what a process has is not unmounted";
  const auto shown = FileSystemAt(*target);
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("of type " + *shown));
  request.runtime->add_fs_types(*shown);
  EXPECT_EQ(Publish(request), target);
}

TEST_F(MounterTest, AnUnknownPluginIsSaidAtOnce) {
  PublishRequest request = Request();
  request.plugin_id = "nope";
  const auto refused = Publish(request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("there is hp"));
}

TEST_F(MounterTest, WaitsForAPluginThatIsAway) {
  plugins_.SetUsable(false);
  const auto late = loop_.Run(mounter_->Publish(Request(), Shortly()));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable) << late.status();
  EXPECT_THAT(MessageOf(late.status()), HasSubstr("backing off"));
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  plugins_.SetUsable(true);
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_TRUE((*publish)->ok()) << (*publish)->status();
}

TEST_F(MounterTest, AnUnpublishWhosePluginIsAwayIsFinishedWhenItIsBack) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  const auto late = loop_.Run(mounter_->Unpublish(Undo(Request()), Shortly()));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kUnpublishing);
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
}

TEST_F(MounterTest, SecretsAreInNoByteOfTheStateDirectory) {
  PublishRequest request = Request();
  request.secrets = {{"Passw0rdKey", "Tr0ub4dor&3"}};
  request.use.mount_flags = {"noatime"};
  ASSERT_TRUE(Publish(request).ok());
  for (const char* file : {"/journal.db", "/journal.db-wal"}) {
    const auto bytes = ReadFile(options_.state_dir + file, 100'000'000);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_THAT(*bytes, Not(HasSubstr("Tr0ub4dor"))) << file;
    EXPECT_THAT(*bytes, Not(HasSubstr("Passw0rdKey"))) << file;
  }
  for (const Event& event : events_.After(0, 1000).events) {
    EXPECT_THAT(event.message, Not(HasSubstr("Tr0ub4dor")));
    EXPECT_THAT(event.message, Not(HasSubstr("noatime")));
  }
}

TEST_F(MounterTest, StatsBypassTheQueueAndShareOneCall) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.HangNext("NodeGetVolumeStats", Effect::kDone);
  const auto first = loop_.Start(mounter_->Stats("hp", "v1", Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeGetVolumeStats") == 1; }));
  const auto second = loop_.Start(mounter_->Stats("hp", "v1", Soon()));
  EXPECT_TRUE(Publish(Request("v1", "db")).ok()) << "not behind the stats";
  EXPECT_FALSE(first->has_value());
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value() && second->has_value(); }));
  EXPECT_EQ((**second)->usage(0).total(), 1000);
  EXPECT_EQ(plugin_.Calls("NodeGetVolumeStats"), 1);
  EXPECT_EQ(loop_.Run(mounter_->Stats("hp", "none", Soon())).status().code(), absl::StatusCode::kNotFound);
  plugins_.facts.node_capabilities = {};
  EXPECT_EQ(loop_.Run(mounter_->Stats("hp", "v1", Soon())).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(MounterTest, WhatThePluginSaysOfAVolumesConditionIsShownUntilItSaysOtherwise) {
  ASSERT_TRUE(Publish(Request()).ok());
  ASSERT_TRUE(loop_.Run(mounter_->Stats("hp", "v1", Soon())).ok());
  EXPECT_FALSE(View().condition.has_value());
  plugin_.SayCondition(true, "a disk\x1b is missing");
  ASSERT_TRUE(loop_.Run(mounter_->Stats("hp", "v1", Soon())).ok());
  ASSERT_TRUE(View().condition.has_value());
  EXPECT_TRUE(View().condition->abnormal);
  EXPECT_THAT(View().condition->message, HasSubstr("is missing"));
  EXPECT_THAT(View().condition->message, Not(HasSubstr("\x1b")));
  plugin_.SayCondition(false, "");
  ASSERT_TRUE(loop_.Run(mounter_->Stats("hp", "v1", Soon())).ok());
  EXPECT_FALSE(View().condition->abnormal);
}

TEST_F(MounterTest, KubernetesKeysAboutTheConsumerArePassedWhereThePluginReadsThem) {
  PublishRequest request = Request();
  request.consumer = "jobs/web-0";
  request.origin = Origin::kScheduler;
  request.consumer_labels = {{"pod.uid", "7d1f"}, {"team", "db"}};
  ASSERT_TRUE(Publish(request).ok());
  EXPECT_THAT(plugin_.LastPublish().volume_context(), IsEmpty()) << "its file does not ask for them";
  ASSERT_TRUE(Unpublish(request).ok());
  plugins_.pod_info = true;
  ASSERT_TRUE(Publish(request).ok());
  EXPECT_THAT(plugin_.LastPublish().volume_context(),
              testing::UnorderedElementsAre(testing::Pair("csi.storage.k8s.io/pod.name", "web-0"),
                                            testing::Pair("csi.storage.k8s.io/pod.namespace", "jobs"),
                                            testing::Pair("csi.storage.k8s.io/pod.uid", "7d1f"),
                                            testing::Pair("csi.storage.k8s.io/ephemeral", "false")));
}

TEST_F(MounterTest, ExpandsOnTheNode) {
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 << 20);
  EXPECT_EQ(loop_.Run(mounter_->NodeExpand("hp", "v1", range, {}, Soon())).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::ABORTED, Effect::kNone);
  EXPECT_EQ(*loop_.Run(mounter_->NodeExpand("hp", "v1", range, {}, Soon())), 1 << 20);
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 2);
}

TEST_F(MounterTest, ManyVolumesAtOnce) {
  std::vector<std::shared_ptr<std::optional<absl::StatusOr<std::string>>>> answers;
  for (int i = 0; i < 50; ++i) {
    answers.push_back(loop_.Start(mounter_->Publish(Request("v" + std::to_string(i)), Soon())));
  }
  for (const auto& answer : answers) {
    ASSERT_TRUE(loop_.RunUntil([&] { return answer->has_value(); }));
    ASSERT_TRUE((*answer)->ok()) << (*answer)->status();
  }
  EXPECT_EQ(mounter_->List({}).size(), 50U);
  std::vector<std::shared_ptr<std::optional<absl::StatusOr<UnpublishResult>>>> undone;
  for (int i = 0; i < 50; ++i) {
    undone.push_back(loop_.Start(mounter_->Unpublish(Undo(Request("v" + std::to_string(i))), Soon())));
  }
  for (const auto& answer : undone) ASSERT_TRUE(loop_.RunUntil([&] { return answer->has_value(); }));
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, HostileIdsStayInTheTree) {
  const std::vector<std::string> ids = {"../../../etc", "/", "a\nb", "%s%n", std::string("nul\0in", 6)};
  for (const std::string& id : ids) {
    const auto target = Publish(Request(id));
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_THAT(*target, ::testing::StartsWith(options_.state_dir + "/volumes/"));
    EXPECT_TRUE(Unpublish(Request(id)).ok());
  }
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTest, ASecondMounterOnTheDirectoryIsRefused) {
  const auto second = Mounter::Open(loop_.executor(), options_, plugins_, events_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(second.status()), HasSubstr("another berthd"));
}

TEST_F(MounterTest, StatsWaitForAPluginThatComesBack) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  const auto stats = loop_.Start(mounter_->Stats("hp", "v1", Soon()));
  EXPECT_FALSE(loop_.RunUntil([&] { return stats->has_value(); }, kAWhile));
  plugins_.SetUsable(true);
  ASSERT_TRUE(loop_.RunUntil([&] { return stats->has_value(); }));
  EXPECT_TRUE((*stats)->ok()) << (*stats)->status();
  plugins_.SetUsable(false);
  const auto late = loop_.Run(mounter_->Stats("hp", "v1", Shortly()));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(late.status()), HasSubstr("backing off"));
}

TEST(MountHelperTest, UnmountsAndTells) {
  LoopRunner loop;
  TaskScope scope(loop.executor(), "test");
  MountHelper helper(BERTH_MOUNT_HELPER, scope);
  const TimePoint soon = Clock::now() + std::chrono::seconds(10);
  const std::string directory = NewTestDirectory();
  EXPECT_EQ(ErrnoOf(loop.Run(helper.Unmount(directory, soon))), EINVAL);
  ASSERT_EQ(mount("x", directory.c_str(), "tmpfs", MS_RDONLY, nullptr), 0);
  EXPECT_EQ(*loop.Run(helper.IsReadonly(directory, soon)), true);
  EXPECT_EQ(loop.Run(helper.Unmount(directory, soon)), absl::OkStatus());
  EXPECT_EQ(*loop.Run(helper.IsReadonly(directory, soon)), false);
  EXPECT_EQ(ErrnoOf(loop.Run(helper.IsReadonly(directory + "/none", soon)).status()), ENOENT);
  loop.RunVoid(scope.Join());
}

TEST(MountHelperTest, IsFoundWhereItIsConfigured) {
  EXPECT_EQ(*FindMountHelper(BERTH_MOUNT_HELPER), BERTH_MOUNT_HELPER);
  EXPECT_EQ(FindMountHelper("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MounterTest, ADrainedPluginTakesNothingNewAndLetsEverythingGo) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  plugins_.refuses_new = "plugin hp is being drained";
  for (const PublishRequest& request : {Request("v1", "db"), Request("v2")}) {
    const auto refused = Publish(request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(refused.status()), HasSubstr("plugin hp is being drained"));
  }
  EXPECT_EQ(Publish(Request()), target) << "what is there is found there";
  EXPECT_EQ(View("v2").volume_id, "") << "nothing is left of what was refused";
  EXPECT_EQ(*Unpublish(Request()), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.Calls("NodeStageVolume"), 1);
}

TEST_F(MounterTest, WhatHadBegunBeforeADrainIsFinished) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone);
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  plugins_.refuses_new = "plugin hp is being drained";
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_TRUE((*publish)->ok()) << (*publish)->status();
}

TEST_F(MounterTest, ChangesOfWhoHoldsAPluginAreTold) {
  Close();
  std::vector<size_t> told;
  options_.on_holders_changed = [&](const std::string& plugin_id) {
    EXPECT_EQ(plugin_id, "hp");
    told.push_back(mounter_->HeldThrough(plugin_id).size());
  };
  Open();
  ASSERT_TRUE(Publish(Request("v1", "web")).ok());
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  EXPECT_THAT(told, ElementsAre(1, 2));
  ASSERT_TRUE(Unpublish(Request("v1", "web")).ok());
  ASSERT_TRUE(Unpublish(Request("v1", "db")).ok());
  // Unpublished, it is held still until it is unstaged.
  EXPECT_THAT(told, ElementsAre(1, 2, 1, 1, 0));
}

TEST_F(MounterTest, APluginThatSeesTheTreeElsewhereIsToldItsOwnPaths) {
  // The plugin's view of the tree, as in a container.
  const std::string elsewhere = directory_ + "/seen";
  const std::string tree = options_.state_dir + "/volumes";
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0755), 0);
  ASSERT_EQ(mount(tree.c_str(), elsewhere.c_str(), nullptr, MS_BIND | MS_REC, nullptr), 0);
  plugins_.volumes_path = elsewhere;
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(target->starts_with(tree)) << "the caller's path is ours: " << *target;
  EXPECT_TRUE(IsMounted(*target)) << "asked of the kernel at our path";
  EXPECT_EQ(plugin_.LastPublish().target_path(), elsewhere + target->substr(tree.size()));
  EXPECT_TRUE(plugin_.LastStage().staging_target_path().starts_with(elsewhere + "/"));
  const auto stats = loop_.Run(mounter_->Stats("hp", "v1", Soon()));
  EXPECT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(loop_.Run(mounter_->NodeExpand("hp", "v1", {}, {}, Soon())).ok());
  EXPECT_EQ(*Unpublish(Request()), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(umount2(elsewhere.c_str(), MNT_DETACH), 0);
  EXPECT_EQ(rmdir(elsewhere.c_str()), 0);
}

}  // namespace
}  // namespace berth
