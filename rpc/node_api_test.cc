#include "rpc/node_api.h"

#include <fmt/format.h>

#include "base/process.h"
#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(NodeApiTest, TheNodesClassFollowsFromItsPluginsAndRuntimes) {
  const auto node_class = [this] {
    return Call(&StatusApi::GetStatus, v1::GetStatusRequest())->computed_class();
  };
  control_.Add("a").computed_class = "1";
  const std::string one = node_class();
  EXPECT_EQ(node_class(), one);
  control_.Add("b").computed_class = "2";
  const std::string two = node_class();
  EXPECT_NE(two, one);
  control_.plugins_by_id["a"].state = PluginState::kUnhealthy;
  EXPECT_EQ(node_class(), two) << "it can do the same once it is back";
  control_.plugins_by_id["a"].computed_class = "3";
  const std::string three = node_class();
  EXPECT_NE(three, two);
  RuntimeAbility runtime;
  runtime.set_name("vm");
  api_.volumes.SetRuntimes({runtime});
  EXPECT_NE(node_class(), three);
}

TEST_F(NodeApiTest, StatusCountsAndNamesProblems) {
  control_.Add("good");
  control_.Add("sick").state = PluginState::kUnhealthy;
  control_.Add("odd").registered = false;
  control_.Add("swapped").registered = false;
  control_.plugins_by_id["swapped"].paused = true;
  control_.placement = "systemd scopes";
  PluginSnapshot& bad = control_.Add("bad");
  bad.state = PluginState::kFailed;
  bad.registered = false;
  bad.reason = "bad.toml:3:\n";
  mounter_.Add("good", "v1", "c");
  mounter_.Add("good", "v2", "c").awaiting_secrets = true;
  mounter_.Add("good", "v3", "c").uncertain = true;
  mounter_.volumes.back().last_error = "DEADLINE_EXCEEDED";
  events_.Append({.type = "a"});
  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->node_id(), "n1");
  EXPECT_EQ(status->pid(), getpid());
  EXPECT_EQ(status->boot_id(), BootId());
  EXPECT_EQ(status->started_at().seconds(), 5);
  EXPECT_EQ(status->state_dir(), "/var/b");
  EXPECT_EQ(status->plugins(), 5);
  EXPECT_EQ(status->plugins_ready(), 1);
  EXPECT_EQ(status->placement(), "systemd scopes");
  EXPECT_EQ(status->volumes(), 3);
  EXPECT_EQ(status->publications(), 3);
  EXPECT_EQ(status->last_event_sequence(), 1U);
  EXPECT_THAT(status->problems(), SizeIs(5));
  EXPECT_THAT(status->problems(), Contains("plugin bad is failed: bad.toml:3:\\x0a"));
  EXPECT_THAT(status->problems(), Contains(HasSubstr("plugin odd answers but takes no work")));
  EXPECT_THAT(status->problems(),
              Contains(HasSubstr("volume v2 of plugin good: a step has to be repeated, and its secrets")));
  EXPECT_THAT(status->problems(), Contains(HasSubstr("DEADLINE_EXCEEDED")));
  EXPECT_EQ(status->health(), v1::FAILING);
  ASSERT_EQ(status->findings_size(), 6) << "and one that is held";
  EXPECT_EQ(status->findings(0).code(), "plugin.failed") << "the worst first";
  EXPECT_EQ(status->findings(0).plugin_id(), "bad");
  EXPECT_EQ(status->findings(5).severity(), v1::INFO);

  // Examine has all of them too.
  const auto examined = Call(&StatusApi::Examine, v1::ExamineRequest());
  ASSERT_TRUE(examined.ok()) << examined.status();
  for (const v1::Finding& finding : status->findings()) {
    EXPECT_TRUE(std::ranges::any_of(examined->findings(), [&](const v1::Finding& each) {
      return each.SerializeAsString() == finding.SerializeAsString();
    })) << finding.text();
  }
}

TEST_F(NodeApiTest, ANodeWithPluginsThatStartAndADrainIsHealthy) {
  PluginSnapshot& plugin = control_.Add("slow");
  plugin.state = PluginState::kStarting;
  plugin.registered = false;
  plugin.since = Clock::now();
  plugin.start_timeout = std::chrono::hours(1);
  declared_.Add("slow", "v", "c").last_error = "plugin slow is not ready";
  v1::DrainNodeRequest drain;
  drain.set_reason("a new disk");
  ASSERT_TRUE(Call(&ClusterApi::DrainNode, drain).ok());
  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->problems(), IsEmpty());
  EXPECT_EQ(status->health(), v1::HEALTHY);
  EXPECT_EQ(status->findings_size(), 3);
  const auto examined = Call(&StatusApi::Examine, v1::ExamineRequest());
  ASSERT_TRUE(examined.ok()) << examined.status();
  for (const v1::Finding& finding : examined->findings())
    EXPECT_EQ(finding.severity(), v1::INFO) << finding.text();
}

