// Plugins that run as another user, with their sockets and who serves these.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/testing/as_user.h"
#include "base/unique_fd.h"
#include "supervisor/testing/supervisor_fixture.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Numbers without a user here.
constexpr uid_t kPlugins = 64'998;
constexpr uid_t kOther = 64'997;

class SupervisorUserTest : public SupervisorTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root runs plugins as another user";
    // The plugin has to reach its program and its directories.
    std::filesystem::copy_file(TEST_PLUGIN, Program());
    for (const char* path : {"", "run", "state"}) {
      mkdir(temp_.Path(path).c_str(), 0755);
      ASSERT_EQ(chmod(temp_.Path(path).c_str(), 0755), 0);
    }
    ASSERT_EQ(chmod(Program().c_str(), 0755), 0);
  }
  void TearDown() override {
    for (const pid_t server : servers_) {
      kill(server, SIGKILL);
      waitpid(server, nullptr, 0);
    }
  }
  [[nodiscard]] std::string Program() const { return temp_.Path("plugin"); }
  [[nodiscard]] std::string Socket() const { return RunDir("nfs") + "/csi.sock"; }
  // `args` as in TOML.
  void WriteUserPlugin(const std::string& command, const std::string& args, const std::string& more = "") {
    temp_.Write("etc/plugins.d/nfs.toml",
                fmt::format("kind = \"controller\"\ncommand = \"{}\"\nargs = [{}]\nuser = {}\n{}", command,
                            args, kPlugins, more));
  }
  void WriteUserPlugin(const std::string& args = "") { WriteUserPlugin(Program(), args); }
  // A process of that user serves the plugin's socket. Returns once it listens.
  pid_t Serve(uid_t uid) {
    int listening[2];
    EXPECT_EQ(pipe(listening), 0);
    const pid_t server = fork();
    if (server == 0) {
      const std::string path = Socket();
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      std::copy(path.begin(), path.end(), address.sun_path);
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      if (setsid() < 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0 ||
          prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 ||
          bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 16) != 0 ||
          write(listening[1], "x", 1) != 1) {
        _exit(errno);
      }
      while (true) close(accept(fd, nullptr, nullptr));
    }
    servers_.push_back(server);
    close(listening[1]);
    char byte = 0;
    EXPECT_EQ(read(listening[0], &byte, 1), 1) << "it does not listen";
    close(listening[0]);
    return server;
  }
  // What a launcher has left to us.
  void ReapOrphans() {
    node_->WaitUntil([] { return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; });
  }
  [[nodiscard]] PluginSnapshot WaitForeign(pid_t server) {
    return node_->Wait("nfs", [server](const PluginSnapshot& plugin) {
      return plugin.reason.find(fmt::format("served by process {} ", server)) != std::string::npos;
    });
  }

  std::vector<pid_t> servers_;
};

TEST_F(SupervisorUserTest, ItsDirectoriesAreItsAlone) {
  WriteUserPlugin();
  node_->Start();
  node_->WaitRegistered("nfs");
  const std::string socket = Socket();
  const std::string record = RunDir("nfs") + "/run.toml";
  const auto sees = [](const std::string& path) { return access(path.c_str(), F_OK) == 0 ? 0 : errno; };
  EXPECT_EQ(As(kPlugins, kOther, [&] { return sees(socket); }), 0);
  EXPECT_EQ(As(kOther, kPlugins, [&] { return sees(socket); }), EACCES) << "its group";
  EXPECT_EQ(As(kOther, kOther, [&] { return sees(socket); }), EACCES);
  EXPECT_EQ(As(kPlugins, kPlugins, [&] { return unlink(record.c_str()) == 0 ? 0 : errno; }), EPERM)
      << "what berthd wrote there";
  const std::string state = PluginStateDir(Paths(), "nfs");
  EXPECT_EQ(As(kPlugins, kPlugins, [&] { return access(state.c_str(), R_OK | W_OK | X_OK); }), 0);
  EXPECT_EQ(As(kOther, kPlugins, [&] { return access(state.c_str(), X_OK) == 0 ? 0 : errno; }), EACCES);
}

