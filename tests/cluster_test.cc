// berth-scheduler as it is, with real nodes and berthctl: who is there, and what they run.
#include "tests/harness/cluster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ClusterTest : public Cluster {
 protected:
  // With one plugin.
  Node& AddNode(const std::string& name) {
    Node& node = Cluster::AddNode(name);
    node.WriteHostpath();
    return node;
  }
  static std::string CreateVolume(Node& node, const std::string& name) {
    v1::CreateVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_name(name);
    return node.CreateVolume(request);
  }
};

TEST_F(ClusterTest, NodesAndDriversAreShownAsTheyAreNow) {
  scheduler_.Start();
  EXPECT_THAT(Says("node list"), AllOf(HasSubstr("cluster test:"), HasSubstr("no node was ever connected")));
  EXPECT_THAT(Says("plugin list"), HasSubstr("no plugins"));
  for (const char* name : {"node-1", "node-2"}) AddNode(name).Start();
  WaitDriverReadyOn(2);
  EXPECT_THAT(Says("node list"), AllOf(StartsWith("cluster test:\nNODE "), ContainsRegex("node-1 +connected"),
                                       ContainsRegex("node-2 +connected")));
  EXPECT_THAT(Says("plugin list"), ContainsRegex("hostpath.berth.* 2 of 2 +2 of 2"));
  EXPECT_THAT(Says("plugin show hostpath.berth.dev"),
              AllOf(ContainsRegex("node-1 +hostpath +READY"), ContainsRegex("node-2 +hostpath +READY")));
  // Five seconds and the clocks' one percent, rounded up.
  EXPECT_THAT(Says("node show node-1"),
              AllOf(ContainsRegex("lease +ends within [1-6]s"), HasSubstr("hostpath")));

  // What goes is not there any more, and what is away says nothing.
  nodes_[1]->Kill();
  scheduler_.WaitAway("node-2");
  WaitDriverReadyOn(1);
  EXPECT_THAT(Says("node list"), ContainsRegex("node-2 +away"));
  EXPECT_THAT(Says("node show node-2"),
              AllOf(HasSubstr("says nothing about its volumes"), Not(HasSubstr("READY"))));
  nodes_[1]->Start();
  WaitDriverReadyOn(2);
}

TEST_F(ClusterTest, AKilledSchedulerKnowsItsNodesAgainAsSoonAsTheyConnect) {
  scheduler_.Start();
  AddNode("node-1").Start();
  scheduler_.WaitConnected("node-1");
  scheduler_.Kill();
  scheduler_.Start();
  scheduler_.WaitConnected("node-1");
  // Its epoch is higher than the last one's, so the node obeys it.
  const auto context = Node::Context();
  v1::GetStatusResponse status;
  ASSERT_TRUE(nodes_[0]->stub().GetStatus(context.get(), {}, &status).ok());
  EXPECT_EQ(status.scheduler().state(), v1::LinkStatus::SYNCED);
  scheduler_.Stop();
  EXPECT_THAT(scheduler_.log(), HasSubstr("without access control"));
}

TEST_F(ClusterTest, JsonHasEveryField) {
  scheduler_.Start();
  AddNode("node-1").Start();
  scheduler_.WaitConnected("node-1");
  EXPECT_THAT(Says("-o json node list"),
              AllOf(HasSubstr("\"cluster_id\":\"test\""), HasSubstr("\"connection\":\"CONNECTED\""),
                    HasSubstr("\"next_page_token\":\"\"")));
  EXPECT_THAT(Says("-o json node show node-1"), HasSubstr("\"state\":{"));
  EXPECT_THAT(Says("-o json plugin list"), HasSubstr("\"plugins\":["));
}

TEST_F(ClusterTest, WhatIsNotThereIsSaidWithWhatThereIs) {
  Ended ended = Ctl("--timeout 2s node list");
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.said, HasSubstr("cannot reach the scheduler at " + scheduler_.address()));
  scheduler_.Start();
  ended = Ctl("node show nobody");
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.said,
              AllOf(HasSubstr("no node nobody was ever connected"), HasSubstr("berthctl node list")));
  EXPECT_THAT(Ctl("plugin show nothing").said,
              HasSubstr("no node that is connected runs the driver nothing"));
  ended = Ctl("volumes");
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.said, HasSubstr("this command asks one node"));
  ended = RunCommand(fmt::format("{} node list", BERTHCTL));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.said, HasSubstr("BERTH_CLUSTER"));
  // By the environment, as a user does who works with one cluster.
  EXPECT_THAT(
      RunCommand(fmt::format("env BERTH_CLUSTER={} {} plugin list", scheduler_.address(), BERTHCTL)).said,
      HasSubstr("cluster test:"));
}