TEST_F(NodeApiTest, AReloadThatWaitsSaysWhatBecameOfEach) {
  control_.reload.plugins.started = {"good", "late", "failed", "slow"};
  control_.reload.plugins.unchanged = {"other"};
  control_.reload.volumes.declared = {"v.toml", "w.toml"};
  control_.Add("good");
  PluginSnapshot& late = control_.Add("late");
  late.state = PluginState::kBackingOff;
  late.registered = false;
  late.reason = "ended";
  late.start_timeout = Duration::zero();
  control_.Add("failed").state = PluginState::kFailed;
  PluginSnapshot& slow = control_.Add("slow");
  slow.state = PluginState::kStarting;
  slow.start_timeout = std::chrono::hours(1);
  control_.on_wait = [this] { control_.plugins_by_id["slow"].state = PluginState::kReady; };
  declared_.Add("good", "v", "c").published = true;
  declared_.Add("good", "w", "c");
  declared_.on_wait = [this] { declared_.files.back().published = true; };
  v1::ReloadRequest request;
  request.set_wait(true);
  const auto answer = Call(&PluginApi::Reload, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->ready(), ElementsAre("good", "slow", "v.toml", "w.toml"));
  EXPECT_THAT(answer->failed(), ElementsAre("late: it is backing off: ended", "failed: it is failed"));
  EXPECT_THAT(answer->pending(), IsEmpty());
}

TEST_F(NodeApiTest, StatusBoundsTheListOfProblems) {
  control_.Add("p");
  for (int i = 0; i < 500; ++i) mounter_.Add("p", fmt::format("v{}", i), "c").awaiting_secrets = true;
  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->problems(), SizeIs(101));
  EXPECT_THAT(status->problems(), Contains("and 400 more"));
}

TEST_F(NodeApiTest, PluginsCountTheirVolumes) {
  control_.Add("a");
  control_.Add("b");
  mounter_.Add("b", "v1", "c");
  const auto list = Call(&PluginApi::ListPlugins, v1::ListPluginsRequest());
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->plugins_size(), 2);
  EXPECT_EQ(list->plugins(0).volumes_in_use(), 0);
  EXPECT_EQ(list->plugins(1).volumes_in_use(), 1);

  v1::GetPluginRequest request;
  request.set_id("b");
  EXPECT_EQ(Call(&PluginApi::GetPlugin, request)->volumes_in_use(), 1);
  request.set_id("zz");
  const auto missing = Call(&PluginApi::GetPlugin, request);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(missing.status()), HasSubstr("there are a, b"));
}

