// A node from outside: what an operator and a scheduler see, through the API, with berth-hostpath doing real
// mounts.
#include "tests/harness/node.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

namespace berth {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

v1::CreateVolumeRequest Image(const std::string& name, const std::string& fs_type,
                              int64_t bytes = 64 * kMiB) {
  v1::CreateVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_name(name);
  request.set_required_bytes(bytes);
  request.add_capabilities()->set_fs_type(fs_type);
  (*request.mutable_parameters())["kind"] = "image";
  return request;
}

v1::PublishVolumeRequest Use(const std::string& volume_id, const std::string& consumer) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume_id);
  request.set_consumer(consumer);
  return request;
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  ASSERT_TRUE(out.good()) << path;
}

class NodeTest : public testing::Test {
 protected:
  void StartWithHostpath(const std::vector<std::string>& arguments = {}) {
    node_.WriteHostpath(arguments);
    node_.Start();
    node_.WaitReady("hostpath");
  }
  // The journal's directories and nothing else: every volume's path is gone again.
  void ExpectNothingHeld() {
    EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
    EXPECT_THAT(Node::Tree(node_.state_dir() + "/volumes"), IsEmpty());
    for (const std::string& mount : node_.Mounts()) {
      EXPECT_FALSE(mount.starts_with(node_.state_dir() + "/volumes/")) << mount;
    }
  }

  Node node_;
};

TEST_F(NodeTest, OneVolumeServesTwoConsumersAndLeavesNothing) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("shared", "ext4"));
  const std::string one = node_.Publish(Use(volume, "job-1"));
  const std::string two = node_.Publish(Use(volume, "job-2"));
  ASSERT_NE(one, two);
  Write(one + "/hello", "from job-1");
  EXPECT_EQ(ReadText(two + "/hello"), "from job-1");

  node_.Unpublish(volume, "job-1");
  EXPECT_EQ(ReadText(two + "/hello"), "from job-1") << "the other consumer keeps its volume";
  node_.Unpublish(volume, "job-2");
  ExpectNothingHeld();
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, ARepeatedRequestGivesTheSameAnswer) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("repeat", "ext4"));
  EXPECT_EQ(node_.CreateVolume(Image("repeat", "ext4")), volume);
  const std::string target = node_.Publish(Use(volume, "job"));
  EXPECT_EQ(node_.Publish(Use(volume, "job")), target);
  node_.Unpublish(volume, "job");
  node_.Unpublish(volume, "job");
  node_.DeleteVolume(volume);
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, EveryKindOfVolumeIsPublished) {
  StartWithHostpath();
  v1::CreateVolumeRequest directory;
  directory.set_name("directory");
  (*directory.mutable_parameters())["kind"] = "directory";
  v1::CreateVolumeRequest block;
  block.set_name("block");
  block.set_required_bytes(16 * kMiB);
  block.add_capabilities()->set_access_type(v1::BLOCK);

  const std::string xfs = node_.CreateVolume(Image("xfs", "xfs", 512 * kMiB));
  v1::PublishVolumeRequest use_xfs = Use(xfs, "job");
  use_xfs.mutable_capability()->set_fs_type("xfs");
  Write(node_.Publish(use_xfs) + "/file", "x");

  const std::string plain = node_.CreateVolume(directory);
  Write(node_.Publish(Use(plain, "job")) + "/file", "x");

  const std::string raw = node_.CreateVolume(block);
  v1::PublishVolumeRequest use_raw = Use(raw, "job");
  use_raw.mutable_capability()->set_access_type(v1::BLOCK);
  const std::string device = node_.Publish(use_raw);
  struct stat info{};
  ASSERT_EQ(stat(device.c_str(), &info), 0);
  EXPECT_TRUE(S_ISBLK(info.st_mode)) << device;

  for (const std::string& volume : {xfs, plain, raw}) {
    node_.Unpublish(volume, "job");
    node_.DeleteVolume(volume);
  }
  ExpectNothingHeld();
}

