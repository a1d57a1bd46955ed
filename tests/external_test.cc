// Plugins that berthd does not launch, on a whole node: berth-hostpath launched by the test itself, and
// seeing the tree of volumes at another place, as in a container.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/harness/node.h"

namespace berth {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class ExternalTest : public testing::Test {
 protected:
  ~ExternalTest() override { Kill(); }

  [[nodiscard]] std::string Socket() const { return node_.dir() + "/theirs/csi.sock"; }

  // `propagation`: in its own mount namespace, where all mounts have this propagation.
  void Launch(unsigned long propagation = 0) {
    ASSERT_TRUE(mkdir((node_.dir() + "/theirs").c_str(), 0755) == 0 || errno == EEXIST);
    const std::string endpoint = "unix://" + Socket();
    const std::string state = node_.dir() + "/theirs/state";
    // A server removes what its predecessor left.
    unlink(Socket().c_str());
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (propagation != 0 &&
        (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) != 0)) {
      _exit(126);
    }
    const int fd =
        open((node_.dir() + "/theirs/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execl(BERTH_HOSTPATH, BERTH_HOSTPATH, "--endpoint", endpoint.c_str(), "--node-id", "node-1",
          "--state-dir", state.c_str(), nullptr);
    _exit(127);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  std::string CreateDirectoryVolume(const std::string& name) {
    v1::CreateVolumeRequest request;
    request.set_plugin_id("ext");
    request.set_name(name);
    (*request.mutable_parameters())["kind"] = "directory";
    return node_.CreateVolume(request);
  }
  static v1::PublishVolumeRequest Use(const std::string& volume_id) {
    v1::PublishVolumeRequest request;
    request.set_plugin_id("ext");
    request.set_volume_id(volume_id);
    request.set_consumer("job");
    return request;
  }
  void Unpublish(const std::string& volume_id) {
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id("ext");
    request.set_volume_id(volume_id);
    request.set_consumer("job");
    v1::UnpublishVolumeResponse response;
    const auto context = Node::Context();
    const grpc::Status status = node_.stub().UnpublishVolume(context.get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  Node node_;
  pid_t pid_ = 0;
};

TEST_F(ExternalTest, ServesVolumesComesAndGoes) {
  node_.WritePlugin("ext", fmt::format("kind = \"monolith\"\nsocket = \"{}\"\n", Socket()));
  node_.Start();
  const v1::Plugin absent = node_.Plugin("ext");
  EXPECT_TRUE(absent.external());
  EXPECT_THAT(absent.reason(), HasSubstr("waits for its socket"));
  Launch();
  EXPECT_EQ(node_.WaitReady("ext").pid(), pid_);
  const std::string volume = CreateDirectoryVolume("v");
  const std::string target = node_.Publish(Use(volume));
  EXPECT_THAT(node_.Mounts(), Contains(target));

  // Its server is killed in the middle of it all: others start it again, and what was asked meanwhile is
  // done.
  Kill();
  node_.WaitPlugin("ext", "gone", [](const v1::Plugin& plugin) { return !plugin.alive(); });
  Launch();
  Unpublish(volume);
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
  EXPECT_EQ(node_.Plugin("ext").instance(), 2U);

  // The next berthd finds it again, and leaves it running.
  node_.Stop();
  EXPECT_EQ(waitpid(pid_, nullptr, WNOHANG), 0);
  node_.Start();
  EXPECT_EQ(node_.WaitReady("ext").pid(), pid_);
}

TEST_F(ExternalTest, IsNotReadyWhereItsMountsAreNotSeenHere) {
  node_.WritePlugin(
      "ext", fmt::format("kind = \"monolith\"\nsocket = \"{}\"\n[health]\ninterval = \"1s\"\n", Socket()));
  node_.Start();
  for (const auto& [propagation, why] : {std::pair{MS_PRIVATE, "since its mount there is private"},
                                         std::pair{MS_SLAVE, "is a slave (rslave)"}}) {
    Launch(static_cast<unsigned long>(propagation));
    node_.WaitPlugin("ext", "not ready", [&](const v1::Plugin& plugin) {
      return plugin.alive() && plugin.reason().find(why) != std::string::npos;
    });
    EXPECT_FALSE(node_.Plugin("ext").ready());
    EXPECT_EQ(node_.Plugin("ext").state(), v1::STARTING);
    Kill();
    node_.WaitPlugin("ext", "gone", [](const v1::Plugin& plugin) { return !plugin.alive(); });
  }
  Launch(MS_SHARED);
  node_.WaitReady("ext");
  const std::string volume = CreateDirectoryVolume("v");
  EXPECT_THAT(node_.Mounts(), Contains(node_.Publish(Use(volume))));
  Unpublish(volume);
}

TEST_F(ExternalTest, SeesTheTreeElsewhere) {
  const std::string elsewhere = node_.dir() + "/elsewhere";
  node_.WritePlugin("ext", fmt::format("kind = \"monolith\"\nsocket = \"{}\"\nvolumes_path = \"{}\"\n",
                                       Socket(), elsewhere));
  node_.Start();
  // berthd has made the tree, and made it shared, so that this is one more view of it.
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0755), 0);
  ASSERT_EQ(
      mount((node_.state_dir() + "/volumes").c_str(), elsewhere.c_str(), nullptr, MS_BIND | MS_REC, nullptr),
      0);
  Launch();
  node_.WaitReady("ext");
  const std::string volume = CreateDirectoryVolume("v");
  const std::string target = node_.Publish(Use(volume));
  const std::string tree = node_.state_dir() + "/volumes";
  ASSERT_TRUE(target.starts_with(tree + "/")) << target;
  // Mounted by the plugin at its own path, seen at ours.
  EXPECT_THAT(node_.Mounts(), Contains(target));
  EXPECT_THAT(node_.Mounts(), Contains(elsewhere + target.substr(tree.size())));
  Unpublish(volume);
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
  EXPECT_THAT(Node::Tree(tree), IsEmpty());
  EXPECT_EQ(umount2(elsewhere.c_str(), MNT_DETACH), 0);
}

// As a driver in a container does that binds its volumes for itself, and forgets one.
TEST_F(ExternalTest, Fault48WhatThePluginsOwnNamespaceKeepsIsHeld) {
  node_.WritePlugin("ext", fmt::format("kind = \"monolith\"\nsocket = \"{}\"\n", Socket()));
  node_.Start();
  Launch(MS_SHARED);
  node_.WaitReady("ext");
  v1::CreateVolumeRequest create;
  create.set_plugin_id("ext");
  create.set_name("v");
  create.set_required_bytes(16 << 20);
  create.add_capabilities()->set_fs_type("ext4");
  (*create.mutable_parameters())["kind"] = "image";
  const std::string volume = node_.CreateVolume(create);
  const std::string target = node_.Publish(Use(volume));
  const std::string kept = node_.dir() + "/kept";
  ASSERT_EQ(mkdir(kept.c_str(), 0755), 0);
  // In its namespace, and not in ours.
  const auto in_its_namespace = [&](const std::string& command) {
    return std::system(fmt::format("nsenter --mount --target {} -- sh -c '{}'", pid_, command).c_str()) == 0;
  };
  ASSERT_TRUE(in_its_namespace(fmt::format(
      "mount -t tmpfs --make-private none {0} && mkdir {0}/v && mount --bind {1} {0}/v", kept, target)));
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("ext");
  request.set_volume_id(volume);
  request.set_consumer("job");
  v1::UnpublishVolumeResponse response;
  const grpc::Status held =
      node_.stub().UnpublishVolume(Node::Context(std::chrono::seconds(5)).get(), request, &response);
  EXPECT_THAT(held.error_message(), HasSubstr(fmt::format("still used by pid {}", pid_)));
  EXPECT_THAT(held.error_message(), HasSubstr("mounted at " + kept + "/v"));
  EXPECT_EQ(node_.Volumes().volumes_size(), 1);
  ASSERT_TRUE(in_its_namespace(fmt::format("umount {}/v", kept)));
  WaitFor("the volume to be released", [&] { return node_.Volumes().volumes().empty(); });
}

}  // namespace
}  // namespace berth
