#include "rpc/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace csi = ::csi::v1;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ConvertTest, TimesBeforeTheEpochKeepTheirNanosPositive) {
  const auto stamp = ToProto(WallTime(std::chrono::milliseconds(-1500)));
  EXPECT_EQ(stamp.seconds(), -2);
  EXPECT_EQ(stamp.nanos(), 500'000'000);
}

TEST(ConvertPluginTest, TellsWhatIsKnown) {
  PluginSnapshot plugin;
  plugin.id = "p";
  plugin.kind = PluginKind::kController;
  plugin.state = PluginState::kBackingOff;
  plugin.reason = "exit code 1";
  plugin.restarts = 3;
  plugin.instance = 4;
  plugin.next_restart_at = WallTime(std::chrono::seconds(7));
  plugin.health.ok = true;
  plugin.health.latency = std::chrono::milliseconds(1500);
  plugin.facts = PluginFacts{
      .name = "d",
      .plugin_services = {csi::PluginCapability::Service::CONTROLLER_SERVICE, 77},
      .volume_expansion = {csi::PluginCapability::VolumeExpansion::ONLINE},
      .controller_capabilities = {csi::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME},
      .group_capabilities = {1},
      .max_volumes_per_node = 5,
      .topology = {{"zone", "a"}},
  };
  const v1::Plugin proto = ToProto(plugin, 2);
  EXPECT_EQ(proto.kind(), "controller");
  EXPECT_EQ(proto.state(), v1::BACKING_OFF);
  EXPECT_EQ(proto.reason(), "exit code 1");
  EXPECT_EQ(proto.volumes_in_use(), 2);
  EXPECT_EQ(proto.next_restart_at().seconds(), 7);
  EXPECT_FALSE(proto.has_started_at());
  EXPECT_FALSE(proto.has_last_exit_at());
  EXPECT_EQ(proto.health().latency().seconds(), 1);
  EXPECT_EQ(proto.health().latency().nanos(), 500'000'000);
  EXPECT_THAT(proto.fingerprint().plugin_capabilities(),
              ElementsAre("77", "CONTROLLER_SERVICE", "VOLUME_EXPANSION_ONLINE"));
  EXPECT_THAT(proto.fingerprint().group_controller_capabilities(),
              ElementsAre("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"));
  EXPECT_EQ(proto.fingerprint().max_volumes(), 5);
  EXPECT_TRUE(proto.fingerprint().needs_attach());
  EXPECT_EQ(proto.fingerprint().topology().at("zone"), "a");
}

TEST(ConvertPluginTest, HasNoFingerprintUntilItWasRead) {
  EXPECT_FALSE(ToProto(PluginSnapshot{}, 0).has_fingerprint());
}

TEST(ConvertPluginTest, OutputOfAnyBytesCanBeSent) {
  PluginSnapshot plugin;
  plugin.reason = "said \xff\xfe";
  for (int i = 0; i < 500; ++i) plugin.last_output.emplace_back(10'000, '\x80');
  const v1::Plugin proto = ToProto(plugin, 0);
  v1::Plugin parsed;
  EXPECT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
  EXPECT_EQ(proto.last_output_size(), 100);
  EXPECT_EQ(proto.reason(), "said \\xff\\xfe");
}

TEST(ConvertEventTest, CarriesEverything) {
  const v1::Event event = ToProto(Event{.sequence = 9,
                                        .time = WallTime(std::chrono::seconds(3)),
                                        .type = "volume.published",
                                        .plugin_id = "p",
                                        .volume_id = "v",
                                        .consumer = "c",
                                        .message = "line\nline"});
  EXPECT_EQ(event.sequence(), 9U);
  EXPECT_EQ(event.time().seconds(), 3);
  EXPECT_EQ(event.type(), "volume.published");
  EXPECT_EQ(event.volume_id(), "v");
  EXPECT_EQ(event.message(), "line\\x0aline");
}

csi::CreateVolumeRequest CreateRequest(int64_t required, int64_t limit) {
  csi::CreateVolumeRequest request;
  request.mutable_capacity_range()->set_required_bytes(required);
  request.mutable_capacity_range()->set_limit_bytes(limit);
  return request;
}

csi::CreateVolumeResponse Created(const std::string& id, int64_t capacity) {
  csi::CreateVolumeResponse response;
  response.mutable_volume()->set_volume_id(id);
  response.mutable_volume()->set_capacity_bytes(capacity);
  return response;
}

TEST(CheckedAnswerTest, OfCreateVolumeIsPassedOn) {
  csi::CreateVolumeResponse response = Created("v", 15);
  (*response.mutable_volume()->mutable_volume_context())["k"] = "x";
  const auto answer = CheckedAnswer("p", CreateRequest(10, 20), response);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->volume_id(), "v");
  EXPECT_EQ(answer->capacity_bytes(), 15);
  EXPECT_EQ(answer->volume_context().at("k"), "x");
}

TEST(CheckedAnswerTest, OfCreateVolumeMayLeaveTheCapacityOut) {
  EXPECT_TRUE(CheckedAnswer("p", CreateRequest(10, 20), Created("v", 0)).ok());
}

