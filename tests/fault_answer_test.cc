// Plugins that lie, answer errors, or do not answer (FAULTS rows 10 to 13) as a whole node meets them.
// Each step's own cases: mounter/mounter_fault_test.cc. Answers that are none: fault_malformed_test.cc.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>

#include "base/unique_fd.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class FaultAnswerTest : public FaultTest {};

TEST_F(FaultAnswerTest, Fault10OkWithoutAMountIsAnErrorThatNamesThePlugin) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::vector<std::string> before = node_.Mounts();
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"lie\""});
  const grpc::Status status = TryPublish(volume, "job");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("plugin fault"));
  WaitEvent("plugin.lied");
  // Not published, and nothing is left of the try.
  WaitReleased(volume);
  EXPECT_EQ(node_.Mounts(), before);
  fault_.Play();
  Publish(volume, "job");
  Unpublish(volume, "job");
}

// Raw block volumes of the plugin with faults, on real loop devices.
class FaultExpansionTest : public FaultTest {
 protected:
  FaultExpansionTest() { node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"2s\"\n"); }

  static constexpr int64_t kBefore = int64_t{16} << 20;
  static constexpr int64_t kGrown = int64_t{32} << 20;
  static constexpr int64_t kReported = int64_t{64} << 20;

  void PublishRaw() {
    v1::CreateVolumeRequest create;
    create.set_plugin_id(fault_.id());
    create.set_name("raw");
    create.set_required_bytes(kBefore);
    create.add_capabilities()->set_access_type(v1::BLOCK);
    volume_ = node_.CreateVolume(create);
    v1::PublishVolumeRequest use;
    use.set_plugin_id(fault_.id());
    use.set_volume_id(volume_);
    use.set_consumer("job");
    use.mutable_capability()->set_access_type(v1::BLOCK);
    target_ = node_.Publish(use);
  }
  grpc::Status Expand(int64_t bytes) {
    v1::ExpandVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume_);
    request.set_required_bytes(bytes);
    v1::ExpandVolumeResponse ignored;
    return node_.stub().ExpandVolume(Node::Context(seconds(30)).get(), request, &ignored);
  }
  [[nodiscard]] int64_t DeviceBytes() const {
    const UniqueFd device(open(target_.c_str(), O_RDONLY | O_CLOEXEC));
    uint64_t bytes = 0;
    EXPECT_EQ(ioctl(device.get(), BLKGETSIZE64, &bytes), 0);
    return static_cast<int64_t>(bytes);
  }

  std::string volume_;
  std::string target_;
};

TEST_F(FaultExpansionTest, Fault10AnExpansionThatTheKernelDoesNotShowStaysPending) {
  StartReady();
  PublishRaw();
  ASSERT_EQ(DeviceBytes(), kBefore);
  // The controller reports twice of what it has made, and the node's part does nothing.
  fault_.Play({fmt::format("rpc = \"ControllerExpandVolume\"\naction = \"answer\"\n"
                           "answer = \"capacity_bytes: {} node_expansion_required: true\"",
                           kReported),
               "rpc = \"NodeExpandVolume\"\naction = \"lie\""});
  const grpc::Status asked = Expand(kGrown);
  // The node is asked for all that the storage is said to have, and the kernel does not show it.
  EXPECT_EQ(asked.error_code(), grpc::StatusCode::INTERNAL) << asked.error_message();
  EXPECT_THAT(asked.error_message(), HasSubstr("is pending"));
  const v1::Volume pending = WaitVolume(volume_, "its error names both sizes", [](const v1::Volume& volume) {
    return volume.last_error().find(std::to_string(kGrown)) != std::string::npos;
  });
  EXPECT_EQ(pending.pending_expansion_bytes(), kReported);
  EXPECT_THAT(pending.last_error(), AllOf(HasSubstr("plugin fault answered OK to NodeExpandVolume"),
                                          HasSubstr(std::to_string(kReported))));
  WaitEvent("plugin.lied", "the block device at");
  EXPECT_EQ(DeviceBytes(), kGrown);
  fault_.Play();
  EXPECT_TRUE(Expand(kReported).ok());
  WaitVolume(volume_, "it is done",
             [](const v1::Volume& volume) { return volume.pending_expansion_bytes() == 0; });
  EXPECT_EQ(DeviceBytes(), kReported);
  v1::UnpublishVolumeRequest undo;
  undo.set_plugin_id(fault_.id());
  undo.set_volume_id(volume_);
  undo.set_consumer("job");
  v1::UnpublishVolumeResponse undone;
  EXPECT_TRUE(node_.stub().UnpublishVolume(Node::Context().get(), undo, &undone).ok());
}

