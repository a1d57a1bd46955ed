#include "mounts/mount_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/safe_path.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Keys = std::optional<std::set<std::string>>;

void MountAt(const std::string& path) { ASSERT_EQ(mount("x", path.c_str(), "tmpfs", 0, nullptr), 0) << path; }
void UnmountAt(const std::string& path) { ASSERT_EQ(umount2(path.c_str(), UMOUNT_NOFOLLOW), 0) << path; }
uint64_t MountId(const std::string& path) {
  const auto facts = LookAt(path);
  EXPECT_TRUE(facts.ok() && facts->mount_root) << path;
  return facts->mount_id;
}

// Both ways of watching.
class MountWatchTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    MakeDirectory(parent_);
    ASSERT_EQ(SetUpMountTree(tree_).status(), absl::OkStatus());
    for (const char* const name : {"/one", "/two", "/last"}) MakeDirectory(tree_ + name);
    MakeDirectory(outside_);
    Start();
  }
  void TearDown() override {
    watch_.reset();
    RunOn(loop_, scope_.Join());
    umount2(tree_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  }

  void Start() {
    auto watch = MountWatch::Start(loop_.get_executor(), scope_, tree_,
                                   [this](const Keys& keys) { Told(keys); }, {.use_fanotify = GetParam()});
    ASSERT_TRUE(watch.ok()) << watch.status();
    watch_ = *std::move(watch);
    if (GetParam() && watch_->describe() != "fanotify") GTEST_SKIP() << watch_->describe();
    if (!GetParam())
      EXPECT_THAT(watch_->describe(), HasSubstr("read again")) << "an operator learns of the lesser way";
  }

  void Told(const Keys& keys) {
    reported_.push_back(keys);
    changed_.NotifyAll();
  }
  // Waits until a report satisfies `enough`, and returns all reports.
  std::vector<Keys> WaitFor(const std::function<bool(const Keys&)>& enough) {
    auto seen = [this, &enough] { return std::ranges::any_of(reported_, enough); };
    const bool in_time = RunOn(loop_, changed_.WaitUntil(seen, Clock::now() + std::chrono::seconds(20)));
    EXPECT_TRUE(in_time);
    return std::exchange(reported_, {});
  }
  // Changes something known last, waits until that is reported, and returns the other keys.
  std::set<std::string> KeysUntilLast() {
    MountAt(tree_ + "/last");
    std::set<std::string> keys;
    for (const Keys& each :
         WaitFor([](const Keys& told) { return told.has_value() && told->contains("last"); })) {
      EXPECT_TRUE(each.has_value());
      if (each.has_value()) keys.insert(each->begin(), each->end());
    }
    keys.erase("last");
    return keys;
  }
  std::vector<Keys> WaitForEverything() {
    return WaitFor([](const Keys& told) { return !told.has_value(); });
  }

  std::string parent_ = NewTestDirectory() + "/with blank";
  std::string tree_ = parent_ + "/volumes";
  std::string outside_ = tree_ + "x";
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
  Condition changed_{loop_.get_executor()};
  std::unique_ptr<MountWatch> watch_;
  std::vector<Keys> reported_;
};

TEST_P(MountWatchTest, Fault26AForeignUnmountIsTold) {
  MountAt(tree_ + "/one");
  watch_->Track(MountId(tree_ + "/one"), "one");
  KeysUntilLast();
  UnmountAt(tree_ + "/one");
  EXPECT_EQ(WaitFor([](const Keys& keys) { return keys.has_value(); }).front(), Keys({{"one"}}));
}

TEST_P(MountWatchTest, Fault26AnUnmountRightAfterTheMountIsTold) {
  MountAt(tree_ + "/one");
  watch_->Track(MountId(tree_ + "/one"), "one");
  UnmountAt(tree_ + "/one");
  EXPECT_THAT(KeysUntilLast(), ElementsAre("one"));
}