TEST_F(NodeTest, AReadOnlyPublicationCannotBeWritten) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("ro", "ext4"));
  v1::PublishVolumeRequest request = Use(volume, "reader");
  request.set_readonly(true);
  const std::string target = node_.Publish(request);
  EXPECT_EQ(open((target + "/x").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), -1);
  EXPECT_EQ(errno, EROFS);
  node_.Unpublish(volume, "reader");
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, ADifferentUseOfAHeldVolumeIsRefusedAndSaysWhoHoldsIt) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("held", "ext4"));
  node_.Publish(Use(volume, "first-job"));
  v1::PublishVolumeRequest other = Use(volume, "second-job");
  other.mutable_capability()->set_access_mode(v1::MULTI_NODE_MULTI_WRITER);
  std::string target;
  const grpc::Status status = node_.TryPublish(other, &target);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("first-job"));
  node_.Unpublish(volume, "first-job");
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, APluginThatNeedsAttachDemandsAPublishContext) {
  StartWithHostpath({"--attach"});
  const std::string volume = node_.CreateVolume(Image("attach", "ext4"));
  std::string target;
  const grpc::Status status = node_.TryPublish(Use(volume, "job"), &target);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("publish"));
  ExpectNothingHeld();
}

TEST_F(NodeTest, AVolumeIsNotDeletedWhileThisNodeHoldsIt) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("busy", "ext4"));
  const std::string target = node_.Publish(Use(volume, "job"));
  v1::DeleteVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume);
  v1::DeleteVolumeResponse response;
  const grpc::Status status = node_.stub().DeleteVolume(Node::Context().get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Write(target + "/still", "here");
  node_.Unpublish(volume, "job");
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, AVolumeGrowsWhileItIsUsed) {
  StartWithHostpath();
  // xfs: growing a mounted ext4 takes CAP_SYS_RESOURCE, which root of a container may lack.
  const std::string volume = node_.CreateVolume(Image("grow", "xfs", 512 * kMiB));
  v1::PublishVolumeRequest use = Use(volume, "job");
  use.mutable_capability()->set_fs_type("xfs");
  node_.Publish(use);
  v1::ExpandVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume);
  request.set_required_bytes(768 * kMiB);
  v1::ExpandVolumeResponse expanded;
  grpc::Status status = node_.stub().ExpandVolume(Node::Context().get(), request, &expanded);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(expanded.capacity_bytes(), 768 * kMiB);
  EXPECT_TRUE(expanded.node_expanded());

  v1::GetVolumeStatsRequest stats_request;
  stats_request.set_plugin_id("hostpath");
  stats_request.set_volume_id(volume);
  v1::GetVolumeStatsResponse stats;
  status = node_.stub().GetVolumeStats(Node::Context().get(), stats_request, &stats);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_FALSE(stats.usage().empty());
  EXPECT_GT(stats.usage(0).total(), 600 * kMiB);
  node_.Unpublish(volume, "job");
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, Fault01APluginKilledWhileIdleIsReadyAgainAndMountsStay) {
  StartWithHostpath();
  const std::string volume = node_.CreateVolume(Image("survivor", "ext4"));
  const std::string target = node_.Publish(Use(volume, "job"));
  Write(target + "/file", "kept");
  const v1::Plugin before = node_.Plugin("hostpath");
  ASSERT_EQ(kill(before.pid(), SIGKILL), 0);
  const v1::Plugin after =
      node_.WaitPlugin("hostpath", "ready with another pid", [&](const v1::Plugin& plugin) {
        return plugin.ready() && plugin.registered() && plugin.pid() != before.pid();
      });
  EXPECT_THAT(after.last_exit(), HasSubstr("signal 9"));
  EXPECT_EQ(after.restarts(), 1);
  EXPECT_EQ(ReadText(target + "/file"), "kept");
  node_.Unpublish(volume, "job");
  node_.DeleteVolume(volume);
  ExpectNothingHeld();
}

TEST_F(NodeTest, Fault05ACrashLoopEndsAsFailedWithTheReason) {
  node_.WritePlugin("broken", R"(id = "broken"
kind = "node"
command = "/bin/sh"
args = ["-c", "echo no licence >&2; exit 3"]
[restart]
initial_backoff = "10ms"
max_backoff = "20ms"
burst = 4
window = "1m"
)");
  node_.Start();
  const v1::Plugin plugin =
      node_.WaitPlugin("broken", "failed", [](const v1::Plugin& p) { return p.state() == v1::FAILED; });
  EXPECT_THAT(plugin.last_exit(), HasSubstr("3"));
  EXPECT_THAT(plugin.last_output(), Contains(HasSubstr("no licence")));
  EXPECT_FALSE(plugin.reason().empty());
}