TEST_F(SupervisorUserTest, ItsUserIsKnownForAsLongAsItRuns) {
  WriteUserPlugin();
  node_->Start();
  node_->WaitRegistered("nfs");
  ASSERT_FALSE(node_->users_.empty());
  EXPECT_EQ(node_->users_.back().first, Socket());
  EXPECT_EQ(node_->users_.back().second, kPlugins);
  // berthd ends, and the plugin runs on.
  const auto run = [this] { node_->Run(node_->supervisor_->Shutdown()); };
  run();
  EXPECT_EQ(node_->users_.back().second, kPlugins);
  NextBerthd();
  node_->Start();
  node_->WaitRegistered("nfs");
  ASSERT_EQ(node_->users_.size(), 1U);
  EXPECT_EQ(node_->users_.back().second, kPlugins);
  ASSERT_TRUE(node_->Stop("nfs").ok());
  EXPECT_EQ(node_->users_.back(), std::make_pair(Socket(), std::optional<uid_t>()));
}

TEST_F(SupervisorUserTest, ASocketThatSomebodyElseServesIsNotUsed) {
  const std::string go = temp_.Path("go");
  ASSERT_EQ(mkfifo(go.c_str(), 0644), 0);
  WriteUserPlugin(fmt::format("\"--serve-once\", \"{}\"", go));
  node_->Start();
  node_->WaitState("nfs", PluginState::kStarting);
  node_->Wait("nfs", [](const PluginSnapshot& plugin) { return plugin.pid != 0; });
  // An operator's mistake: by itself berthd lets no other user in.
  ASSERT_EQ(chmod(RunDir("nfs").c_str(), 0777), 0);
  const pid_t server = Serve(kOther);
  const PluginSnapshot plugin = WaitForeign(server);
  EXPECT_EQ(plugin.state, PluginState::kStarting);
  EXPECT_FALSE(plugin.ready);
  EXPECT_FALSE(plugin.registered);
  EXPECT_THAT(plugin.reason, HasSubstr(fmt::format("of uid {}", kOther)));
  EXPECT_THAT(node_->Events(), Contains("plugin.foreign_socket"));
  EXPECT_TRUE(node_->prober_.appeared_.empty()) << "no call was sent there";
  // Once the plugin serves it itself, it is used, without a restart.
  const UniqueFd serve(open(go.c_str(), O_RDWR | O_CLOEXEC));
  const PluginSnapshot ready = node_->WaitRegistered("nfs");
  EXPECT_EQ(ready.pid, plugin.pid);
  EXPECT_THAT(ready.reason, Not(HasSubstr("served by")));
}

// For instance, a person runs the plugin by hand meanwhile. Without a cgroup it looks like the plugin.
TEST_F(SupervisorUserTest, AnotherProcessOfItsUserIsNotThePluginWhereThatIsKnown) {
  WriteUserPlugin("\"--no-socket\"");
  node_->Start();
  node_->Wait("nfs", [](const PluginSnapshot& plugin) { return plugin.pid != 0; });
  ASSERT_EQ(chmod(temp_.Path("run/plugins").c_str(), 0711), 0);
  const pid_t server = Serve(kPlugins);
  if (node_->Get("nfs").placement.starts_with("none")) {
    node_->WaitRegistered("nfs");
  } else {
    EXPECT_FALSE(WaitForeign(server).registered);
  }
}

TEST_F(SupervisorUserTest, AChildOfItsLauncherServes) {
  WriteUserPlugin("/bin/sh", fmt::format("\"-c\", \"'{}' & wait\"", Program()));
  node_->Start();
  node_->WaitRegistered("nfs");
  ASSERT_TRUE(node_->Stop("nfs").ok());
  ReapOrphans();
  WriteUserPlugin("/bin/sh", fmt::format("\"-c\", \"setsid '{}' & wait\"", Program()));
  ASSERT_TRUE(node_->StartPlugin("nfs").ok());
  node_->WaitRegistered("nfs");
  const absl::Status stopped = node_->Stop("nfs", true);
  EXPECT_TRUE(stopped.ok()) << stopped;
  ReapOrphans();
}

// Root serves it for the plugin: a container engine, say.
TEST_F(SupervisorUserTest, WhatRootServesIsUsed) {
  WriteUserPlugin("\"--no-socket\"");
  node_->Start();
  node_->Wait("nfs", [](const PluginSnapshot& plugin) { return plugin.pid != 0; });
  Serve(0);
  node_->WaitRegistered("nfs");
}

}  // namespace
}  // namespace berth
