// berthd killed while a plugin is in the middle of each RPC, and pids that another process has by the time
// berthd comes back (FAULTS rows 16 and 17). At each write of berthd's own: mounter/mounter_crash_test.cc; at
// random moments: crash_test.cc.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using testing::HasSubstr;

// A request of a caller that ends before the answer.
class Orphaned {
 public:
  template <class Request>
  Orphaned(const std::string& socket, Request request)
      : thread_([socket, request] { Call(socket, request); }) {}
  ~Orphaned() { Join(); }
  Orphaned(const Orphaned&) = delete;
  Orphaned& operator=(const Orphaned&) = delete;
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  static std::unique_ptr<v1::Node::Stub> Stub(const std::string& socket) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::Node::NewStub(
        grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
  }
  static void Call(const std::string& socket, const v1::PublishVolumeRequest& request) {
    v1::PublishVolumeResponse response;
    (void)Stub(socket)->PublishVolume(Node::Context().get(), request, &response);
  }
  static void Call(const std::string& socket, const v1::UnpublishVolumeRequest& request) {
    v1::UnpublishVolumeResponse response;
    (void)Stub(socket)->UnpublishVolume(Node::Context().get(), request, &response);
  }

  std::thread thread_;
};

struct Boundary {
  const char* rpc;
  const char* when;
  bool answers_late;  // the plugin's call ends only after berthd is back
};

class FaultCrashTest : public FaultTest, public testing::WithParamInterface<Boundary> {
 protected:
  // Kills berthd while the plugin is at the boundary, and starts it again. The plugin is taken back.
  template <class Request>
  void KillDuring(const Request& request) {
    const pid_t plugin = Get().pid();
    const Boundary& boundary = GetParam();
    fault_.Play({std::string("rpc = \"") + boundary.rpc + "\"\nwhen = \"" + boundary.when +
                 "\"\naction = \"hang\"\ncall = 1"});
    Orphaned call(node_.socket(), request);
    fault_.WaitActed(boundary.rpc);
    node_.Kill();
    call.Join();
    if (!boundary.answers_late) fault_.Play();
    node_.Start();
    if (boundary.answers_late) fault_.Play();
    EXPECT_EQ(node_.WaitReady(fault_.id()).pid(), plugin) << "taken back";
  }
  void WaitReleased() {
    WaitFor("nothing but the bystander's volume is left",
            [this] { return node_.Volumes().volumes_size() == 1; });
  }
};

using FaultCrashInPublishTest = FaultCrashTest;
using FaultCrashInUnpublishTest = FaultCrashTest;

std::string NameOf(const testing::TestParamInfo<Boundary>& info) {
  return std::string(info.param.when) + info.param.rpc + (info.param.answers_late ? "Late" : "");
}

TEST_P(FaultCrashInPublishTest, Fault16BerthdKilledInAPublishEndsInTheSameState) {
  StartReady();
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer("job");
  (*request.mutable_secrets())["password"] = kSecret;
  KillDuring(request);
  const std::string target = Publish(volume, "job");
  EXPECT_EQ(Publish(volume, "job"), target);
  Unpublish(volume, "job");
  WaitReleased();
}

// Without secrets no caller has to repeat it.
TEST_P(FaultCrashInPublishTest, Fault16WhatNeedsNoSecretsIsRepeatedUnasked) {
  StartReady();
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer("job");
  KillDuring(request);
  WaitFor("it is published, or undone", [&] {
    const v1::ListVolumesResponse all = node_.Volumes();
    for (const v1::Volume& known : all.volumes()) {
      if (known.volume_id() == volume) return known.state() == v1::PUBLISHED && !known.uncertain();
    }
    return true;
  });
  Publish(volume, "job");
  Unpublish(volume, "job");
  WaitReleased();
}

TEST_P(FaultCrashInUnpublishTest, Fault16BerthdKilledInAnUnpublishGoesOnUnasked) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer("job");
  Forget(volume, "job");
  KillDuring(request);
  Unpublish(volume, "job");
  WaitReleased();
  const std::vector<std::string> mounts = node_.Mounts();
  EXPECT_EQ(std::count(mounts.begin(), mounts.end(), target), 0);
  ExpectWorks("w");
}

