// A client in another language on the node's socket for readers: many small calls and a long watch.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/harness/node.h"

namespace berth {
namespace {

TEST(PythonClientTest, ManyCallsAndALongWatchAreServedWithoutACut) {
  constexpr int kReaders = 4242;
  Node node;
  node.WriteBerthdToml(fmt::format("[access]\nread_group = {}\n", kReaders));
  node.WriteHostpath();
  node.Start();
  node.WaitReady("hostpath");
  // So that the user nobody reaches the socket.
  for (const std::string& directory : {node.dir(), node.runtime_dir()}) {
    ASSERT_EQ(chmod(directory.c_str(), 0755), 0) << directory;
  }
  const std::string said = node.dir() + "/said";
  const std::string socket = node.runtime_dir() + "/berthd-ro.sock";
  const std::string group = std::to_string(kReaders);
  const pid_t client = fork();
  ASSERT_GE(client, 0);
  if (client == 0) {
    const int out = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    setenv("PYTHONPATH", BERTH_PYTHON_MODULES, 1);
    execl("/usr/bin/python3", "python3", BERTH_PYTHON_CLIENT, socket.c_str(), group.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = -1;
  bool ended = false;
  const auto has_ended = [&] { return ended = ended || waitpid(client, &status, WNOHANG) == client; };
  WaitFor(
      "the calls", [&] { return ReadText(said).find("called") != std::string::npos || has_ended(); },
      std::chrono::seconds(120));
  v1::StopPluginRequest stop;
  stop.set_id("hostpath");
  v1::Plugin plugin;
  EXPECT_TRUE(node.stub().StopPlugin(Node::Context().get(), stop, &plugin).ok());
  WaitFor("the client to end", has_ended, std::chrono::seconds(90));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << ReadText(said);
}

}  // namespace
}  // namespace berth
