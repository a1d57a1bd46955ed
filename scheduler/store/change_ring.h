// The last changes of a store, for those who follow it: Store::Changes. Loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

class ChangeRing {
 public:
  // What happened up to `revision` is not remembered.
  ChangeRing(asio::any_io_executor executor, uint64_t revision)
      : forgotten_(revision), changed_(std::move(executor)) {}

  // What a commit has changed; `revision` is greater than all before.
  void Add(uint64_t revision, const Transaction& transaction);

  // Store::Changes.
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Change>>> After(uint64_t revision, TimePoint deadline);

 private:
  uint64_t forgotten_;          // the newest revision that was dropped
  std::deque<Change> changes_;  // of a revision all or none
  Condition changed_;
};

}  // namespace berth::scheduler
