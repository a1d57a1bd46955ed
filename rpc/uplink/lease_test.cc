#include "rpc/uplink/lease.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = AnswerVerdict::Kind;

BootTime At(Duration since) { return BootTime(hours(1)) + since; }

// A lease of `epoch`, granted for 10 s from At(0), that is on the disk.
Lease Granted(uint64_t epoch = 3) {
  Lease lease(epoch);
  lease.OnSent(1, At(seconds(0)));
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{epoch, seconds(10)}, At(seconds(1))).kind, Kind::kGranted);
  return lease;
}

TEST(LeaseTest, CountsFromTheSendingOfTheHeartbeat) {
  Lease lease;
  EXPECT_EQ(lease.State(At(seconds(0))), v1::LEASE_NONE);
  EXPECT_EQ(lease.NextLook(), BootTime::max());
  lease.OnSent(1, At(seconds(0)));
  const AnswerVerdict verdict = lease.OnAnswer(1, LeaseGrant{7, seconds(10)}, At(seconds(4)));
  EXPECT_EQ(verdict.kind, Kind::kGranted);
  EXPECT_EQ(verdict.epoch_to_write, 7U);
  lease.OnEpochWritten(7);
  EXPECT_EQ(lease.State(At(milliseconds(9'999))), v1::LEASE_VALID);
  EXPECT_EQ(lease.State(At(seconds(10))), v1::LEASE_EXPIRED);
  EXPECT_EQ(lease.NextLook(), At(seconds(10)));
}

TEST(LeaseTest, NothingIsValidBeforeItsEpochIsOnTheDisk) {
  Lease lease(3);
  lease.OnSent(1, At(seconds(0)));
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{4, seconds(10)}, At(seconds(0))).epoch_to_write, 4U);
  EXPECT_EQ(lease.State(At(seconds(1))), v1::LEASE_NONE);
  EXPECT_EQ(lease.Judge(4, true, At(seconds(1))), v1::LEASE_NOT_VALID);
  EXPECT_EQ(lease.Judge(4, false, At(seconds(1))), v1::LEASE_NOT_VALID);
  EXPECT_EQ(lease.Judge(3, false, At(seconds(1))), v1::LEASE_EPOCH) << "it was heard";
  // It could not be written: the next answer asks again.
  lease.OnSent(2, At(seconds(1)));
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{4, seconds(10)}, At(seconds(1))).epoch_to_write, 4U);
  lease.OnEpochWritten(4);
  EXPECT_EQ(lease.Judge(4, true, At(seconds(1))), v1::REFUSAL_NONE);
  lease.OnSent(3, At(seconds(2)));
  EXPECT_EQ(lease.OnAnswer(3, LeaseGrant{4, seconds(10)}, At(seconds(2))).epoch_to_write, 0U);
}

TEST(LeaseTest, AnAnswerCountsOnceAndOnlyTheNewest) {
  Lease lease(1);
  for (uint64_t number = 1; number <= 3; ++number) lease.OnSent(number, At(seconds(number)));
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{1, seconds(10)}, At(seconds(4))).kind, Kind::kGranted);
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{1, hours(1)}, At(seconds(4))).kind, Kind::kIgnored);
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{1, hours(1)}, At(seconds(4))).kind, Kind::kIgnored);
  EXPECT_EQ(lease.OnAnswer(9, LeaseGrant{1, hours(1)}, At(seconds(4))).kind, Kind::kIgnored);
  EXPECT_EQ(lease.NextLook(), At(seconds(12)));
  // A shorter one is newer.
  EXPECT_EQ(lease.OnAnswer(3, LeaseGrant{1, seconds(2)}, At(seconds(4))).kind, Kind::kGranted);
  EXPECT_EQ(lease.NextLook(), At(seconds(5)));
}

TEST(LeaseTest, AnotherStreamsHeartbeatsAreNotAwaitedAnyMore) {
  Lease lease(1);
  lease.OnSent(1, At(seconds(0)));
  lease.OnSent(2, At(seconds(1)));
  lease.OnStream();
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{1, seconds(10)}, At(seconds(2))).kind, Kind::kIgnored);
  // It counts from the beginning again.
  lease.OnSent(1, At(seconds(3)));
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{1, seconds(10)}, At(seconds(3))).kind, Kind::kGranted);
  EXPECT_EQ(lease.NextLook(), At(seconds(13)));
}

