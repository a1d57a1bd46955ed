// Answers that are too large, malformed, contradictory, of a later CSI, or hold what no answer should (FAULTS
// rows 14, 44, 59), as a whole node meets them: memory stays bounded, and what is wrong is said.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/sanitizer.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class FaultMalformedTest : public FaultTest {
 protected:
  static std::string Answer(const std::string& rpc, const std::string& answer) {
    return fmt::format("rpc = \"{}\"\naction = \"answer\"\n{}", rpc, answer);
  }
  // The plugin answers so when it is asked what it is: it is not registered, `part` is in the reason shown,
  // and once it answers as it should, it is.
  void ExpectNotRegistered(const std::string& rpc, const std::string& answer, const std::string& part) {
    fault_.Play({Answer(rpc, answer)});
    StartNode();
    const v1::Plugin plugin = Wait("refused for " + part, [&](const v1::Plugin& p) {
      return (p.reason() + p.health().error()).find(part) != std::string::npos;
    });
    EXPECT_TRUE(plugin.alive());
    EXPECT_FALSE(plugin.registered());
    fault_.Play();
    node_.WaitReady(fault_.id());
    ExpectWorks("v");
  }
  grpc::Status TryCreate(v1::CreateVolumeResponse* response) {
    v1::CreateVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_name("v");
    request.add_capabilities();
    return node_.stub().CreateVolume(Node::Context().get(), request, response);
  }
};

// --- too large ---------------------------------------------------------------------------------------------

TEST_F(FaultMalformedTest, Fault14AnAnswerThatIsTooLargeIsAClearError) {
  ExpectNotRegistered("GetPluginInfo", "pad = 67108864", "GetPluginInfo");
}

TEST_F(FaultMalformedTest, Fault14LargeAnswersToAPublishHaveOneEffectAndTakeNoMemory) {
  StartReady();
  const std::string volume = CreateVolume("v");
  ExpectWorks("warm");
  const int64_t before = PeakBytes(BerthdPid());
  fault_.Play({Answer("NodeStageVolume", "count = 2\npad = 67108864"),
               Answer("NodePublishVolume", "count = 2\npad = 67108864")});
  const std::string target = Publish(volume, "job");
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_GE(Calls("NodePublishVolume", volume), 3) << "its answer was lost, so it is asked again";
  // gRPC reads an answer whole before it refuses it; it is not kept.
  if (!kAddressSanitizer) {
    EXPECT_LT(PeakBytes(BerthdPid()) - before, 160 * kMiB) << "256 MiB were sent";
  }
  Unpublish(volume, "job");
}

TEST_F(FaultMalformedTest, Fault14ALargeAnswerToAReadIsAnErrorOfThatReadAlone) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  fault_.Play({Answer("NodeGetVolumeStats", "pad = 67108864")});
  v1::GetVolumeStatsRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  v1::GetVolumeStatsResponse response;
  const grpc::Status status = node_.stub().GetVolumeStats(Node::Context().get(), request, &response);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("fault"), HasSubstr("NodeGetVolumeStats")));
  Unpublish(volume, "job");
}

// --- malformed, and wrong fields ---------------------------------------------------------------------------

TEST_F(FaultMalformedTest, Fault14AnAnswerThatIsNoUtf8IsAClearError) {
  ExpectNotRegistered("GetPluginInfo", "replace = true\nanswer = 'name: \"\\377\\376\"'", "GetPluginInfo");
}

TEST_F(FaultMalformedTest, Fault14AnEmptyNameIsAClearError) {
  ExpectNotRegistered("GetPluginInfo", "replace = true", "name");
}

TEST_F(FaultMalformedTest, Fault14ANodeWithoutAnIdIsAClearError) {
  ExpectNotRegistered("NodeGetInfo", "replace = true", "node_id");
}

TEST_F(FaultMalformedTest, Fault14ANegativeNumberOfVolumesIsAClearError) {
  ExpectNotRegistered("NodeGetInfo", "answer = 'max_volumes_per_node: -5'", "max_volumes_per_node");
}

TEST_F(FaultMalformedTest, Fault14CapabilitiesThatContradictTheServicesDoNotStopThePlugin) {
  fault_.Play(
      {Answer("NodeGetCapabilities", "answer = 'capabilities { rpc { type: 77 } } capabilities { }'")});
  StartReady();
  ExpectWorks("v");
}