TEST_F(ClusterTest, AVolumeIsRegisteredOnceAPluginHasConfirmedIt) {
  scheduler_.Start();
  EXPECT_THAT(Ctl("volume register prod/db --driver hostpath.berth.dev").said,
              HasSubstr("no node that is connected runs the driver hostpath.berth.dev"));
  Node& node = AddNode("node-1");
  node.Start();
  WaitDriverReadyOn(1);
  const std::string id = CreateVolume(node, "db");
  EXPECT_THAT(Ctl("volume register prod/none --driver hostpath.berth.dev").said,
              HasSubstr("volume none of the driver hostpath.berth.dev"));
  const std::string command = fmt::format(
      "volume register prod/db --driver hostpath.berth.dev --external-id {} --access "
      "single-node-writer --access multi-node-reader-only",
      id);
  EXPECT_THAT(Says(command),
              AllOf(StartsWith("cluster test:\n"), ContainsRegex("external id +" + id),
                    ContainsRegex("access +SINGLE_NODE_WRITER, MULTI_NODE_READER_ONLY mount")));
  EXPECT_EQ(Says(command), Says(command)) << "the same again";
  EXPECT_THAT(Ctl(command + " --fs ext4").said, HasSubstr("prod/db is registered with another fs_type"));
  EXPECT_THAT(
      Ctl(fmt::format("volume register dev/copy --driver hostpath.berth.dev --external-id {}", id)).said,
      HasSubstr("is registered as prod/db"));
  EXPECT_THAT(
      Ctl("volume register " + std::string(129, 'x') + "/db --driver '" + std::string(300, 'x') + "'").said,
      AllOf(HasSubstr("volume.namespace: has 129 bytes"), HasSubstr("volume.driver: has 300 bytes")));
  EXPECT_EQ(Ctl("volume register db --driver x").exit_code, 2);

  EXPECT_THAT(Says("volume list"), ContainsRegex("prod/db +hostpath.berth.dev +" + id));
  EXPECT_THAT(Says("volume list --namespace dev"), HasSubstr("no volumes"));
  EXPECT_THAT(Says("volume show prod/db"), ContainsRegex("driver +hostpath.berth.dev"));
  EXPECT_THAT(Says("-o json volume show prod/db"), HasSubstr("\"external_id\":\"" + id));
  EXPECT_THAT(Ctl("volume show prod/nothing").said, HasSubstr("no volume prod/nothing is registered"));
  EXPECT_THAT(Says("volume deregister prod/db"), Not(HasSubstr("not registered")));
  EXPECT_THAT(Says("volume deregister prod/db"), HasSubstr("it was not registered"));
  EXPECT_THAT(Says("volume list"), HasSubstr("no volumes"));
  EXPECT_THAT(RunCommand(fmt::format("{} volume list", BERTHCTL)).said, HasSubstr("--plugin is required"));
}

TEST_F(ClusterTest, AVolumeFileSaysWhatIsRegistered) {
  scheduler_.Start();
  Node& node = AddNode("node-1");
  node.Start();
  WaitDriverReadyOn(1);
  const std::string id = CreateVolume(node, "db");
  const auto from = [&](const std::string& toml) {
    return RunCommand(fmt::format("printf '{}' | {} --cluster {} volume register prod/db --file -", toml,
                                  BERTHCTL, scheduler_.address()));
  };
  const std::string volume = fmt::format(
      R"(plugin = "hostpath.berth.dev"\nvolume = "{}"\naccess_mode = "single-node-writer"\n)", id);
  EXPECT_THAT(from(volume + R"(consumer = "web"\n)").said, HasSubstr("the file says something of one use"));
  EXPECT_THAT(from(volume + R"(acess_type = "block"\n)").said, HasSubstr("access_type"));
  EXPECT_THAT(from(volume).said, ContainsRegex("access +SINGLE_NODE_WRITER mount"));
}

TEST_F(ClusterTest, TheProgramSaysWhatIsWrongWithItsSettings) {
  const std::string program = fmt::format("{} --config {}", BERTH_SCHEDULER, scheduler_.settings_file());
  Ended ended = RunCommand(program + " --check");
  EXPECT_EQ(ended.exit_code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("no mistakes in"));
  ended = RunCommand(program + " --state-dir relative --check");
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_THAT(ended.said, HasSubstr("state_dir: \"relative\" is not an absolute path"));
  EXPECT_EQ(RunCommand(fmt::format("{} --config /nowhere", BERTH_SCHEDULER)).exit_code, 78);
  EXPECT_EQ(RunCommand(fmt::format("{} --nonsense", BERTH_SCHEDULER)).exit_code, 2);
  scheduler_.Start();
  ended = RunCommand(program);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.said, ContainsRegex("lock .*/state/lock: process [0-9]+ has it"));
}

// Only root has access.
TEST_F(ClusterTest, TheSocketAndTheRecordAreRootsAlone) {
  scheduler_.Start();
  EXPECT_EQ(RunCommand(fmt::format("stat -c %a {}", scheduler_.address().substr(5))).said, "700\n");
  EXPECT_EQ(RunCommand(fmt::format("stat -c %a {}", scheduler_.state_dir())).said, "700\n");
}

}  // namespace
}  // namespace berth
