// How full volumes are, one by one and of a whole consumer.
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::ElementsAre;
using testing::HasSubstr;
using NodeRpc = csi::NodeServiceCapability::RPC;

class NodeApiStatsTest : public NodeApiTest {
 protected:
  NodeApiStatsTest() { control_.Add("p").facts->node_capabilities = {NodeRpc::GET_VOLUME_STATS}; }

  void ReportUsage(csi::VolumeUsage::Unit unit, int64_t total, int64_t used) {
    csi::VolumeUsage& usage = *mounter_.stats.add_usage();
    usage.set_unit(unit);
    usage.set_total(total);
    usage.set_used(used);
    usage.set_available(total - used);
  }
  static v1::GetConsumerStatsRequest Of(const std::string& consumer) {
    v1::GetConsumerStatsRequest request;
    request.set_consumer(consumer);
    return request;
  }
};

TEST_F(NodeApiStatsTest, StatsComeFromTheMounter) {
  ReportUsage(csi::VolumeUsage::BYTES, 100, 40);
  const auto stats = Call(&VolumeStatsApi::GetVolumeStats, ForVolume<v1::GetVolumeStatsRequest>());
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->usage(0).total(), 100);
}

TEST_F(NodeApiStatsTest, Fault59WhatIsLeftOutIsNamedOnceForEachPlugin) {
  ReportUsage(csi::VolumeUsage::BYTES, 100, 40);
  ReportUsage(csi::VolumeUsage::INODES, -1, -1);
  for (int i = 0; i < 3; ++i) {
    const auto stats = Call(&VolumeStatsApi::GetVolumeStats, ForVolume<v1::GetVolumeStatsRequest>());
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->usage_size(), 1);
  }
  std::vector<std::string> warnings;
  for (const Event& event : events_.After(0, 100).events) {
    if (event.type == "plugin.warning") warnings.push_back(event.message);
  }
  EXPECT_THAT(warnings,
              ElementsAre("NodeGetVolumeStats gives a negative number of INODES: that is left out"));
}

TEST_F(NodeApiStatsTest, StatsOfAPluginWithoutThemAreRefused) {
  control_.Add("p").facts->node_capabilities.clear();
  const auto stats = Call(&VolumeStatsApi::GetVolumeStats, ForVolume<v1::GetVolumeStatsRequest>());
  EXPECT_EQ(stats.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(stats.status()), HasSubstr("GET_VOLUME_STATS"));
}

TEST_F(NodeApiStatsTest, AConsumersVolumesAreSummedUp) {
  mounter_.Add("p", "v1", "web");
  mounter_.Add("p", "v2", "web");
  mounter_.Add("p", "v3", "db");
  ReportUsage(csi::VolumeUsage::BYTES, 100, 40);
  ReportUsage(csi::VolumeUsage::INODES, 10, 3);
  mounter_.stats.mutable_volume_condition()->set_abnormal(true);
  const auto stats = Call(&VolumeStatsApi::GetConsumerStats, Of("web"));
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_EQ(stats->volumes_size(), 2);
  EXPECT_EQ(stats->volumes(0).volume_id(), "v1");
  EXPECT_EQ(stats->volumes(0).usage(0).total(), 100);
  EXPECT_TRUE(stats->volumes(0).condition().abnormal());
  ASSERT_EQ(stats->total_size(), 2);
  EXPECT_EQ(stats->total(0).unit(), "BYTES");
  EXPECT_EQ(stats->total(0).total(), 200);
  EXPECT_EQ(stats->total(0).used(), 80);
  EXPECT_EQ(stats->total(0).available(), 120);
  EXPECT_EQ(stats->total(1).unit(), "INODES");
  EXPECT_EQ(stats->total(1).used(), 6);
}

TEST_F(NodeApiStatsTest, AVolumeThatIsUsedTwiceCountsOnce) {
  mounter_.Add("p", "v", "web").publications.push_back({.consumer = "web", .name = "again"});
  ReportUsage(csi::VolumeUsage::BYTES, 100, 40);
  const auto stats = Call(&VolumeStatsApi::GetConsumerStats, Of("web"));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->volumes_size(), 1);
  EXPECT_EQ(stats->total(0).total(), 100);
  EXPECT_EQ(mounter_.stats_calls["v"], 1);
}

