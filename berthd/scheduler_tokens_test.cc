#include "berthd/scheduler_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/testing/loop_runner.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SchedulerTokensTest : public ::testing::Test {
 protected:
  Awaitable<absl::StatusOr<v1::TokenAnswer>> Answer(v1::TokenAsk ask) {
    asked_ = std::move(ask);
    co_return answer_;
  }
  absl::StatusOr<std::vector<ConsumerToken>> Get() {
    return loop_.Run(tokens_.Get(
        {.plugin_id = "hp", .volume_id = "v1", .consumer = "jobs/web", .audiences = {"vault", "s3"}},
        Clock::now() + seconds(5)));
  }
  void Add(const std::string& audience, const std::string& token) {
    v1::Token& added = *answer_->add_tokens();
    added.set_audience(audience);
    added.set_token(token);
    added.mutable_expires_after()->set_seconds(90);
    added.mutable_expires_after()->set_nanos(500'000'000);
  }

  LoopRunner loop_;
  v1::TokenAsk asked_;
  absl::StatusOr<v1::TokenAnswer> answer_ = v1::TokenAnswer();
  SchedulerTokens tokens_{[this](v1::TokenAsk ask, TimePoint) { return Answer(std::move(ask)); }};
};

TEST_F(SchedulerTokensTest, AsksForTheConsumerAsTheSchedulerKnowsItAndTellsWhatCame) {
  Add("vault", "hunter2-vault");
  Add("s3", "hunter2-s3");
  const auto got = Get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(asked_.namespace_(), "jobs");
  EXPECT_EQ(asked_.consumer(), "web");
  EXPECT_EQ(asked_.plugin_id(), "hp");
  EXPECT_EQ(asked_.volume_id(), "v1");
  EXPECT_EQ(asked_.audiences_size(), 2);
  ASSERT_EQ(got->size(), 2U);
  EXPECT_EQ((*got)[1].audience, "s3");
  EXPECT_EQ((*got)[1].token, "hunter2-s3");
  EXPECT_EQ((*got)[1].lifetime, milliseconds(90'500));
}

TEST_F(SchedulerTokensTest, ALifetimeBeyondAllMeasureIsLongAndOneBelowZeroIsNone) {
  Add("vault", "hunter2-vault");
  answer_->mutable_tokens(0)->mutable_expires_after()->set_seconds(INT64_MAX);
  EXPECT_GT(Get()->at(0).lifetime, std::chrono::hours(24 * 365));
  answer_->mutable_tokens(0)->mutable_expires_after()->set_seconds(-5);
  answer_->mutable_tokens(0)->mutable_expires_after()->set_nanos(0);
  EXPECT_LE(Get()->at(0).lifetime, Duration(0));
}

TEST_F(SchedulerTokensTest, ARefusalIsToldAsItIs) {
  answer_ = absl::PermissionDeniedError("the scheduler: not for this one");
  EXPECT_EQ(Get().status(), answer_.status());
}

}  // namespace
}  // namespace berth
