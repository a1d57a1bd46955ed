#include "tests/harness/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/sanitizer.h"
#include "base/testing/mount_namespace.h"
#include "base/testing/test_bound.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Ends the test: what follows a failed step would only be noise.
void Require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(fmt::format("{}: {}", what, strerror(errno)));
}

std::string ReadWhole(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Fails the test if a refusal that no repetition changes comes late: berthd has repeated something in vain.
// On gRPC's threads.
class RefusalTimer final : public grpc::experimental::Interceptor {
 public:
  explicit RefusalTimer(const grpc::experimental::ClientRpcInfo& call) : call_(call) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* step) override {
    using grpc::experimental::InterceptionHookPoints;
    if (step->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS))
      Check(*step->GetRecvStatus());
    step->Proceed();
  }

 private:
  static constexpr seconds kAtOnce{kAddressSanitizer ? 6 : 2};

  void Check(const grpc::Status& status) const {
    if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT &&
        status.error_code() != grpc::StatusCode::FAILED_PRECONDITION) {
      return;
    }
    const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began_);
    EXPECT_LT(took, kAtOnce) << call_.method() << " was refused for good after " << took.count()
                             << " ms: " << status.error_message();
  }

  const grpc::experimental::ClientRpcInfo& call_;
  const steady_clock::time_point began_ = steady_clock::now();
};

class RefusalTimerFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  // Of a stream the status says nothing about its beginning.
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo* call) override {
    const bool unary = call->type() == grpc::experimental::ClientRpcInfo::Type::UNARY;
    return unary ? new RefusalTimer(*call) : nullptr;
  }
};

bool HoldsWithin(const std::function<bool()>& condition, seconds bound) {
  const auto deadline = steady_clock::now() + bound;
  while (!condition()) {
    if (steady_clock::now() >= deadline) return false;
    poll(nullptr, 0, 5);  // A pause between two looks at something that has no event to wait for.
  }
  return true;
}

// Waits until `pid` has ended, under a bound, and reaps it.
int WaitExit(pid_t pid, seconds bound) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  Require(pidfd >= 0, "pidfd_open");
  pollfd wait{.fd = pidfd, .events = POLLIN};
  const int count = poll(&wait, 1, static_cast<int>(milliseconds(bound).count()));
  close(pidfd);
  Require(count == 1, fmt::format("process {} did not end within {} s", pid, bound.count()));
  int status = 0;
  Require(waitpid(pid, &status, 0) == pid, "waitpid");
  return status;
}

