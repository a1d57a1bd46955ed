// Plugins that die, stop, loop, multiply, or are not ready (FAULTS rows 1 to 7), made for real by
// berth-fault-plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class FaultProcessTest : public FaultTest {
 protected:
  // Kills the plugin in the middle of an RPC of a publish, once, and expects that the publish succeeds with
  // one effect.
  void KillAt(const std::string& rpc, const std::string& when) {
    const pid_t before = StartReady().pid();
    const std::string volume = CreateVolume("v");
    fault_.Play({"rpc = \"" + rpc + "\"\nwhen = \"" + when +
                 "\"\naction = \"signal\"\nsignal = \"SIGKILL\"\ncall = 1"});
    const std::string target = Publish(volume, "job");
    EXPECT_NE(Get().pid(), before);
    EXPECT_EQ(fault_.Count([&](const FaultEvent& e) { return e.event == "call" && e.rpc == rpc; }), 2)
        << "retried once";
    const std::vector<std::string> mounts = node_.Mounts();
    EXPECT_EQ(std::count(mounts.begin(), mounts.end(), target), 1);
    Unpublish(volume, "job");
    EXPECT_TRUE(node_.Volumes().volumes_size() == 1) << "only the bystander's is left";
  }

  bool HasCgroups() const { return node_.log().find("plugins live in: none") == std::string::npos; }
  int64_t Starts() const {
    return fault_.Count([](const FaultEvent& e) { return e.event == "start"; });
  }
  void WaitProbes(pid_t pid, int64_t count) const {
    WaitFor("more probes", [&, first = Probes(pid)] { return Probes(pid) >= first + count; });
  }

 private:
  int64_t Probes(pid_t pid) const {
    return fault_.Count(
        [pid](const FaultEvent& e) { return e.event == "answer" && e.rpc == "Probe" && e.pid == pid; });
  }
};

TEST_F(FaultProcessTest, Fault01APluginKilledWhileIdleIsReadyAgainAndMountsStay) {
  const pid_t before = StartReady().pid();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  ASSERT_EQ(kill(before, SIGKILL), 0);
  const v1::Plugin after = Wait("ready with another process", [&](const v1::Plugin& plugin) {
    return plugin.ready() && plugin.registered() && plugin.pid() != before;
  });
  EXPECT_THAT(after.last_exit(), HasSubstr("signal 9"));
  EXPECT_EQ(after.restarts(), 1);
  EXPECT_EQ(Starts(), 2);
  ExpectWorks("w");
}

TEST_F(FaultProcessTest, Fault02APluginKilledBeforeTheEffectOfAStageHasItOnce) {
  KillAt("NodeStageVolume", "before");
}
TEST_F(FaultProcessTest, Fault02APluginKilledAfterTheEffectOfAStageHasItOnce) {
  KillAt("NodeStageVolume", "after");
}
TEST_F(FaultProcessTest, Fault03APluginKilledBeforeTheEffectOfAPublishMountsOnce) {
  KillAt("NodePublishVolume", "before");
}
TEST_F(FaultProcessTest, Fault03APluginKilledAfterTheEffectOfAPublishMountsOnce) {
  KillAt("NodePublishVolume", "after");
}

TEST_F(FaultProcessTest, Fault04AStoppedPluginIsUnhealthyAndThenReplaced) {
  const pid_t before = StartReady(
                           "[health]\ninterval = \"50ms\"\ntimeout = \"150ms\"\nfailures = 2\n"
                           "replace_after = \"300ms\"\n")
                           .pid();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  ASSERT_EQ(kill(before, SIGSTOP), 0);
  const v1::Plugin after = Wait("replaced", [&](const v1::Plugin& plugin) {
    return plugin.ready() && plugin.registered() && plugin.pid() != before;
  });
  WaitEvent("plugin.unhealthy", "Probe");
  EXPECT_FALSE(Lives(before)) << "SIGTERM does nothing to what is stopped";
  EXPECT_FALSE(after.last_exit().empty());
  EXPECT_EQ(Starts(), 2);
  ExpectWorks("w");
}

TEST_F(FaultProcessTest, Fault04APluginThatIsIllAgainAndAgainIsForcedReleaseWithTheReason) {
  fault_.Play(
      {"rpc = \"start\"\naction = \"signal\"\nsignal = \"SIGSTOP\"\nbackground = true\ndelay_ms = 800"});
  StartNode(
      "stop_timeout = \"100ms\"\n"
      "[health]\ninterval = \"30ms\"\ntimeout = \"100ms\"\nfailures = 1\nreplace_after = \"100ms\"\n"
      "replace_burst = 2\nreplace_window = \"10m\"\n");
  const v1::Plugin plugin = Wait("failed", [](const v1::Plugin& p) { return p.state() == v1::FAILED; });
  EXPECT_FALSE(plugin.alive());
  EXPECT_THAT(plugin.reason(), HasSubstr("Probe"));
  EXPECT_LE(Starts(), 4) << "one that was stopped before it served was none that was ill";
  EXPECT_GE(Starts(), 2);
  fault_.Play();
  EXPECT_TRUE(StartPlugin(fault_.id()).ok()) << "a person starts it again";
  ExpectWorks("w");
}

