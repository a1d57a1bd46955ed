#include "mounter/identity_sync.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "base/testing/loop_runner.h"
#include "base/testing/test_area.h"

namespace berth {
namespace {

class IdentitySyncTest : public ::testing::Test {
 protected:
  // How often each key was synced.
  std::map<std::string, int> synced() {
    const std::lock_guard lock(mutex_);
    return synced_;
  }

  LoopRunner loop_;
  std::mutex mutex_;
  std::map<std::string, int> synced_;
  size_t most_ = 0;
  std::atomic<bool> fail_ = false;
  std::unique_ptr<Journal> journal_ =
      *Journal::Open(loop_.executor(), {.path = NewTestDirectory() + "/journal.db"});
  IdentitySync sync_{*journal_, [this](const std::vector<std::string>& keys) {
                       const std::lock_guard lock(mutex_);
                       for (const std::string& key : keys) ++synced_[key];
                       most_ = std::max(most_, keys.size());
                       return fail_ ? absl::InternalError("disk") : absl::OkStatus();
                     }};
};

TEST_F(IdentitySyncTest, OfVeryManyEachIsSyncedThoughTheJournalNeverRests) {
  constexpr size_t kFiles = 20'000;  // more than writes may wait
  for (size_t i = 0; i < kFiles; ++i) sync_.Add(fmt::format("{}", i));
  ASSERT_TRUE(loop_.RunUntil([&] {
    if (journal_->queued() == 0) journal_->PutSoon("a", "one");
    return !synced().empty();
  }));
  ASSERT_TRUE(loop_.RunUntil([&] { return synced().size() == kFiles; }));
  for (const auto& [key, times] : synced()) EXPECT_EQ(times, 1) << key;
  EXPECT_EQ(most_, IdentitySync::kAtOnce);
}

TEST_F(IdentitySyncTest, OneThatIsWrittenOftenIsSyncedOnceAndAgainAfterwards) {
  for (int i = 0; i < 100; ++i) sync_.Add("a");
  ASSERT_TRUE(loop_.RunUntil([&] { return synced().size() == 1; }));
  EXPECT_EQ(synced().at("a"), 1);
  fail_ = true;  // is logged, and the next ones go on
  sync_.Add("a");
  sync_.Add("b");
  ASSERT_TRUE(loop_.RunUntil([&] { return synced().contains("b"); }));
  EXPECT_EQ(synced().at("a"), 2);
  sync_.Add("c");
  ASSERT_TRUE(loop_.RunUntil([&] { return synced().contains("c"); }));
}

}  // namespace
}  // namespace berth
