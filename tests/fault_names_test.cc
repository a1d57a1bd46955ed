// FAULTS row 58: a plugin's socket, or berthd's own, is deleted, or the tree of volumes is unmounted. It is
// noticed, reported, and put right.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "tests/harness/node.h"

namespace berth {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

UniqueFd ListenAt(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd.get(), 8), 0);
  return fd;
}

class FaultNamesTest : public testing::Test {
 protected:
  void SetUp() override {
    node_.WriteBerthdToml("[volumes]\nhealth_interval = \"1s\"\n");
    node_.WriteHostpath();
    std::ofstream(node_.dir() + "/etc/plugins.d/hostpath.toml", std::ios::app)
        << "[health]\ninterval = \"200ms\"\nreplace_after = \"1s\"\n";
    node_.Start();
    plugin_ = node_.WaitReady("hostpath");
  }
  [[nodiscard]] std::string PluginSocket() const {
    return node_.runtime_dir() + "/plugins/hostpath/csi.sock";
  }
  [[nodiscard]] std::string Tree() const { return node_.state_dir() + "/volumes"; }
  std::string NewVolume(const std::string& name) {
    v1::CreateVolumeRequest create;
    create.set_name(name);
    (*create.mutable_parameters())["kind"] = "directory";
    return node_.CreateVolume(create);
  }
  static v1::PublishVolumeRequest Use(const std::string& volume) {
    v1::PublishVolumeRequest use;
    use.set_plugin_id("hostpath");
    use.set_volume_id(volume);
    use.set_consumer("job");
    return use;
  }
  void ExpectReplacedOnce(const std::string& why) {
    node_.WaitPlugin("hostpath", "ill", [&](const v1::Plugin& plugin) {
      return plugin.state() == v1::UNHEALTHY && plugin.reason().find(why) != std::string::npos;
    });
    node_.WaitPlugin("hostpath", "another process", [&](const v1::Plugin& plugin) {
      return plugin.state() == v1::READY && plugin.registered() && plugin.pid() != plugin_.pid();
    });
  }

  Node node_;
  v1::Plugin plugin_;
};

TEST_F(FaultNamesTest, Fault58APluginWhoseSocketWasRemovedIsReplaced) {
  const std::string volume = NewVolume("v");
  ASSERT_EQ(unlink(PluginSocket().c_str()), 0);
  ExpectReplacedOnce("was removed");
  node_.Publish(Use(volume));
  node_.Unpublish(volume, "job");
}

TEST_F(FaultNamesTest, Fault58APluginWhoseSocketIsSomebodyElsesIsReplaced) {
  ASSERT_EQ(unlink(PluginSocket().c_str()), 0);
  const UniqueFd other = ListenAt(PluginSocket());
  ExpectReplacedOnce("is another file now");
}

TEST_F(FaultNamesTest, Fault58ASocketOfBerthdsThatWasRemovedIsMadeAnew) {
  const std::string only_read = node_.runtime_dir() + "/berthd-ro.sock";
  for (const std::string& path : {node_.socket(), only_read}) ASSERT_EQ(unlink(path.c_str()), 0);
  for (const std::string& path : {node_.socket(), only_read}) {
    WaitFor(path + " to be there again", [&] { return access(path.c_str(), F_OK) == 0; });
  }
  EXPECT_THAT(node_.log(), HasSubstr("node.socket_removed"));
  // Over a fresh connection.
  EXPECT_THAT(node_.Problems(), IsEmpty());
  EXPECT_EQ(node_.Plugin("hostpath").state(), v1::READY);
}

TEST_F(FaultNamesTest, Fault58WhatLiesInThePlaceOfBerthdsSocketIsNamedAndLeft) {
  const std::string only_read = node_.runtime_dir() + "/berthd-ro.sock";
  ASSERT_EQ(unlink(only_read.c_str()), 0);
  std::ofstream(only_read) << "mine";
  WaitFor("it to be named", [&] {
    const std::vector<std::string> problems = node_.Problems();
    return !problems.empty() && problems[0].find("berthd-ro.sock") != std::string::npos;
  });
  EXPECT_EQ(std::filesystem::file_size(only_read), 4);
  ASSERT_EQ(unlink(only_read.c_str()), 0);
  WaitFor("it to be well again", [&] { return node_.Problems().empty(); });
  EXPECT_TRUE(std::filesystem::is_socket(only_read));
}

TEST_F(FaultNamesTest, Fault58ATreeThatWasUnmountedIsMountedAnewAndWhatWasInItIsReleased) {
  const std::string before = NewVolume("before");
  node_.Publish(Use(before));
  ASSERT_EQ(std::system(fmt::format("umount -R -l {}", Tree()).c_str()), 0);
  const std::string after = NewVolume("after");
  const std::string target = node_.Publish(Use(after));
  EXPECT_THAT(node_.Mounts(), Contains(Tree()));
  EXPECT_THAT(node_.Mounts(), Contains(target));
  EXPECT_THAT(node_.log(), HasSubstr("tree.mounted_again"));
  WaitFor("what was lost to be seen", [&] {
    const v1::ListVolumesResponse list = node_.Volumes();
    for (const v1::Volume& volume : list.volumes()) {
      if (volume.volume_id() != before || volume.publications().empty()) continue;
      return volume.publications(0).uncertain();
    }
    return false;
  });
  node_.Unpublish(before, "job");
  node_.Unpublish(after, "job");
  node_.DeleteVolume(before);
  node_.DeleteVolume(after);
}

TEST_F(FaultNamesTest, Fault58UntilWhatIsMountedOverTheTreeHasGoneNothingBegins) {
  const std::string volume = NewVolume("v");
  ASSERT_EQ(mount("mine", Tree().c_str(), "tmpfs", 0, nullptr), 0);
  std::string target;
  const grpc::Status refused = node_.TryPublish(Use(volume), &target);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("something else is mounted over the tree of volumes"));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("is mounted over the tree")));
  ASSERT_EQ(umount(Tree().c_str()), 0);
  node_.Publish(Use(volume));
  EXPECT_THAT(node_.Problems(), Not(Contains(HasSubstr("is mounted over the tree"))));
  node_.Unpublish(volume, "job");
}

}  // namespace
}  // namespace berth
