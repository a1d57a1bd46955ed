#include "cli/follow.h"

#include <gtest/gtest.h>

#include "cli/testing/fake_node.h"

namespace berth::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr absl::string_view kAway = "cannot reach berthd";

class FollowTest : public testing::Test {
 protected:
  FollowTest() {
    session_.socket = node_.socket();
    session_.timeout = std::chrono::hours(1);
  }
  // berthd goes in the middle of each reading.
  absl::Status Leave() {
    ++readings_;
    node_.Stop();
    return absl::UnavailableError("lost");
  }
  FollowedStream Stream(std::optional<steady_clock::time_point> until) {
    return {.read = [this](NodeClient& /*node*/, const auto& /*heard*/) { return Leave(); },
            .gone = "gone",
            .back = [] { return std::string("back"); },
            .until = until};
  }

  FakeNode node_;
  Session session_;
  int readings_ = 0;
};

TEST_F(FollowTest, OneEndHoldsHoweverLateTheNodeGoes) {
  const auto until = steady_clock::now() + milliseconds(50);
  const absl::Status ended = Follow(session_, Stream(until));
  EXPECT_EQ(ended.message().substr(0, kAway.size()), kAway) << ended;
  EXPECT_GE(steady_clock::now(), until);
  EXPECT_EQ(readings_, 1);
}

TEST_F(FollowTest, ANodeThatIsNotThereIsWaitedForOnlyUntilAnEndThatIsGiven) {
  node_.Stop();
  EXPECT_EQ(Follow(session_, Stream(std::nullopt)).message().substr(0, kAway.size()), kAway);
  const auto until = steady_clock::now() + milliseconds(50);
  EXPECT_EQ(Follow(session_, Stream(until)).message().substr(0, kAway.size()), kAway);
  EXPECT_GE(steady_clock::now(), until);
  EXPECT_EQ(readings_, 0);
}

}  // namespace
}  // namespace berth::cli
