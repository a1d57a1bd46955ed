// The term of a scheduler: begun at its start, written before it says or sends anything.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

struct Term {
  uint64_t epoch = 0;
  // Of the record: a transaction that compares it is refused once another scheduler has begun a term.
  uint64_t revision = 0;
  // The longest lease that schedulers before this one may have granted.
  Duration longest_before{};

  [[nodiscard]] Compare Holds() const;
};

struct TermRequest {
  std::string cluster_id;
  Duration lease{};  // that this scheduler will grant
  WallTime now;
  std::string holder;  // for people
};

// Creates the cluster's record if it is missing. The new epoch is higher than every earlier one, and at least
// the milliseconds since 1970. So after a backup was restored it is still higher than the epochs that nodes
// have seen. FAILED_PRECONDITION: the record is of another cluster, or a newer program wrote it. DATA_LOSS:
// it cannot be read.
[[nodiscard]] Awaitable<absl::StatusOr<Term>> BeginTerm(Store& store, TermRequest request);

}  // namespace berth::scheduler
