// Where the scheduler keeps its records: ordered keys, transactions that say what they have read, consistent
// snapshots, and a ring of the last changes.
//
//   Read ──► decide ──► Commit{compares, puts, deletes} ──► a revision: it is durable
//                         └─ ABORTED: a compare does not hold: read again, decide again
//
// The limits are etcd's, and the same for every store, so that what runs on one runs on all: 128 compares,
// 128 changes, 1.5 MiB, no key twice. Only a commit's compares decide: what was read before may be old by
// then. The store knows nothing of volumes. Keys and values may hold any bytes.
//
// Loop thread. A call that was begun may have been carried out though its waiter has gone.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth::scheduler {

inline constexpr size_t kCompareLimit = 128;
inline constexpr size_t kChangeLimit = 128;
inline constexpr size_t kTransactionBytes = size_t{3} << 19;  // of all keys and values
inline constexpr size_t kKeyLimit = 1024;
// How many changes a store remembers at least.
inline constexpr size_t kChangesKept = 10'000;

// Keys from `first` up to, and without, `end`.
struct KeyRange {
  std::string first;
  std::string end;

  [[nodiscard]] static KeyRange Key(std::string key);
  [[nodiscard]] static KeyRange Prefix(std::string prefix);
};

struct StoredRecord {
  std::string key;
  std::string value;
  uint64_t modified = 0;  // the revision that wrote it last
};

struct Snapshot {
  uint64_t revision = 0;
  // By range, as asked for, and in each by key.
  std::vector<StoredRecord> records;
};

// What has to hold for a commit.
struct Compare {
  std::string key;
  uint64_t modified = 0;  // StoredRecord::modified; 0: there is no such key
  // Not empty: there is no key from `key` up to, and without, `end`.
  std::string end = {};
};

struct Transaction {
  std::vector<Compare> compares;
  std::vector<std::pair<std::string, std::string>> puts;
  std::vector<std::string> deletes;
  // A new volume or claim: refused with RESOURCE_EXHAUSTED when little space is left. Releases are still
  // carried out then.
  bool is_new_work = false;
};

// INVALID_ARGUMENT: it breaks one of the limits, and the message says which. Each store asks first.
[[nodiscard]] absl::Status CheckTransaction(const Transaction& transaction);

// What Commit says where `compare` does not hold.
[[nodiscard]] absl::Status CompareFailed(const Compare& compare);

// Which keys were written or deleted.
struct Change {
  uint64_t revision = 0;
  std::string key;
};

class Store {
 public:
  virtual ~Store() = default;

  // All records in `ranges`, as they were at one moment, which is not before this call.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<Snapshot>> Read(std::vector<KeyRange> ranges) = 0;

  // All of it or nothing, and durable when this returns. The revision: one more than before, or the present
  // one if nothing changed. ABORTED: a compare does not hold; the message names its key. INVALID_ARGUMENT:
  // CheckTransaction. RESOURCE_EXHAUSTED: there is no space; nothing happened. Any other error: it may have
  // been carried out, so the caller reads again before it decides.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<uint64_t>> Commit(Transaction transaction) = 0;

  // The changes after `revision`, oldest first, up to 1,000; waits for the first. Empty: none by `deadline`.
  // OUT_OF_RANGE: some of them were dropped: read everything again.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::vector<Change>>> Changes(uint64_t revision,
                                                                               TimePoint deadline) = 0;
};

}  // namespace berth::scheduler
