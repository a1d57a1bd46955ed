#include "controller/volume_call_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CallKey ForId(const std::string& id) { return {.driver = "d", .kind = CallKey::Kind::kVolume, .id = id}; }

// Callers that keep their turn until they are asked to go on.
class VolumeCallQueueTest : public testing::Test {
 protected:
  ~VolumeCallQueueTest() override { RunOn(loop_, callers_.Join()); }

  void Ask(const std::string& name, std::vector<CallKey> keys, TimePoint deadline = TimePoint::max()) {
    callers_.Spawn(name, Caller(name, std::move(keys), deadline));
    Settle();
  }
  Awaitable<void> Caller(std::string name, std::vector<CallKey> keys, TimePoint deadline) {
    const auto turn = co_await turns_.Wait(std::move(keys), deadline);
    if (!turn.ok()) {
      refused_.push_back(turn.status());
      co_return;
    }
    begun_.push_back(name);
    co_await go_.WaitUntil([this, &name] { return end_ == name; }, TimePoint::max());
  }
  void End(const std::string& name) {
    end_ = name;
    go_.NotifyAll();
    Settle();
  }
  void Settle() {
    loop_.restart();
    loop_.poll();
  }

  asio::io_context loop_;
  VolumeCallQueue turns_{loop_.get_executor()};
  Condition go_{loop_.get_executor()};
  std::string end_;
  std::vector<std::string> begun_;
  std::vector<absl::Status> refused_;
  TaskScope callers_{loop_.get_executor(), "test"};
};

TEST_F(VolumeCallQueueTest, OneAtATimeInOrderAndOthersBeside) {
  Ask("first", {ForId("v")});
  Ask("second", {ForId("v")});
  Ask("third", {ForId("v")});
  Ask("other volume", {ForId("w")});
  Ask("other driver", {{.driver = "e", .kind = CallKey::Kind::kVolume, .id = "v"}});
  Ask("a name", {{.driver = "d", .kind = CallKey::Kind::kVolumeName, .id = "v"}});
  Ask("about nothing", {});
  EXPECT_THAT(begun_, ElementsAre("first", "other volume", "other driver", "a name", "about nothing"));
  begun_.clear();
  End("first");
  EXPECT_THAT(begun_, ElementsAre("second"));
  End("second");
  EXPECT_THAT(begun_, ElementsAre("second", "third"));
}

TEST_F(VolumeCallQueueTest, ACallAboutSeveralThingsWaitsForAllOfThem) {
  Ask("v", {ForId("v")});
  Ask("w", {ForId("w")});
  Ask("both", {ForId("w"), ForId("v"), ForId("w")});
  Ask("v again", {ForId("v")});
  EXPECT_THAT(begun_, ElementsAre("v", "w"));
  End("v");
  EXPECT_THAT(begun_, ElementsAre("v", "w")) << "the call about both came before";
  End("w");
  EXPECT_THAT(begun_, ElementsAre("v", "w", "both"));
  End("both");
  EXPECT_THAT(begun_, ElementsAre("v", "w", "both", "v again"));
}

TEST_F(VolumeCallQueueTest, WhoeverStopsWaitingHoldsUpNobody) {
  Ask("first", {ForId("v")});
  Ask("late", {ForId("v")}, Clock::now());
  ASSERT_EQ(refused_.size(), 1U);
  EXPECT_EQ(refused_[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(refused_[0].message()), HasSubstr("about v"));
  {
    TaskScope given_up(loop_.get_executor(), "cancelled");
    given_up.Spawn("cancelled", Caller("cancelled", {ForId("v")}, TimePoint::max()));
    Settle();
    RunOn(loop_, given_up.Join());
  }
  Ask("last", {ForId("v")});
  EXPECT_THAT(begun_, ElementsAre("first"));
  End("first");
  EXPECT_THAT(begun_, ElementsAre("first", "last"));
}

Awaitable<void> ReadTurn(VolumeCallQueue& turns, VolumeCallQueue::Until until,
                         std::optional<absl::Status>& end) {
  end = (co_await turns.Wait({ForId("v")}, std::move(until), nullptr)).status();
}

TEST_F(VolumeCallQueueTest, WhoeverIsGivenMoreTimeKeepsItsPlace) {
  Ask("first", {ForId("v")});
  TaskScope given_time(loop_.get_executor(), "given time");
  std::optional<absl::Status> end;
  int asked = 0;
  const auto until = [&asked] { return ++asked == 1 ? Clock::now() : TimePoint::max(); };
  given_time.Spawn("second", ReadTurn(turns_, until, end));
  Settle();
  EXPECT_EQ(asked, 2);
  Ask("third", {ForId("v")}, Clock::now());
  EXPECT_THAT(refused_, testing::SizeIs(1)) << "two are before it";
  EXPECT_FALSE(end.has_value());
  End("first");
  RunOn(loop_, given_time.WaitEmpty());
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok()) << *end;
}

TEST_F(VolumeCallQueueTest, TooManyAreRefusedAtOnce) {
  for (size_t i = 0; i <= VolumeCallQueue::kWaiting; ++i) Ask("caller", {ForId("v")});
  EXPECT_THAT(refused_, IsEmpty());
  Ask("one too many", {ForId("w"), ForId("v")});
  ASSERT_EQ(refused_.size(), 1U);
  EXPECT_EQ(refused_[0].code(), absl::StatusCode::kResourceExhausted);
  Ask("another", {ForId("w")});
  EXPECT_EQ(begun_.back(), "another") << "nothing of the refused one may stick";
}

}  // namespace
}  // namespace berth
