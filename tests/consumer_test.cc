// Consumers that end, on whole nodes: their volumes leave.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/testing/sleeper.h"
#include "tests/harness/node.h"
#include "tests/harness/reboot.h"

namespace berth {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ConsumerNodeTest : public testing::Test {
 protected:
  void Start() {
    node_.WriteHostpath();
    node_.Start();
    node_.WaitReady("hostpath");
  }
  std::string CreateVolume(const std::string& name) {
    v1::CreateVolumeRequest request;
    request.set_name(name);
    (*request.mutable_parameters())["kind"] = "directory";
    return node_.CreateVolume(request);
  }
  static v1::PublishVolumeRequest Use(const std::string& volume, const std::string& consumer) {
    v1::PublishVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume);
    request.set_consumer(consumer);
    return request;
  }
  static v1::PublishVolumeRequest UseOf(const std::string& volume, const std::string& consumer, pid_t pid) {
    v1::PublishVolumeRequest request = Use(volume, consumer);
    request.mutable_life()->set_pid(pid);
    return request;
  }
  void WaitGone() {
    WaitFor("all volumes to leave", [this] { return node_.Volumes().volumes().empty(); });
  }

  Node node_;
};

TEST_F(ConsumerNodeTest, VolumesLeaveWithTheProcess) {
  Start();
  Sleeper process;
  Sleeper other;
  const std::string one = CreateVolume("one");
  const std::string two = CreateVolume("two");
  const std::string kept = CreateVolume("kept");
  node_.Publish(UseOf(one, "web", process.pid()));
  node_.Publish(UseOf(two, "web", process.pid()));
  node_.Publish(UseOf(kept, "db", other.pid()));
  node_.Publish(Use(one, "nobody knows"));
  // Repeated, it is the same.
  node_.Publish(UseOf(one, "web", process.pid()));
  process.End();
  WaitFor("the volumes of the ended one to leave", [&] {
    const v1::ListVolumesResponse volumes = node_.Volumes();
    size_t uses = 0;
    for (const v1::Volume& volume : volumes.volumes())
      uses += static_cast<size_t>(volume.publications_size());
    return volumes.volumes_size() == 2 && uses == 2;
  });
  other.End();
  WaitFor("the last one's to leave", [&] { return node_.Volumes().volumes_size() == 1; });
  node_.Unpublish(one, "nobody knows");
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
}

TEST_F(ConsumerNodeTest, ProcessThatIsNotThereIsRefusedBeforeAnythingIsDone) {
  Start();
  const std::string volume = CreateVolume("v");
  Sleeper process;
  const pid_t pid = process.pid();
  process.End();
  std::string target;
  const grpc::Status status = node_.TryPublish(UseOf(volume, "web", pid), &target);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "NOT_FOUND would be the volume";
  EXPECT_THAT(status.error_message(), HasSubstr(std::to_string(pid)));
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
}

TEST_F(ConsumerNodeTest, OneThatEndsWhileBerthdIsAwayIsReleasedAtTheStart) {
  Start();
  Sleeper process;
  Sleeper other;
  const std::string volume = CreateVolume("v");
  const std::string kept = CreateVolume("kept");
  node_.Publish(UseOf(volume, "web", process.pid()));
  node_.Publish(UseOf(kept, "db", other.pid()));
  node_.Kill();
  process.End();
  node_.Start();
  WaitFor("its volume to leave", [&] { return node_.Volumes().volumes_size() == 1; });
  EXPECT_EQ(node_.Volumes().volumes(0).volume_id(), kept);
  // Watched on.
  other.End();
  WaitGone();
}

TEST_F(ConsumerNodeTest, VolumesLeaveWithTheCgroup) {
  std::string group;
  for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (!std::filesystem::exists(fmt::format("{}/cgroup.controllers", root))) continue;
    group = fmt::format("{}/berth-consumer-node-test-{}", root, getpid());
    if (mkdir(group.c_str(), 0755) == 0) break;
    group.clear();
  }
  if (group.empty()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  Start();
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request = Use(volume, "web");
  request.mutable_life()->set_cgroup(group);
  std::string target;
  const grpc::Status empty = node_.TryPublish(request, &target);
  EXPECT_EQ(empty.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << empty.error_message();
  Sleeper process;
  std::ofstream(group + "/cgroup.procs") << process.pid() << std::flush;
  node_.Publish(request);
  process.End();
  WaitGone();
  EXPECT_EQ(rmdir(group.c_str()), 0);
}

TEST_F(ConsumerNodeTest, UnpublishWaitsForTheConsumersEnd) {
  Start();
  Sleeper process;
  const std::string volume = CreateVolume("v");
  node_.Publish(UseOf(volume, "web", process.pid()));
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume);
  request.set_consumer("web");
  request.set_wait(true);
  v1::UnpublishVolumeResponse response;
  // A caller that has gone has not asked for anything.
  const grpc::Status early =
      node_.stub().UnpublishVolume(Node::Context(std::chrono::seconds(1)).get(), request, &response);
  EXPECT_EQ(early.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << early.error_message();
  ASSERT_EQ(node_.Volumes().volumes_size(), 1);
  EXPECT_EQ(node_.Volumes().volumes(0).state(), v1::PUBLISHED);

  std::atomic<bool> answered = false;
  grpc::Status status;
  std::thread caller([&] {
    const auto stub =
        v1::Node::NewStub(grpc::CreateChannel("unix:" + node_.socket(), grpc::InsecureChannelCredentials()));
    status = stub->UnpublishVolume(Node::Context().get(), request, &response);
    answered = true;
  });
  process.End();
  caller.join();
  EXPECT_TRUE(answered);
  EXPECT_TRUE(status.ok()) << status.error_message();
  WaitGone();
}

TEST_F(ConsumerNodeTest, WaitForAConsumerThatNobodyKnowsIsRefused) {
  Start();
  const std::string volume = CreateVolume("v");
  node_.Publish(Use(volume, "web"));
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume);
  request.set_consumer("web");
  request.set_wait(true);
  v1::UnpublishVolumeResponse response;
  EXPECT_EQ(node_.stub().UnpublishVolume(Node::Context().get(), request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::EndConsumerRequest end;
  end.set_consumer("web");
  v1::EndConsumerResponse ended;
  EXPECT_TRUE(node_.stub().EndConsumer(Node::Context().get(), end, &ended).ok());
  EXPECT_EQ(ended.released(), 1);
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
}

TEST_F(ConsumerNodeTest, Fault19ProcessOfAnotherBootHasEnded) {
  Start();
  // A process with its number lives, as another one may after a reboot.
  const Sleeper process;
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request = UseOf(volume, "web", process.pid());
  request.set_remount(true);
  node_.Publish(request);
  const Reboot reboot(node_);
  node_.Start();
  WaitGone();
}

}  // namespace
}  // namespace berth
