// Volumes in use in another mount namespace, or through the raw device, when they are unpublished
// (FAULTS row 37), on a whole node with berth-hostpath: real disks, real containers' mount namespaces.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>

#include "base/testing/holder.h"
#include "base/unique_fd.h"
#include "tests/harness/node.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class FaultHolderTest : public testing::Test {
 protected:
  void SetUp() override {
    node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"5s\"\n");
    node_.WriteHostpath();
    node_.Start();
    node_.WaitReady("hostpath");
  }

  // An ext4 image, or a raw device, published for "job"; sets volume_ and target_.
  void PublishNew(bool block) {
    v1::CreateVolumeRequest create;
    create.set_plugin_id("hostpath");
    create.set_name("v");
    create.set_required_bytes(64 << 20);
    if (block) {
      create.add_capabilities()->set_access_type(v1::BLOCK);
    } else {
      create.add_capabilities()->set_fs_type("ext4");
      (*create.mutable_parameters())["kind"] = "image";
    }
    volume_ = node_.CreateVolume(create);
    Publish(block);
  }
  void Publish(bool block) {
    v1::PublishVolumeRequest use;
    use.set_plugin_id("hostpath");
    use.set_volume_id(volume_);
    use.set_consumer("job");
    if (block) use.mutable_capability()->set_access_type(v1::BLOCK);
    target_ = node_.Publish(use);
  }
  grpc::Status Undo(v1::UnpublishVolumeResponse* response, bool lazy = false) {
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume_);
    request.set_consumer("job");
    request.set_lazy(lazy);
    return node_.stub().UnpublishVolume(Node::Context(seconds(40)).get(), request, response);
  }
  std::optional<v1::Volume> PrintableName() {
    const auto listed = node_.Volumes();
    for (const v1::Volume& volume : listed.volumes()) {
      if (volume.volume_id() == volume_) return volume;
    }
    return std::nullopt;
  }
  grpc::Status Delete() {
    v1::DeleteVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume_);
    v1::DeleteVolumeResponse response;
    return node_.stub().DeleteVolume(Node::Context().get(), request, &response);
  }
  // Neither free nor to be deleted, also for the next berthd.
  void ExpectNotFree(const std::string& why) {
    for (const char* time : {"at once", "after a kill"}) {
      EXPECT_TRUE(PrintableName().has_value()) << why << ", " << time;
      EXPECT_EQ(Delete().error_code(), grpc::StatusCode::FAILED_PRECONDITION) << why << ", " << time;
      node_.Kill();
      node_.Start();
      node_.WaitReady("hostpath");
    }
  }
  void ExpectReleasedByItself() {
    WaitFor("the volume is released", [this] { return !PrintableName().has_value(); });
    EXPECT_TRUE(Delete().ok());
    volume_.clear();
  }
  // A container: a mount namespace of its own, with the target bound somewhere else, in which it does `work`.
  std::unique_ptr<Holder> Container(bool block, const std::function<bool(const std::string&)>& work) {
    const std::string data = node_.dir() + "/container-data";
    return std::make_unique<Holder>([&] {
      const bool made =
          block ? close(open(data.c_str(), O_CREAT | O_WRONLY, 0600)) == 0 : mkdir(data.c_str(), 0755) == 0;
      return made && unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
             mount(target_.c_str(), data.c_str(), nullptr, MS_BIND, nullptr) == 0 && work(data);
    });
  }

  Node node_;
  std::string volume_;
  std::string target_;
};

bool Nothing(const std::string& /*path*/) { return true; }

TEST_F(FaultHolderTest, Fault37ADiskThatAContainerWritesToIsNotReportedFree) {
  PublishNew(/*block=*/false);
  auto container = Container(false, [](const std::string& data) {
    std::ofstream file(data + "/written-by-the-container");
    return (file << "data" << std::flush).good();
  });
  for (const char* time : {"first", "second"}) {
    v1::UnpublishVolumeResponse response;
    const grpc::Status busy = Undo(&response);
    EXPECT_EQ(busy.error_code(), grpc::StatusCode::UNAVAILABLE) << time;
    EXPECT_THAT(busy.error_message(), HasSubstr(fmt::format("still used by pid {}", container->pid())))
        << time;
    EXPECT_THAT(busy.error_message(), HasSubstr("in another mount namespace")) << time;
  }
  ExpectNotFree("a container has it");
  container.reset();
  ExpectReleasedByItself();
}

TEST_F(FaultHolderTest, Fault37ADiskThatWasDetachedLazilyIsNotFreeBeforeItsWriterHasEnded) {
  PublishNew(/*block=*/false);
  auto container = Container(false, Nothing);
  UniqueFd writer(open((target_ + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(writer.valid());
  v1::UnpublishVolumeResponse response;
  ASSERT_TRUE(Undo(&response, /*lazy=*/true).ok());
  EXPECT_TRUE(response.still_in_use());
  ExpectNotFree("it was detached");
  // Another use of it on the same node, that ends well, changes nothing about the first writer.
  Publish(/*block=*/false);
  container.reset();
  ASSERT_TRUE(Undo(&response).ok());
  EXPECT_TRUE(response.still_in_use());
  EXPECT_TRUE(PrintableName().has_value() && PrintableName()->still_in_use());
  writer.Reset();
  ExpectReleasedByItself();
}

TEST_F(FaultHolderTest, Fault37ARawDeviceThatIsOpenIsNotFree) {
  PublishNew(/*block=*/true);
  UniqueFd held(open(target_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  v1::UnpublishVolumeResponse response;
  const grpc::Status undone = Undo(&response);
  EXPECT_TRUE(!undone.ok() || response.still_in_use());
  ExpectNotFree("its device is open");
  held.Reset();
  ExpectReleasedByItself();
}

TEST_F(FaultHolderTest, Fault37ARawDeviceThatIsBoundInAContainerIsNotFree) {
  PublishNew(/*block=*/true);
  auto container = Container(true, Nothing);
  v1::UnpublishVolumeResponse response;
  const grpc::Status busy = Undo(&response);
  EXPECT_THAT(busy.error_message(), HasSubstr(fmt::format("still used by pid {}", container->pid())));
  ExpectNotFree("its node is bound");
  container.reset();
  ExpectReleasedByItself();
}

TEST_F(FaultHolderTest, Fault37ARawDeviceUnderALoopDeviceIsNotFree) {
  PublishNew(/*block=*/true);
  const auto run = [](const std::string& command) { return std::system(command.c_str()) == 0; };
  const std::string named = node_.dir() + "/loop-on-top";
  ASSERT_TRUE(run(fmt::format("losetup --find --show {} > {}", target_, named)));
  v1::UnpublishVolumeResponse response;
  const grpc::Status undone = Undo(&response);
  EXPECT_TRUE(!undone.ok() || response.still_in_use());
  ExpectNotFree("a loop device lies on it");
  EXPECT_TRUE(run(fmt::format("losetup --detach $(cat {})", named)));
  ExpectReleasedByItself();
}

}  // namespace
}  // namespace berth
