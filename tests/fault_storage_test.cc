// Storage and drivers in trouble beneath a volume (FAULTS rows 55, 57): file systems that were shut down or
// became read-only, disks and plugins that are gone, on a whole node, with berth-hostpath and real loop
// devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "tests/harness/node.h"

namespace berth {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class FaultStorageTest : public testing::Test {
 protected:
  void SetUp() override {
    node_.WriteBerthdToml("[volumes]\nhealth_interval = \"1s\"\nrpc_timeout = \"5s\"\n");
    node_.WriteHostpath();
    node_.Start();
    node_.WaitReady("hostpath");
  }
  // Publishes a new volume with a file system of its own, or a raw one, for "job".
  void PublishNew(bool block) {
    block_ = block;
    v1::CreateVolumeRequest create;
    create.set_name("v");
    create.set_required_bytes(16 << 20);
    if (block) {
      create.add_capabilities()->set_access_type(v1::BLOCK);
    } else {
      (*create.mutable_parameters())["kind"] = "image";
      create.add_capabilities()->set_fs_type("ext4");
    }
    volume_ = node_.CreateVolume(create);
    target_ = node_.Publish(Use("job"));
  }
  [[nodiscard]] v1::PublishVolumeRequest Use(const std::string& consumer, bool readonly = false) const {
    v1::PublishVolumeRequest use;
    use.set_plugin_id("hostpath");
    use.set_volume_id(volume_);
    use.set_consumer(consumer);
    use.set_readonly(readonly);
    if (block_) use.mutable_capability()->set_access_type(v1::BLOCK);
    return use;
  }
  void WaitUse(const std::string& what, const std::function<bool(const v1::Publication&)>& condition) {
    WaitFor(what, [&] {
      const auto listed = node_.Volumes();
      return listed.volumes_size() == 1 && listed.volumes(0).publications_size() == 1 &&
             condition(listed.volumes(0).publications(0));
    });
  }
  void ExpectRefused(const v1::PublishVolumeRequest& use, const std::string& why) {
    std::string target;
    const grpc::Status refused = node_.TryPublish(use, &target);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << refused.error_message();
    EXPECT_THAT(refused.error_message(), HasSubstr(why));
  }
  // Ordinary steps release it.
  void ExpectReleased() {
    node_.Unpublish(volume_, "job");
    WaitFor("released", [this] { return node_.Volumes().volumes_size() == 0; });
    EXPECT_THAT(node_.Mounts(), testing::Not(Contains(HasSubstr("/target"))));
    EXPECT_THAT(node_.Problems(), IsEmpty());
  }
  // The loop device that the target shows, or lies on.
  [[nodiscard]] dev_t Device() const {
    struct stat info{};
    EXPECT_EQ(stat(target_.c_str(), &info), 0);
    return block_ ? info.st_rdev : info.st_dev;
  }

  Node node_;
  bool block_ = false;
  std::string volume_;
  std::string target_;
};

TEST_F(FaultStorageTest, Fault55AFileSystemThatWasShutDownIsSeenAndReleased) {
  PublishNew(false);
  {
    const unsigned long request = _IOR('X', 125, uint32_t);  // EXT4_IOC_SHUTDOWN
    uint32_t without_log = 2;
    const UniqueFd root(open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(ioctl(root.get(), request, &without_log), 0);
  }
  WaitUse("dead",
          [](const v1::Publication& use) { return use.dead().find("shut down") != std::string::npos; });
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("is dead")));
  ExpectRefused(Use("other"), "shut down");
  ExpectRefused(Use("reader", true), "shut down");
  ExpectRefused(Use("job"), "shut down");
  ExpectReleased();
}

TEST_F(FaultStorageTest, Fault55AFileSystemThatBecameReadOnlyIsSeenAndNotWrittenAnew) {
  PublishNew(false);
  ASSERT_EQ(mount(nullptr, target_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  WaitUse("read-only", [](const v1::Publication& use) { return !use.writes_refused().empty(); });
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("refuses writes")));
  ExpectRefused(Use("other"), "read-only");
  ExpectRefused(Use("job"), "read-only");
  // Who only wants to read may.
  ASSERT_FALSE(node_.Publish(Use("reader", true)).empty());
  node_.Unpublish(volume_, "reader");
  ASSERT_EQ(mount(nullptr, target_.c_str(), nullptr, MS_REMOUNT, nullptr), 0);
  WaitUse("well again", [](const v1::Publication& use) { return use.writes_refused().empty(); });
  ASSERT_EQ(mount(nullptr, target_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  ExpectReleased();
}

TEST_F(FaultStorageTest, Fault55ADiskThatIsGoneIsSeenAndNobodyElsesIsHandedOut) {
  PublishNew(true);
  const dev_t device = Device();
  const std::string loop = fmt::format("/dev/loop{}", minor(device));
  ASSERT_EQ(system(fmt::format("losetup --detach {}", loop).c_str()), 0);
  WaitUse("dead",
          [](const v1::Publication& use) { return use.dead().find("detached") != std::string::npos; });
  ExpectRefused(Use("other"), "was detached");
  ExpectReleased();
}

TEST_F(FaultStorageTest, Fault57AVolumeIsReleasedWithoutItsPluginAndUndoneWhenThatIsBack) {
  PublishNew(false);
  // While it runs, berthd takes it back, and undoes everything with it.
  const auto pid = static_cast<pid_t>(node_.Plugin("hostpath").pid());
  node_.Stop();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const std::string file = node_.dir() + "/etc/plugins.d/hostpath.toml";
  ASSERT_EQ(rename(file.c_str(), (file + ".away").c_str()), 0);
  node_.Start();
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("its plugin is not on this node any more")));
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume_);
  request.set_consumer("job");
  v1::UnpublishVolumeResponse answer;
  EXPECT_EQ(node_.stub().UnpublishVolume(Node::Context().get(), request, &answer).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  // The command that is printed, as a person runs it.
  const std::string advice = node_.Volumes().volumes(0).advice();
  const std::string named = "berthctl volume unpublish";
  ASSERT_THAT(advice, HasSubstr(named));
  const std::string command =
      fmt::format("{} --socket {} {} --yes", BERTHCTL, node_.socket(),
                  advice.substr(advice.find(named) + std::string("berthctl ").size()));
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_THAT(node_.Mounts(), Not(Contains(target_)));
  // It is known who asked, also after a crash.
  node_.Kill();
  node_.Start();
  const v1::ListVolumesResponse pending = node_.Volumes();
  ASSERT_EQ(pending.volumes_size(), 1);
  EXPECT_EQ(pending.volumes(0).without_plugin().requested_by(), fmt::format("uid {}", getuid()));
  ASSERT_EQ(rename((file + ".away").c_str(), file.c_str()), 0);
  node_.Reload();
  node_.WaitReady("hostpath");
  WaitFor("the plugin's part to be undone", [this] { return node_.Volumes().volumes().empty(); });
  node_.DeleteVolume(volume_);
}

}  // namespace
}  // namespace berth