TEST(LeaseTest, OneThatIsOverWhenItIsHeardGrantsNothingAndItsEpochCounts) {
  Lease lease = Granted(3);
  lease.OnSent(2, At(seconds(2)));
  const AnswerVerdict same = lease.OnAnswer(2, LeaseGrant{3, seconds(1)}, At(seconds(3)));
  EXPECT_EQ(same.kind, Kind::kHeard);
  EXPECT_EQ(lease.State(At(seconds(3))), v1::LEASE_VALID) << "the one before runs on";
  lease.OnSent(3, At(seconds(3)));
  const AnswerVerdict raised = lease.OnAnswer(3, LeaseGrant{4, seconds(1)}, At(seconds(4)));
  EXPECT_EQ(raised.kind, Kind::kHeard);
  EXPECT_EQ(raised.epoch_to_write, 4U);
  lease.OnEpochWritten(4);
  EXPECT_EQ(lease.State(At(seconds(4))), v1::LEASE_NONE);
  EXPECT_EQ(lease.Judge(3, true, At(seconds(4))), v1::LEASE_EPOCH);
  EXPECT_EQ(lease.Judge(4, true, At(seconds(4))), v1::LEASE_NOT_VALID);
  EXPECT_EQ(lease.Judge(4, false, At(seconds(4))), v1::REFUSAL_NONE);
}

TEST(LeaseTest, ASchedulerOfALowerEpochIsOvertakenForEver) {
  Lease lease = Granted(3);
  lease.OnSent(2, At(seconds(2)));
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{2, hours(1)}, At(seconds(3))).kind, Kind::kOvertaken);
  EXPECT_EQ(lease.NextLook(), At(seconds(10)));
  EXPECT_TRUE(lease.OnTime(At(seconds(10))));
  lease.OnSent(3, At(seconds(11)));
  EXPECT_EQ(lease.OnAnswer(3, LeaseGrant{2, hours(1)}, At(seconds(11))).kind, Kind::kOvertaken);
  EXPECT_EQ(lease.State(At(seconds(11))), v1::LEASE_EXPIRED);
}

TEST(LeaseTest, DurationsHaveLimits) {
  for (const Duration refused : {Duration(-1), Duration(0), Duration(milliseconds(999)), Duration::min()}) {
    Lease lease(1);
    lease.OnSent(1, At(seconds(0)));
    EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{1, refused}, At(seconds(0))).kind, Kind::kIgnored);
  }
  for (const Duration cut : {Duration(hours(24)), Duration(hours(25)), Duration::max()}) {
    Lease lease(1);
    lease.OnSent(1, At(seconds(0)));
    EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{1, cut}, At(seconds(0))).kind, Kind::kGranted);
    EXPECT_EQ(lease.NextLook(), At(hours(24)));
  }
  Lease lease(1);
  lease.OnSent(1, At(seconds(0)));
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{0, seconds(10)}, At(seconds(0))).kind, Kind::kIgnored);
}

