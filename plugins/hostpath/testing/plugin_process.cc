#include "plugins/hostpath/testing/plugin_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/testing/mount_namespace.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

namespace fs = std::filesystem;

// Removes files and directories one by one, the deepest first, and stops at whatever does not go.
void RemoveOneByOne(const std::string& path) {
  std::vector<fs::path> paths = {path};
  for (const auto& entry : fs::recursive_directory_iterator(path)) paths.push_back(entry.path());
  for (auto it = paths.rbegin(); it != paths.rend(); ++it) {
    std::error_code error;
    fs::remove(*it, error);
    if (error) {
      ADD_FAILURE() << "left behind: " << *it << ": " << error.message();
      return;
    }
  }
}

}  // namespace

void EnterPrivateMountNamespace() { ASSERT_TRUE(UnshareMounts()) << "these tests need root"; }

Workplace::Workplace() {
  std::string pattern = "/tmp/berth-hostpath-test-XXXXXX";
  path_ = mkdtemp(pattern.data());
  mkdir((path_ + "/targets").c_str(), 0755);
}

Workplace::~Workplace() {
  EXPECT_TRUE(MountsBeneath(path_).empty()) << "still mounted: " << MountsBeneath(path_).front();
  EXPECT_TRUE(LoopsBeneath(path_).empty()) << "still attached: " << LoopsBeneath(path_).front();
  if (MountsBeneath(path_).empty()) RemoveOneByOne(path_);
}

std::string Workplace::NewStagingPath(const std::string& name) const {
  std::string path = path_ + "/staging-" + name;
  EXPECT_EQ(mkdir(path.c_str(), 0755), 0);
  return path;
}

std::vector<std::string> MountsBeneath(const std::string& path) {
  std::vector<std::string> found;
  std::ifstream table("/proc/self/mountinfo");
  for (std::string line; std::getline(table, line);) {
    if (line.find(" " + path + "/") != std::string::npos) found.push_back(line);
  }
  return found;
}

std::vector<std::string> LoopsBeneath(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/sys/block")) {
    const auto backing = ReadFile((entry.path() / "loop/backing_file").string(), 8192);
    if (backing.ok() && backing->starts_with(path + "/")) found.push_back(entry.path().filename().string());
  }
  return found;
}

PluginProcess::~PluginProcess() {
  if (pid_ > 0) Kill();
}

void PluginProcess::Spawn(const std::vector<std::string>& arguments) {
  std::vector<std::string> copies = wrapper_;
  copies.emplace_back(BERTH_HOSTPATH_BINARY);
  copies.insert(copies.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(copies.size() + 1);
  for (std::string& copy : copies) argv.push_back(copy.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    execv(argv[0], argv.data());
    _exit(126);
  }
}

void PluginProcess::Start(std::vector<std::string> extra, const std::string& node_id) {
  const std::string socket = workplace_.Socket();
  unlink(socket.c_str());
  const UniqueFd watch(inotify_init1(IN_CLOEXEC));
  inotify_add_watch(watch.get(), workplace_.path().c_str(), IN_MOVED_TO);
  std::vector<std::string> arguments = {"--endpoint",  "unix://" + socket,    "--node-id",   node_id,
                                        "--state-dir", workplace_.StateDir(), "--log-level", "warning"};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  Spawn(arguments);
  // The socket appears by a rename, which is an event; nothing else is renamed into this directory.
  pollfd wait{watch.get(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 20'000), 1) << "the plugin's socket did not appear";
  ASSERT_EQ(access(socket.c_str(), F_OK), 0);
  auto channel = grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials());
  identity_ = ::csi::v1::Identity::NewStub(channel);
  controller_ = ::csi::v1::Controller::NewStub(channel);
  node_ = ::csi::v1::Node::NewStub(channel);
}

int PluginProcess::RunToItsEnd(const std::vector<std::string>& arguments) {
  Spawn(arguments);
  return Reap();
}

int PluginProcess::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void PluginProcess::Kill() {
  kill(pid_, SIGKILL);
  Reap();
}

int PluginProcess::Terminate() {
  kill(pid_, SIGTERM);
  return Reap();
}

}  // namespace berth::hostpath
