// What stands in the way at a socket's path, and plugins that come back as another driver (FAULTS rows 8 and
// 9).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using testing::HasSubstr;

class FaultIdentityTest : public FaultTest {
 protected:
  [[nodiscard]] std::string SocketDir() const { return node_.runtime_dir() + "/plugins/" + fault_.id(); }
  [[nodiscard]] std::string Socket() const { return SocketDir() + "/csi.sock"; }
  void MakeSocketDir() {
    for (const std::string& path : {node_.runtime_dir(), node_.runtime_dir() + "/plugins", SocketDir()}) {
      ASSERT_EQ(mkdir(path.c_str(), 0755), 0) << path;
    }
  }
  int Bind() {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = Socket();
    std::copy(path.begin(), path.end(), address.sun_path);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  void ExpectRefusedForTheSocket(const std::string& reason) {
    // Between two launches the reason is another.
    Wait("not started for its socket", [&reason](const v1::Plugin& p) {
      return !p.alive() && p.reason().find(reason) != std::string::npos;
    });
    EXPECT_EQ(fault_.History().size(), 0U) << "it was not even launched";
  }

  // Ends the plugin's process; the next one answers as `rules` say.
  void ComeBackAs(const std::vector<std::string>& rules) {
    const pid_t before = Get().pid();
    fault_.Play(rules);
    ASSERT_EQ(kill(before, SIGKILL), 0);
    fault_.WaitHistory("asked again", [before](const FaultEvent& e) {
      return e.event == "answer" && e.rpc == "NodeGetInfo" && e.pid != before;
    });
  }
};

TEST_F(FaultIdentityTest, Fault08AStaleSocketIsCleaned) {
  MakeSocketDir();
  close(Bind());  // bound, and not listening any more
  StartReady();
  ExpectWorks("v");
}

TEST_F(FaultIdentityTest, Fault08ADirectoryAtTheSocketsPathIsAClearError) {
  MakeSocketDir();
  ASSERT_EQ(mkdir(Socket().c_str(), 0700), 0);
  StartNode();
  ExpectRefusedForTheSocket("csi.sock is a directory");
  ASSERT_EQ(rmdir(Socket().c_str()), 0) << "it is as it was";
}

TEST_F(FaultIdentityTest, Fault08ASocketThatSomebodyElseServesIsNotTakenForThePlugins) {
  MakeSocketDir();
  const int fd = Bind();
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(StartReady().fingerprint().driver_name(), "fault.berth.dev");
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0) << "the other server was not called";
  close(fd);
  ExpectWorks("v");
}

TEST_F(FaultIdentityTest, Fault08ASymlinkAtTheSocketsPathIsNotFollowed) {
  MakeSocketDir();
  ASSERT_EQ(symlink((node_.dir() + "/elsewhere").c_str(), Socket().c_str()), 0);
  StartNode();
  ExpectRefusedForTheSocket("csi.sock");
  ASSERT_EQ(unlink(Socket().c_str()), 0);
}

TEST_F(FaultIdentityTest, Fault09AnotherNameAfterARestartIsRefused) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  ComeBackAs({"rpc = \"GetPluginInfo\"\naction = \"answer\"\nanswer = 'name: \"other.example\"'"});
  WaitEvent("plugin.refused", "other.example");
  const v1::Plugin refused = Wait("not registered", [](const v1::Plugin& p) { return !p.registered(); });
  EXPECT_TRUE(refused.alive());
  EXPECT_THAT(refused.reason(), HasSubstr("other.example"));
  fault_.Play();
  node_.WaitReady(fault_.id());
  Unpublish(volume, "job");
}

TEST_F(FaultIdentityTest, Fault09AnotherNodeIdIsRefusedOnlyWhileSomethingIsHeldUnderTheOldOne) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  const std::string other = CreateVolume("w");
  const std::string rule =
      "rpc = \"NodeGetInfo\"\naction = \"answer\"\nanswer = 'node_id: \"node-of-another-name\"'";
  ComeBackAs({rule});
  WaitEvent("plugin.refused", "node-of-another-name");
  EXPECT_THAT(TryPublish(other, "job").error_message(), HasSubstr("takes nothing new"));
  Unpublish(volume, "job");
  Wait("registered under the new node id", [](const v1::Plugin& p) {
    return p.registered() && p.fingerprint().node_id() == "node-of-another-name";
  });
  WaitEvent("plugin.changed", "node-of-another-name");
}

TEST_F(FaultIdentityTest, Fault09OtherCapabilitiesAndTopologyAreEvents) {
  StartReady();
  const std::string volume = CreateVolume("v");
  ComeBackAs(
      {"rpc = \"NodeGetCapabilities\"\naction = \"answer\"\nreplace = true\n"
       "answer = 'capabilities { rpc { type: STAGE_UNSTAGE_VOLUME } }'",
       "rpc = \"NodeGetInfo\"\naction = \"answer\"\nanswer = '''\n"
       "max_volumes_per_node: 7\n"
       "accessible_topology { segments { key: \"example.com/zone\" value: \"z2\" } }'''"});
  WaitEvent("plugin.changed", "z2");
  WaitEvent("plugin.changed", "GET_VOLUME_STATS");
  const v1::Plugin changed = node_.WaitReady(fault_.id());
  EXPECT_EQ(changed.fingerprint().max_volumes(), 7);
  EXPECT_THAT(changed.fingerprint().node_capabilities(), testing::ElementsAre("STAGE_UNSTAGE_VOLUME"));
  Publish(volume, "job");
  Unpublish(volume, "job");
}

}  // namespace
}  // namespace berth
