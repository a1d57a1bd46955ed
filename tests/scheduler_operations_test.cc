// What a scheduler does with a node beyond publishing, with a real berthd, real plugins and real mounts: each
// operation is judged by what really happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// What the kernel says that the file system there holds.
int64_t SizeAt(const std::string& path) {
  struct statvfs info{};
  EXPECT_EQ(statvfs(path.c_str(), &info), 0) << path;
  return static_cast<int64_t>(info.f_blocks) * static_cast<int64_t>(info.f_frsize);
}

std::string CommandOf(pid_t pid) {
  std::string command = ReadText("/proc/" + std::to_string(pid) + "/cmdline");
  std::ranges::replace(command, '\0', ' ');
  return command;
}

class SchedulerOperationsTest : public SchedulerTest {
 protected:
  v1::OperationResult Run(const v1::Operation& operation) { return scheduler_->Run(kNode, operation); }

  // An image, since a directory has no size of its own. xfs: growing a mounted ext4 takes CAP_SYS_RESOURCE,
  // which root of a container may lack.
  std::string CreateImage(const std::string& name) {
    v1::CreateVolumeRequest request;
    request.set_plugin_id("fault");
    request.set_name(name);
    request.set_required_bytes(512 * kMiB);
    request.add_capabilities()->set_fs_type("xfs");
    (*request.mutable_parameters())["kind"] = "image";
    return node_.CreateVolume(request);
  }
  std::string PublishImage(const std::string& volume) {
    v1::Operation publish = Publishing(volume, "web");
    publish.mutable_publish()->mutable_request()->mutable_capability()->set_fs_type("xfs");
    const v1::OperationResult result = Run(publish);
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
    return result.publish().target_path();
  }
  // Both halves of an expansion to `bytes`; the node's is answered.
  v1::OperationResult Expand(const std::string& volume, int64_t bytes) {
    v1::Operation in_storage;
    in_storage.mutable_controller()->set_plugin_id("fault");
    in_storage.mutable_controller()->mutable_expand()->set_volume_id(volume);
    in_storage.mutable_controller()->mutable_expand()->mutable_capacity_range()->set_required_bytes(bytes);
    const v1::OperationResult grown = Run(in_storage);
    EXPECT_TRUE(grown.controller().expand().node_expansion_required()) << grown.ShortDebugString();
    v1::Operation here;
    here.mutable_expand()->set_plugin_id("fault");
    here.mutable_expand()->set_volume_id(volume);
    here.mutable_expand()->set_required_bytes(grown.controller().expand().capacity_bytes());
    return Run(here);
  }
};

TEST_F(SchedulerOperationsTest, AVolumeIsMeasuredAndExpandedFromAfarWhereItIsAndWhereItIsNot) {
  StartLinked();
  const std::string volume = CreateImage("here");
  const std::string target = PublishImage(volume);
  v1::Operation stats;
  stats.mutable_stats()->set_plugin_id("fault");
  stats.mutable_stats()->set_volume_id(volume);
  const v1::OperationResult before = Run(stats);
  ASSERT_EQ(before.outcome(), v1::OUTCOME_DONE) << before.message();
  ASSERT_GE(before.stats().usage_size(), 1);
  EXPECT_EQ(before.stats().usage(0).unit(), "BYTES");
  EXPECT_EQ(before.stats().usage(0).total(), SizeAt(target));
  EXPECT_LT(SizeAt(target), 512 * kMiB);

  const v1::OperationResult expanded = Expand(volume, 768 * kMiB);
  ASSERT_TRUE(expanded.has_expand()) << expanded.message();
  EXPECT_FALSE(expanded.expand().noted());
  EXPECT_GE(expanded.expand().capacity_bytes(), 768 * kMiB);
  EXPECT_GT(SizeAt(target), 600 * kMiB);
  EXPECT_EQ(Run(stats).stats().usage(0).total(), SizeAt(target));
  UnpublishFromAfar(volume);

  const std::string elsewhere = CreateImage("elsewhere");
  // It has a file system from here on: what has none grows with its making.
  PublishImage(elsewhere);
  UnpublishFromAfar(elsewhere);
  const v1::OperationResult noted = Expand(elsewhere, 768 * kMiB);
  ASSERT_TRUE(noted.has_expand()) << noted.message();
  EXPECT_TRUE(noted.expand().noted());
  EXPECT_EQ(Calls("NodeExpandVolume", elsewhere), 0);
  const std::string later = PublishImage(elsewhere);
  EXPECT_EQ(Calls("NodeExpandVolume", elsewhere), 1);
  EXPECT_GT(SizeAt(later), 600 * kMiB);
  UnpublishFromAfar(elsewhere);

  // What is not here cannot be measured.
  const v1::OperationResult gone = Run(stats);
  EXPECT_EQ(gone.code(), static_cast<int>(grpc::StatusCode::NOT_FOUND)) << gone.ShortDebugString();
}