TEST_P(MountWatchTest, Fault26AnUnmountOfWhatIsTrackedElsewhereIsTold) {
  MountAt(outside_);
  watch_->Track(MountId(outside_), "one");
  EXPECT_THAT(KeysUntilLast(), IsEmpty());
  UnmountAt(outside_);
  EXPECT_EQ(WaitFor([](const Keys& keys) { return keys.has_value(); }).front(), Keys({{"one"}}));
}

TEST_P(MountWatchTest, Fault26AMountOnTopIsToldByTheVolumeItLiesIn) {
  const std::string deep = tree_ + "/two/inner";
  MakeDirectory(deep);
  MountAt(deep);
  watch_->Track(MountId(deep), "two");
  KeysUntilLast();
  MountAt(deep);
  EXPECT_EQ(WaitFor([](const Keys& keys) { return keys.has_value(); }).front(), Keys({{"two"}}));
}

TEST_P(MountWatchTest, WhatHappensOutsideIsNotTold) {
  MountAt(outside_);
  UnmountAt(outside_);
  MountAt(outside_);
  EXPECT_THAT(KeysUntilLast(), IsEmpty());
}

TEST_P(MountWatchTest, ManyChangesAreToldTogether) {
  for (int i = 0; i < 50; ++i) MountAt(tree_ + "/one");
  MountAt(tree_ + "/two");
  EXPECT_THAT(KeysUntilLast(), ElementsAre("one", "two"));
  EXPECT_THAT(reported_, IsEmpty());
}

TEST_P(MountWatchTest, TheTreeItselfTakenAwayConcernsEverything) {
  ASSERT_EQ(umount2(tree_.c_str(), MNT_DETACH), 0);
  EXPECT_THAT(WaitForEverything(), testing::Not(IsEmpty()));
}

TEST_P(MountWatchTest, AMountAboveTheTreeConcernsEverything) {
  MountAt(parent_);
  EXPECT_THAT(WaitForEverything(), testing::Not(IsEmpty()));
  UnmountAt(parent_);
}

TEST_P(MountWatchTest, IsSilentOnceItIsGone) {
  MountAt(tree_ + "/one");
  watch_.reset();
  RunOn(loop_, scope_.WaitEmpty());
  EXPECT_THAT(reported_, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, MountWatchTest, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "Fanotify" : "Monitor"; });

class FanotifyWatchTest : public MountWatchTest {};

TEST_P(FanotifyWatchTest, OurOwnMountsAreNotTold) {
  MountAt(tree_ + "/one");
  watch_->Track(MountId(tree_ + "/one"), "one");
  EXPECT_THAT(KeysUntilLast(), IsEmpty());
  watch_->Untrack(MountId(tree_ + "/one"));
  UnmountAt(tree_ + "/one");
  MountAt(tree_ + "/two");
  EXPECT_EQ(WaitFor([](const Keys& keys) { return keys.has_value(); }).front(), Keys({{"two"}}));
}

TEST_P(FanotifyWatchTest, TheSecondOfTwoMountsAtAPlaceIsAnother) {
  MountAt(tree_ + "/one");
  const uint64_t first = MountId(tree_ + "/one");
  UnmountAt(tree_ + "/one");
  MountAt(tree_ + "/one");
  EXPECT_NE(MountId(tree_ + "/one"), first);
}

TEST_P(FanotifyWatchTest, AFullQueueConcernsEverything) {
  // Two events of one mount are merged; the kernel keeps 16384.
  for (int i = 0; i < 17000; ++i) {
    ASSERT_EQ(mount("x", outside_.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(umount2(outside_.c_str(), UMOUNT_NOFOLLOW), 0);
  }
  EXPECT_THAT(WaitForEverything(), testing::Not(IsEmpty()));
  // And it goes on.
  EXPECT_THAT(KeysUntilLast(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, FanotifyWatchTest, ::testing::Values(true));

}  // namespace
}  // namespace berth