// For much longer than replace_after, and then well again.
constexpr auto kIll =
    "rpc = \"Probe\"\naction = \"fail\"\ncode = \"INTERNAL\"\ntext = \"the array is gone\"\ncount = 20";

class FaultIllWhileBusyTest : public FaultProcessTest {
 protected:
  // A plugin that is to be replaced, while a publish hangs in it.
  pid_t MakeIllWhileBusy() {
    const pid_t pid = StartReady(
                          "stop_timeout = \"200ms\"\n"
                          "[health]\ninterval = \"50ms\"\ntimeout = \"150ms\"\nfailures = 2\n"
                          "replace_after = \"200ms\"\n")
                          .pid();
    volume_ = CreateVolume("v");
    fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"hang\"\ncall = 1", kIll});
    // The caller goes away; the plugin's call goes on until its own deadline, which is minutes away.
    EXPECT_FALSE(TryPublish(volume_, "job", nullptr, std::chrono::milliseconds(500)).ok());
    WaitEvent("plugin.stopping", "waits for operations");
    EXPECT_EQ(Get().pid(), pid);
    EXPECT_TRUE(Lives(pid));
    return pid;
  }

  std::string volume_;
};

TEST_F(FaultIllWhileBusyTest, Fault04IsNotReplacedInTheMiddleOfAnOperationAndNotAtAllOnceItIsWell) {
  const pid_t pid = MakeIllWhileBusy();
  node_.WaitReady(fault_.id());  // Its Probes fail no more, and the operation still hangs.
  EXPECT_EQ(Get().pid(), pid);
  fault_.Play();
  Publish(volume_, "job");
  EXPECT_EQ(Get().pid(), pid);
  EXPECT_EQ(Starts(), 1);
}

TEST_F(FaultIllWhileBusyTest, Fault04IsReplacedOnceTheOperationHasEnded) {
  const pid_t pid = MakeIllWhileBusy();
  fault_.Play({kIll});  // The operation ends; the illness does not.
  Wait("replaced", [&](const v1::Plugin& p) { return p.registered() && p.ready() && p.pid() != pid; });
  EXPECT_FALSE(Lives(pid));
  Publish(volume_, "job");
}

TEST_F(FaultProcessTest, Fault05ACrashLoopBacksOffAndEndsAsFailedWithTheReason) {
  fault_.Play({"rpc = \"start\"\naction = \"output\"\ntext = \"no licence\\n\"",
               "rpc = \"start\"\naction = \"exit\"\nexit_code = 3"});
  StartNode("[restart]\ninitial_backoff = \"50ms\"\nmax_backoff = \"100ms\"\nburst = 4\nwindow = \"10m\"\n");
  const v1::Plugin plugin = Wait("failed", [](const v1::Plugin& p) { return p.state() == v1::FAILED; });
  EXPECT_THAT(plugin.last_exit(), HasSubstr("3"));
  EXPECT_THAT(plugin.last_output(), testing::Contains(HasSubstr("no licence")));
  EXPECT_FALSE(plugin.reason().empty());

  std::vector<double> starts;
  for (const FaultEvent& event : fault_.History()) {
    if (event.event == "start") starts.push_back(event.at);
  }
  ASSERT_EQ(starts.size(), 4U) << "as many as the burst allows";
  // A pause is at least half of its length.
  EXPECT_GE(starts[2] - starts[1], 0.5 * 0.05);
  EXPECT_GE(starts[3] - starts[2], 0.5 * 0.1);

  fault_.Play();
  EXPECT_TRUE(StartPlugin(fault_.id()).ok()) << "a person starts it again";
  ExpectWorks("w");
}

TEST_F(FaultProcessTest, Fault05AnOnlyCrashAfterAStablePeriodIsFollowedByAStartAtOnce) {
  const pid_t before =
      StartReady("[restart]\ninitial_backoff = \"20s\"\nmax_backoff = \"1m\"\nstable_after = \"1ms\"\n")
          .pid();
  ASSERT_EQ(kill(before, SIGKILL), 0);
  Wait("ready again", [&](const v1::Plugin& p) { return p.registered() && p.pid() != before; });
}