TEST_F(SchedulerOperationsTest, AVolumeIsExplainedAndItsConsumerEndedFromAfar) {
  StartLinked();
  const std::string volume = CreateVolume("explained");
  const std::string target = PublishFromAfar(volume);
  v1::Operation explain;
  explain.mutable_explain()->set_plugin_id("fault");
  explain.mutable_explain()->set_volume_id(volume);
  const v1::OperationResult explained = Run(explain);
  ASSERT_TRUE(explained.has_explain()) << explained.message();
  const v1::ExplainVolumeResponse& told = explained.explain();
  EXPECT_EQ(told.volume().publications(0).consumer(), "jobs/web");
  EXPECT_TRUE(told.in_journal());
  EXPECT_TRUE(
      std::ranges::any_of(told.mounts(), [&](const auto& mount) { return mount.target() == target; }));
  EXPECT_TRUE(std::ranges::any_of(told.rpcs(), [](const auto& rpc) {
    return rpc.rpc() == "NodePublishVolume";
  })) << told.DebugString();
  EXPECT_THAT(explained.DebugString(), Not(HasSubstr(kSecret)));

  v1::Operation end;
  end.mutable_end_consumer()->set_namespace_("jobs");
  end.mutable_end_consumer()->mutable_request()->set_consumer("web");
  const v1::OperationResult ended = Run(end);
  ASSERT_TRUE(ended.has_end_consumer()) << ended.message();
  EXPECT_EQ(ended.end_consumer().released(), 1);
  EXPECT_EQ(MountsAt(target), 0);
  WaitVolumeGone(volume);
  const auto node = scheduler_->WaitNode(kNode, "the consumer's end", [](const TestScheduler::Node& known) {
    return !known.ended_consumers.empty();
  });
  EXPECT_EQ(node.ended_consumers.begin()->second.cause(), "said by the scheduler");
}

