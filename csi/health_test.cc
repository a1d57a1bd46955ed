#include "csi/health.h"

#include <gtest/gtest.h>

#include "base/testing/from_text.h"

namespace berth {
namespace {

TEST(HealthTest, EachThingThatIsWrongWithAVolumeIsKeptInCsisWords) {
  const ConditionView view = ReadHealth(FromText<::csi::v1::VolumeHealth>(
      "health_statuses { status: DEGRADED reason: 'DiskFailed' message: 'one of two\\ndisks' } "
      "health_statuses { status: DATA_LOSS }"));
  EXPECT_TRUE(view.abnormal);
  ASSERT_EQ(view.statuses.size(), 2U);
  EXPECT_EQ(view.statuses[0].reason, "DiskFailed");
  EXPECT_EQ(view.message, "DEGRADED (DiskFailed): one of two\\x0adisks; DATA_LOSS");
  EXPECT_FALSE(ReadHealth(::csi::v1::VolumeHealth()).abnormal) << "no status: nothing is wrong";
}

TEST(HealthTest, ATypeThatIsNotKnownIsShownAsItsNumber) {
  ::csi::v1::VolumeHealth health;
  health.add_health_statuses()->set_status(static_cast<::csi::v1::VolumeHealthErrorType>(77));
  EXPECT_EQ(ReadHealth(health).message, "77");
  EXPECT_TRUE(ReadHealth(health).abnormal);
}

TEST(HealthTest, WhatAPluginSaysHasALimit) {
  ::csi::v1::VolumeHealth health;
  for (int i = 0; i < 1000; ++i) health.add_health_statuses()->set_message(std::string(5000, 'x'));
  const ConditionView view = ReadHealth(health);
  EXPECT_EQ(view.statuses.size(), 8U);
  EXPECT_LT(view.message.size(), 4200U);
}

TEST(HealthTest, StorageSaysWhichVolumesItConcerns) {
  const auto statuses = ReadHealth(FromText<::csi::v1::NodeGetStorageHealthResponse>(
      "backend_health { status: STORAGE_UNREACHABLE reason: 'NoPath' "
      "volume_capability { mount { fs_type: 'nfs' } access_mode { mode: MULTI_NODE_MULTI_WRITER } } } "
      "backend_health { status: STORAGE_DEGRADED volume_capability { block {} } }"));
  ASSERT_EQ(statuses.size(), 2U);
  EXPECT_EQ(statuses[0].capability, "mount nfs, MULTI_NODE_MULTI_WRITER");
  EXPECT_EQ(
      Describe(statuses),
      "STORAGE_UNREACHABLE (NoPath) for mount nfs, MULTI_NODE_MULTI_WRITER; STORAGE_DEGRADED for block");
}

TEST(HealthTest, AnotherMessageAloneIsNoNews) {
  const HealthStatus one{.type = "DEGRADED", .reason = "r", .message = "at 12:01", .capability = ""};
  HealthStatus other = one;
  other.message = "at 12:02";
  EXPECT_TRUE(SameKind({one}, {other}));
  other.reason = "s";
  EXPECT_FALSE(SameKind({one}, {other}));
  EXPECT_FALSE(SameKind({one}, {}));
}

TEST(HealthTest, AConditionOfAnEarlierVersionHasAMessageAlone) {
  const ConditionView view =
      ReadHealth(FromText<::csi::v1::VolumeCondition>("abnormal: true message: 'disk is dying'"));
  EXPECT_TRUE(view.abnormal);
  EXPECT_EQ(view.message, "disk is dying");
  EXPECT_TRUE(view.statuses.empty());
}

}  // namespace
}  // namespace berth