// A flag is as sensitive as a secret, and drivers quote what a mount was given.
TEST_F(FaultAnswerTest, Fault12AMountFlagThatAnErrorQuotesIsToldNowhere) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string flag = fmt::format("password={}", kSecretInFlag);
  fault_.Play(
      {fmt::format("rpc = \"NodeStageVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\"\n"
                   "text = \"mount -o uid=1000,{} failed\"",
                   flag)});
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer("job");
  request.mutable_capability()->add_mount_flags("uid=1000");
  request.mutable_capability()->add_mount_flags(flag);
  v1::PublishVolumeResponse response;
  const grpc::Status status = node_.stub().PublishVolume(Node::Context(seconds(1)).get(), request, &response);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), Not(HasSubstr(kSecretInFlag)));
  const std::string shown = "mount -o uid=1000,password=****************** failed";
  const v1::Volume waits = WaitVolume(volume, "its error is reported", [&](const v1::Volume& known) {
    return known.last_error().find(shown) != std::string::npos;
  });
  EXPECT_THAT(waits.last_error(), Not(HasSubstr(kSecretInFlag)));
  fault_.Play();
  Unpublish(volume, "job");
  WaitReleased(volume);  // TearDown looks for the flag in all that was written.
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

TEST_F(FaultAnswerTest, Fault11OkOnUnstageThatIsNeverTrueIsOursToUnmount) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  const std::string staging = VolumeOf(volume)->staging_path();
  ASSERT_EQ(MountsAt(staging), 1);
  fault_.Play({"rpc = \"NodeUnstageVolume\"\naction = \"lie\""});
  Unpublish(volume, "job");
  EXPECT_GE(Calls("NodeUnstageVolume"), 2) << "retried first";
  EXPECT_EQ(MountsAt(staging), 0);
  EXPECT_FALSE(VolumeOf(volume).has_value());
}

