#include "rpc/uplink/lease_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr BootTime kNow{hours(1)};

class LeaseStoreTest : public testing::Test {
 protected:
  LeaseStoreTest() { EXPECT_EQ(mkdir(directory_.Path("scheduler").c_str(), 0700), 0); }

  [[nodiscard]] LeaseStore Store(const std::string& boot = "boot-1") const {
    return {directory_.path(), directory_.path(), boot};
  }

  TempDir directory_;
};

TEST_F(LeaseStoreTest, WhatWasWrittenIsReadAgain) {
  const LeaseStore store = Store();
  EXPECT_EQ(store.Load(kNow).highest_epoch, 0U);
  EXPECT_TRUE(store.Load(kNow).epoch_missing) << "a node that never had a scheduler";
  EXPECT_EQ(store.Load(kNow).epoch_problem, "");
  EXPECT_THAT(store.Load(kNow).problems, IsEmpty());
  const Lease::Term term{.epoch = 17, .ends = kNow + seconds(5), .since = kNow - seconds(7)};
  ASSERT_EQ(store.WriteEpoch(17), absl::OkStatus());
  ASSERT_EQ(store.WriteLease(term), absl::OkStatus());
  EXPECT_EQ(store.Load(kNow).highest_epoch, 17U);
  EXPECT_EQ(store.Load(kNow).lease, term);
  EXPECT_EQ(store.Load(kNow + hours(1)).lease, term) << "that it is over is for others to find";
}

// A thread that hung in its disk and was left behind may end long after another has written.
TEST_F(LeaseStoreTest, AWriteThatComesLateChangesNothing) {
  const LeaseStore store = Store();
  const LeaseStore left_behind = store;
  ASSERT_EQ(store.WriteEpoch(16), absl::OkStatus());
  ASSERT_EQ(store.WriteEpoch(18), absl::OkStatus());
  EXPECT_EQ(left_behind.WriteEpoch(17), absl::OkStatus());
  EXPECT_EQ(store.Load(kNow).highest_epoch, 18U);
}

TEST_F(LeaseStoreTest, SeveralThatWriteTheSameEpochAtOnceLeaveIt) {
  for (uint64_t epoch = 1; epoch <= 50; ++epoch) {
    const LeaseStore store = Store();
    std::vector<std::jthread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([store, epoch] { EXPECT_EQ(store.WriteEpoch(epoch), absl::OkStatus()); });
    }
    writers.clear();
    ASSERT_EQ(store.Load(kNow).highest_epoch, epoch);
  }
}

TEST_F(LeaseStoreTest, ALeaseOfAnotherBootOrOfAHigherEpochIsNone) {
  ASSERT_EQ(Store().WriteEpoch(16), absl::OkStatus());
  ASSERT_EQ(Store().WriteLease({.epoch = 17, .ends = kNow}), absl::OkStatus());
  EXPECT_FALSE(Store().Load(kNow).lease.has_value()) << "its epoch is not on the disk";
  ASSERT_EQ(Store().WriteEpoch(17), absl::OkStatus());
  EXPECT_TRUE(Store().Load(kNow).lease.has_value());
  EXPECT_FALSE(Store("boot-2").Load(kNow).lease.has_value());
  ASSERT_EQ(Store().WriteEpoch(18), absl::OkStatus());
  EXPECT_EQ(Store().Load(kNow).lease->epoch, 17U) << "it says since when there has been one";
  EXPECT_THAT(Store().Load(kNow).problems, IsEmpty());
}

