// How plugins end and come back: ends, backoff, stop, restart, ill health.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

#include "supervisor/testing/supervisor_fixture.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(SupervisorTest, EndIsSeenAtOnceAndTheFirstRestartIsImmediate) {
  WritePlugin("nfs", "", "[restart]\ninitial_backoff = \"1h\"\nmax_backoff = \"1h\"\n");
  node_->Start();
  const pid_t first = node_->WaitRegistered("nfs").pid;
  const TimePoint killed = Clock::now();
  ASSERT_EQ(kill(first, SIGKILL), 0);
  const PluginSnapshot plugin = node_->WaitOtherPid("nfs", first);
  EXPECT_LT(Clock::now() - killed, seconds(5));
  EXPECT_EQ(plugin.last_exit, "signal 9 (Killed)");
  EXPECT_EQ(plugin.restarts, 1);
  EXPECT_EQ(plugin.instance, 2U);
  EXPECT_THAT(node_->prober_.appeared_, ElementsAre("nfs#1", "nfs#2"));
  EXPECT_THAT(node_->prober_.gone_, ElementsAre("nfs#1"));
}

TEST_F(SupervisorTest, CrashLoopBacksOffAndFailsWithTheReason) {
  WritePlugin("nfs", "\"--exit\", \"3\"",
              "[restart]\ninitial_backoff = \"10ms\"\nmax_backoff = \"20ms\"\nburst = 4\nwindow = \"1m\"\n");
  node_->Start();
  const PluginSnapshot backing_off = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_TRUE(backing_off.next_restart_at.has_value());
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_FALSE(plugin.alive);
  EXPECT_EQ(plugin.last_exit, "exit code 3");
  EXPECT_THAT(plugin.last_output, ElementsAre("no licence"));
  EXPECT_EQ(plugin.reason,
            "not restarted, as it ended 4 times within 1m; last: exit code 3, its last line: no licence");
  EXPECT_EQ(plugin.instance, 4U);
  EXPECT_THAT(node_->Events(), Contains("plugin.backing_off").Times(2));
  EXPECT_THAT(node_->Events(), Contains("plugin.exited").Times(4));
  EXPECT_THAT(node_->EventText("plugin.failed"), HasSubstr("no licence"));
  EXPECT_THAT(node_->prober_.appeared_, IsEmpty());

  // A person repairs the file, and starts it: the file is read afresh.
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  WritePlugin("nfs");
  node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").restarts, 0);
}

TEST_F(SupervisorTest, StopEndsItInOrderAndStartBringsItBack) {
  WritePlugin("nfs");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
  PluginSnapshot plugin = node_->Get("nfs");
  EXPECT_EQ(plugin.state, PluginState::kStopped);
  EXPECT_FALSE(plugin.alive);
  EXPECT_FALSE(plugin.registered);
  EXPECT_EQ(plugin.last_exit, "signal 15 (Terminated)");
  EXPECT_THAT(node_->prober_.gone_, ElementsAre("nfs#1"));
  EXPECT_FALSE(ReadRunRecord(RunDir("nfs")).ok());
  EXPECT_TRUE(node_->Stop("nfs").ok()) << "stopped it is already";
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  plugin = node_->Get("nfs");
  EXPECT_TRUE(plugin.registered);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok()) << "it runs already";
  EXPECT_EQ(node_->Get("nfs").pid, plugin.pid);
}

TEST_F(SupervisorTest, PluginThatIgnoresTermIsKilled) {
  WritePlugin("nfs", "\"--ignore-term\"", "stop_timeout = \"50ms\"\n");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").last_exit, "signal 9 (Killed)");
}

