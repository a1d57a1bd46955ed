#include "rpc/user_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace berth {
namespace {

using testing::HasSubstr;

constexpr uid_t kAlice = 1000;
constexpr uid_t kBob = 1001;
constexpr uid_t kOwn = 900;

class UserCounterTest : public testing::Test {
 protected:
  // How many of `tries` were given; they are kept.
  size_t Take(uid_t uid, size_t tries) {
    size_t taken = 0;
    for (size_t i = 0; i < tries; ++i) {
      auto use = counter_.Take(uid);
      if (!use.ok()) continue;
      ++taken;
      uses_.push_back(*std::move(use));
    }
    return taken;
  }

  UserCounter counter_{"watches", {.total = 5, .per_user = 3}, kOwn};
  std::vector<UserCounter::Use> uses_;
};

TEST_F(UserCounterTest, OneUserCannotTakeAll) {
  EXPECT_EQ(Take(kAlice, 10), 3U);
  EXPECT_EQ(Take(kBob, 10), 2U) << "of all together";
  EXPECT_THAT(std::string(counter_.Take(kAlice).status().message()), HasSubstr("uid 1000 has 3 watches"));
  EXPECT_THAT(std::string(counter_.Take(kBob).status().message()), HasSubstr("there are 5 watches"));
  EXPECT_EQ(counter_.Take(kBob).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(UserCounterTest, RootAndBerthdsUserHaveABudgetOfTheirOwn) {
  Take(kAlice, 3);
  Take(kBob, 3);
  EXPECT_EQ(Take(0, 10), 5U);
  EXPECT_EQ(Take(kOwn, 10), 5U);
}

TEST_F(UserCounterTest, WhatHasEndedIsNotCounted) {
  EXPECT_EQ(Take(kAlice, 3), 3U);
  uses_.pop_back();
  EXPECT_EQ(Take(kAlice, 3), 1U);
  uses_.clear();
  EXPECT_EQ(Take(kBob, 3), 3U);
}

TEST_F(UserCounterTest, AUseThatIsMovedIsCountedOnce) {
  std::optional<UserCounter::Use> moved;
  {
    auto use = counter_.Take(kAlice);
    ASSERT_TRUE(use.ok());
    moved.emplace(*std::move(use));
  }
  EXPECT_EQ(Take(kAlice, 10), 2U);
  moved.reset();
  EXPECT_EQ(Take(kAlice, 10), 1U);
}

}  // namespace
}  // namespace berth