TEST_F(FaultAnswerTest, Fault11AVolumeIsNotCalledFreeBeforeItsMountHasGone) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  fault_.Play({"rpc = \"NodeUnpublishVolume\"\naction = \"lie\""});
  UniqueFd held(open((target + "/marker").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  EXPECT_FALSE(TryUnpublish(volume, "job", seconds(4)).ok());
  EXPECT_TRUE(VolumeOf(volume).has_value());
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(Calls("NodeUnstageVolume"), 0);
  v1::DeleteVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  v1::DeleteVolumeResponse response;
  EXPECT_EQ(node_.stub().DeleteVolume(Node::Context().get(), request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  held = UniqueFd();
  WaitReleased(volume);
  EXPECT_EQ(MountsAt(target), 0);
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

class FaultDeadlineTest : public FaultTest, public testing::WithParamInterface<const char*> {
 protected:
  FaultDeadlineTest() { node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"3s\"\n"); }
};

TEST_P(FaultDeadlineTest, Fault12AnRpcThatNeverAnswersEndsAtItsDeadlineAndIsRepeated) {
  const std::string rpc = GetParam();
  const bool forward = rpc == "NodeStageVolume" || rpc == "NodePublishVolume";
  StartReady();
  const std::string volume = CreateVolume("v");
  if (!forward) Publish(volume, "job");
  fault_.Play({fmt::format("rpc = \"{}\"\nvolume = \"{}\"\naction = \"hang\"\ncall = 1", rpc, volume)});
  const auto ask = [&](milliseconds timeout) {
    return forward ? TryPublish(volume, "job", nullptr, timeout) : TryUnpublish(volume, "job", timeout);
  };
  // A caller's deadline ends only its wait; a repeat joins the call that runs, and gets its result.
  EXPECT_EQ(ask(milliseconds(300)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // Begun before anything else, so that the call still runs; on a thread, which uses nothing of the
  // fixture's.
  auto joined = std::async(std::launch::async, [&, &stub = node_.stub()] {
    if (forward) {
      v1::PublishVolumeRequest request;
      request.set_plugin_id(fault_.id());
      request.set_volume_id(volume);
      request.set_consumer("job");
      (*request.mutable_secrets())["password"] = kSecret;
      v1::PublishVolumeResponse response;
      return stub.PublishVolume(Node::Context(seconds(30)).get(), request, &response);
    }
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    request.set_consumer("job");
    v1::UnpublishVolumeResponse response;
    return stub.UnpublishVolume(Node::Context(seconds(30)).get(), request, &response);
  });
  ExpectWorks("other");
  const grpc::Status ended = joined.get();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(ended.error_message(), AllOf(HasSubstr("plugin fault"), HasSubstr(rpc)));
  EXPECT_EQ(Calls(rpc, volume), 1);
  WaitFor("the plugin is asked once more", [&] { return Calls(rpc, volume) == 2; });
  const grpc::Status status = ask(seconds(30));
  EXPECT_TRUE(status.ok()) << status.error_message();
  if (forward) Unpublish(volume, "job");
  EXPECT_FALSE(VolumeOf(volume).has_value());
}

INSTANTIATE_TEST_SUITE_P(Rpcs, FaultDeadlineTest,
                         testing::Values("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume",
                                         "NodeUnstageVolume"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

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

// A plugin that is busy for ever, or away for ever.
class FaultRefusalTest : public FaultTest, public testing::WithParamInterface<const char*> {
 protected:
  FaultRefusalTest() { node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"3s\"\n"); }
};

TEST_P(FaultRefusalTest, Fault13WhatIsRefusedUntilTheDeadlineIsUncertain) {
  StartReady();
  const std::string volume = CreateVolume("v");
  fault_.Play(
      {fmt::format("rpc = \"NodeStageVolume\"\naction = \"fail\"\ncode = \"{}\"\n"
                   "text = \"not now\"\nwhen = \"after\"",
                   GetParam())});
  const grpc::Status status = TryPublish(volume, "job");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("not now"));
  const v1::Volume shown =
      WaitVolume(volume, "uncertain, with what the plugin said", [](const v1::Volume& v) {
        return v.uncertain() && v.last_error().find("not now") != std::string::npos;
      });
  EXPECT_NE(shown.state(), v1::PUBLISHED);
  // Neither once nor in a hot loop: each pause is longer than the one before, with some chance in it.
  EXPECT_GE(Calls("NodeStageVolume"), 3);
  EXPECT_LE(Calls("NodeStageVolume"), 60);
  fault_.Play();
  Publish(volume, "job");
  Unpublish(volume, "job");
}

INSTANTIATE_TEST_SUITE_P(Codes, FaultRefusalTest, testing::Values("ABORTED", "UNAVAILABLE"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

// A declared volume's attach is berthd's own call: no caller waits for it, so it is shown at once.
TEST_F(FaultAnswerTest, Fault13ResourceExhaustedFromAnAttachIsShownAtOnceAndTheNodeGoesOn) {
  node_.WriteHostpath();
  fault_.Write("", {"--attach"});
  node_.Start();
  node_.WaitReady(fault_.id());
  const std::string volume = CreateVolume("v");
  fault_.Play(
      {"rpc = \"ControllerPublishVolume\"\naction = \"fail\"\ncode = \"RESOURCE_EXHAUSTED\"\n"
       "text = \"the node is full\""});
  const std::string directory = node_.dir() + "/etc/volumes.d";
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  std::ofstream(directory + "/data.toml") << "plugin = \"fault\"\nvolume = \"" << volume << "\"\n";
  v1::ReloadResponse report;
  ASSERT_TRUE(node_.stub().Reload(Node::Context().get(), {}, &report).ok());
  WaitVolume(volume, "the reason is shown", [](const v1::Volume& v) {
    return v.state() == v1::ABSENT && v.last_error().find("the node is full") != std::string::npos;
  });
  EXPECT_LE(Calls("ControllerPublishVolume"), 3) << "no hot loop";
  EXPECT_EQ(Calls("NodeStageVolume"), 0);
  // An operator makes room.
  fault_.Play();
  WaitVolume(volume, "published",
             [](const v1::Volume& v) { return v.state() == v1::PUBLISHED && !v.uncertain(); });
}

}  // namespace
}  // namespace berth