TEST_F(NodeApiStatsTest, WhoCannotTellHasTheErrorInItsPlace) {
  control_.Add("mute");
  mounter_.Add("mute", "v1", "web");
  mounter_.Add("p", "v2", "web");
  mounter_.Add("p", "v3", "web");
  mounter_.stats_errors["v2"] = absl::InternalError("statfs");
  ReportUsage(csi::VolumeUsage::BYTES, 100, 40);
  const auto stats = Call(&VolumeStatsApi::GetConsumerStats, Of("web"));
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_EQ(stats->volumes_size(), 3);
  EXPECT_THAT(stats->volumes(0).error(), HasSubstr("GET_VOLUME_STATS"));
  EXPECT_EQ(stats->volumes(1).error(), "statfs");
  EXPECT_EQ(stats->volumes(1).usage_size(), 0);
  EXPECT_EQ(stats->volumes(2).error(), "");
  EXPECT_EQ(stats->total(0).total(), 100);
}

TEST_F(NodeApiStatsTest, SumsDoNotOverflow) {
  mounter_.Add("p", "v1", "web");
  mounter_.Add("p", "v2", "web");
  ReportUsage(csi::VolumeUsage::BYTES, std::numeric_limits<int64_t>::max(), 1);
  const auto stats = Call(&VolumeStatsApi::GetConsumerStats, Of("web"));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->total(0).total(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(stats->total(0).used(), 2);
}

TEST_F(NodeApiStatsTest, AVolumeThatHangsCostsTheOthersNothing) {
  for (int i = 0; i < 40; ++i) mounter_.Add("p", fmt::format("v{:02}", i), "web");
  mounter_.stats_hang = {"v00", "v07"};
  ReportUsage(csi::VolumeUsage::BYTES, 1, 0);
  const CallInfo call{
      .method = "Test", .may_change = false, .deadline = Clock::now() + std::chrono::seconds(3)};
  const auto stats = RunOn(loop_, api_.stats.GetConsumerStats(Of("web"), call));
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_EQ(stats->volumes_size(), 40);
  EXPECT_THAT(stats->volumes(0).error(), HasSubstr("hangs"));
  EXPECT_THAT(stats->volumes(7).error(), HasSubstr("hangs"));
  EXPECT_EQ(stats->total(0).total(), 38);
  EXPECT_GT(mounter_.most_asked, 1) << "side by side";
  EXPECT_LE(mounter_.most_asked, 16) << "and not all at once";
}

Awaitable<void> Keep(Awaitable<absl::StatusOr<v1::GetConsumerStatsResponse>> call,
                     std::optional<absl::Status>& end) {
  end = (co_await std::move(call)).status();
}

TEST_F(NodeApiStatsTest, ACallerThatGoesLeavesNobodyAsking) {
  mounter_.Add("p", "v", "web");
  mounter_.stats_hang = {"v"};
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<absl::Status> end;
  scope.Spawn("stats", Keep(api_.stats.GetConsumerStats(Of("web"),
                                                        {.deadline = Clock::now() + std::chrono::minutes(5)}),
                            end));
  loop_.poll();
  ASSERT_EQ(mounter_.asked, 1);
  RunOn(loop_, scope.Join());
  EXPECT_EQ(mounter_.asked, 0);
}

TEST_F(NodeApiStatsTest, TheConditionOfANewerPluginIsItsHealth) {
  control_.Add("p").facts->node_capabilities = {::csi::v1::NodeServiceCapability::RPC::GET_VOLUME_STATS};
  mounter_.Add("p", "v1", "c").condition = {
      .abnormal = true, .message = "DEGRADED", .statuses = {{.type = "DEGRADED", .reason = "r"}}};
  auto request = ForVolume<v1::GetVolumeStatsRequest>("v1");
  const auto stats = Call(&VolumeStatsApi::GetVolumeStats, request);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(stats->condition().abnormal());
  EXPECT_EQ(stats->condition().statuses(0).reason(), "r");
}

TEST_F(NodeApiStatsTest, AConsumerThatUsesNothingIsNotFound) {
  EXPECT_EQ(Call(&VolumeStatsApi::GetConsumerStats, Of("unknown")).status().code(),
            absl::StatusCode::kNotFound);
  const auto all = Call(&VolumeStatsApi::GetConsumerStats, Of(""));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->volumes_size(), 0) << "a node may have no volume";
}

}  // namespace
}  // namespace berth
