#include "tests/harness/reboot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <stdexcept>

namespace berth {
namespace {

constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";

}  // namespace

Reboot::Reboot(Node& node, Ending ending) {
  std::vector<pid_t> plugins;
  v1::ListPluginsResponse list;
  EXPECT_TRUE(node.stub().ListPlugins(Node::Context().get(), {}, &list).ok());
  for (const v1::Plugin& plugin : list.plugins()) {
    if (plugin.pid() > 0) plugins.push_back(plugin.pid());
  }
  if (ending == Ending::kOrderly) {
    node.Stop();
  } else {
    node.Kill();
  }
  for (const pid_t pid : plugins) {
    kill(pid, SIGKILL);
    // An orphan of berthd's, and so our child by now.
    waitpid(pid, nullptr, 0);
  }
  std::vector<std::string> mounts = node.Mounts();
  std::reverse(mounts.begin(), mounts.end());
  for (const std::string& path : mounts) {
    if (path != node.dir()) umount2(path.c_str(), MNT_DETACH);
  }
  static int boots = 0;
  const std::string file = node.dir() + "/boot_id";
  std::ofstream(file) << fmt::format("00000000-0000-4000-8000-{:012}\n", ++boots);
  if (mount(file.c_str(), kBootId, nullptr, MS_BIND, nullptr) != 0) {
    throw std::runtime_error("another boot id cannot be mounted");
  }
}

Reboot::~Reboot() { umount2(kBootId, MNT_DETACH); }

}  // namespace berth