TEST_F(SchedulerOperationsTest, APluginIsRestartedAndSwappedFromAfarUnderItsVolumes) {
  StartLinked("may = [\"volumes\", \"plugins\"]\n");
  const std::string volume = CreateVolume("kept");
  const std::string target = PublishFromAfar(volume);
  const pid_t first = Get().pid();
  v1::Operation restart;
  restart.mutable_restart_plugin()->set_id("fault");
  const v1::OperationResult restarted = Run(restart);
  ASSERT_TRUE(restarted.has_plugin()) << restarted.message();
  const pid_t second = restarted.plugin().pid();
  EXPECT_NE(second, first);
  EXPECT_FALSE(Lives(first));
  EXPECT_TRUE(Lives(second));
  EXPECT_THAT(CommandOf(second), Not(HasSubstr("--max-volumes")));

  // Its file says something else by now.
  fault_.Write("", {"--max-volumes", "17"});
  v1::Operation swap;
  swap.mutable_swap_plugin()->set_id("fault");
  const v1::OperationResult swapped = Run(swap);
  ASSERT_TRUE(swapped.has_plugin()) << swapped.message();
  EXPECT_NE(swapped.plugin().pid(), second);
  EXPECT_FALSE(Lives(second));
  EXPECT_THAT(CommandOf(swapped.plugin().pid()), HasSubstr("--max-volumes 17"));
  scheduler_->WaitNode(kNode, "what the new one says of itself", [](const TestScheduler::Node& node) {
    return node.plugins.at("fault").fingerprint().max_volumes() == 17;
  });
  // One that does not come up is not taken, and the result says why.
  v1::Operation broken = swap;
  broken.mutable_swap_plugin()->set_command("/nowhere/plugin");
  const v1::OperationResult refused = Run(broken);
  EXPECT_NE(refused.code(), 0);
  EXPECT_THAT(refused.message(), HasSubstr("/nowhere/plugin"));
  EXPECT_EQ(refused.answer_case(), v1::OperationResult::ANSWER_NOT_SET);

  EXPECT_TRUE(Get().registered());
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerOperationsTest, APluginIsPlacedChangedAndRemovedFromAfarAndOutlivesBerthd) {
  StartLinked("may = [\"volumes\", \"plugins\"]\n");
  const std::string program = fmt::format("/proc/{}/exe", node_.Plugin("hostpath").pid());
  const auto file = [command = std::filesystem::read_symlink(program).string()](const std::string& more) {
    return fmt::format(R"(kind = "monolith"
command = "{}"
args = ["--endpoint", "${{CSI_ENDPOINT}}", "--node-id", "${{BERTH_NODE_ID}}",
        "--state-dir", "${{BERTH_PLUGIN_DIR}}"{}]
)",
                       command, more);
  };
  v1::Operation place;
  place.mutable_place_plugin()->set_id("far");
  place.mutable_place_plugin()->set_file(file("") + "colour = 1\n");
  const v1::OperationResult wrong = Run(place);
  EXPECT_EQ(wrong.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(wrong.message(), HasSubstr("far.toml:5: colour: unknown key"));
  place.mutable_place_plugin()->set_file(file(""));
  const v1::OperationResult placed = Run(place);
  ASSERT_TRUE(placed.has_plugin()) << placed.message();
  EXPECT_TRUE(placed.plugin().placed());
  const auto ready = [](const TestScheduler::Node& node) {
    const auto plugin = node.plugins.find("far");
    return node.synced && plugin != node.plugins.end() && plugin->second.registered();
  };
  const pid_t first = scheduler_->WaitNode(kNode, "the plugin", ready).plugins.at("far").pid();

  // A file that a person wrote stays as it is.
  v1::Operation over = place;
  over.mutable_place_plugin()->set_id("fault");
  EXPECT_EQ(Run(over).code(), static_cast<int>(grpc::StatusCode::ALREADY_EXISTS));
  v1::Operation remove;
  remove.mutable_remove_plugin()->set_id("fault");
  EXPECT_EQ(Run(remove).code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_TRUE(Get().registered());

  node_.Kill();
  node_.Start();
  EXPECT_EQ(scheduler_->WaitNode(kNode, "the plugin again", ready).plugins.at("far").pid(), first);
  place.mutable_place_plugin()->set_file(file(", \"--max-volumes\", \"9\""));
  const v1::OperationResult changed = Run(place);
  ASSERT_TRUE(changed.has_plugin()) << changed.message();
  EXPECT_FALSE(Lives(first));
  EXPECT_THAT(CommandOf(changed.plugin().pid()), HasSubstr("--max-volumes 9"));

  v1::CreateVolumeRequest volume;
  volume.set_plugin_id("far");
  volume.set_name("used");
  (*volume.mutable_parameters())["kind"] = "directory";
  v1::PublishVolumeRequest use;
  use.set_plugin_id("far");
  use.set_volume_id(node_.CreateVolume(volume));
  use.set_consumer("a-person");
  const std::string target = node_.Publish(use);
  remove.mutable_remove_plugin()->set_id("far");
  EXPECT_EQ(Run(remove).outcome(), v1::OUTCOME_DONE);
  EXPECT_TRUE(Lives(changed.plugin().pid())) << "a volume is in use through it";
  v1::UnpublishVolumeRequest undo;
  undo.set_plugin_id("far");
  undo.set_volume_id(use.volume_id());
  undo.set_consumer("a-person");
  v1::UnpublishVolumeResponse undone;
  ASSERT_TRUE(node_.stub().UnpublishVolume(Node::Context().get(), undo, &undone).ok());
  scheduler_->WaitNode(kNode, "the plugin's end",
                       [](const TestScheduler::Node& node) { return !node.plugins.contains("far"); });
  EXPECT_EQ(Run(remove).outcome(), v1::OUTCOME_DONE) << "it does not exist";
  node_.Kill();
  node_.Start();
  node_.WaitReady("fault");
  v1::GetPluginRequest gone;
  gone.set_id("far");
  v1::Plugin none;
  EXPECT_EQ(node_.stub().GetPlugin(Node::Context().get(), gone, &none).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(SchedulerOperationsTest, TheNodeIsReloadedExaminedAndMeasuredFromAfarWhereItAllowsThat) {
  StartLinked("may = [\"volumes\", \"node\"]\n");
  const std::string volume = CreateVolume("measured");
  PublishFromAfar(volume);
  v1::Operation reload;
  reload.mutable_reload();
  const v1::OperationResult reloaded = Run(reload);
  ASSERT_TRUE(reloaded.has_reload()) << reloaded.message();
  EXPECT_THAT(reloaded.reload().unchanged(), testing::Contains("fault"));
  v1::Operation examine;
  examine.mutable_examine();
  EXPECT_TRUE(Run(examine).has_examine());
  v1::Operation usage;
  usage.mutable_usage();
  const v1::OperationResult measured = Run(usage);
  EXPECT_EQ(measured.usage().volumes_size(), 2) << "also what is not the scheduler's";
  v1::Operation stop;
  stop.mutable_stop_plugin()->set_id("fault");
  const v1::OperationResult refused = Run(stop);
  EXPECT_EQ(refused.code(), static_cast<int>(grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_THAT(refused.message(), HasSubstr("\"plugins\" in [scheduler] may"));
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerOperationsTest, WhatAPluginSaysIsWrongWithAVolumeIsToldWithoutBeingAskedFor) {
  StartLinked("[volumes]\nhealth_interval = \"1s\"\n");
  fault_.Write("", {"--health"});
  node_.Reload();
  scheduler_->WaitNode(kNode, "the new capability", [](const TestScheduler::Node& node) {
    const auto& can = node.plugins.at("fault").fingerprint().node_capabilities();
    return node.plugins.at("fault").registered() && std::ranges::count(can, "GET_VOLUME_HEALTH") == 1;
  });
  const std::string volume = CreateVolume("ailing");
  PublishFromAfar(volume);
  const auto condition_of = [&](const TestScheduler::Node& node) {
    const auto told = node.volumes.find({"fault", volume});
    return told == node.volumes.end() ? v1::VolumeCondition() : told->second.condition();
  };
  // Its content goes, beneath its mounts.
  const std::string content = fmt::format("{}/plugins/fault/volumes/{}", node_.state_dir(), volume);
  ASSERT_EQ(rename(content.c_str(), (content + ".away").c_str()), 0) << content;
  const auto lost = scheduler_->WaitNode(
      kNode, "what is wrong", [&](const TestScheduler::Node& node) { return condition_of(node).abnormal(); });
  const v1::VolumeCondition condition = condition_of(lost);
  ASSERT_EQ(condition.statuses_size(), 1);
  EXPECT_EQ(condition.statuses(0).type(), "DATA_LOSS");
  EXPECT_EQ(condition.statuses(0).reason(), "ContentMissing");
  ASSERT_EQ(rename((content + ".away").c_str(), content.c_str()), 0);
  scheduler_->WaitNode(kNode, "that it is well again",
                       [&](const TestScheduler::Node& node) { return !condition_of(node).abnormal(); });
  UnpublishFromAfar(volume);
}

// Only `uses_left` 0 lets a scheduler detach: it does not know what a person on the node uses.
TEST_F(SchedulerOperationsTest, AnUnpublishSaysHowManyUsesOfTheVolumeAreLeftWhoeverHasThem) {
  StartLinked();
  const std::string volume = CreateVolume("shared");
  PublishFromAfar(volume);
  PublishFromAfar(volume, "db");
  Publish(volume, "a-person");
  const auto left = [&](const std::string& consumer) {
    const v1::OperationResult result = scheduler_->Run(kNode, Unpublishing(volume, consumer));
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
    EXPECT_FALSE(result.boot_id().empty());
    return result.unpublish().uses_left();
  };
  EXPECT_EQ(left("db"), 2U);
  EXPECT_EQ(left("web"), 1U);
  EXPECT_EQ(left("web"), 1U) << "a repeat says the same";
  Unpublish(volume, "a-person");
  EXPECT_EQ(left("web"), 0U);
}

TEST_F(SchedulerOperationsTest, APluginIsDrainedFromAfarAndPutBackIntoUse) {
  StartLinked("may = [\"volumes\", \"plugins\"]\n");
  const std::string volume = CreateVolume("held");
  const std::string other = CreateVolume("other");
  PublishFromAfar(volume);
  const pid_t pid = Get().pid();
  v1::Operation drain;
  drain.mutable_drain_plugin()->set_id("fault");
  const uint64_t unfinished = scheduler_->Ask(kNode, drain);
  scheduler_->WaitNode(kNode, "the drain, and who is waited for", [](const TestScheduler::Node& node) {
    const v1::Plugin& plugin = node.plugins.at("fault");
    return plugin.draining() && plugin.waiting_for_size() == 1;
  });
  const v1::OperationResult refused = scheduler_->Run(kNode, Publishing(other, "web"));
  EXPECT_EQ(refused.code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));

  v1::Operation start;
  start.mutable_start_plugin()->set_id("fault");
  const v1::OperationResult started = Run(start);
  ASSERT_TRUE(started.has_plugin()) << started.message();
  EXPECT_FALSE(started.plugin().draining());
  EXPECT_EQ(started.plugin().pid(), pid);
  const v1::OperationResult aborted = scheduler_->WaitResult(kNode, unfinished);
  EXPECT_EQ(aborted.code(), static_cast<int>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(aborted.outcome(), v1::OUTCOME_RETRY);
  PublishFromAfar(other);
  UnpublishFromAfar(other);

  const uint64_t drained = scheduler_->Ask(kNode, drain);
  Wait("draining", [](const v1::Plugin& plugin) { return plugin.draining(); });
  UnpublishFromAfar(volume);
  const v1::OperationResult stopped = scheduler_->WaitResult(kNode, drained);
  ASSERT_TRUE(stopped.has_plugin()) << stopped.message();
  EXPECT_EQ(stopped.plugin().state(), v1::STOPPED);
  EXPECT_FALSE(Lives(pid));
  const v1::OperationResult again = Run(start);
  EXPECT_TRUE(again.plugin().registered()) << again.message();
  EXPECT_TRUE(Lives(again.plugin().pid()));
  PublishFromAfar(other);
  UnpublishFromAfar(other);
}

// A caller's deadline ends the caller's wait, not the plugin's call.
TEST_F(SchedulerOperationsTest, ATimeoutEndsTheWaitAndANewIdJoinsTheWork) {
  StartLinked();
  const std::string volume = CreateVolume("slow");
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"hang\"\nwhen = \"before\""});
  v1::Operation hasty = Publishing(volume, "web");
  hasty.mutable_timeout()->set_nanos(50'000'000);
  const v1::OperationResult result = Run(hasty);
  EXPECT_EQ(result.code(), static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
  fault_.WaitActed("NodePublishVolume");
  const uint64_t patient = scheduler_->Ask(kNode, Publishing(volume, "web"));
  // The node works through what it is sent in order: it has taken the publish when it answers this.
  v1::Operation explain;
  explain.mutable_explain()->set_plugin_id("fault");
  explain.mutable_explain()->set_volume_id(volume);
  EXPECT_EQ(Run(explain).outcome(), v1::OUTCOME_DONE);
  EXPECT_FALSE(scheduler_->Find(kNode)->results.contains(patient));
  fault_.Play();
  const v1::OperationResult done = scheduler_->WaitResult(kNode, patient);
  EXPECT_EQ(done.outcome(), v1::OUTCOME_DONE) << done.message();
  EXPECT_EQ(MountsAt(done.publish().target_path()), 1);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  UnpublishFromAfar(volume);
}

}  // namespace
}  // namespace berth
