#include "scheduler/store/memory_store.h"

#include <utility>

#include "base/status.h"

namespace berth::scheduler {

bool MemoryStore::Holds(const Compare& compare) const {
  if (!compare.end.empty()) {
    const auto first = records_.lower_bound(compare.key);
    return first == records_.end() || first->first >= compare.end;
  }
  const auto known = records_.find(compare.key);
  return (known == records_.end() ? 0 : known->second.modified) == compare.modified;
}

Awaitable<absl::StatusOr<Snapshot>> MemoryStore::Read(std::vector<KeyRange> ranges) {
  Snapshot snapshot{.revision = revision_, .records = {}};
  for (const KeyRange& range : ranges) {
    for (auto next = records_.lower_bound(range.first); next != records_.end() && next->first < range.end;
         ++next)
      snapshot.records.push_back({next->first, next->second.value, next->second.modified});
  }
  co_return snapshot;
}

Awaitable<absl::StatusOr<uint64_t>> MemoryStore::Commit(Transaction transaction) {
  BERTH_CO_RETURN_IF_ERROR(CheckTransaction(transaction));
  for (const Compare& compare : transaction.compares) {
    if (!Holds(compare)) co_return CompareFailed(compare);
  }
  std::erase_if(transaction.deletes, [this](const std::string& key) { return !records_.contains(key); });
  if (transaction.puts.empty() && transaction.deletes.empty()) co_return revision_;
  ++revision_;
  for (const auto& [key, value] : transaction.puts) records_.insert_or_assign(key, Value{value, revision_});
  for (const std::string& key : transaction.deletes) records_.erase(key);
  ring_.Add(revision_, transaction);
  co_return revision_;
}

Awaitable<absl::StatusOr<std::vector<Change>>> MemoryStore::Changes(uint64_t revision, TimePoint deadline) {
  co_return co_await ring_.After(revision, deadline);
}

}  // namespace berth::scheduler
