// Scopes of the systemd that runs here, with the kernel's limits. Skipped without systemd: ./dev test
// --machine runs these in a machine of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <systemd/sd-daemon.h>

#include <csignal>
#include <filesystem>

#include "base/file.h"
#include "base/status.h"
#include "base/testing/run_on.h"
#include "supervisor/cgroups/cgroup_dir.h"
#include "supervisor/cgroups/plugin_cgroup.h"
#include "supervisor/cgroups/testing/gated_child.h"

namespace berth {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr Duration kSystemdBound = std::chrono::seconds(60);
// Takes memory until it gets none.
constexpr const char* kHog = "exec tail /dev/zero";

class SystemdScopeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (sd_booted() <= 0 || geteuid() != 0) GTEST_SKIP() << "systemd is not PID 1 here, or we are not root";
    placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), CgroupOptions()));
    ASSERT_THAT(placer_->describe(), StartsWith("systemd scopes"));
  }

  std::unique_ptr<PluginCgroup> Prepare(const std::string& id, CgroupLimits limits = {}) {
    return RunOn(loop_, placer_->Prepare(id, limits, Clock::now() + kSystemdBound)).value();
  }
  // Through the gate, into the place, and on.
  void Launch(PluginCgroup& group, GatedChild& child) {
    const absl::Status entered =
        RunOn(loop_, group.Enter(child.pid(), Clock::now() + kSystemdBound), kSystemdBound);
    ASSERT_EQ(entered, absl::OkStatus());
    child.Go();
  }
  CgroupExit HowItEnded(PluginCgroup& group) { return RunOn(loop_, group.HowItEnded()); }
  absl::Status KillAll(PluginCgroup& group) {
    return RunOn(loop_, group.KillAll(Clock::now() + kSystemdBound), kSystemdBound);
  }
  // Waits for the condition, with the loop running meanwhile.
  void WaitUntilHolds(const std::function<bool()>& condition) {
    const TimePoint deadline = Clock::now() + kSystemdBound;
    while (!condition()) {
      ASSERT_LT(Clock::now(), deadline) << "the condition did not come about";
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
    }
  }

  static std::string DirectoryOf(const GatedChild& child) {
    return "/sys/fs/cgroup" + Cgroup2Path(child.Cgroup()).value_or("?");
  }
  static std::string Setting(const std::string& directory, const std::string& file) {
    return ReadFile(directory + "/" + file, 4096).value_or("absent");
  }

  asio::io_context loop_;
  std::unique_ptr<CgroupProvider> placer_;
};

TEST_F(SystemdScopeTest, HoldsThePluginAndAllThatItForks) {
  const auto group = Prepare("a-b.c", {.memory_max = 64 << 20, .pids_max = 20, .cpus = 0.5});
  EXPECT_EQ(group->unenforced(), "");
  GatedChild child("(setsid sleep 1000 &) ; sleep 1000");
  Launch(*group, child);
  EXPECT_EQ(child.Cgroup(), "0::/berth.slice/berth-plugins.slice/berth-plugin-a\\x2db.c.scope\n");
  EXPECT_EQ(group->describe(), "scope berth-plugin-a\\x2db.c.scope");
  const std::string directory = DirectoryOf(child);
  EXPECT_EQ(Setting(directory, "memory.max"), "67108864\n");
  EXPECT_EQ(Setting(directory, "memory.oom.group"), "1\n");
  EXPECT_EQ(Setting(directory, "pids.max"), "20\n");
  EXPECT_EQ(Setting(directory, "cpu.max"), "50000 100000\n");
  WaitUntilHolds([&] { return group->Members()->size() == 3; });
  EXPECT_EQ(KillAll(*group), absl::OkStatus());
  EXPECT_FALSE(HowItEnded(*group).out_of_memory);
  child.Reap();
  WaitUntilHolds([&] { return !std::filesystem::exists(directory); });
}

TEST_F(SystemdScopeTest, NameIsFreeForTheNextLaunchAtOnce) {
  for (int launch = 0; launch < 10; ++launch) {
    const auto group = Prepare("again");
    GatedChild child("exec sleep 1000");
    Launch(*group, child);
    EXPECT_EQ(KillAll(*group), absl::OkStatus());
    child.Reap();
    RunOn(loop_, group->Release());
  }
}

TEST_F(SystemdScopeTest, WhatOutlivesItsMainProcessKeepsItsScope) {
  const auto first = Prepare("kept");
  GatedChild child("exec sleep 1000");
  Launch(*first, child);
  const auto second = Prepare("kept");
  GatedChild successor("exec sleep 1000");
  Launch(*second, successor);
  EXPECT_THAT(successor.Cgroup(), HasSubstr("/berth-plugin-kept-2.scope\n"));
  EXPECT_THAT(child.Cgroup(), HasSubstr("/berth-plugin-kept.scope\n"));
  EXPECT_EQ(KillAll(*second), absl::OkStatus());
  EXPECT_EQ(first->Members()->size(), 1);
  EXPECT_EQ(KillAll(*first), absl::OkStatus());
}

TEST_F(SystemdScopeTest, Fault06OutOfMemoryIsToldAtOnce) {
  for (int round = 0; round < 5; ++round) {
    const auto group = Prepare("hog", {.memory_max = 24 << 20});
    GatedChild child(kHog);
    Launch(*group, child);
    EXPECT_EQ(child.Reap(), SIGKILL);
    const CgroupExit end = HowItEnded(*group);
    EXPECT_TRUE(end.out_of_memory) << "round " << round;
    EXPECT_EQ(end.text, "out of memory (its limit is 24MiB)") << "round " << round;
  }
}

