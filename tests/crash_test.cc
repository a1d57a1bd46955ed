// berthd killed with SIGKILL, at rest and in the middle: what it reports afterwards is true, its plugins
// were not touched, and repeating the request ends in the same state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/harness/node.h"

namespace berth {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

v1::PublishVolumeRequest PublishRequest(const std::string& volume_id, const std::string& consumer) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_volume_id(volume_id);
  request.set_consumer(consumer);
  return request;
}

std::string CreateImage(Node& node, const std::string& name) {
  v1::CreateVolumeRequest request;
  request.set_name(name);
  request.set_required_bytes(64LL * 1024 * 1024);
  request.add_capabilities()->set_fs_type("ext4");
  (*request.mutable_parameters())["kind"] = "image";
  return node.CreateVolume(request);
}

TEST(CrashTest, ANodesDrainOutlivesBerthdAndIsToldOnceTheLastOneHasLeft) {
  Node node;
  node.WriteHostpath();
  node.Start();
  node.WaitReady("hostpath");
  const std::string volume = CreateImage(node, "v");
  const std::string target = node.Publish(PublishRequest(volume, "job"));
  v1::DrainNodeRequest drain;
  drain.set_reason("a new disk");
  v1::DrainNodeResponse drained;
  ASSERT_TRUE(node.stub().DrainNode(Node::Context().get(), drain, &drained).ok());
  EXPECT_EQ(drained.drain().publications_left(), 1);

  node.Kill();
  node.Start();
  node.WaitReady("hostpath");
  std::string refused;
  const grpc::Status status = node.TryPublish(PublishRequest(volume, "other"), &refused);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("being drained, and takes nothing new: a new disk"));
  EXPECT_EQ(node.Publish(PublishRequest(volume, "job")), target) << "what is here is confirmed";

  const auto told = [&node](const std::string& type) {
    const auto context = Node::Context();
    const auto stream = node.stub().WatchEvents(context.get(), {});
    v1::WatchEventsResponse answer;
    int count = 0;
    while (stream->Read(&answer)) count += answer.event().type() == type ? 1 : 0;
    return count;
  };
  EXPECT_EQ(told("node.drained"), 0);
  node.Unpublish(volume, "job");
  WaitFor("the last one has left", [&] { return told("node.drained") == 1; });
  drain.Clear();
  drain.set_end(true);
  ASSERT_TRUE(node.stub().DrainNode(Node::Context().get(), drain, &drained).ok());
  EXPECT_FALSE(drained.has_drain());
  EXPECT_FALSE(node.Publish(PublishRequest(volume, "other")).empty());
  node.Unpublish(volume, "other");
  node.DeleteVolume(volume);
}

TEST(CrashTest, AVolumeIsStillThereAndKnownAfterBerthdWasKilled) {
  Node node;
  node.WriteHostpath();
  node.Start();
  const pid_t plugin = node.WaitReady("hostpath").pid();
  const std::string volume = CreateImage(node, "v");
  const std::string target = node.Publish(PublishRequest(volume, "job"));
  std::ofstream(target + "/file") << "kept" << std::flush;

  node.Kill();
  EXPECT_EQ(ReadText(target + "/file"), "kept") << "the mount does not need berthd";
  node.Start();
  const v1::ListVolumesResponse known = node.Volumes();
  ASSERT_THAT(known.volumes(), SizeIs(1));
  EXPECT_EQ(known.volumes(0).volume_id(), volume);
  EXPECT_EQ(known.volumes(0).state(), v1::PUBLISHED);
  EXPECT_FALSE(known.volumes(0).uncertain());
  EXPECT_EQ(known.volumes(0).publications(0).target_path(), target);
  EXPECT_EQ(node.WaitReady("hostpath").pid(), plugin) << "taken back, not restarted";

  EXPECT_EQ(node.Publish(PublishRequest(volume, "job")), target);
  node.Unpublish(volume, "job");
  EXPECT_THAT(node.Volumes().volumes(), IsEmpty());
  node.DeleteVolume(volume);
}

TEST(CrashTest, TenMountsAreToldApartAfterAKill) {
  Node node;
  node.WriteHostpath();
  node.Start();
  node.WaitReady("hostpath");
  std::vector<std::string> targets;
  const std::string volume = CreateImage(node, "v");
  for (int i = 0; i < 10; ++i)
    targets.push_back(node.Publish(PublishRequest(volume, "job-" + std::to_string(i))));
  node.Kill();
  node.Start();
  node.WaitReady("hostpath");
  const v1::ListVolumesResponse known = node.Volumes();
  ASSERT_THAT(known.volumes(), SizeIs(1));
  EXPECT_THAT(known.volumes(0).publications(), SizeIs(10));
  for (int i = 0; i < 10; ++i) node.Unpublish(volume, "job-" + std::to_string(i));
  EXPECT_THAT(node.Volumes().volumes(), IsEmpty());
}

// Kills berthd at random moments of a life of a volume, and each time repeats what was not answered.
TEST(CrashTest, Fault16RepeatingAfterAKillAtAnyMomentEndsInTheSameState) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Node node;
  node.WriteHostpath();
  node.Start();
  const pid_t plugin = node.WaitReady("hostpath").pid();
  const std::string volume = CreateImage(node, "v");

  for (int round = 0; round < 20; ++round) {
    const bool publish = round % 2 == 0;
    std::atomic<bool> answered = false;
    std::thread caller([&] {
      auto channel = grpc::CreateChannel("unix:" + node.socket(), grpc::InsecureChannelCredentials());
      const auto stub = v1::Node::NewStub(channel);
      if (publish) {
        v1::PublishVolumeResponse response;
        (void)stub->PublishVolume(Node::Context().get(), PublishRequest(volume, "job"), &response);
      } else {
        v1::UnpublishVolumeRequest request;
        request.set_plugin_id("hostpath");
        request.set_volume_id(volume);
        request.set_consumer("job");
        v1::UnpublishVolumeResponse response;
        (void)stub->UnpublishVolume(Node::Context().get(), request, &response);
      }
      answered = true;
    });
    // Until a moment within the call or just after it.
    const auto moment = std::chrono::steady_clock::now() +
                        std::chrono::microseconds(std::uniform_int_distribution(0, 60000)(random));
    while (!answered && std::chrono::steady_clock::now() < moment) std::this_thread::yield();
    node.Kill();
    caller.join();
    node.Start();
    EXPECT_EQ(node.WaitReady("hostpath").pid(), plugin) << "round " << round;

    if (publish) {
      const std::string target = node.Publish(PublishRequest(volume, "job"));
      std::ofstream file(target + "/round");
      file << round << std::flush;
      EXPECT_TRUE(file.good());
      ASSERT_THAT(node.Volumes().volumes(), SizeIs(1));
      EXPECT_EQ(node.Volumes().volumes(0).state(), v1::PUBLISHED);
    } else {
      node.Unpublish(volume, "job");
      EXPECT_THAT(node.Volumes().volumes(), IsEmpty()) << "round " << round;
      EXPECT_THAT(Node::Tree(node.state_dir() + "/volumes"), IsEmpty()) << "round " << round;
    }
  }
  node.DeleteVolume(volume);
}

}  // namespace
}  // namespace berth
