#include "request/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "request/testing/refused.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using CsiMode = ::csi::v1::VolumeCapability::AccessMode;

v1::CreateVolumeRequest GoodCreate() {
  v1::CreateVolumeRequest request;
  request.set_plugin_id("p");
  request.set_name("pvc-1");
  request.add_capabilities();
  return request;
}

TEST(CheckCreateTest, LeavesOutWhatWasNotAsked) {
  const auto checked = CheckCreate(GoodCreate());
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->name(), "pvc-1");
  EXPECT_FALSE(checked->has_capacity_range());
  EXPECT_FALSE(checked->has_volume_content_source());
  ASSERT_EQ(checked->volume_capabilities_size(), 1);
  EXPECT_TRUE(checked->volume_capabilities(0).has_mount());
  EXPECT_EQ(checked->volume_capabilities(0).access_mode().mode(), CsiMode::SINGLE_NODE_MULTI_WRITER);
}

TEST(CheckCreateTest, PassesOnWhatWasAsked) {
  v1::CreateVolumeRequest request = GoodCreate();
  request.set_required_bytes(10);
  request.set_limit_bytes(20);
  request.mutable_capabilities(0)->set_access_type(v1::BLOCK);
  (*request.mutable_parameters())["type"] = "fast";
  request.set_source_snapshot_id("snap");
  const auto checked = CheckCreate(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->capacity_range().required_bytes(), 10);
  EXPECT_EQ(checked->capacity_range().limit_bytes(), 20);
  EXPECT_TRUE(checked->volume_capabilities(0).has_block());
  EXPECT_EQ(checked->parameters().at("type"), "fast");
  EXPECT_EQ(checked->volume_content_source().snapshot().snapshot_id(), "snap");
}

TEST(CheckCreateTest, NamesEveryMistakeAtOnce) {
  v1::CreateVolumeRequest request;
  request.set_required_bytes(-1);
  request.set_limit_bytes(-2);
  request.set_source_snapshot_id("s");
  request.set_source_volume_id("v");
  EXPECT_THAT(
      Refused(CheckCreate(request)),
      AllOf(HasSubstr("plugin_id: must not be empty"), HasSubstr("name: must not be empty"),
            HasSubstr("required_bytes: must not be negative"), HasSubstr("limit_bytes: must not be negative"),
            HasSubstr("source_volume_id: not with source_snapshot_id"),
            HasSubstr("capabilities: at least one is needed")));
}

TEST(CheckCreateTest, NamesTheCapabilityThatIsWrong) {
  v1::CreateVolumeRequest request = GoodCreate();
  v1::Capability& wrong = *request.add_capabilities();
  wrong.set_access_type(v1::BLOCK);
  wrong.add_mount_flags("ro");
  EXPECT_THAT(Refused(CheckCreate(request)), HasSubstr("capabilities[1].mount_flags: not with BLOCK"));
}

TEST(CheckCreateTest, BoundsTheNumberOfCapabilities) {
  v1::CreateVolumeRequest request = GoodCreate();
  for (int i = 0; i < 1000; ++i) request.add_capabilities();
  EXPECT_THAT(Refused(CheckCreate(request)), HasSubstr("capabilities: 1001, at most 32"));
}

TEST(CheckExpandTest, NeedsASize) {
  v1::ExpandVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  EXPECT_THAT(Refused(CheckExpand(request)), HasSubstr("required_bytes: the new size"));
  request.set_limit_bytes(5);
  EXPECT_TRUE(CheckExpand(request).ok());
  request.set_required_bytes(6);
  EXPECT_THAT(Refused(CheckExpand(request)), HasSubstr("limit_bytes: must not be less than required_bytes"));
}

TEST(CheckDeleteTest, PassesTheSecretsOn) {
  v1::DeleteVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  (*request.mutable_secrets())["k"] = "s";
  const auto checked = CheckDelete(request);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->secrets().at("k"), "s");
}

TEST(CheckNamesTest, RefuseNothingAndTooMuch) {
  EXPECT_FALSE(CheckVolumeName("", "v").ok());
  EXPECT_FALSE(CheckVolumeName("p", "").ok());
  EXPECT_TRUE(CheckVolumeName("p", "v").ok());
  EXPECT_FALSE(CheckPluginName("").ok());
  v1::WatchEventsRequest watch;
  EXPECT_TRUE(CheckWatch(watch).ok());
  watch.mutable_since()->set_seconds(1'790'000'000);
  EXPECT_TRUE(CheckWatch(watch).ok());
  watch.set_after_sequence(1);
  EXPECT_FALSE(CheckWatch(watch).ok()) << "two beginnings";
  watch.set_after_sequence(0);
  watch.mutable_since()->set_nanos(-1);
  EXPECT_FALSE(CheckWatch(watch).ok());
  watch.clear_since();
  watch.set_volume_id(std::string(5000, 'v'));
  EXPECT_FALSE(CheckWatch(watch).ok());
}

TEST(CheckSwapTest, NamesEveryMistake) {
  v1::SwapPluginRequest request;
  request.set_id("p");
  EXPECT_TRUE(CheckSwap(request).ok()) << "what the file says";
  request.add_arguments("-v");
  EXPECT_THAT(std::string(CheckSwap(request).message()), testing::HasSubstr("arguments: only with command"));
  request.set_command("bin/x");
  request.add_arguments(std::string("a\0b", 3));
  request.add_arguments(std::string(RequestLimits::kArgumentBytes, 'x'));
  const std::string message(CheckSwap(request).message());
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr("command: must be an absolute path"),
                                      testing::HasSubstr("zero byte"), testing::HasSubstr("bytes in all")));
  EXPECT_EQ(message.find("xxxx"), std::string::npos);
}

TEST(CheckReadLogTest, ATimeMustBeOne) {
  v1::ReadPluginLogRequest request;
  request.set_id("p");
  request.mutable_since()->set_seconds(5);
  EXPECT_TRUE(CheckReadLog(request).ok());
  for (const int64_t seconds : {int64_t{-1}, int64_t{1} << 62}) {
    request.mutable_since()->set_seconds(seconds);
    EXPECT_FALSE(CheckReadLog(request).ok()) << seconds;
  }
  request.mutable_since()->set_seconds(5);
  request.mutable_since()->set_nanos(-1);
  EXPECT_FALSE(CheckReadLog(request).ok());
}

}  // namespace
}  // namespace berth
