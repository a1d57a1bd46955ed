// Swaps of real processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "supervisor/testing/supervisor_fixture.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SwapTest : public SupervisorTest {
 protected:
  // Until the process that does not serve has ended.
  void WaitEnded(pid_t pid) {
    node_->WaitUntil([&] {
      return node_->EventText("plugin.exited").find(fmt::format("process {}", pid)) != std::string::npos;
    });
    EXPECT_FALSE(IdentifyProcess(pid).ok());
  }
  std::future<absl::Status> Begin(SwapRequest request) {
    return asio::co_spawn(node_->loop_, node_->supervisor_->SwapPlugin("nfs", std::move(request), Soon()),
                          asio::use_future);
  }
  absl::Status End(std::future<absl::Status>& swap) {
    node_->WaitUntil([&] { return swap.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    return swap.get();
  }
  static SwapRequest Saying(const std::string& text) {
    return {.command = TEST_PLUGIN, .arguments = {"--say", text}};
  }
};

TEST_F(SwapTest, TheNewOneServesInPlaceOfTheOld) {
  WritePlugin("nfs", "\"--say\", \"old\"");
  node_->Start();
  const pid_t old = node_->WaitRegistered("nfs").pid;
  ASSERT_TRUE(node_->Swap("nfs", Saying("new")).ok());
  const PluginSnapshot plugin = node_->Get("nfs");
  EXPECT_NE(plugin.pid, old);
  EXPECT_TRUE(plugin.registered);
  EXPECT_THAT(plugin.swap, HasSubstr("swapped to"));
  EXPECT_THAT(node_->prober_.looks_, Contains("1 does not serve"));
  EXPECT_EQ(Text("state/logs/nfs.log"), "old\nnew\n");
}

TEST_F(SwapTest, OneThatEndsTheOldOneComesBack) {
  WritePlugin("nfs", "\"--say\", \"old\"");
  node_->Start();
  node_->WaitRegistered("nfs");
  const absl::Status status = node_->Swap("nfs", {.command = TEST_PLUGIN, .arguments = {"--exit", "3"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("no licence"), HasSubstr("the old one serves")));
  EXPECT_TRUE(node_->Get("nfs").registered);
  EXPECT_EQ(Text("state/logs/nfs.log"), "old\nno licence\nold\n");
}

TEST_F(SwapTest, AStartRequestLeavesASwapAlone) {
  WritePlugin("nfs", "\"--ignore-term\"", "stop_timeout = \"200ms\"\n");
  node_->Start();
  const pid_t old = node_->WaitRegistered("nfs").pid;
  std::future<absl::Status> swap = Begin(Saying("new"));
  node_->WaitState("nfs", PluginState::kDraining);
  EXPECT_EQ(node_->Swap("nfs", Saying("newer")).code(), absl::StatusCode::kAborted) << "one at a time";
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  EXPECT_TRUE(End(swap).ok());
  EXPECT_NE(node_->Get("nfs").pid, old);
  EXPECT_THAT(node_->Get("nfs").swap, HasSubstr("swapped to"));
  EXPECT_THAT(node_->Events(), Contains("plugin.swapped").Times(1));
}

// What a reload does to a plugin if its file asks for another process, by what that can do.
class ReloadedSwapTest : public SwapTest {
 protected:
  static constexpr int kStage = ::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME;
  static constexpr int kAttach = ::csi::v1::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME;
  static constexpr int kCreate = ::csi::v1::ControllerServiceCapability::RPC::CREATE_DELETE_VOLUME;

  pid_t StartWith(const PluginFacts& facts) {
    node_->prober_.facts_ = facts;
    WritePlugin("nfs", "");
    node_->Start();
    return node_->WaitRegistered("nfs").pid;
  }
  ReloadReport ReloadWith(const PluginFacts& facts) {
    node_->prober_.facts_ = facts;
    WritePlugin("nfs", "\"--say\", \"new\"");
    return *node_->Run(node_->supervisor_->Reload(Soon()));
  }
  void ExpectRefused(const ReloadReport& report, pid_t old, const std::string& why) {
    EXPECT_THAT(report.broken, ElementsAre(AllOf(HasSubstr(why), HasSubstr("plugin swap --accept-changes"))));
    const PluginSnapshot plugin = node_->Get("nfs");
    EXPECT_NE(plugin.pid, old) << "the old one was launched again";
    EXPECT_TRUE(plugin.registered);
    EXPECT_THAT(plugin.file_error, AllOf(HasSubstr("is not applied"), HasSubstr(why)));
  }

  const PluginFacts more_{
      .name = "test.berth.dev", .controller_capabilities = {kCreate}, .node_capabilities = {kStage}};
  const PluginFacts less_{.name = "test.berth.dev", .controller_capabilities = {kCreate}};
};

TEST_F(ReloadedSwapTest, APluginThatCanDoLessIsRefusedWhileVolumesAreHeld) {
  const pid_t old = StartWith(more_);
  node_->held_by_ = {"volume v by job"};
  ExpectRefused(ReloadWith(less_), old, "node capability STAGE_UNSTAGE_VOLUME is missing");
  EXPECT_TRUE(node_->Swap("nfs", {.accept_changes = true}).ok()) << "as the report says";
  EXPECT_EQ(node_->Get("nfs").file_error, "");
  WaitEnded(old);
}

TEST_F(ReloadedSwapTest, AnotherTopologyIsRefusedWhileVolumesAreHeld) {
  const pid_t old = StartWith(more_);
  node_->held_by_ = {"volume v by job"};
  PluginFacts moved = more_;
  moved.topology = {{"zone", "b"}};
  ExpectRefused(ReloadWith(moved), old, "its topology is zone=b, not none");
}

TEST_F(ReloadedSwapTest, APluginThatCanDoLessIsTakenWhileNothingDependsOnIt) {
  const pid_t old = StartWith(more_);
  EXPECT_THAT(ReloadWith(less_).swapped, ElementsAre("nfs"));
  WaitEnded(old);
}

TEST_F(ReloadedSwapTest, WhatAControllerHasAttachedIsNotKnownHere) {
  PluginFacts attaches = more_;
  attaches.controller_capabilities.insert(kAttach);
  const pid_t old = StartWith(attaches);
  ExpectRefused(ReloadWith(more_), old, "controller capability PUBLISH_UNPUBLISH_VOLUME is missing");
}

TEST_F(ReloadedSwapTest, WhatAControllerMayStillDeleteIsNotKnownHere) {
  PluginFacts attaches = more_;
  attaches.controller_capabilities.insert(kAttach);
  const pid_t old = StartWith(attaches);
  PluginFacts other = attaches;
  other.controller_capabilities.erase(kCreate);
  ExpectRefused(ReloadWith(other), old, "controller capability CREATE_DELETE_VOLUME is missing");
}

TEST_F(ReloadedSwapTest, APluginThatIsStartedAnewServesAndItsLossesAreReported) {
  const pid_t old = StartWith(more_);
  node_->held_by_ = {"volume v by job"};
  node_->prober_.facts_ = less_;
  ASSERT_EQ(kill(old, SIGKILL), 0);
  const PluginSnapshot plugin = node_->WaitOtherPid("nfs", old);
  EXPECT_THAT(plugin.reason, HasSubstr("node capability STAGE_UNSTAGE_VOLUME is missing"));
  EXPECT_THAT(node_->EventText("plugin.does_less"), HasSubstr("STAGE_UNSTAGE_VOLUME is missing"));
}

TEST_F(ReloadedSwapTest, AnAnswerThatIsWantedEarlyNamesWhatIsPending) {
  StartWith(more_);
  node_->prober_.health_ = PluginHealth{.ok = false, .error = "no cluster"};
  WritePlugin("nfs", "\"--say\", \"new\"");
  // The files are read within any bound; the swap waits for a Probe.
  const auto early = [this]() -> Awaitable<absl::StatusOr<ReloadReport>> {
    return node_->supervisor_->Reload(Clock::now() + std::chrono::seconds(5));
  };
  const absl::StatusOr<ReloadReport> report = node_->Run(early());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->pending, ElementsAre("nfs"));
  EXPECT_EQ(node_->Run(node_->supervisor_->Reload(Soon())).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(node_->Stop("nfs").ok());
}

}  // namespace
}  // namespace berth
