#include "berthd/scheduler_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/event_log.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "rpc/testing/fakes.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class SchedulerLinkTest : public ::testing::Test {
 protected:
  SchedulerLinkTest() {
    config_.state_dir = temp_.path();
    config_.runtime_dir = temp_.path();
  }
  // What is answered to a claim and to an ask for tokens, before anything is dialled.
  std::vector<absl::Status> Answers() {
    SchedulerLink link(loop_.get_executor(), config_, mounter_, events_);
    EXPECT_TRUE(link.Restore().ok());
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    std::vector<absl::Status> answers = {RunOn(loop_, link.Ask({}, /*wait=*/false, deadline, {})).status(),
                                         RunOn(loop_, link.Tokens({}, deadline)).status()};
    const auto end = [&]() -> Awaitable<absl::Status> {
      co_await link.Shutdown(deadline, false);
      co_return absl::OkStatus();
    };
    EXPECT_TRUE(RunOn(loop_, end()).ok());
    return answers;
  }

  TempDir temp_;
  asio::io_context loop_;
  BerthdConfig config_;
  FakeMounter mounter_{loop_.get_executor()};
  EventLog events_{loop_.get_executor(), 100};
};

TEST_F(SchedulerLinkTest, ANodeWithoutASchedulerSaysSo) {
  for (const absl::Status& answer : Answers()) {
    EXPECT_EQ(answer.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(answer.message()), HasSubstr("[scheduler]"));
  }
}

TEST_F(SchedulerLinkTest, ALinkThatIsNotUpYetIsNotTakenForNone) {
  config_.scheduler.addresses = {{.text = "scheduler:7000"}};
  for (const absl::Status& answer : Answers()) EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace berth