TEST_F(FaultProcessTest, Fault06WhatAPluginForksEndsWithIt) {
  fault_.Play({"rpc = \"start\"\naction = \"fork-bomb\"\nprocesses = 30"});
  const pid_t plugin = StartReady().pid();
  if (!HasCgroups()) GTEST_SKIP() << "no cgroup v2 hierarchy can be mounted here";
  fault_.WaitHistory("forked", [](const FaultEvent& e) { return e.event == "forked"; });
  std::vector<pid_t> children;
  std::ifstream in("/proc/" + std::to_string(plugin) + "/task/" + std::to_string(plugin) + "/children");
  for (pid_t pid = 0; in >> pid;) children.push_back(pid);
  ASSERT_EQ(children.size(), 30U);
  EXPECT_TRUE(StopPlugin(fault_.id()).ok());
  EXPECT_EQ(std::count_if(children.begin(), children.end(), Lives), 0);
  EXPECT_EQ(Get().state(), v1::STOPPED);
}

TEST_F(FaultProcessTest, Fault06WhatAPluginForkedEndsWithItsCrash) {
  fault_.Play({"rpc = \"start\"\naction = \"fork-bomb\"\nprocesses = 10\ncount = 1",
               "rpc = \"start\"\naction = \"children\"\nprocesses = 3\ncount = 1"});
  const pid_t plugin = StartReady().pid();
  if (!HasCgroups()) GTEST_SKIP() << "no cgroup v2 hierarchy can be mounted here";
  std::vector<pid_t> children;
  for (const FaultEvent& event : fault_.History()) {
    if (event.event == "child") children.push_back(event.child);
  }
  ASSERT_EQ(children.size(), 3U);
  std::ifstream in("/proc/" + std::to_string(plugin) + "/task/" + std::to_string(plugin) + "/children");
  for (pid_t pid = 0; in >> pid;) children.push_back(pid);
  ASSERT_EQ(children.size(), 13U);
  ASSERT_EQ(kill(plugin, SIGKILL), 0);
  Wait("ready again", [&](const v1::Plugin& p) { return p.registered() && p.pid() != plugin; });
  WaitFor("nothing of the first one is left",
          [&] { return std::count_if(children.begin(), children.end(), Lives) == 0; });
}

TEST_F(FaultProcessTest, Fault06LimitsThatThisMachineCannotKeepAreSaid) {
  const v1::Plugin plugin = StartReady("[limits]\nmemory = \"256MiB\"\npids = 200\n");
  v1::GetStatusResponse status;
  ASSERT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  EXPECT_FALSE(status.placement().empty());
  EXPECT_FALSE(plugin.placement().empty());
  // Here they hold, or it is said that they do not.
  if (std::ifstream controllers("/sys/fs/cgroup/cgroup.controllers"); !controllers.good()) {
    EXPECT_THAT(plugin.reason() + plugin.placement(), AnyOf(HasSubstr("memory"), HasSubstr("pids")));
  }
}

TEST_F(FaultProcessTest, Fault07ReadyFalseIsNotACrash) {
  fault_.Play({"rpc = \"Probe\"\naction = \"answer\"\nanswer = \"ready { value: false }\""});
  StartNode(
      "start_timeout = \"500ms\"\n"
      "[health]\ninterval = \"30ms\"\ntimeout = \"1s\"\nfailures = 2\nreplace_after = \"200ms\"\n");
  const pid_t pid = fault_.WaitHistory("probed", [](const FaultEvent& e) { return e.rpc == "Probe"; }).pid;
  WaitProbes(pid, 15);
  const v1::Plugin waiting = Get();
  EXPECT_TRUE(waiting.alive());
  EXPECT_FALSE(waiting.ready());
  EXPECT_FALSE(waiting.registered());
  EXPECT_THAT(waiting.health().error(), HasSubstr("not ready"));

  fault_.Play();
  EXPECT_EQ(node_.WaitReady(fault_.id()).pid(), pid);
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");

  fault_.Play({"rpc = \"Probe\"\naction = \"answer\"\nanswer = \"ready { value: false }\""});
  Wait("not ready", [](const v1::Plugin& p) { return p.alive() && !p.ready(); });
  WaitProbes(pid, 15);
  EXPECT_EQ(Get().pid(), pid) << "it says itself that it is on its way";
  fault_.Play();
  const v1::Plugin again = node_.WaitReady(fault_.id());
  EXPECT_EQ(again.pid(), pid);
  EXPECT_EQ(again.restarts(), 0);
  EXPECT_EQ(Starts(), 1);
}

TEST_F(FaultProcessTest, Fault07ReadyUnsetIsReady) {
  fault_.Play({"rpc = \"Probe\"\naction = \"answer\"\nreplace = true"});
  StartReady();
}

}  // namespace
}  // namespace berth