INSTANTIATE_TEST_SUITE_P(Publish, FaultCrashInPublishTest,
                         testing::Values(Boundary{"NodeStageVolume", "before", false},
                                         Boundary{"NodeStageVolume", "before", true},
                                         Boundary{"NodeStageVolume", "after", false},
                                         Boundary{"NodeStageVolume", "after", true},
                                         Boundary{"NodePublishVolume", "before", false},
                                         Boundary{"NodePublishVolume", "before", true},
                                         Boundary{"NodePublishVolume", "after", false},
                                         Boundary{"NodePublishVolume", "after", true}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Unpublish, FaultCrashInUnpublishTest,
                         testing::Values(Boundary{"NodeUnpublishVolume", "before", false},
                                         Boundary{"NodeUnpublishVolume", "before", true},
                                         Boundary{"NodeUnpublishVolume", "after", false},
                                         Boundary{"NodeUnpublishVolume", "after", true},
                                         Boundary{"NodeUnstageVolume", "before", false},
                                         Boundary{"NodeUnstageVolume", "before", true},
                                         Boundary{"NodeUnstageVolume", "after", false},
                                         Boundary{"NodeUnstageVolume", "after", true}),
                         NameOf);

class FaultAwayTest : public FaultTest {
 protected:
  // Starts berthd on what `change` made of the node while it was away, and ends the plugin meanwhile.
  pid_t EndBoth() {
    const pid_t plugin = Get().pid();
    node_.Kill();
    EXPECT_EQ(kill(plugin, SIGKILL), 0);
    EXPECT_EQ(waitpid(plugin, nullptr, 0), plugin);  // It was left to us.
    return plugin;
  }
  [[nodiscard]] std::string RunToml() const {
    return node_.runtime_dir() + "/plugins/" + fault_.id() + "/run.toml";
  }
};

// A process that is not Berth's: the plugin's own program, to be as like it as can be,
// with a script and a history of its own. `pid`: the one that it is to have.
class OtherProcess {
 public:
  OtherProcess(const std::string& directory, pid_t pid) : history_(directory + "/other.history") {
    const std::string script = directory + "/other.toml";
    std::ofstream(script) << "[[rule]]\nname = \"idle\"\nrpc = \"start\"\naction = \"hang\"\n";
    const std::string socket = directory + "/other.sock";
    const char* const argv[] = {
        BERTH_FAULT_PLUGIN, "--script",  script.c_str(), "--history",   history_.c_str(),  "--endpoint",
        socket.c_str(),     "--node-id", "other",        "--state-dir", directory.c_str(), nullptr};
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    if (pid > 0) {
      arguments.set_tid = reinterpret_cast<uintptr_t>(&pid);
      arguments.set_tid_size = 1;
    }
    pid_ = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
    if (pid_ == 0) {
      execv(argv[0], const_cast<char* const*>(argv));
      _exit(127);
    }
    error_ = errno;
  }
  ~OtherProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] std::string History() const {
    const std::ifstream in(history_);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void ExpectUntouched() const {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WNOHANG | WUNTRACED), 0) << "it was ended or stopped";
    EXPECT_EQ(History().find("\"signal\""), std::string::npos) << History();
  }

 private:
  std::string history_;
  pid_t pid_ = -1;
  int error_ = 0;
};

TEST_F(FaultAwayTest, Fault17ARecordThatNamesAStrangersPidIsNotBelieved) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  EndBoth();
  const OtherProcess other(node_.dir(), 0);
  ASSERT_GT(other.pid(), 0);
  WaitFor("the other process runs", [&] { return other.History().find("idle") != std::string::npos; });
  std::ostringstream record;
  {
    std::ifstream in(RunToml());
    for (std::string line; std::getline(in, line);) {
      record << (line.starts_with("pid ") ? "pid = " + std::to_string(other.pid()) : line) << "\n";
    }
  }
  std::ofstream(RunToml()) << record.str();
  ASSERT_THAT(record.str(), HasSubstr(std::to_string(other.pid())));

  node_.Start();
  EXPECT_NE(node_.WaitReady(fault_.id()).pid(), other.pid());
  other.ExpectUntouched();
  Unpublish(volume, "job");
  EXPECT_TRUE(StopPlugin(fault_.id()).ok());
  other.ExpectUntouched();
}

TEST_F(FaultAwayTest, Fault17APidThatTheKernelGaveToAStrangerIsNeitherSignalledNorAdopted) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  const pid_t plugin = EndBoth();
  const OtherProcess other(node_.dir(), plugin);
  if (other.pid() < 0 && other.error() == EPERM)
    GTEST_SKIP() << "the kernel does not let us choose a pid here (CAP_CHECKPOINT_RESTORE)";
  ASSERT_EQ(other.pid(), plugin) << strerror(other.error());
  WaitFor("the other process runs", [&] { return other.History().find("idle") != std::string::npos; });
  node_.Start();
  EXPECT_NE(node_.WaitReady(fault_.id()).pid(), plugin);
  WaitEvent("plugin.not_adopted");
  other.ExpectUntouched();
  Unpublish(volume, "job");
  EXPECT_TRUE(StopPlugin(fault_.id()).ok());
  other.ExpectUntouched();
}

TEST_F(FaultAwayTest, Fault16APluginThatIsJustStartingIsTakenBack) {
  fault_.Play({"rpc = \"start\"\naction = \"hang\""});
  StartNode();
  const pid_t plugin = fault_.WaitActed("start").pid;
  node_.Kill();
  node_.Start();
  fault_.Play();
  EXPECT_EQ(node_.WaitReady(fault_.id()).pid(), plugin);
  EXPECT_EQ(fault_.Count([](const FaultEvent& e) { return e.event == "start"; }), 1);
  ExpectWorks("v");
}

}  // namespace
}  // namespace berth