TEST(CheckedAnswerTest, OfCreateVolumeWithoutAnIdIsInternal) {
  for (const auto& answer : {CheckedAnswer("p", CreateRequest(0, 0), csi::CreateVolumeResponse()),
                             CheckedAnswer("p", CreateRequest(0, 0), Created(std::string(5000, 'v'), 0))}) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Message(answer.status()), HasSubstr("plugin p: its answer to CreateVolume is wrong"));
  }
}

TEST(CheckedAnswerTest, OfCreateVolumeThatDoesNotFitNamesTheVolumeThatNowExists) {
  csi::CreateVolumeRequest from_snapshot;
  from_snapshot.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id("s");
  csi::CreateVolumeResponse vast = Created("v", 0);
  (*vast.mutable_volume()->mutable_volume_context())["k"] = std::string(100'000, 'x');
  for (const auto& [answer, why] : {
           std::pair(CheckedAnswer("p", CreateRequest(10, 20), Created("v", 9)), "10 were required"),
           std::pair(CheckedAnswer("p", CreateRequest(10, 20), Created("v", 21)),
                     "more than the limit of 20"),
           std::pair(CheckedAnswer("p", CreateRequest(10, 20), Created("v", -1)), "-1 bytes"),
           std::pair(CheckedAnswer("p", from_snapshot, Created("v", 1)), "filled from the source"),
           std::pair(CheckedAnswer("p", CreateRequest(0, 0), vast), "context of 1 entries, 100001 bytes"),
       }) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Message(answer.status()), AllOf(HasSubstr(why), HasSubstr("the volume v exists now")));
  }
}

TEST(CheckedAnswerTest, OfExpandMustTellACapacityThatIsEnough) {
  csi::ControllerExpandVolumeRequest request;
  request.mutable_capacity_range()->set_required_bytes(10);
  request.mutable_capacity_range()->set_limit_bytes(20);
  csi::ControllerExpandVolumeResponse response;
  for (const int64_t capacity : {-5, 0, 9}) {
    response.set_capacity_bytes(capacity);
    EXPECT_EQ(CheckedAnswer("p", request, response).status().code(), absl::StatusCode::kInternal) << capacity;
  }
  for (const int64_t capacity : {10, 20, 50}) {
    response.set_capacity_bytes(capacity);
    EXPECT_EQ(CheckedAnswer("p", request, response).value_or(-1), capacity);
  }
}

csi::VolumeUsage Usage(csi::VolumeUsage::Unit unit, int64_t total, int64_t used) {
  csi::VolumeUsage usage;
  usage.set_unit(unit);
  usage.set_total(total);
  usage.set_used(used);
  usage.set_available(total - used);
  return usage;
}

TEST(ReadableTest, WhatIsRightIsPassedOn) {
  csi::NodeGetVolumeStatsResponse response;
  *response.add_usage() = Usage(csi::VolumeUsage::INODES, 3, 1);
  std::set<std::string> dropped;
  v1::GetVolumeStatsResponse answer = Readable(response, &dropped);
  ASSERT_EQ(answer.usage_size(), 1);
  EXPECT_EQ(answer.usage(0).unit(), "INODES");
  EXPECT_EQ(answer.usage(0).total(), 3);
  EXPECT_FALSE(answer.has_condition());
  response.mutable_volume_condition()->set_abnormal(true);
  response.mutable_volume_condition()->set_message("on\x1b[31mfire");
  answer = Readable(response, &dropped);
  EXPECT_TRUE(answer.condition().abnormal());
  EXPECT_EQ(answer.condition().message(), "on\\x1b[31mfire");
  EXPECT_THAT(dropped, IsEmpty());
}

TEST(ReadableTest, Fault59AWrongElementIsLeftOutAndNamedAndTheOthersCount) {
  csi::NodeGetVolumeStatsResponse response;
  *response.add_usage() = Usage(csi::VolumeUsage::INODES, -1, 0);
  *response.add_usage() = Usage(csi::VolumeUsage::UNKNOWN, 5, 1);
  *response.add_usage() = Usage(static_cast<csi::VolumeUsage::Unit>(77), 5, 1);
  *response.add_usage() = Usage(csi::VolumeUsage::BYTES, 100, 40);
  response.mutable_volume_condition()->set_message("well");
  std::set<std::string> dropped;
  const v1::GetVolumeStatsResponse answer = Readable(response, &dropped);
  ASSERT_EQ(answer.usage_size(), 1);
  EXPECT_EQ(answer.usage(0).unit(), "BYTES");
  EXPECT_EQ(answer.usage(0).total(), 100);
  EXPECT_EQ(answer.condition().message(), "well");
  EXPECT_THAT(dropped, ElementsAre("a negative number of INODES",
                                   "a usage in a unit that is neither BYTES nor INODES"));
}

TEST(ReadableTest, Fault59MoreUsagesThanThereCanBeAreCut) {
  csi::NodeGetVolumeStatsResponse response;
  for (int i = 0; i < 1000; ++i) *response.add_usage() = Usage(csi::VolumeUsage::BYTES, 1, 0);
  std::set<std::string> dropped;
  EXPECT_EQ(Readable(response, &dropped).usage_size(), 16);
  EXPECT_THAT(dropped, ElementsAre("more than 16 usages"));
}

}  // namespace
}  // namespace berth
