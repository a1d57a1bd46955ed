#include "supervisor/registry.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <future>
#include <utility>

namespace berth {
namespace {

using std::chrono::seconds;

PluginSnapshot Named(const std::string& id) {
  PluginSnapshot snapshot;
  snapshot.id = id;
  return snapshot;
}

class RegistryTest : public ::testing::Test {
 protected:
  asio::io_context loop_;
  Registry registry_{loop_.get_executor()};
};

TEST_F(RegistryTest, HoldsTheNewestSnapshotOfEach) {
  EXPECT_EQ(registry_.Find("a"), nullptr);
  registry_.Put(Named("a"));
  PluginSnapshot newer = Named("a");
  newer.state = PluginState::kReady;
  registry_.Put(newer);
  registry_.Put(Named("b"));
  ASSERT_NE(registry_.Find("a"), nullptr);
  EXPECT_EQ(registry_.Find("a")->state, PluginState::kReady);
  EXPECT_EQ(registry_.plugins().size(), 2U);
  registry_.Remove("a");
  EXPECT_EQ(registry_.Find("a"), nullptr);
}

TEST_F(RegistryTest, EveryChangeWakesWhoWaits) {
  const uint64_t seen = registry_.version();
  auto waited =
      asio::co_spawn(loop_, registry_.WaitChanged(seen, Clock::now() + seconds(20)), asio::use_future);
  loop_.poll();
  registry_.Put(Named("a"));
  loop_.restart();
  loop_.run_for(seconds(20));
  ASSERT_EQ(waited.wait_for(seconds(0)), std::future_status::ready);
  EXPECT_TRUE(waited.get());
}

TEST_F(RegistryTest, ChangeBeforeTheWaitIsNotMissed) {
  const uint64_t seen = registry_.version();
  registry_.Put(Named("a"));
  const uint64_t after_put = registry_.version();
  EXPECT_GT(after_put, seen);
  registry_.Remove("a");
  EXPECT_GT(registry_.version(), after_put) << "leaving is a change too";
  registry_.Remove("a");
  auto waited = asio::co_spawn(loop_, registry_.WaitChanged(seen, Clock::now()), asio::use_future);
  loop_.run_for(seconds(20));
  EXPECT_TRUE(waited.get());
}

TEST_F(RegistryTest, WaitEndsAtItsDeadline) {
  auto waited =
      asio::co_spawn(loop_, registry_.WaitChanged(registry_.version(), Clock::now()), asio::use_future);
  loop_.run_for(seconds(20));
  EXPECT_FALSE(waited.get());
}

TEST_F(RegistryTest, WhoeverWaitsForOtherTokensIsWokenByThoseAlone) {
  const auto changed_since = [this](uint64_t seen) { return registry_.tokens_version() > seen; };
  PluginSnapshot wants = Named("a");
  wants.tokens = {{.audience = "vault", .name = "a"}};
  auto waited = asio::co_spawn(
      loop_, registry_.WaitTokensChanged(registry_.tokens_version(), Clock::now() + seconds(20)),
      asio::use_future);
  loop_.poll();
  registry_.Put(Named("a"));
  loop_.restart();
  loop_.poll();
  EXPECT_EQ(waited.wait_for(seconds(0)), std::future_status::timeout);
  registry_.Put(wants);
  loop_.restart();
  loop_.run_for(seconds(20));
  EXPECT_TRUE(waited.get());

  uint64_t seen = registry_.tokens_version();
  wants.state = PluginState::kReady;
  registry_.Put(wants);
  EXPECT_FALSE(changed_since(seen));
  registry_.Put(Named("a"));
  EXPECT_TRUE(changed_since(std::exchange(seen, registry_.tokens_version())));
  registry_.Remove("a");
  EXPECT_FALSE(changed_since(seen));
  registry_.Put(wants);
  EXPECT_TRUE(changed_since(std::exchange(seen, registry_.tokens_version())));
  registry_.Remove("a");
  EXPECT_TRUE(changed_since(seen));
}

}  // namespace
}  // namespace berth