TEST_F(LeaseStoreTest, ADamagedLeaseIsNoneAndTold) {
  ASSERT_EQ(Store().WriteEpoch(17), absl::OkStatus());
  const std::string day = std::to_string((kNow + hours(24)).time_since_epoch().count());
  directory_.Write("lease", "boot-1 17 " + day + " 5\n");
  EXPECT_TRUE(Store().Load(kNow).lease.has_value());
  const std::string later = std::to_string((kNow + hours(24) + seconds(1)).time_since_epoch().count());
  for (const std::string& text :
       {std::string(), std::string("boot-1"), std::string("boot-1 17"), std::string("boot-1 17 \n"),
        std::string("boot-1 17 -5\n"), std::string("boot-1 x 5\n"), std::string("boot-1 17 5\nmore"),
        std::string("boot-1 17 5\n"), std::string("boot-1 17 5 6\n"), std::string("boot-1 17 6 x\n"),
        std::string("boot-1 17 6 5 4\n"), "boot-1 17 " + later + " 5\n",
        std::string("boot-1 17 99999999999999999999 5\n"), std::string("\0\0\0", 3),
        std::string(100'000, '7')}) {
    directory_.Write("lease", text);
    const LeaseStore::Kept kept = Store().Load(kNow);
    EXPECT_FALSE(kept.lease.has_value()) << text.substr(0, 50);
    EXPECT_THAT(kept.problems, ElementsAre(HasSubstr("lease"))) << text.substr(0, 50);
    EXPECT_EQ(kept.highest_epoch, 17U);
  }
}

TEST_F(LeaseStoreTest, Fault42AnEpochThatCannotBeReadIsNotNone) {
  for (const std::string text : {"", "\n", "17", "-1\n", "17x\n", "17\n18\n", "99999999999999999999\n"}) {
    directory_.Write("scheduler/lease_epoch", text);
    for (int starts = 0; starts < 2; ++starts) {
      const LeaseStore::Kept kept = Store().Load(kNow);
      EXPECT_THAT(kept.epoch_problem, HasSubstr("scheduler/lease_epoch is ")) << text;
      EXPECT_FALSE(kept.epoch_missing) << text;
    }
  }
  // Shortened to any length, by a power cut for instance, or with one byte changed.
  ASSERT_EQ(Store().WriteEpoch(170), absl::OkStatus());
  const std::string whole = *ReadFile(directory_.Path("scheduler/lease_epoch"), 256);
  ASSERT_EQ(Store().Load(kNow).highest_epoch, 170U);
  for (size_t length = 0; length < whole.size(); ++length) {
    directory_.Write("scheduler/lease_epoch", whole.substr(0, length));
    EXPECT_NE(Store().Load(kNow).epoch_problem, "") << length;
    std::string changed = whole;
    changed[length] ^= 1;
    directory_.Write("scheduler/lease_epoch", changed);
    EXPECT_NE(Store().Load(kNow).epoch_problem, "") << changed;
  }
  directory_.Write("scheduler/lease_epoch", std::string(100'000, '7'));
  EXPECT_THAT(Store().Load(kNow).epoch_problem, HasSubstr("longer than 256 bytes"));
  ASSERT_EQ(unlink(directory_.Path("scheduler/lease_epoch").c_str()), 0);
  ASSERT_EQ(mkdir(directory_.Path("scheduler/lease_epoch").c_str(), 0700), 0);
  EXPECT_THAT(Store().Load(kNow).epoch_problem, HasSubstr("Is a directory"));
  ASSERT_EQ(rmdir(directory_.Path("scheduler/lease_epoch").c_str()), 0);
  unlink(directory_.Path("scheduler/lease_epoch.spare").c_str());
  ASSERT_EQ(rmdir(directory_.Path("scheduler").c_str()), 0);
  directory_.Write("scheduler", "a file in its place");
  EXPECT_THAT(Store().Load(kNow).epoch_problem, HasSubstr("Not a directory"));
}

TEST_F(LeaseStoreTest, Fault42WhatAnOperatorWritesIsTheEpoch) {
  for (const auto& [text, epoch] : {std::pair("0\n", 0U), {"17\n", 17U}}) {
    directory_.Write("scheduler/lease_epoch", text);
    const LeaseStore::Kept kept = Store().Load(kNow);
    EXPECT_EQ(kept.highest_epoch, epoch);
    EXPECT_EQ(kept.epoch_problem, "");
    EXPECT_FALSE(kept.epoch_missing);
  }
  ASSERT_EQ(Store().WriteEpoch(30), absl::OkStatus());
  EXPECT_EQ(Store().Load(kNow).highest_epoch, 30U);
}

}  // namespace
}  // namespace berth
