#include "scheduler/store/change_ring.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::scheduler {
namespace {

constexpr size_t kAtATime = 1000;

}  // namespace

void ChangeRing::Add(uint64_t revision, const Transaction& transaction) {
  for (const auto& [key, value] : transaction.puts) changes_.push_back({revision, key});
  for (const std::string& key : transaction.deletes) changes_.push_back({revision, key});
  while (changes_.size() > kChangesKept) {
    forgotten_ = changes_.front().revision;
    while (!changes_.empty() && changes_.front().revision == forgotten_) changes_.pop_front();
  }
  changed_.NotifyAll();
}

Awaitable<absl::StatusOr<std::vector<Change>>> ChangeRing::After(uint64_t revision, TimePoint deadline) {
  const auto ready = [this, revision] {
    return revision < forgotten_ || (!changes_.empty() && changes_.back().revision > revision);
  };
  if (!co_await changed_.WaitUntil(ready, deadline)) co_return std::vector<Change>();
  if (revision < forgotten_) {
    co_return absl::OutOfRangeError(
        fmt::format("the changes after revision {} are not remembered any more", revision));
  }
  std::vector<Change> after;
  auto next = std::ranges::upper_bound(changes_, revision, {}, &Change::revision);
  // A revision is never cut in two, so that the next call can continue after the last one.
  while (next != changes_.end() && (after.size() < kAtATime || next->revision == after.back().revision))
    after.push_back(*next++);
  co_return after;
}

}  // namespace berth::scheduler