TEST(LeaseTest, ThatItRanOutIsSaidOnce) {
  Lease lease = Granted();
  EXPECT_FALSE(lease.OnTime(At(milliseconds(9'999))));
  EXPECT_TRUE(lease.OnTime(At(seconds(10))));
  EXPECT_FALSE(lease.OnTime(At(seconds(11))));
  EXPECT_EQ(lease.NextLook(), BootTime::max());
  lease.OnSent(2, At(seconds(12)));
  EXPECT_EQ(lease.OnAnswer(2, LeaseGrant{3, seconds(10)}, At(seconds(12))).kind, Kind::kGranted);
  EXPECT_EQ(lease.State(At(seconds(12))), v1::LEASE_VALID);
  EXPECT_TRUE(lease.OnTime(At(seconds(30)))) << "also after a long sleep";
}

// Heartbeats leave only on a stream; one that is tried every minute is a new one each time.
TEST(LeaseTest, AfterAWeekAwayItIsExpiredWasSaidOnceAndIsGrantedAnew) {
  Lease lease = Granted(3);
  int said = 0;
  BootTime now = At(seconds(1));
  for (; now < At(hours(7 * 24)); now += std::chrono::minutes(1)) {
    lease.OnStream();
    lease.OnSent(1, now);
    said += lease.OnTime(now) ? 1 : 0;
    ASSERT_EQ(lease.Judge(3, true, now), now < At(seconds(10)) ? v1::REFUSAL_NONE : v1::LEASE_NOT_VALID);
    ASSERT_EQ(lease.Judge(3, false, now), v1::REFUSAL_NONE);
  }
  EXPECT_EQ(said, 1);
  EXPECT_EQ(lease.State(now), v1::LEASE_EXPIRED);
  EXPECT_EQ(lease.NextLook(), BootTime::max());
  lease.OnStream();
  lease.OnSent(1, now);
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{3, seconds(10)}, now + seconds(1)).kind, Kind::kGranted);
  EXPECT_EQ(lease.State(now + seconds(1)), v1::LEASE_VALID);
  EXPECT_EQ(lease.NextLook(), now + seconds(10));
}

TEST(LeaseTest, OneOfAnEarlierRunHoldsToItsEnd) {
  Lease lease(5);
  lease.Restore({.epoch = 5, .ends = At(seconds(10)), .since = At(-hours(1))});
  EXPECT_EQ(lease.State(At(seconds(1))), v1::LEASE_VALID);
  EXPECT_EQ(lease.Judge(5, true, At(seconds(1))), v1::REFUSAL_NONE);
  EXPECT_EQ(lease.NextLook(), At(seconds(10)));
  EXPECT_TRUE(lease.OnTime(At(seconds(10))));
  EXPECT_EQ(lease.State(At(seconds(10))), v1::LEASE_EXPIRED);
  EXPECT_EQ(lease.Judge(5, true, At(seconds(10))), v1::LEASE_NOT_VALID);

  Lease higher(5);
  higher.Restore({.epoch = 6, .ends = At(seconds(10))});
  EXPECT_FALSE(higher.last().has_value()) << "it contradicts what is on the disk";
  Lease none;
  none.Restore({.epoch = 0, .ends = At(seconds(10))});
  EXPECT_FALSE(none.last().has_value());
}

TEST(LeaseTest, Fault38OneHoldsWithoutABreakUntilItEnds) {
  Lease lease = Granted(3);
  EXPECT_EQ(lease.last()->since, At(seconds(1)));
  lease.OnSent(2, At(seconds(8)));
  (void)lease.OnAnswer(2, LeaseGrant{3, seconds(10)}, At(seconds(9)));
  EXPECT_EQ(lease.last()->since, At(seconds(1))) << "renewed in time";
  lease.OnSent(3, At(seconds(10)));
  (void)lease.OnAnswer(3, LeaseGrant{4, seconds(10)}, At(seconds(11)));
  lease.OnEpochWritten(4);
  EXPECT_EQ(lease.last()->since, At(seconds(1))) << "a new epoch changes nothing";
  Lease restarted(4);
  restarted.Restore(*lease.last());
  restarted.OnSent(1, At(seconds(18)));
  (void)restarted.OnAnswer(1, LeaseGrant{4, seconds(10)}, At(seconds(19)));
  EXPECT_EQ(restarted.last()->since, At(seconds(1))) << "nor does a restart of berthd";
  // The epoch was raised, and berthd ended before the lease of it was noted.
  Lease between(5);
  between.Restore(*lease.last());
  EXPECT_NE(between.State(At(seconds(12))), v1::LEASE_VALID);
  between.OnSent(1, At(seconds(12)));
  (void)between.OnAnswer(1, LeaseGrant{5, seconds(10)}, At(seconds(13)));
  EXPECT_EQ(between.last()->since, At(seconds(1)));

  lease.OnSent(4, At(seconds(19)));
  (void)lease.OnAnswer(4, LeaseGrant{4, seconds(10)}, At(seconds(20)));
  EXPECT_EQ(lease.last()->since, At(seconds(20))) << "its answer came when it had ended";
  Lease rebooted(4);
  rebooted.OnSent(1, At(seconds(0)));
  (void)rebooted.OnAnswer(1, LeaseGrant{4, seconds(10)}, At(seconds(1)));
  EXPECT_EQ(rebooted.last()->since, At(seconds(1)));
}

TEST(LeaseTest, Fault38ReverseStepsAreAcceptedFromTheSchedulerOfTheWelcome) {
  Lease lease(3);
  lease.OnStream();
  EXPECT_EQ(lease.Judge(4, false, At(seconds(1))), v1::LEASE_EPOCH);
  lease.OnWelcome(4);
  EXPECT_EQ(lease.Judge(4, false, At(seconds(1))), v1::REFUSAL_NONE);
  EXPECT_EQ(lease.Judge(4, true, At(seconds(1))), v1::LEASE_EPOCH);
  EXPECT_EQ(lease.Judge(5, false, At(seconds(1))), v1::LEASE_EPOCH);
  // It raises its epoch.
  lease.OnSent(1, At(seconds(1)));
  (void)lease.OnAnswer(1, LeaseGrant{5, seconds(10)}, At(seconds(1)));
  lease.OnEpochWritten(5);
  EXPECT_EQ(lease.Judge(4, false, At(seconds(2))), v1::LEASE_EPOCH);
  EXPECT_EQ(lease.Judge(5, false, At(seconds(2))), v1::REFUSAL_NONE);
  // Another stream is another scheduler, perhaps.
  Lease other(3);
  other.OnWelcome(4);
  other.OnStream();
  EXPECT_EQ(other.Judge(4, false, At(seconds(1))), v1::LEASE_EPOCH);
}

TEST(LeaseTest, Fault42WhereTheEpochIsNotKnownNoLeaseIsAccepted) {
  Lease lease = Lease::WithUnknownEpoch();
  lease.Restore({.epoch = 3, .ends = At(seconds(10))});
  EXPECT_NE(lease.State(At(seconds(1))), v1::LEASE_VALID);
  for (const uint64_t epoch : {1, 3, 4}) {
    lease.OnStream();
    lease.OnWelcome(epoch);
    lease.OnSent(1, At(seconds(1)));
    const AnswerVerdict verdict = lease.OnAnswer(1, LeaseGrant{epoch, seconds(60)}, At(seconds(1)));
    EXPECT_EQ(verdict.kind, Kind::kHeard);
    EXPECT_EQ(verdict.epoch_to_write, 0U) << "what the operator writes stays";
    EXPECT_NE(lease.State(At(seconds(1))), v1::LEASE_VALID);
    EXPECT_EQ(lease.Judge(epoch, true, At(seconds(1))), v1::LEASE_NOT_VALID);
    EXPECT_EQ(lease.Judge(epoch, false, At(seconds(1))), v1::REFUSAL_NONE);
    EXPECT_EQ(lease.Judge(epoch + 1, false, At(seconds(1))), v1::LEASE_EPOCH);
  }
  lease.OnStream();
  EXPECT_EQ(lease.Judge(3, false, At(seconds(1))), v1::REFUSAL_NONE) << "of a scheduler that says no epoch";
  EXPECT_TRUE(lease.OnTime(At(seconds(10)))) << "the lease of before runs out";
  EXPECT_EQ(lease.epoch(), 0U);
}

TEST(LeaseTest, HeartbeatsThatNobodyAnswersAreNotAllRemembered) {
  Lease lease(1);
  for (uint64_t number = 1; number <= 100'000; ++number) lease.OnSent(number, At(milliseconds(number)));
  EXPECT_EQ(lease.OnAnswer(1, LeaseGrant{1, hours(24)}, At(hours(1))).kind, Kind::kIgnored);
  EXPECT_EQ(lease.OnAnswer(100'000, LeaseGrant{1, hours(24)}, At(hours(1))).kind, Kind::kGranted);
}

// Every event in every state: what each makes of each is written down here once.
struct Situation {
  const char* name;
  std::function<Lease()> make;
};
struct Happening {
  const char* name;
  std::function<void(Lease&)> happen;
};

// n: none; v: valid; x: expired; then the epoch that is obeyed. At(5 s).
std::string PrintableName(const Lease& lease) {
  const BootTime now = At(seconds(5));
  const v1::LeaseState standing = lease.State(now);
  std::string text = standing == v1::LEASE_VALID ? "v" : standing == v1::LEASE_NONE ? "n" : "x";
  text += std::to_string(lease.epoch());
  const bool forward = lease.Judge(lease.epoch(), true, now) == v1::REFUSAL_NONE;
  EXPECT_EQ(forward, standing == v1::LEASE_VALID) << "forward only under a valid lease";
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    if (epoch == lease.epoch()) continue;
    EXPECT_EQ(lease.Judge(epoch, false, now), v1::LEASE_EPOCH);
    EXPECT_EQ(lease.Judge(epoch, true, now), v1::LEASE_EPOCH);
  }
  return text;
}

Lease With(uint64_t epoch, Duration sent, Duration lasts, bool written = true) {
  Lease lease(written ? epoch : epoch - 1);
  lease.OnSent(1, At(sent));
  (void)lease.OnAnswer(1, LeaseGrant{epoch, lasts}, At(sent));
  return lease;
}

Happening Answer(const char* name, Duration sent, std::optional<LeaseGrant> grant, bool written = true) {
  return {name, [sent, grant, written](Lease& lease) {
            lease.OnStream();
            lease.OnSent(1, At(sent));
            const AnswerVerdict verdict = lease.OnAnswer(1, grant, At(seconds(5)));
            if (written && verdict.epoch_to_write != 0) lease.OnEpochWritten(verdict.epoch_to_write);
          }};
}

TEST(LeaseTest, EveryEventInEveryState) {
  const std::vector<Situation> situations = {
      {"fresh", [] { return Lease(); }},
      {"restarted", [] { return Lease(3); }},
      {"restored",
       [] {
         Lease lease(3);
         lease.Restore({.epoch = 3, .ends = At(seconds(9))});
         return lease;
       }},
      {"restored, run out",
       [] {
         Lease lease(3);
         lease.Restore({.epoch = 3, .ends = At(seconds(4))});
         return lease;
       }},
      {"valid", [] { return With(3, seconds(0), seconds(9)); }},
      {"not written", [] { return With(3, seconds(0), seconds(9), false); }},
      {"run out", [] { return With(3, seconds(0), seconds(4)); }},
  };
  const std::vector<Happening> happenings = {
      Answer("granted", seconds(4), LeaseGrant{3, seconds(5)}),
      Answer("granted higher", seconds(4), LeaseGrant{4, seconds(5)}),
      Answer("granted higher, not written", seconds(4), LeaseGrant{4, seconds(5)}, false),
      Answer("granted lower", seconds(4), LeaseGrant{2, seconds(5)}),
      Answer("granted too late", seconds(0), LeaseGrant{3, seconds(5)}),
      Answer("heard", seconds(4), std::nullopt),
      Answer("granted too short", seconds(5), LeaseGrant{4, milliseconds(1)}),
      {"unknown", [](Lease& l) { (void)l.OnAnswer(77, LeaseGrant{5, seconds(9)}, At(seconds(5))); }},
      {"new stream", [](Lease& l) { l.OnStream(); }},
      {"looked at", [](Lease& l) { (void)l.OnTime(At(seconds(5))); }},
      {"written", [](Lease& l) { l.OnEpochWritten(l.epoch()); }},
  };
  // A column for each happening.
  const std::vector<std::vector<std::string>> expected = {
      {"v3", "v4", "n4", "v2", "n3", "n0", "n0", "n0", "n0", "n0", "n0"},
      {"v3", "v4", "n4", "n3", "n3", "n3", "n3", "n3", "n3", "n3", "n3"},
      {"v3", "v4", "n4", "v3", "v3", "v3", "v3", "v3", "v3", "v3", "v3"},
      {"v3", "v4", "n4", "x3", "x3", "x3", "x3", "x3", "x3", "x3", "x3"},
      {"v3", "v4", "n4", "v3", "v3", "v3", "v3", "v3", "v3", "v3", "v3"},
      {"v3", "v4", "n4", "n3", "v3", "n3", "n3", "n3", "n3", "n3", "v3"},
      {"v3", "v4", "n4", "x3", "x3", "x3", "x3", "x3", "x3", "x3", "x3"},
  };
  for (size_t s = 0; s < situations.size(); ++s) {
    for (size_t h = 0; h < happenings.size(); ++h) {
      SCOPED_TRACE(std::string(situations[s].name) + ", then " + happenings[h].name);
      Lease lease = situations[s].make();
      happenings[h].happen(lease);
      EXPECT_EQ(PrintableName(lease), expected[s][h]);
    }
  }
}

// A node and schedulers that come one after another, with a link between them that delays, reorders, repeats
// and loses, and a machine that sleeps: whatever happens, the node never holds a lease for valid when the
// scheduler who granted it finds it run out, nor after a higher epoch was heard.
class LeaseProperty : public testing::TestWithParam<unsigned> {};

TEST_P(LeaseProperty, TheNodeNeverBelievesLongerThanTheScheduler) {
  std::minstd_rand random(GetParam());
  const auto upto = [&random](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most + 1));
  };
  struct Flying {
    BootTime due;
    uint64_t number = 0;
    std::optional<LeaseGrant> grant;
  };
  Lease lease;
  uint64_t disk = 0;  // the highest epoch that was written
  uint64_t number = 0;
  uint64_t epoch = 1;
  uint64_t heard = 0;
  BootTime now = At(seconds(0));
  std::map<uint64_t, BootTime> believed;  // by epoch: until when the scheduler counts on the node
  std::vector<Flying> up;
  std::vector<Flying> down;
  int valid = 0;
  for (int step = 0; step < 5000; ++step) {
    // Now and then the machine sleeps, or time stands still.
    now += upto(40) == 0 ? Duration(seconds(upto(40))) : Duration(milliseconds(upto(300)));
    const int what = upto(99);
    if (what < 40) {
      lease.OnSent(++number, now);
      up.push_back({.due = now + milliseconds(upto(3000)), .number = number});
    } else if (what < 43) {
      ++epoch;
    } else if (what < 46) {
      lease.OnStream();
      up.clear();  // an answer may still come
    } else if (what < 48) {
      // berthd is restarted: only what is on the disk is known.
      const auto last = lease.last();
      lease = Lease(disk);
      if (last) lease.Restore(*last);
      heard = disk;
      number = 0;
      down.clear();  // a new stream is a new connection
      up.clear();
    } else if (what < 55) {
      (void)lease.OnTime(now);
    }
    for (size_t i = 0; i < up.size();) {
      if (up[i].due > now) {
        ++i;
        continue;
      }
      Flying answer = up[i];
      if (upto(9) != 0) {
        // An old scheduler may be alive still.
        const uint64_t by = upto(4) == 0 && epoch > 1 ? epoch - 1 : epoch;
        answer.grant = LeaseGrant{by, milliseconds(500 + upto(8000))};
        if (answer.grant->duration >= kShortestLease) {
          believed[by] = std::max(believed[by], now + answer.grant->duration);
        }
      }
      answer.due = now + milliseconds(upto(3000));
      down.push_back(answer);
      if (upto(9) == 0) down.push_back(answer);
      up.erase(up.begin() + static_cast<ptrdiff_t>(i));
    }
    for (size_t i = 0; i < down.size();) {
      if (down[i].due > now) {
        ++i;
        continue;
      }
      if (upto(9) != 0) {
        const AnswerVerdict verdict = lease.OnAnswer(down[i].number, down[i].grant, now);
        ASSERT_GE(lease.epoch(), heard);
        heard = lease.epoch();
        if (verdict.epoch_to_write != 0 && upto(3) != 0) {
          disk = verdict.epoch_to_write;
          lease.OnEpochWritten(disk);
        }
      }
      down.erase(down.begin() + static_cast<ptrdiff_t>(i));
    }
    for (uint64_t asked = 1; asked <= epoch; ++asked) {
      if (lease.Judge(asked, true, now) != v1::REFUSAL_NONE) continue;
      ++valid;
      ASSERT_LT(now, believed[asked]) << "step " << step << ", epoch " << asked;
      ASSERT_EQ(asked, heard) << "of a lower epoch than was heard";
      ASSERT_EQ(asked, disk) << "before it was on the disk";
    }
  }
  EXPECT_GT(valid, 100) << "nothing was tried";
}

INSTANTIATE_TEST_SUITE_P(Seeds, LeaseProperty, testing::Range(1U, 41U));

}  // namespace
}  // namespace berth
