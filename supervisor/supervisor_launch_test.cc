// How plugins begin: files, sockets, directories, reports.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/testing/test_bound.h"
#include "base/unique_fd.h"
#include "supervisor/testing/supervisor_fixture.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SupervisorTest, LaunchesAndTellsEachFact) {
  WritePlugin("nfs", "\"--say\", \"at ${CSI_SOCKET}\", \"--print-environment\"",
              "[env]\nMINE = \"${BERTH_NODE_ID}!\"\n");
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.state, PluginState::kReady);
  EXPECT_TRUE(plugin.alive);
  EXPECT_EQ(plugin.reason, "");
  EXPECT_EQ(plugin.instance, 1U);
  EXPECT_EQ(plugin.restarts, 0);
  EXPECT_EQ(plugin.facts->name, "test.berth.dev");
  EXPECT_EQ(plugin.computed_class, "class");
  EXPECT_EQ(plugin.socket_path, temp_.Path("run/plugins/nfs/csi.sock"));
  EXPECT_EQ(getsid(plugin.pid), plugin.pid) << "it leads a session of its own";
  EXPECT_THAT(node_->prober_.appeared_, ElementsAre("nfs#1"));
  EXPECT_THAT(node_->Events(), ElementsAre("plugin.launched", "plugin.ready", "plugin.joined"));
  EXPECT_EQ(
      Text("state/logs/nfs.log"),
      fmt::format("at {0}/run/plugins/nfs/csi.sock\n"
                  "BERTH_NODE_ID=node-1\nBERTH_PLUGIN_DIR={0}/state/plugins/nfs\n"
                  "CSI_ENDPOINT=unix://{0}/run/plugins/nfs/csi.sock\nHOME=/\nLANG=C.UTF-8\nMINE=node-1!\n"
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
                  temp_.path()));
}

TEST_F(SupervisorTest, SocketIsToldWithinMillisecondsOfListening) {
  WritePlugin("nfs");
  node_->Start();
  Duration best = kTestBound;
  for (int round = 0; round < 5; ++round) {
    node_->WaitRegistered("nfs");
    const int64_t listening = std::stoll(Text("state/plugins/nfs/listening"));
    const auto told = node_->prober_.appeared_at_["nfs"].time_since_epoch();
    best = std::min(best, Duration(told) - std::chrono::nanoseconds(listening));
    ASSERT_TRUE(node_->Restart("nfs").ok());
  }
  EXPECT_LT(best, milliseconds(20));
}

TEST_F(SupervisorTest, UnknownPluginIsNotFoundAndTheOthersAreNamed) {
  WritePlugin("nfs");
  WritePlugin("ceph");
  node_->Start();
  for (const absl::Status& status : {node_->StartPlugin("nsf"), node_->Stop("nsf"), node_->Restart("nsf")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("there are ceph, nfs"));
  }
}

TEST_F(SupervisorTest, StaleSocketIsCleanedAway) {
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0755).ok());
  const std::string path = RunDir("nfs") + "/csi.sock";
  {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  WritePlugin("nfs");
  node_->Start();
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, ForeignFileAtTheSocketPathIsAClearErrorAndStays) {
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0755).ok());
  temp_.Write("run/plugins/nfs/csi.sock", "notes");
  WritePlugin("nfs", "", "[restart]\ninitial_backoff = \"10ms\"\n");
  node_->Start();
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("csi.sock is a file"), HasSubstr("move it away")));
  EXPECT_EQ(Text("run/plugins/nfs/csi.sock"), "notes");
  // Once it is moved away, the plugin starts by itself.
  temp_.Remove("run/plugins/nfs/csi.sock");
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, BrokenFilesAreFailedPluginsAndTheOthersRun) {
  WritePlugin("bad", "", "colour = \"red\"\n");
  WritePlugin("good");
  WritePlugin("twin", "", "id = \"good\"\n");
  mkdir(temp_.Path("state").c_str(), 0755);
  ASSERT_EQ(WritePluginFileOwners(PluginFileOwnersPath(temp_.Path("state")),
                                  {{"good", temp_.Path("etc/plugins.d/good.toml")}}),
            absl::OkStatus());
  node_->Start();
  node_->WaitRegistered("good");
  const PluginSnapshot bad = node_->WaitState("bad", PluginState::kFailed);
  EXPECT_THAT(bad.reason, HasSubstr(temp_.Path("etc/plugins.d/bad.toml:4: colour")));
  EXPECT_EQ(bad.config_file, temp_.Path("etc/plugins.d/bad.toml"));
  const PluginSnapshot twin = node_->WaitState("twin", PluginState::kFailed);
  EXPECT_THAT(twin.reason, AllOf(HasSubstr("good.toml"), HasSubstr("twin.toml")));

  EXPECT_THAT(std::string(node_->StartPlugin("bad").message()), HasSubstr("bad.toml:4: colour"));
  WritePlugin("bad");
  EXPECT_TRUE(node_->StartPlugin("bad").ok());
  EXPECT_THAT(std::string(node_->StartPlugin("twin").message()), HasSubstr("is the id of"));
}

TEST_F(SupervisorTest, OfTwoFilesWithOneIdNeitherIsStartedByHandEither) {
  WritePlugin("a", "", "id = \"nfs\"\n");
  WritePlugin("b", "", "id = \"nfs\"\n");
  node_->Start();
  EXPECT_THAT(node_->WaitState("nfs", PluginState::kFailed).reason, HasSubstr("neither is used"));
  for (const char* id : {"nfs", "b"}) {
    const absl::Status status = node_->StartPlugin(id);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("then reload"));
  }
  temp_.Remove("etc/plugins.d/a.toml");
  EXPECT_TRUE(node_->Run(node_->supervisor_->Reload(Soon())).ok());
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, NoPluginDirectoryIsNoPlugins) {
  rmdir(temp_.Path("etc/plugins.d").c_str());
  node_->Start();
  EXPECT_TRUE(node_->supervisor_->registry().plugins().empty());
}

TEST_F(SupervisorTest, DisabledPluginIsShownAndNotRun) {
  WritePlugin("nfs", "", "enabled = false\n");
  node_->Start();
  const PluginSnapshot plugin = node_->Get("nfs");
  EXPECT_EQ(plugin.state, PluginState::kStopped);
  EXPECT_THAT(plugin.reason, HasSubstr("enabled = false"));
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  WritePlugin("nfs");
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").reason, "");
}

}  // namespace
}  // namespace berth
