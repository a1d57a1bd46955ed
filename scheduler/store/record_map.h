// Records in memory, and what a transaction does to them. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/store/store.h"

namespace berth::scheduler {

struct RecordValue {
  std::string value;
  uint64_t modified = 0;
};
using RecordMap = std::map<std::string, RecordValue, std::less<>>;

[[nodiscard]] Snapshot ReadRecords(const RecordMap& records, uint64_t revision,
                                   const std::vector<KeyRange>& ranges);

// What was under a key before, in the order of the changes; unset: nothing.
using RecordUndo = std::vector<std::pair<std::string, std::optional<RecordValue>>>;

// Carries `transaction`, which CheckTransaction has passed, out if its compares hold: Store::Commit. What it
// deletes and is not there leaves `transaction`. `undo`, if it is not null, gets what was there before.
[[nodiscard]] absl::StatusOr<uint64_t> ApplyToRecords(RecordMap& records, uint64_t& revision,
                                                      Transaction& transaction, RecordUndo* undo);

}  // namespace berth::scheduler
