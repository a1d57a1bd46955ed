#include "scheduler/store/record_map.h"

namespace berth::scheduler {
namespace {

bool Holds(const RecordMap& records, const Compare& compare) {
  if (!compare.end.empty()) {
    const auto first = records.lower_bound(compare.key);
    return first == records.end() || first->first >= compare.end;
  }
  const auto known = records.find(compare.key);
  return (known == records.end() ? 0 : known->second.modified) == compare.modified;
}

}  // namespace

Snapshot ReadRecords(const RecordMap& records, uint64_t revision, const std::vector<KeyRange>& ranges) {
  Snapshot snapshot{.revision = revision, .records = {}};
  for (const KeyRange& range : ranges) {
    for (auto next = records.lower_bound(range.first); next != records.end() && next->first < range.end;
         ++next)
      snapshot.records.push_back({next->first, next->second.value, next->second.modified});
  }
  return snapshot;
}

absl::StatusOr<uint64_t> ApplyToRecords(RecordMap& records, uint64_t& revision, Transaction& transaction,
                                        RecordUndo* undo) {
  for (const Compare& compare : transaction.compares) {
    if (!Holds(records, compare)) return CompareFailed(compare);
  }
  std::erase_if(transaction.deletes, [&records](const std::string& key) { return !records.contains(key); });
  if (transaction.puts.empty() && transaction.deletes.empty()) return revision;
  ++revision;
  const auto remember = [&](const std::string& key) {
    if (undo == nullptr) return;
    const auto was = records.find(key);
    undo->emplace_back(key, was == records.end() ? std::nullopt : std::optional(was->second));
  };
  for (const auto& [key, value] : transaction.puts) {
    remember(key);
    records.insert_or_assign(key, RecordValue{value, revision});
  }
  for (const std::string& key : transaction.deletes) {
    remember(key);
    records.erase(key);
  }
  return revision;
}

}  // namespace berth::scheduler
