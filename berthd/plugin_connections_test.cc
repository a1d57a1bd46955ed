// Connections to real servers in this process.
#include "berthd/plugin_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "csi/testing/fake_plugin.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using Key = std::pair<std::string, uint64_t>;

class PluginConnectionsTest : public testing::Test {
 protected:
  PluginConnectionsTest() {
    for (FakePlugin* plugin : {&old_, &new_}) {
      plugin->Answer("Probe", csi::ProbeResponse());
      plugin->Hang("NodeUnpublishVolume");
      plugin->Start();
    }
  }
  ~PluginConnectionsTest() override {
    RunOn(loop_, calls_.Join());
    RunOn(loop_, connections_.Shutdown());
    old_.Stop();
    new_.Stop();
  }

  Instance Of(uint64_t number, const FakePlugin& plugin) {
    return {.plugin_id = "p",
            .number = number,
            .kind = PluginKind::kController,
            .socket_path = plugin.socket_path(),
            .health = {.interval = hours(1), .timeout = seconds(5), .fingerprint_interval = hours(1)},
            .volumes_path = ""};
  }
  bool RunUntil(const std::function<bool()>& done, Duration bound = seconds(20)) {
    const TimePoint end = Clock::now() + bound;
    loop_.restart();
    while (!done() && Clock::now() < end) loop_.run_one_until(std::min(end, Clock::now() + milliseconds(5)));
    return done();
  }
  bool Well(uint64_t number) const { return std::count(well_.begin(), well_.end(), Key("p", number)) > 0; }
  Awaitable<void> Unpublish(uint64_t number) {
    const auto client = connections_.Find("p", number)->client;
    [[maybe_unused]] const auto answer =
        co_await client->NodeUnpublishVolume({}, Clock::now() + milliseconds(100));
  }

  asio::io_context loop_;
  TempDir directory_;
  FakePlugin old_{directory_.Path("old.sock")};
  FakePlugin new_{directory_.Path("new.sock")};
  EventLog events_{loop_.get_executor(), 100, 1};
  RecentSecrets secrets_;
  std::vector<Key> well_;
  std::vector<Key> idle_;
  TaskScope calls_{loop_.get_executor(), "calls"};
  PluginConnections connections_{
      loop_.get_executor(), events_, secrets_,
      ConnectionSink{
          .on_health =
              [this](const std::string& id, uint64_t number, const PluginHealth& health) {
                if (health.answered) well_.emplace_back(id, number);
              },
          .on_facts = [](const std::string&, uint64_t, const absl::StatusOr<PluginFacts>&,
                         const std::string&) {},
          .on_idle = [this](const std::string& id, uint64_t number) { idle_.emplace_back(id, number); },
          .holds_volumes = [](const std::string&) { return false; }}};
};

TEST_F(PluginConnectionsTest, TwoInstancesOfOnePluginAreTwo) {
  connections_.Open(Of(1, old_), std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return Well(1); }));
  connections_.Open(Of(2, new_), std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return Well(2); }));
  ASSERT_NE(connections_.Find("p", 1), nullptr);
  ASSERT_NE(connections_.Find("p", 2), nullptr);
  EXPECT_EQ(connections_.Find("p", 2)->client->socket_path(), new_.socket_path());

  // The old one finishes its calls, and is dropped.
  calls_.Spawn("call", Unpublish(1));
  ASSERT_TRUE(RunUntil([this] { return connections_.Find("p", 1)->client->busy_until().has_value(); }));
  EXPECT_EQ(connections_.Find("p", 2)->client->busy_until(), std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return !idle_.empty(); }));
  EXPECT_THAT(idle_, ElementsAre(Key("p", 1)));
  connections_.Close("p", 1);
  EXPECT_EQ(connections_.Find("p", 1), nullptr);
  EXPECT_NE(connections_.Find("p", 2), nullptr);
  connections_.Close("p", 7);
}

TEST_F(PluginConnectionsTest, WhatIsLetGoOfIsProbedNoMore) {
  Instance instance = Of(1, old_);
  instance.health.interval = milliseconds(5);
  connections_.Open(instance, std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return old_.Calls("Probe") > 2; }));
  connections_.Close("p", 1);
  well_.clear();
  EXPECT_FALSE(RunUntil([this] { return !well_.empty(); }, milliseconds(50)));
}

TEST_F(PluginConnectionsTest, AnotherScheduleCountsFromNowOn) {
  connections_.Open(Of(1, old_), std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return Well(1); }));
  const auto client = connections_.Find("p", 1)->client;
  HealthConfig often = Of(1, old_).health;
  often.interval = milliseconds(5);
  const int before = old_.Calls("Probe");
  connections_.ProbeOtherwise("p", 1, often, std::nullopt);
  EXPECT_TRUE(RunUntil([&] { return old_.Calls("Probe") > before + 2; }));
  EXPECT_EQ(connections_.Find("p", 1)->client, client) << "calls go on over the same connection";
}

TEST_F(PluginConnectionsTest, ALimitThatWasReachedIsReadAgain) {
  connections_.Open(Of(1, old_), std::nullopt);
  ASSERT_TRUE(RunUntil([this] { return old_.Calls("GetPluginInfo") == 1; }));
  old_.FailNext("NodeStageVolume", {grpc::StatusCode::RESOURCE_EXHAUSTED, "no more volumes on this node"});
  const auto client = connections_.Find("p", 1)->client;
  ::csi::v1::NodeStageVolumeRequest stage;
  stage.set_volume_id("v");
  const auto refused = RunOn(loop_, client->NodeStageVolume(stage, Clock::now() + std::chrono::seconds(20)));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RunUntil([this] { return old_.Calls("GetPluginInfo") == 2; }));
}

TEST_F(PluginConnectionsTest, NothingIsOpenedAfterTheEnd) {
  RunOn(loop_, connections_.Shutdown());
  connections_.Open(Of(1, old_), std::nullopt);
  EXPECT_EQ(connections_.Find("p", 1), nullptr);
}

}  // namespace
}  // namespace berth