TEST_F(SystemdScopeTest, Fault06OutOfMemoryIsToldAfterTheScopeHasGone) {
  for (int round = 0; round < 5; ++round) {
    const auto group = Prepare("hog", {.memory_max = 24 << 20});
    const auto other = Prepare("other", {.memory_max = 24 << 20});
    GatedChild child(kHog);
    GatedChild neighbour("exec sleep 1000");
    Launch(*other, neighbour);
    const std::string directory = [&] {
      const absl::Status entered =
          RunOn(loop_, group->Enter(child.pid(), Clock::now() + kSystemdBound), kSystemdBound);
      EXPECT_EQ(entered, absl::OkStatus());
      return DirectoryOf(child);
    }();
    child.Go();
    // The loop does not run meanwhile: nothing is seen of the group but what is left of it.
    EXPECT_EQ(child.Reap(), SIGKILL);
    const TimePoint deadline = Clock::now() + kSystemdBound;
    while (std::filesystem::exists(directory) && Clock::now() < deadline) poll(nullptr, 0, 2);
    EXPECT_EQ(KillAll(*other), absl::OkStatus());
    neighbour.Reap();
    EXPECT_FALSE(HowItEnded(*other).out_of_memory) << "that was the other one, round " << round;
    EXPECT_TRUE(HowItEnded(*group).out_of_memory) << "round " << round;
  }
}

TEST_F(SystemdScopeTest, Fault06WantOfMemoryEndsAllOfItTogether) {
  const auto group = Prepare("hog", {.memory_max = 24 << 20});
  GatedChild child("sleep 1000 & (setsid sleep 1000 &) ; tail /dev/zero; exit 0");
  Launch(*group, child);
  EXPECT_EQ(child.Reap(), SIGKILL) << "the shell that waits for the hog";
  EXPECT_TRUE(HowItEnded(*group).out_of_memory);
  WaitUntilHolds([&] { return group->Members()->empty(); });
}

TEST_F(SystemdScopeTest, Fault06KeptProcessesSurviveTheHog) {
  const auto group = Prepare("hog", {.memory_max = 48 << 20, .killed_together = false});
  GatedChild child("sleep 1000 & tail /dev/zero; exit 7");
  Launch(*group, child);
  EXPECT_EQ(child.Reap(), 0);
  EXPECT_EQ(child.exit_code(), 7);
  EXPECT_TRUE(HowItEnded(*group).out_of_memory);
  EXPECT_EQ(group->Members()->size(), 1);
  EXPECT_EQ(KillAll(*group), absl::OkStatus());
}

TEST_F(SystemdScopeTest, Fault06ForkBombMeetsItsLimitAndIsEndedWhole) {
  const auto group = Prepare("bomb", {.pids_max = 40});
  GatedChild child("exec 2>/dev/null; b() { b & b & wait; }; b");
  Launch(*group, child);
  WaitUntilHolds([&] { return HowItEnded(*group).pids_limit_hit; });
  EXPECT_LE(group->Members()->size(), 40);
  EXPECT_EQ(KillAll(*group), absl::OkStatus());
  EXPECT_TRUE(group->Members()->empty());
  const CgroupExit end = HowItEnded(*group);
  EXPECT_TRUE(end.pids_limit_hit);
  EXPECT_EQ(end.text, "met its limit of 40 processes and threads");
  EXPECT_FALSE(end.out_of_memory);
}

TEST_F(SystemdScopeTest, ProcessThatEndedAtTheGateIsAnError) {
  const auto group = Prepare("gone");
  GatedChild child("exec sleep 1000");
  kill(child.pid(), SIGKILL);
  child.Reap();
  const absl::Status entered =
      RunOn(loop_, group->Enter(child.pid(), Clock::now() + kSystemdBound), kSystemdBound);
  EXPECT_FALSE(entered.ok());
}

TEST_F(SystemdScopeTest, TakenBackProcessIsFoundInItsScope) {
  auto before = Prepare("taken", {.memory_max = 24 << 20});
  GatedChild child("read x; exec tail /dev/zero", -1);
  Launch(*before, child);
  const std::string described = before->describe();
  before.reset();
  placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), CgroupOptions()));
  const auto group = RunOn(loop_, placer_->Find({.cgroup = child.Cgroup()}, true));
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->describe(), described);
  EXPECT_EQ((*group)->Members()->size(), 1);
  child.Say("x\n");
  EXPECT_EQ(child.Reap(), SIGKILL);
  EXPECT_EQ(HowItEnded(**group).text, "out of memory (its limit is 24MiB)");
}

TEST_F(SystemdScopeTest, FiftyAtOnce) {
  std::vector<std::unique_ptr<PluginCgroup>> cgroups;
  std::vector<std::unique_ptr<GatedChild>> children;
  int entered = 0;
  const auto enter = [](PluginCgroup* group, pid_t pid, int* count) -> Awaitable<void> {
    const absl::Status status = co_await group->Enter(pid, Clock::now() + kSystemdBound);
    EXPECT_EQ(status, absl::OkStatus());
    ++*count;
  };
  TaskScope scope(loop_.get_executor(), "launches");
  for (int i = 0; i < 50; ++i) {
    cgroups.push_back(Prepare("many" + std::to_string(i)));
    children.push_back(std::make_unique<GatedChild>("exec sleep 1000"));
    scope.Spawn("launch", enter(cgroups.back().get(), children.back()->pid(), &entered));
  }
  RunOn(loop_, scope.WaitEmpty(), kSystemdBound);
  EXPECT_EQ(entered, 50);
  for (const auto& group : cgroups) EXPECT_EQ(KillAll(*group), absl::OkStatus());
}

}  // namespace
}  // namespace berth
