#include "mounter/plugin_call_limit.h"

#include <gtest/gtest.h>

#include "base/testing/loop_runner.h"

namespace berth {
namespace {

using MaybePass = std::optional<PluginCallLimit::Pass>;

// A pass, boxed so that a coroutine may return it to the test.
Awaitable<std::shared_ptr<MaybePass>> Enter(PluginCallLimit& gates, std::string plugin, TimePoint deadline) {
  co_return std::make_shared<MaybePass>(co_await gates.Enter(std::move(plugin), deadline));
}

class PluginCallLimitTest : public ::testing::Test {
 protected:
  LoopRunner loop_;
  PluginCallLimit gates_{loop_.executor(), 1};
};

TEST_F(PluginCallLimitTest, AdmitsUpToTheLimitPerPlugin) {
  const auto first = loop_.Run(Enter(gates_, "a", Clock::now()));
  EXPECT_TRUE(first->has_value());
  EXPECT_FALSE(loop_.Run(Enter(gates_, "a", Clock::now()))->has_value());
  EXPECT_TRUE(loop_.Run(Enter(gates_, "b", Clock::now()))->has_value()) << "another plugin's gate is its own";
}

TEST_F(PluginCallLimitTest, HandsThePlaceToTheFirstThatWaits) {
  auto first = loop_.Run(Enter(gates_, "a", Clock::now()));
  const auto second = loop_.Start(Enter(gates_, "a", TimePoint::max()));
  const auto third = loop_.Start(Enter(gates_, "a", TimePoint::max()));
  first.reset();
  ASSERT_TRUE(loop_.RunUntil([&] { return second->has_value(); }));
  EXPECT_FALSE(third->has_value());
  (*second)->reset();
  ASSERT_TRUE(loop_.RunUntil([&] { return third->has_value(); }));
  (*third)->reset();
  EXPECT_TRUE(loop_.Run(Enter(gates_, "a", Clock::now()))->has_value()) << "the place is free again";
}

TEST_F(PluginCallLimitTest, AWaiterThatGivesUpLosesNoPlace) {
  auto first = loop_.Run(Enter(gates_, "a", Clock::now()));
  TaskScope scope(loop_.executor(), "test");
  const auto wait = [](PluginCallLimit& gates) -> Awaitable<void> {
    const MaybePass pass = co_await gates.Enter("a", TimePoint::max());
    EXPECT_FALSE(pass.has_value()) << "it is cancelled before there is a place";
  };
  scope.Spawn("waits", wait(gates_));
  loop_.RunVoid(scope.Join());
  first.reset();
  EXPECT_TRUE(loop_.Run(Enter(gates_, "a", Clock::now()))->has_value());
}

}  // namespace
}  // namespace berth
