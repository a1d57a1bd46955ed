#include "cli/link_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kLinkNow = 1'700'000'000;

std::string Shows(const v1::LinkStatus& link) {
  Table table;
  AddLink(table, link, std::chrono::system_clock::from_time_t(kLinkNow));
  return table.Render(false);
}

TEST(LinkViewTest, AConnectedLinkSaysWhereToAndHowLongItsLeaseIsGood) {
  v1::LinkStatus link;
  link.set_state(v1::LinkStatus::SYNCED);
  link.set_address("scheduler:7000");
  link.set_peer("scheduler.example");
  link.mutable_since()->set_seconds(kLinkNow - 180);
  link.set_lease(v1::LEASE_VALID);
  link.set_lease_epoch(7);
  link.mutable_lease_left()->set_seconds(12);
  link.set_cluster_id("blue");
  link.set_operations_running(2);
  link.set_results_kept(3);
  EXPECT_THAT(Shows(link), AllOf(HasSubstr("connected to scheduler:7000 (scheduler.example), since 3m ago"),
                                 HasSubstr("valid for 12s, epoch 7"), HasSubstr("blue"),
                                 HasSubstr("2 under way, 3 results not acknowledged"),
                                 Not(HasSubstr("last error")), Not(HasSubstr("next try"))));
}

TEST(LinkViewTest, ALinkThatIsDownSaysWhyAndWhenItIsTriedAgain) {
  v1::LinkStatus link;
  link.set_state(v1::LinkStatus::DIALLING);
  link.set_address("scheduler:7000");
  link.mutable_since()->set_seconds(kLinkNow - 7200);
  link.set_last_error("connection refused");
  link.mutable_next_attempt_at()->set_seconds(kLinkNow + 5);
  link.set_lease(v1::LEASE_EXPIRED);
  EXPECT_THAT(Shows(link), AllOf(HasSubstr("not connected, dials scheduler:7000, since 2h ago"),
                                 ContainsRegex("link's last error +connection refused"),
                                 ContainsRegex("link's next try +in 5s"), HasSubstr("expired")));
  link.set_lease(v1::LEASE_NONE);
  EXPECT_THAT(Shows(link), HasSubstr("none granted yet"));
  link.set_state(v1::LinkStatus::GREETING);
  EXPECT_THAT(Shows(link), HasSubstr("not connected, waits for the welcome of scheduler:7000, since 2h ago"));
}

TEST(LinkViewTest, ADrainSaysWhatIsLeftAndWhy) {
  v1::NodeDrain drain;
  EXPECT_EQ(DescribeDrain(drain, std::chrono::system_clock::from_time_t(kLinkNow)), "nothing is left");
  drain.mutable_since()->set_seconds(kLinkNow - 180);
  drain.set_publications_left(1);
  drain.set_reason("a new disk");
  EXPECT_EQ(DescribeDrain(drain, std::chrono::system_clock::from_time_t(kLinkNow)),
            "since 3m ago, 1 publication is left: a new disk");
  EXPECT_EQ(DescribeLeft(2), "2 publications are left");
}

}  // namespace
}  // namespace berth::cli
