#include "rpc/uplink/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace berth {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::StartsWith;

ObjectKey Volume(const std::string& id) {
  return {.kind = ObjectKey::Kind::kVolume, .plugin_id = "disk", .volume_id = id};
}
ObjectKey Numbered(int number) { return Volume(std::to_string(number)); }

// All that there is to send, as "a" or "-a" for a removal.
std::vector<std::string> Drain(Outbox& outbox) {
  std::vector<std::string> sent;
  while (const auto next = outbox.Next()) sent.push_back((next->removed ? "-" : "") + next->key.volume_id);
  return sent;
}

// A scheduler that takes what it is sent as scheduler.proto says.
class Scheduler {
 public:
  void Connect(Outbox& outbox) {
    outbox.Begin(have_);
    if (outbox.at_full_start()) have_.reset();
  }
  // Takes up to `most` changes, as one message.
  void Take(Outbox& outbox, size_t most) {
    if (outbox.at_full_start()) {
      stale_ = known_;
      full_ = true;
    }
    for (size_t i = 0; i < most; ++i) {
      const auto next = outbox.Next();
      if (!next) break;
      stale_.erase(next->key);
      if (next->removed) {
        known_.erase(next->key);
      } else {
        known_.insert(next->key);
      }
    }
    if (!outbox.caught_up()) {
      if (!full_) have_ = outbox.sent();
      return;
    }
    if (full_) {
      for (const ObjectKey& key : stale_) known_.erase(key);
    }
    full_ = false;
    have_ = outbox.sent();
  }
  void Disconnect() { full_ = false; }

  const std::set<ObjectKey>& known() const { return known_; }

 private:
  std::set<ObjectKey> known_;
  std::set<ObjectKey> stale_;
  std::optional<uint64_t> have_;
  bool full_ = false;
};

TEST(OutboxTest, AFirstStreamGetsEverythingAndNothingThatIsGone) {
  Outbox outbox;
  outbox.Changed(Volume("a"));
  outbox.Changed(Volume("b"));
  outbox.Removed(Volume("a"));
  outbox.Begin(std::nullopt);
  EXPECT_TRUE(outbox.at_full_start());
  EXPECT_THAT(Drain(outbox), ElementsAre("b"));
  EXPECT_FALSE(outbox.at_full_start());
  EXPECT_TRUE(outbox.caught_up());
}

TEST(OutboxTest, TenThousandChangesOfOneObjectAreOne) {
  Outbox outbox;
  for (int i = 0; i < 10'000; ++i) outbox.Changed(Volume("a"));
  EXPECT_EQ(outbox.remembered(), 1U);
  outbox.Begin(std::nullopt);
  EXPECT_THAT(Drain(outbox), ElementsAre("a"));
}

TEST(OutboxTest, AStreamGoesOnWhereTheSchedulerStands) {
  Outbox outbox;
  for (const char* id : {"a", "b", "c"}) outbox.Changed(Volume(id));
  outbox.Begin(std::nullopt);
  EXPECT_THAT(Drain(outbox), ElementsAre("a", "b", "c"));
  const uint64_t have = outbox.sent();
  outbox.Changed(Volume("b"));
  outbox.Removed(Volume("c"));
  outbox.Changed(Volume("d"));
  outbox.Begin(have);
  EXPECT_FALSE(outbox.at_full_start());
  EXPECT_FALSE(outbox.caught_up());
  EXPECT_THAT(Drain(outbox), ElementsAre("b", "-c", "d"));
  EXPECT_TRUE(outbox.caught_up());
}

TEST(OutboxTest, WhatChangesWhileItIsBeingSentIsSentAgain) {
  Outbox outbox;
  outbox.Changed(Volume("a"));
  outbox.Changed(Volume("b"));
  outbox.Begin(std::nullopt);
  EXPECT_EQ(outbox.Next()->key, Volume("a"));
  outbox.Changed(Volume("a"));
  outbox.Removed(Volume("b"));
  EXPECT_THAT(Drain(outbox), ElementsAre("a", "-b"));
}

TEST(OutboxTest, AnObjectThatComesBackIsNoTombstone) {
  Outbox outbox;
  outbox.Changed(Volume("a"));
  outbox.Begin(std::nullopt);
  EXPECT_THAT(Drain(outbox), ElementsAre("a"));
  outbox.Removed(Volume("a"));
  outbox.Changed(Volume("a"));
  EXPECT_THAT(Drain(outbox), ElementsAre("a"));
  outbox.Removed(Volume("a"));
  outbox.Removed(Volume("a"));
  outbox.Removed(Volume("never there"));
  EXPECT_THAT(Drain(outbox), ElementsAre("-a"));
}

TEST(OutboxTest, APositionThatNobodyGaveOutMeansEverything) {
  Outbox outbox;
  outbox.Changed(Volume("a"));
  outbox.Begin(77);
  EXPECT_TRUE(outbox.at_full_start());
  EXPECT_THAT(Drain(outbox), ElementsAre("a"));
}

TEST(OutboxTest, MoreRemovalsThanAreRememberedMeanEverything) {
  Outbox outbox;
  outbox.Changed(Volume("stays"));
  outbox.Begin(std::nullopt);
  Drain(outbox);
  const uint64_t have = outbox.sent();
  for (int i = 0; i < 10'000; ++i) {
    outbox.Changed(Numbered(i));
    outbox.Removed(Numbered(i));
  }
  EXPECT_LE(outbox.remembered(), Outbox::kTombstones + 1);
  outbox.Begin(have);
  EXPECT_TRUE(outbox.at_full_start());
  EXPECT_THAT(Drain(outbox), ElementsAre("stays"));
}

TEST(OutboxTest, AStreamThatIsTooSlowForTheRemovalsBeginsAnew) {
  Outbox outbox;
  for (int i = 0; i < 5'000; ++i) outbox.Changed(Numbered(i));
  outbox.Begin(std::nullopt);
  Drain(outbox);
  for (int i = 0; i < 5'000; ++i) outbox.Removed(Numbered(i));
  EXPECT_TRUE(outbox.at_full_start());
  // What was removed after it began again is sent, too.
  EXPECT_THAT(Drain(outbox), Each(StartsWith("-")));
  EXPECT_TRUE(outbox.caught_up());
}

// Random changes, streams that break anywhere, and a scheduler that is away for long: whenever it has caught
// up, it knows what there is.
TEST(OutboxTest, AfterAnyBreakTheSchedulerKnowsWhatThereIs) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::minstd_rand random(seed);
    Outbox outbox;
    Scheduler scheduler;
    std::set<ObjectKey> there;
    scheduler.Connect(outbox);
    for (int step = 0; step < 3'000; ++step) {
      const ObjectKey key = Numbered(static_cast<int>(random() % 40));
      switch (random() % 12) {
        case 0:
        case 1:
        case 2:
          outbox.Removed(key);
          there.erase(key);
          break;
        case 3:
          scheduler.Take(outbox, random() % 5);
          break;
        case 4:
          scheduler.Disconnect();
          scheduler.Connect(outbox);
          break;
        default:
          outbox.Changed(key);
          there.insert(key);
      }
    }
    scheduler.Take(outbox, 1'000);
    ASSERT_EQ(scheduler.known(), there) << "seed " << seed;
    ASSERT_LE(outbox.remembered(), 40U);
  }
}

}  // namespace
}  // namespace berth
