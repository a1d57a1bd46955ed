// Plugins whose answers are lies, errors, too large, or no answers (FAULTS rows 10 to 14) as a whole node
// meets them. Each step's own cases: mounter/mounter_fault_test.cc.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class FaultAnswerTest : public FaultTest {
 protected:
  int64_t Calls(const std::string& rpc) const {
    return fault_.Count([&](const FaultEvent& e) { return e.event == "call" && e.rpc == rpc; });
  }
  // The plugin answers GetPluginInfo so, is not registered, and `part` is in the reason shown.
  void ExpectRefused(const std::string& rule, const std::string& part) {
    fault_.Play({"rpc = \"GetPluginInfo\"\naction = \"answer\"\n" + rule});
    StartNode();
    const v1::Plugin plugin = Wait("refused for " + part, [&](const v1::Plugin& p) {
      return (p.reason() + p.health().error()).find(part) != std::string::npos;
    });
    EXPECT_TRUE(plugin.alive());
    EXPECT_FALSE(plugin.registered());
    fault_.Play();
    node_.WaitReady(fault_.id());
  }
};

TEST_F(FaultAnswerTest, Fault10OkWithoutAMountIsAnErrorThatNamesThePlugin) {
  StartReady();
  const std::string volume = CreateVolume("v");
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"lie\""});
  const grpc::Status status = TryPublish(volume, "job", nullptr, seconds(3));
  EXPECT_FALSE(status.ok());
  WaitEvent("plugin.lied");
  for (const std::string& mount : node_.Mounts()) EXPECT_EQ(mount.find("/publish/job"), std::string::npos);
  fault_.Play();
  Publish(volume, "job");
  Unpublish(volume, "job");
}

TEST_F(FaultAnswerTest, Fault11OkOnUnpublishWhileStillMountedIsRetried) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  fault_.Play({"rpc = \"NodeUnpublishVolume\"\naction = \"lie\"\ncall = 1"});
  Unpublish(volume, "job");  // TearDown looks at the kernel.
  WaitEvent("plugin.lied");
  EXPECT_EQ(Calls("NodeUnpublishVolume"), 2);
}

TEST_F(FaultAnswerTest, Fault11OkOnUnpublishThatIsNeverTrueIsOursToUnmount) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  fault_.Play({"rpc = \"NodeUnpublishVolume\"\naction = \"lie\""});
  Unpublish(volume, "job");
  EXPECT_GE(Calls("NodeUnpublishVolume"), 2) << "retried first";
  EXPECT_EQ(node_.Volumes().volumes_size(), 1) << "only the bystander's is left";
}

TEST_F(FaultAnswerTest, Fault12OnlyTheVolumeWhoseRpcNeverAnswersWaits) {
  StartReady();
  const std::string stuck = CreateVolume("stuck");
  const std::string other = CreateVolume("other");
  fault_.Play({"rpc = \"NodeStageVolume\"\nvolume = \"" + stuck + "\"\naction = \"hang\""});
  EXPECT_EQ(TryPublish(stuck, "job", nullptr, seconds(1)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  const v1::ListVolumesResponse volumes = node_.Volumes();
  EXPECT_TRUE(std::any_of(volumes.volumes().begin(), volumes.volumes().end(), [&](const v1::Volume& v) {
    return v.volume_id() == stuck && v.running() == "NodeStageVolume";
  })) << "it is shown what runs";
  const auto begin = std::chrono::steady_clock::now();
  Publish(other, "job");
  Unpublish(other, "job");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  fault_.Play();
  Publish(stuck, "job");
  EXPECT_EQ(Calls("NodeStageVolume"), 2) << "the same request joins the call that runs";
  Unpublish(stuck, "job");
}

TEST_F(FaultAnswerTest, Fault13AbortedAndUnavailableAreRetried) {
  StartReady();
  const std::string volume = CreateVolume("v");
  fault_.Play(
      {"rpc = \"NodeStageVolume\"\naction = \"fail\"\ncode = \"ABORTED\"\ncall = 1",
       "rpc = \"NodePublishVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\"\nwhen = \"after\"\ncall = 1"});
  Publish(volume, "job");
  EXPECT_EQ(Calls("NodeStageVolume"), 2);
  EXPECT_EQ(Calls("NodePublishVolume"), 2);
  Unpublish(volume, "job");
}

TEST_F(FaultAnswerTest, Fault13ResourceExhaustedFromACreationIsAnsweredAtOnce) {
  StartReady();
  fault_.Play(
      {"rpc = \"CreateVolume\"\naction = \"fail\"\ncode = \"RESOURCE_EXHAUSTED\"\ntext = \"the pool is "
       "full\""});
  v1::CreateVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_name("v");
  request.add_capabilities();
  v1::CreateVolumeResponse response;
  const grpc::Status status = node_.stub().CreateVolume(Node::Context().get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the pool is full"));
  EXPECT_EQ(Calls("CreateVolume"), 1);
}

TEST_F(FaultAnswerTest, Fault14AnAnswerThatIsTooLargeIsAClearError) {
  ExpectRefused("pad = 67108864", "GetPluginInfo");
}

TEST_F(FaultAnswerTest, Fault14AnAnswerThatIsNoUtf8IsAClearError) {
  ExpectRefused("replace = true\nanswer = 'name: \"\\377\\376\"'", "GetPluginInfo");
}

TEST_F(FaultAnswerTest, Fault14AnEmptyNameIsAClearError) { ExpectRefused("replace = true", "name"); }

TEST_F(FaultAnswerTest, Fault14CapabilitiesThatContradictTheServicesDoNotStopThePlugin) {
  fault_.Play(
      {"rpc = \"NodeGetCapabilities\"\naction = \"answer\"\n"
       "answer = 'capabilities { rpc { type: 77 } } capabilities { }'"});
  StartReady();
  ExpectWorks("v");
}

}  // namespace
}  // namespace berth