std::vector<pid_t> Children() {
  std::vector<pid_t> pids;
  std::istringstream in(ReadWhole(fmt::format("/proc/self/task/{}/children", getpid())));
  for (pid_t pid = 0; in >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

std::string ReadText(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void WaitFor(const std::string& what, const std::function<bool()>& condition, seconds bound) {
  if (HoldsWithin(condition, bound)) return;
  const std::string failure = fmt::format("waited {} s for: {}", bound.count(), what);
  ADD_FAILURE() << failure;
  throw std::runtime_error(failure);
}

void EnterOwnNamespaces() {
  Require(UnshareMounts(), "make a mount namespace: these tests need root");
  // In a chroot there may be no cgroup v2 hierarchy, without which what a plugin forks is not found.
  if (ReadWhole("/proc/self/mountinfo").find(" - cgroup2 ") == std::string::npos) {
    [[maybe_unused]] const int mounted = mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, nullptr);
  }
  Require(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
  // A hundred plugins and hundreds of peers take more descriptors than a shell's soft limit may allow.
  rlimit limit{};
  Require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "RLIMIT_NOFILE");
  limit.rlim_cur = limit.rlim_max;
  Require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "raise RLIMIT_NOFILE");
}

Node::Node(std::string node_id) : node_id_(std::move(node_id)) {
  std::string pattern = "/tmp/berth-node.XXXXXX";
  Require(mkdtemp(pattern.data()) != nullptr, "mkdtemp");
  dir_ = pattern;
  // On a tmpfs of the namespace's own: what a node makes is gone with it, and nothing has to be deleted.
  Require(mount("berth-test", dir_.c_str(), "tmpfs", 0, "mode=0755") == 0, "mount tmpfs");
  for (const char* name : {"/etc", "/etc/plugins.d"}) {
    Require(mkdir((dir_ + name).c_str(), 0755) == 0, "mkdir");
  }
  notify_fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = dir_ + "/notify.sock";
  std::copy(path.begin(), path.end(), address.sun_path);
  Require(bind(notify_fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind notify socket");
}

Node::~Node() {
  if (testing::Test::HasFailure()) std::cerr << "--- berthd's log ---\n" << log() << std::endl;
  // berthd first, so that it restarts none; then the plugins, which are ours as orphans.
  if (pid_ > 0) kill(pid_, SIGKILL);
  for (std::vector<pid_t> left = Children(); !left.empty(); left = Children()) {
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
      WaitExit(pid, kTestBound);
    }
  }
  close(notify_fd_);
  // Innermost first; a mount that a test left does not outlive its node.
  std::vector<std::string> mounts = Mounts();
  std::reverse(mounts.begin(), mounts.end());
  for (const std::string& path : mounts) umount2(path.c_str(), MNT_DETACH);
  rmdir(dir_.c_str());
  const auto no_loop_device = [this] {
    for (const auto& entry : std::filesystem::directory_iterator("/sys/block")) {
      const std::string backing = ReadWhole((entry.path() / "loop/backing_file").string());
      if (backing.starts_with(dir_)) return false;
    }
    return true;
  };
  EXPECT_TRUE(HoldsWithin(no_loop_device, kTestBound)) << "a loop device is left on " << dir_;
}

void Node::WritePlugin(const std::string& id, const std::string& toml) {
  std::ofstream(fmt::format("{}/etc/plugins.d/{}.toml", dir_, id)) << toml;
}

void Node::WriteHostpath(const std::vector<std::string>& arguments) {
  std::string more;
  for (const std::string& argument : arguments) more += fmt::format(", \"{}\"", argument);
  WritePlugin("hostpath", fmt::format(R"(id = "hostpath"
kind = "monolith"
command = "{}"
args = ["--endpoint", "${{CSI_ENDPOINT}}", "--node-id", "${{BERTH_NODE_ID}}",
        "--state-dir", "${{BERTH_PLUGIN_DIR}}"{}]
)",
                                      BERTH_HOSTPATH, more));
}

void Node::WriteBerthdToml(const std::string& toml) { std::ofstream(dir_ + "/etc/berthd.toml") << toml; }

pid_t Node::Launch() const {
  const std::string config = dir_ + "/etc";
  const std::string state = state_dir();
  const std::string runtime = runtime_dir();
  const std::string notify = "NOTIFY_SOCKET=" + dir_ + "/notify.sock";
  const std::string log_path = dir_ + "/berthd.log";
  std::vector<std::string> arguments = wrapper_;
  arguments.insert(arguments.end(), {BERTHD, "--config", config, "--state-dir", state, "--runtime-dir",
                                     runtime, "--node-id", node_id_});
  // Where this test runs is not where PID 1 would look.
  if (private_mounts_) arguments.emplace_back("--allow-private-mounts");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment = {notify, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment.push_back(fmt::format("{}={}", name, value));
  }
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);

  const pid_t pid = fork();
  Require(pid >= 0, "fork");
  if (pid == 0) {
    const int fd = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    close_range(3, ~0U, 0);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  return pid;
}

void Node::Start() {
  Begin();
  AwaitReady();
}

void Node::Begin() {
  // What an earlier one said, and no test waited for.
  [[maybe_unused]] const auto& old = Notified();
  notified_.clear();
  pid_ = Launch();
  ready_ = false;
}

void Node::AwaitReady() {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  const auto deadline = steady_clock::now() + kTestBound;
  while (!ready_) {
    pollfd waits[] = {{.fd = notify_fd_, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    const int count = poll(waits, 2, std::max(0, static_cast<int>(left.count())));
    if (count <= 0 || (waits[1].revents != 0 && waits[0].revents == 0)) {
      std::cerr << log() << std::endl;
      Require(false, count <= 0 ? "berthd was not ready in time" : "berthd ended before it was ready");
    }
    char message[4096];
    const ssize_t size = recv(notify_fd_, message, sizeof message, 0);
    if (size <= 0) continue;
    notified_.emplace_back(message, static_cast<size_t>(size));
    ready_ = notified_.back().find("READY=1") != std::string::npos;
  }
  close(pidfd);
}

const std::vector<std::string>& Node::Notified() {
  char message[4096];
  ssize_t size = 0;
  while ((size = recv(notify_fd_, message, sizeof message, MSG_DONTWAIT)) >= 0) {
    notified_.emplace_back(message, static_cast<size_t>(size));
  }
  return notified_;
}

void Node::Reload() {
  const size_t before = Notified().size();
  Require(kill(pid_, SIGHUP) == 0, "SIGHUP to berthd");
  WaitFor("berthd to be done with reloading", [this, before] {
    const auto& said = Notified();
    return said.size() >= before + 2 && said.back().find("READY=1") != std::string::npos;
  });
}

int Node::RunAnother() {
  const int status = WaitExit(Launch(), kTestBound);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void Node::Kill() {
  // The number of none would mean every process there is.
  Require(pid_ > 0 && kill(pid_, SIGKILL) == 0, "kill berthd");
  WaitExit(std::exchange(pid_, -1), kTestBound);
  stub_.reset();
  channel_.reset();
}

void Node::Stop() {
  BeginStop();
  AwaitStopped();
}

void Node::BeginStop() { Require(pid_ > 0 && kill(pid_, SIGTERM) == 0, "terminate berthd"); }

void Node::AwaitStopped() {
  const int status = WaitExit(std::exchange(pid_, -1), kTestBound);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
  stub_.reset();
  channel_.reset();
}

v1::Node::Stub& Node::stub() {
  if (!stub_) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
    if (!late_refusals_) interceptors.push_back(std::make_unique<RefusalTimerFactory>());
    channel_ = grpc::experimental::CreateCustomChannelWithInterceptors(
        "unix:" + socket(), grpc::InsecureChannelCredentials(), arguments, std::move(interceptors));
    stub_ = v1::Node::NewStub(channel_);
  }
  return *stub_;
}

std::unique_ptr<grpc::ClientContext> Node::Context(milliseconds timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + timeout);
  return context;
}

v1::Plugin Node::Plugin(const std::string& id) {
  v1::GetPluginRequest request;
  request.set_id(id);
  v1::Plugin plugin;
  const grpc::Status status = stub().GetPlugin(Context().get(), request, &plugin);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return plugin;
}

v1::Plugin Node::WaitPlugin(const std::string& id, const std::string& what,
                            const std::function<bool(const v1::Plugin&)>& predicate) {
  v1::Plugin plugin;
  WaitFor("plugin " + id + ": " + what, [&] {
    plugin = Plugin(id);
    return predicate(plugin);
  });
  return plugin;
}

v1::Plugin Node::WaitReady(const std::string& id) {
  return WaitPlugin(id, "ready and registered",
                    [](const v1::Plugin& plugin) { return plugin.ready() && plugin.registered(); });
}

v1::ListVolumesResponse Node::Volumes() {
  v1::ListVolumesResponse all;
  v1::ListVolumesRequest request;
  do {
    v1::ListVolumesResponse page;
    const grpc::Status status = stub().ListVolumes(Context().get(), request, &page);
    EXPECT_TRUE(status.ok()) << status.error_message();
    request.set_page_token(page.next_page_token());
    all.mutable_volumes()->MergeFrom(page.volumes());
  } while (!request.page_token().empty());
  return all;
}

std::vector<std::string> Node::Problems() {
  v1::GetStatusResponse response;
  const grpc::Status status = stub().GetStatus(Context().get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.problems().begin(), response.problems().end()};
}

std::string Node::CreateVolume(v1::CreateVolumeRequest request) {
  if (request.plugin_id().empty()) request.set_plugin_id("hostpath");
  if (request.capabilities().empty()) request.add_capabilities();
  v1::CreateVolumeResponse response;
  const grpc::Status status = stub().CreateVolume(Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.volume_id();
}

grpc::Status Node::TryPublish(const v1::PublishVolumeRequest& request, std::string* target) {
  v1::PublishVolumeResponse response;
  grpc::Status status = stub().PublishVolume(Context().get(), request, &response);
  *target = response.target_path();
  return status;
}

std::string Node::Publish(const v1::PublishVolumeRequest& request) {
  std::string target;
  const grpc::Status status = TryPublish(request, &target);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return target;
}

void Node::Unpublish(const std::string& volume_id, const std::string& consumer) {
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume_id);
  request.set_consumer(consumer);
  v1::UnpublishVolumeResponse response;
  const grpc::Status status = stub().UnpublishVolume(Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

void Node::DeleteVolume(const std::string& volume_id) {
  v1::DeleteVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume_id);
  v1::DeleteVolumeResponse response;
  const grpc::Status status = stub().DeleteVolume(Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

std::string Node::log() const { return ReadWhole(dir_ + "/berthd.log"); }

std::string Node::CommandAs(uid_t uid, const std::string& program) const {
  const std::string copy = dir_ + "/" + std::filesystem::path(program).filename().string();
  if (!std::filesystem::exists(copy)) std::filesystem::copy_file(program, copy);
  Require(chmod(dir_.c_str(), 0755) == 0 && chmod(copy.c_str(), 0755) == 0, "chmod");
  return fmt::format("setpriv --reuid {0} --regid {0} --clear-groups {1} ", uid, copy);
}

std::vector<std::string> Node::Mounts() const {
  std::vector<std::string> mounts;
  std::istringstream in(ReadWhole("/proc/self/mountinfo"));
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string field;
    for (int i = 0; i < 5; ++i) fields >> field;
    if (field.starts_with(dir_)) mounts.push_back(field);
  }
  return mounts;
}

std::vector<std::string> Node::Tree(const std::string& directory) {
  std::vector<std::string> names;
  struct stat root{};
  if (stat(directory.c_str(), &root) != 0) return names;
  // The node works meanwhile: what goes before it is read is not in the list.
  std::vector<std::string> directories = {directory};
  while (!directories.empty()) {
    const std::string parent = std::move(directories.back());
    directories.pop_back();
    std::error_code error;
    for (std::filesystem::directory_iterator it(parent, error), end; !error && it != end;
         it.increment(error)) {
      const std::string path = it->path().string();
      struct stat info{};
      if (lstat(path.c_str(), &info) != 0) continue;
      names.push_back(path.substr(directory.size() + 1));
      if (S_ISDIR(info.st_mode) && info.st_dev == root.st_dev) directories.push_back(path);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace berth