TEST_F(NodeApiTest, LeversReachTheSupervisorAndAnswerWithThePlugin) {
  control_.Add("p");
  v1::StartPluginRequest start;
  start.set_id("p");
  EXPECT_EQ(Call(&PluginApi::StartPlugin, start)->id(), "p");
  v1::StopPluginRequest stop;
  stop.set_id("p");
  stop.set_force(true);
  EXPECT_EQ(Call(&PluginApi::StopPlugin, stop)->id(), "p");
  v1::RestartPluginRequest restart;
  restart.set_id("p");
  control_.next.push_back(absl::FailedPreconditionError("busy"));
  EXPECT_EQ(Call(&PluginApi::RestartPlugin, restart).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(control_.pulled, ElementsAre("start p", "stop p force", "restart p"));
  EXPECT_EQ(Call(&PluginApi::StartPlugin, v1::StartPluginRequest()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeApiTest, DrainAndSwapReachTheSupervisor) {
  control_.Add("p").swap = "swapped";
  v1::DrainPluginRequest drain;
  drain.set_id("p");
  EXPECT_EQ(Call(&PluginApi::DrainPlugin, drain)->id(), "p");
  v1::SwapPluginRequest swap;
  swap.set_id("p");
  swap.set_command("/opt/new");
  swap.add_arguments("-v");
  swap.set_accept_changes(true);
  EXPECT_EQ(Call(&PluginApi::SwapPlugin, swap)->swap(), "swapped");
  EXPECT_THAT(control_.last_swap.arguments, ElementsAre("-v"));
  EXPECT_TRUE(control_.last_swap.accept_changes);
  control_.next.push_back(absl::FailedPreconditionError("the new one does not come up"));
  EXPECT_EQ(Call(&PluginApi::SwapPlugin, swap).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(control_.pulled, ElementsAre("drain p", "swap p /opt/new", "swap p /opt/new"));
}

TEST_F(NodeApiTest, AReloadTellsWhatWasDone) {
  control_.reload = {
      .plugins = {.started = {"a"},
                  .stopped = {"b"},
                  .swapped = {"c"},
                  .updated = {"d"},
                  .unchanged = {"e"},
                  .broken = {"f: f.toml:1: x\nf.toml:2: y\n"}},
      .volumes = {
          .declared = {"g.toml"}, .withdrawn = {"h.toml"}, .changed = {"i.toml"}, .broken = {"j.toml: y"}}};
  const auto answer = Call(&PluginApi::Reload, v1::ReloadRequest());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->started(), ElementsAre("a"));
  EXPECT_THAT(answer->stopped(), ElementsAre("b"));
  EXPECT_THAT(answer->swapped(), ElementsAre("c"));
  EXPECT_THAT(answer->updated(), ElementsAre("d"));
  EXPECT_THAT(answer->unchanged(), ElementsAre("e"));
  EXPECT_THAT(answer->broken(), ElementsAre("f: f.toml:1: x", "f.toml:2: y", "j.toml: y"));
  EXPECT_THAT(answer->volumes_declared(), ElementsAre("g.toml"));
  EXPECT_THAT(answer->volumes_withdrawn(), ElementsAre("h.toml"));
  EXPECT_THAT(answer->volumes_changed(), ElementsAre("i.toml"));
  control_.next.push_back(absl::AbortedError("one runs"));
  EXPECT_EQ(Call(&PluginApi::Reload, v1::ReloadRequest()).status().code(), absl::StatusCode::kAborted);
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
    const auto list = Call(&VolumeListApi::ListVolumes, request);
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
  EXPECT_TRUE(Call(&VolumeListApi::GetVolume, ForVolume<v1::GetVolumeRequest>()).ok());
  v1::UnpublishVolumeRequest request = ForVolume<v1::UnpublishVolumeRequest>();
  request.set_consumer("c");
  const auto undone = Call(&VolumeApi::UnpublishVolume, request);
  ASSERT_TRUE(undone.ok()) << undone.status();
  EXPECT_TRUE(undone->was_published());
  ASSERT_EQ(declared_.unpublishes.size(), 1U) << "a file that declares it does not publish it again";
  EXPECT_EQ(declared_.unpublishes[0].plugin_id, "p");
  EXPECT_EQ(declared_.unpublishes[0].consumer, "c");
}

TEST_F(NodeApiTest, GetVolumeOfNothingIsNotFound) {
  control_.Add("p");
  EXPECT_EQ(Call(&VolumeListApi::GetVolume, ForVolume<v1::GetVolumeRequest>()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(NodeApiTest, MountFlagsAreHiddenFromReaders) {
  control_.Add("p");
  mounter_.Add("p", "v", "c").use.mount_flags = {"password=hush"};
  const auto request = ForVolume<v1::GetVolumeRequest>();
  EXPECT_THAT(Call(&VolumeListApi::GetVolume, request, true)->capability().mount_flags(),
              ElementsAre("password=hush"));
  EXPECT_THAT(Call(&VolumeListApi::GetVolume, request, false)->capability().mount_flags(),
              ElementsAre("(hidden)"));
  const auto list = Call(&VolumeListApi::ListVolumes, v1::ListVolumesRequest(), false);
  EXPECT_THAT(list->volumes(0).capability().mount_flags(), ElementsAre("(hidden)"));
}

TEST_F(NodeApiTest, PublishAnswersWithTargetAndVolume) {
  control_.Add("p");
  auto request = ForVolume<v1::PublishVolumeRequest>();
  request.set_consumer("c");
  request.set_plugin_id("driver.test");
  const auto answer = Call(&VolumeApi::PublishVolume, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->target_path(), "/volumes/v");
  EXPECT_EQ(answer->volume().plugin_id(), "p");
  EXPECT_EQ(answer->volume().state(), v1::PUBLISHED);
}

TEST_F(NodeApiTest, PublishAnswersWithTheMountThatWasAskedFor) {
  control_.Add("p");
  mounter_.mounts = {{.plugin_id = "p", .volume_id = "v", .consumer = "c", .source_path = "/unnamed"},
                     {.plugin_id = "p", .volume_id = "v", .consumer = "c", .name = "n", .source_path = "/n"},
                     {.plugin_id = "p", .volume_id = "w", .consumer = "c", .name = "n", .source_path = "/w"}};
  auto request = ForVolume<v1::PublishVolumeRequest>();
  request.set_consumer("c");
  request.set_name("n");
  const auto answer = Call(&VolumeApi::PublishVolume, request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->mount().source_path(), "/n");
}

}  // namespace
}  // namespace berth
