// Units as they come and go, reported by a peer that speaks D-Bus as systemd does.
#include "base/systemd_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/testing/fake_systemd.h"
#include "base/testing/run_on.h"

namespace berth {
namespace {

class SystemdUnitsTest : public testing::Test {
 protected:
  ~SystemdUnitsTest() override { RunOn(loop_, units_.Shutdown()); }

  void Watch(const std::string& unit) {
    units_.Watch(unit, [this, unit](const UnitState& state) { reported_[unit].push_back(state); });
  }
  // Runs the loop until the last report about the unit says so.
  [[nodiscard]] bool Becomes(const std::string& unit, const std::string& active) {
    return RunUntil(
        [this, unit, active] { return !reported_[unit].empty() && reported_[unit].back().active == active; });
  }
  [[nodiscard]] bool RunUntil(const std::function<bool()>& condition) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (Clock::now() >= deadline) return false;
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  FakeSystemd systemd_;
  asio::io_context loop_;
  SystemdUnits units_{loop_.get_executor(), {systemd_.address()}};
  std::map<std::string, std::vector<UnitState>> reported_;
};

TEST_F(SystemdUnitsTest, TellsTheStateAtOnceAndWhenItChanges) {
  systemd_.SetUnit("web.service", "active");
  Watch("web.service");
  ASSERT_TRUE(Becomes("web.service", "active"));
  EXPECT_FALSE(reported_["web.service"].back().ended());
  systemd_.SetUnit("web.service", "deactivating");
  ASSERT_TRUE(Becomes("web.service", "deactivating"));
  EXPECT_FALSE(reported_["web.service"].back().ended());
  systemd_.SetUnit("web.service", "failed");
  ASSERT_TRUE(Becomes("web.service", "failed"));
  EXPECT_TRUE(reported_["web.service"].back().ended());
}

TEST_F(SystemdUnitsTest, UnitThatIsRestartedHasNotEnded) {
  systemd_.SetUnit("web.service", "active");
  Watch("web.service");
  ASSERT_TRUE(Becomes("web.service", "active"));
  systemd_.SetUnit("web.service", "inactive", true);
  ASSERT_TRUE(Becomes("web.service", "inactive"));
  EXPECT_FALSE(reported_["web.service"].back().ended());
}

TEST_F(SystemdUnitsTest, UnitThatSystemdForgetsHasEnded) {
  systemd_.SetUnit("run-1.scope", "active");
  Watch("run-1.scope");
  ASSERT_TRUE(Becomes("run-1.scope", "active"));
  systemd_.RemoveUnit("run-1.scope");
  ASSERT_TRUE(Becomes("run-1.scope", "inactive"));
  EXPECT_EQ(reported_["run-1.scope"].back().load, "not-found");
  EXPECT_TRUE(reported_["run-1.scope"].back().ended());
}

TEST_F(SystemdUnitsTest, AnotherNameOfAUnitIsWatchedToo) {
  systemd_.SetUnit("web.service", "active");
  systemd_.AddAlias("www.service", "web.service");
  Watch("www.service");
  ASSERT_TRUE(Becomes("www.service", "active"));
  systemd_.SetUnit("web.service", "inactive");
  EXPECT_TRUE(Becomes("www.service", "inactive"));
}

TEST_F(SystemdUnitsTest, WhatHappenedWhileTheConnectionWasGoneIsFound) {
  systemd_.SetUnit("a.service", "active");
  systemd_.SetUnit("b.service", "active");
  Watch("a.service");
  Watch("b.service");
  ASSERT_TRUE(Becomes("a.service", "active"));
  ASSERT_TRUE(Becomes("b.service", "active"));
  const int asked = systemd_.asked();
  systemd_.Disconnect();
  systemd_.SetUnit("a.service", "inactive", false, false);
  EXPECT_TRUE(Becomes("a.service", "inactive"));
  EXPECT_TRUE(RunUntil([&] { return systemd_.asked() >= asked + 4; })) << "the other one was asked for, too";
  EXPECT_EQ(reported_["b.service"].back().active, "active");
}

TEST_F(SystemdUnitsTest, ManyUnitsShareAConnectionThatGoesWithTheLast) {
  for (int i = 0; i < 50; ++i) systemd_.SetUnit("u" + std::to_string(i) + ".service", "active");
  for (int i = 0; i < 50; ++i) Watch("u" + std::to_string(i) + ".service");
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Becomes("u" + std::to_string(i) + ".service", "active"));
  EXPECT_EQ(systemd_.connections(), 1);
  for (int i = 0; i < 50; ++i) units_.Forget("u" + std::to_string(i) + ".service");
  const size_t reported = reported_["u0.service"].size();
  systemd_.SetUnit("u0.service", "inactive");
  // Watched again, over a new connection if the first one had gone by then.
  systemd_.SetUnit("u1.service", "failed");
  Watch("u1.service");
  EXPECT_TRUE(Becomes("u1.service", "failed"));
  EXPECT_EQ(reported_["u0.service"].size(), reported);
}

TEST_F(SystemdUnitsTest, AsksOnce) {
  systemd_.SetUnit("web.service", "activating");
  const auto deadline = [] { return Clock::now() + std::chrono::seconds(20); };
  EXPECT_EQ(RunOn(loop_, units_.Ask("web.service", deadline()))->active, "activating");
  EXPECT_EQ(RunOn(loop_, units_.Ask("no.service", deadline()))->load, "not-found");
}

TEST(SystemdUnitsNameTest, KnowsNamesOfUnits) {
  for (const char* name : {"web.service", "a@b\\x2d1.scope", "user-0.slice", "-.mount"}) {
    EXPECT_TRUE(IsUnitName(name)) << name;
  }
  for (const char* name : {"", "web", ".service", "web.exe", "a b.service", "a/b.service", "web.service\n"}) {
    EXPECT_FALSE(IsUnitName(name)) << name;
  }
  EXPECT_FALSE(IsUnitName(std::string(300, 'a') + ".service"));
}

}  // namespace
}  // namespace berth