TEST_F(SupervisorTest, StopThatTakesLongerThanTheCallerWaitsGoesOn) {
  WritePlugin("nfs", "\"--ignore-term\"", "stop_timeout = \"200ms\"\n");
  node_->Start();
  node_->WaitRegistered("nfs");
  const absl::Status status =
      node_->Run(node_->supervisor_->StopPlugin("nfs", false, Clock::now() + milliseconds(20)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(node_->Get("nfs").state, PluginState::kDraining);
  node_->WaitState("nfs", PluginState::kStopped);
}

TEST_F(SupervisorTest, StopIsRefusedWhileVolumesAreHeld) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_->held_by_ = {"job-7", "job-9"};
  const absl::Status status = node_->Stop("nfs");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job-7, job-9"));
  EXPECT_EQ(node_->WaitRegistered("nfs").pid, pid);
  EXPECT_TRUE(node_->Restart("nfs").ok()) << "volumes stay over a restart";
  EXPECT_TRUE(node_->Stop("nfs", true).ok());
}

Awaitable<void> KeepResult(Awaitable<absl::Status> call, std::optional<absl::Status>* result) {
  *result = co_await std::move(call);
}

TEST_F(SupervisorTest, RestartWaitsForTheOperationInFlight) {
  WritePlugin("nfs");
  node_->Start();
  const PluginSnapshot before = node_->WaitRegistered("nfs");
  node_->busy_ = true;
  std::optional<absl::Status> restarted;
  node_->scope_.Spawn("restart",
                      KeepResult(node_->supervisor_->RestartPlugin("nfs", false, Soon()), &restarted));
  const PluginSnapshot waiting =
      node_->Wait("nfs", [](const PluginSnapshot& plugin) { return plugin.paused; });
  EXPECT_EQ(waiting.pid, before.pid);
  EXPECT_THAT(waiting.reason, HasSubstr("waits for operations in flight"));
  // Another caller, with less time, is answered then.
  EXPECT_EQ(
      node_->Run(node_->supervisor_->RestartPlugin("nfs", false, Clock::now() + milliseconds(20))).code(),
      absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(restarted.has_value());
  // It goes on once the operation has ended, or at once where it is forced.
  node_->busy_ = false;
  node_->supervisor_->OnIdle("nfs", before.instance);
  const pid_t second = node_->WaitOtherPid("nfs", before.pid).pid;
  node_->WaitUntil([&restarted] { return restarted.has_value(); });
  EXPECT_EQ(*restarted, absl::OkStatus());
  node_->busy_ = true;
  EXPECT_TRUE(node_->Restart("nfs", true).ok());
  EXPECT_NE(node_->Get("nfs").pid, second);
  EXPECT_EQ(node_->Get("nfs").restarts, 0);
}

TEST_F(SupervisorTest, StartThatTakesTooLongIsACrash) {
  for (const char* mode : {"--never-listen", "--no-socket"}) {
    WritePlugin("nfs", fmt::format("\"{}\"", mode),
                // Long enough for a busy disk, too, to take what is written down before.
                "start_timeout = \"1s\"\n[restart]\ninitial_backoff = \"1h\"\nmax_backoff = \"1h\"\n");
    NextBerthd();
    node_->Start();
    const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
    EXPECT_EQ(plugin.reason, "its socket did not answer within 1s");
    EXPECT_EQ(plugin.instance, 2U);
    EXPECT_THAT(node_->prober_.appeared_, IsEmpty());
    EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(SupervisorTest, ProgramThatHasGoneBacksOffUntilItIsBack) {
  const std::string program = temp_.Path("program");
  std::filesystem::copy_file(TEST_PLUGIN, program);
  temp_.Write(
      "etc/plugins.d/nfs.toml",
      fmt::format("kind = \"node\"\ncommand = \"{}\"\n[restart]\ninitial_backoff = \"10ms\"\n", program));
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  ASSERT_EQ(rename(program.c_str(), (program + ".away").c_str()), 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_THAT(plugin.reason, HasSubstr(program));
  EXPECT_FALSE(ReadRunRecord(RunDir("nfs")).ok());
  ASSERT_EQ(rename((program + ".away").c_str(), program.c_str()), 0);
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, NotReadyIsNoCrashAndUnhealthyIsShown) {
  WritePlugin("nfs", "", "[health]\nfailures = 2\n");
  node_->prober_.health_ = PluginHealth{.ok = false, .error = "not ready", .consecutive_failures = 1};
  node_->Start();
  const PluginSnapshot starting =
      node_->Wait("nfs", [](const auto& plugin) { return !plugin.health.error.empty(); });
  EXPECT_EQ(starting.state, PluginState::kStarting);
  EXPECT_EQ(starting.reason, "Probe: not ready");
  const auto probe = [&](bool ok, int failures) {
    const PluginHealth health{.ok = ok, .error = ok ? "" : "timeout", .consecutive_failures = failures};
    node_->supervisor_->OnHealth("nfs", 1, health);
    return node_->Wait("nfs", [health](const auto& plugin) { return plugin.health == health; });
  };
  EXPECT_EQ(probe(true, 0).state, PluginState::kReady);
  EXPECT_EQ(probe(false, 1).state, PluginState::kReady);
  const PluginSnapshot unhealthy = probe(false, 2);
  EXPECT_EQ(unhealthy.state, PluginState::kUnhealthy);
  EXPECT_EQ(unhealthy.reason, "Probe: timeout");
  EXPECT_FALSE(unhealthy.ready);
  EXPECT_TRUE(unhealthy.alive);
  EXPECT_EQ(probe(true, 0).state, PluginState::kReady);
  EXPECT_EQ(unhealthy.restarts, 0);
  // What is found of an instance that is no longer is ignored.
  node_->supervisor_->OnHealth("nfs", 0,
                               PluginHealth{.ok = false, .error = "old", .consecutive_failures = 9});
  node_->supervisor_->OnFacts("nfs", 0, absl::InternalError("old"), "");
  const PluginSnapshot after = probe(false, 1);
  EXPECT_EQ(after.state, PluginState::kReady);
  EXPECT_EQ(after.reason, "");
  EXPECT_THAT(node_->Events(), Contains("plugin.unhealthy").Times(1));
}

TEST_F(SupervisorTest, RefusedPluginStaysAliveUnregisteredAndSaysWhy) {
  WritePlugin("nfs");
  node_->prober_.facts_ = absl::FailedPreconditionError("its name was a, and is b");
  node_->Start();
  const PluginSnapshot plugin =
      node_->Wait("nfs", [](const auto& each) { return !each.reason.empty() && each.ready; });
  EXPECT_TRUE(plugin.alive);
  EXPECT_FALSE(plugin.registered);
  EXPECT_EQ(plugin.reason, "its name was a, and is b");
  EXPECT_THAT(node_->Events(), Contains("plugin.refused").Times(1));
  const absl::Status status = node_->Restart("nfs");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its name was a"));
}

}  // namespace
}  // namespace berth