TEST_F(NodeTest, ABrokenPluginFileIsShownAndTheOthersRun) {
  node_.WritePlugin("bad", "id = \"bad\"\nkind = \"node\"\ncommand = \"/bin/true\"\ncolour = \"red\"\n");
  node_.WriteHostpath();
  node_.Start();
  node_.WaitReady("hostpath");
  const v1::Plugin bad = node_.Plugin("bad");
  EXPECT_EQ(bad.state(), v1::FAILED);
  EXPECT_THAT(bad.reason(), HasSubstr("bad.toml:4"));
  EXPECT_THAT(bad.reason(), HasSubstr("colour"));
}

TEST_F(NodeTest, Fault08AForeignFileAtTheSocketPathIsAClearError) {
  node_.WriteHostpath();
  const std::string directory = node_.runtime_dir() + "/plugins/hostpath";
  for (const std::string& path : {node_.runtime_dir(), node_.runtime_dir() + "/plugins", directory}) {
    ASSERT_EQ(mkdir(path.c_str(), 0755), 0) << path;
  }
  Write(directory + "/csi.sock", "another program's notes");
  node_.Start();
  const v1::Plugin plugin = node_.WaitPlugin(
      "hostpath", "not started", [](const v1::Plugin& p) { return !p.alive() && !p.reason().empty(); });
  EXPECT_THAT(plugin.reason(), HasSubstr("csi.sock"));
  EXPECT_EQ(ReadText(directory + "/csi.sock"), "another program's notes");
}

TEST_F(NodeTest, TwoNodesLiveOnOneMachine) {
  StartWithHostpath();
  Node second("node-2");
  second.WriteHostpath();
  second.Start();
  EXPECT_EQ(second.WaitReady("hostpath").fingerprint().node_id(), "node-2");
  EXPECT_EQ(node_.Plugin("hostpath").fingerprint().node_id(), "node-1");
}

TEST_F(NodeTest, ASecondBerthdOnTheSameStateIsRefused) {
  StartWithHostpath();
  const pid_t plugin = node_.Plugin("hostpath").pid();
  EXPECT_EQ(node_.RunAnother(), 1);
  EXPECT_EQ(node_.WaitReady("hostpath").pid(), plugin) << "the first one is not disturbed";
}

TEST_F(NodeTest, EventsAreResumedByNumberEvenAfterARestart) {
  StartWithHostpath();
  const auto read = [this](uint64_t after) {
    v1::WatchEventsRequest request;
    request.set_after_sequence(after);
    auto context = Node::Context();
    const auto reader = node_.stub().WatchEvents(context.get(), request);
    std::vector<v1::Event> events;
    for (v1::WatchEventsResponse response; reader->Read(&response);) events.push_back(response.event());
    EXPECT_TRUE(reader->Finish().ok());
    return events;
  };
  const std::vector<v1::Event> all = read(0);
  ASSERT_GT(all.size(), 2U);
  const std::vector<v1::Event> rest = read(all[1].sequence());
  EXPECT_EQ(rest.front().sequence(), all[2].sequence());

  const uint64_t last = all.back().sequence();
  node_.Kill();
  node_.Start();
  node_.WaitReady("hostpath");
  for (const v1::Event& event : read(last)) EXPECT_GT(event.sequence(), last);
  EXPECT_FALSE(read(last).empty());
}

TEST_F(NodeTest, SecretsAreWrittenNowhere) {
  StartWithHostpath();
  const std::string secret = "hunter2-7f3a9c51";
  const std::string volume = node_.CreateVolume(Image("secret", "ext4"));
  v1::PublishVolumeRequest request = Use(volume, "job");
  (*request.mutable_secrets())["password"] = secret;
  node_.Publish(request);
  for (const std::string& name : Node::Tree(node_.dir())) {
    struct stat info{};
    const std::string path = node_.dir() + "/" + name;
    if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > 16 * kMiB) continue;
    EXPECT_THAT(ReadText(path), testing::Not(HasSubstr(secret))) << path;
  }
  node_.Unpublish(volume, "job");
  node_.DeleteVolume(volume);
}

TEST_F(NodeTest, AnOrderlyEndLeavesNoMountWhenNothingIsHeld) {
  StartWithHostpath();
  v1::StopPluginRequest request;
  request.set_id("hostpath");
  v1::Plugin stopped;
  const grpc::Status status = node_.stub().StopPlugin(Node::Context().get(), request, &stopped);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stopped.state(), v1::STOPPED);
  node_.Stop();
  EXPECT_THAT(node_.Mounts(), testing::ElementsAre(node_.dir()));
  EXPECT_NE(access(node_.socket().c_str(), F_OK), 0) << "berthd's socket is gone";
}

}  // namespace
}  // namespace berth
