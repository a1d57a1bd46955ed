// main of the supervisor's tests. With "--berthd ROOT STEPS" it is a berthd of nothing but a supervisor,
// which kills itself after so many steps of its loop, or ends well once its plugin "nfs" is registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "supervisor/testing/supervisor_fixture.h"

namespace {

[[noreturn]] void BeBerthd(const std::string& root, int steps) {
  berth::Node node(root);
  const auto started = berth::asio::co_spawn(node.loop_, node.supervisor_->Start(), berth::asio::use_future);
  for (int i = 0; i < steps; ++i) {
    node.loop_.run_one_for(std::chrono::seconds(5));
    const berth::PluginSnapshot* plugin = node.supervisor_->registry().Find("nfs");
    if (plugin != nullptr && plugin->registered) _exit(0);
  }
  kill(getpid(), SIGKILL);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--berthd") BeBerthd(argv[2], std::atoi(argv[3]));
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