TEST_F(FaultMalformedTest, Fault14ACreationWithoutAVolumeIsAClearError) {
  StartReady();
  for (const char* answer : {"replace = true", "replace = true\nanswer = 'volume { capacity_bytes: 1 }'",
                             "answer = 'volume { capacity_bytes: -1 }'"}) {
    SCOPED_TRACE(answer);
    fault_.Play({Answer("CreateVolume", answer)});
    v1::CreateVolumeResponse response;
    const grpc::Status status = TryCreate(&response);
    EXPECT_FALSE(status.ok()) << response.DebugString();
    EXPECT_THAT(status.error_message(), AllOf(HasSubstr("fault"), HasSubstr("CreateVolume")));
  }
  fault_.Play();
  v1::CreateVolumeResponse response;
  EXPECT_TRUE(TryCreate(&response).ok()) << "the same name gives the volume that was made";
}

TEST_F(FaultMalformedTest, Fault44ValuesOfALaterCsiAreShownAndNotActedOn) {
  node_.WriteBerthdToml("[volumes]\nhealth_interval = \"1s\"\n");
  const auto capability = [](const std::string& type) {
    return fmt::format("capabilities {{ rpc {{ type: {} }} }} ", type);
  };
  std::vector<std::string> rules = {
      Answer("GetPluginCapabilities", "answer = 'capabilities { service { type: 71 } }'"),
      Answer("ControllerGetCapabilities", fmt::format("answer = '{}'", capability("72"))),
      // Of those that say how a volume is, it has CSI 1.13's alone.
      Answer("NodeGetCapabilities",
             fmt::format("replace = true\nanswer = '{}'",
                         capability("STAGE_UNSTAGE_VOLUME") + capability("GET_VOLUME_HEALTH") +
                             capability("GET_STORAGE_HEALTH") + capability("73"))),
      Answer("NodeGetStorageHealth",
             "replace = true\nanswer = 'backend_health { status: 74 reason: \"later\" }'")};
  fault_.Play(rules);
  const v1::Plugin plugin = StartReady();
  EXPECT_THAT(plugin.fingerprint().plugin_capabilities(), Contains("71"));
  EXPECT_THAT(plugin.fingerprint().controller_capabilities(), Contains("72"));
  EXPECT_THAT(plugin.fingerprint().node_capabilities(), Contains("73"));

  const std::string volume = CreateVolume("v");
  rules.push_back(Answer("NodeGetVolumeHealth",
                         fmt::format("replace = true\nanswer = 'volume_health {{ volume_id: \"{}\" "
                                     "health_statuses {{ status: 75 reason: \"later\" }} }}'",
                                     volume)));
  fault_.Play(rules);
  Publish(volume, "job");
  const v1::Volume shown = WaitVolume(volume, "its health",
                                      [](const v1::Volume& v) { return v.condition().statuses_size() == 1; });
  EXPECT_EQ(shown.condition().statuses(0).type(), "75");
  EXPECT_EQ(shown.condition().statuses(0).reason(), "later");
  EXPECT_EQ(shown.state(), v1::PUBLISHED);
  const v1::Plugin unwell =
      Wait("its storage's health", [](const v1::Plugin& p) { return p.storage_health_size() == 1; });
  EXPECT_EQ(unwell.storage_health(0).type(), "74");
  EXPECT_TRUE(unwell.registered());
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  Unpublish(volume, "job");
  ExpectWorks("w");
}

TEST_F(FaultMalformedTest, Fault59UsageThatIsNoneIsLeftOutAndNamedOnce) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  for (const char* usage :
       {"usage { unit: BYTES total: 9 used: 5 available: 4 } usage { unit: INODES total: -1 }",
        "usage { unit: UNKNOWN total: 5 } usage { unit: BYTES total: 9 used: 5 available: 4 }"}) {
    SCOPED_TRACE(usage);
    fault_.Play({Answer("NodeGetVolumeStats", fmt::format("replace = true\nanswer = '{}'", usage))});
    v1::GetVolumeStatsRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    for (int i = 0; i < 2; ++i) {
      v1::GetVolumeStatsResponse response;
      const grpc::Status status = node_.stub().GetVolumeStats(Node::Context().get(), request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(response.usage_size(), 1);
      EXPECT_EQ(response.usage(0).used(), 5);
    }
  }
  const std::vector<v1::Event> warnings = Events("plugin.warning");
  EXPECT_EQ(std::ranges::count_if(warnings,
                                  [](const v1::Event& event) {
                                    return event.message().find("NodeGetVolumeStats") != std::string::npos;
                                  }),
            2);
  Unpublish(volume, "job");
}

}  // namespace
}  // namespace berth
