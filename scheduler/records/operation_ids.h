// The ids of operations: each is given out once in the life of a cluster, also across restarts.
//
// They are taken from the cluster's record in blocks, so that an id costs no write. Ids of a block that was
// not used up are never given out. Loop thread.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "base/task_scope.h"
#include "scheduler/records/term.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

inline constexpr uint64_t kIdsInABlock = 1000;
// Ids above this one are never used: a node that has seen higher ones cannot be served.
inline constexpr uint64_t kHighestId = uint64_t{1} << 62;

class OperationIds {
 public:
  // `store` outlives it.
  OperationIds(Store& store, Term term) : store_(store), term_(term) {}

  // Takes a block, unless there is an id. ABORTED: another scheduler has begun a term. It may be called again
  // after any error.
  [[nodiscard]] Awaitable<absl::Status> Reserve();
  [[nodiscard]] bool Empty() const { return next_ == end_; }
  // Not if Empty.
  [[nodiscard]] uint64_t Take() { return next_++; }

  // A node has seen `id`, of another scheduler or before a backup was restored: later ids are higher.
  // OUT_OF_RANGE: it is above kHighestId.
  [[nodiscard]] absl::Status Above(uint64_t id);

 private:
  Store& store_;
  Term term_;
  uint64_t next_ = 0;
  uint64_t end_ = 0;
  uint64_t seen_ = 0;  // by nodes
};

}  // namespace berth::scheduler
