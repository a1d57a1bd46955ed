// A store that ends with its process: for tests, and to try the scheduler out. Loop thread.
#pragma once

#include <vector>

#include "scheduler/store/change_ring.h"
#include "scheduler/store/record_map.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(asio::any_io_executor executor) : ring_(std::move(executor), 0) {}

  [[nodiscard]] Awaitable<absl::StatusOr<Snapshot>> Read(std::vector<KeyRange> ranges) override;
  [[nodiscard]] Awaitable<absl::StatusOr<uint64_t>> Commit(Transaction transaction) override;
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Change>>> Changes(uint64_t revision,
                                                                       TimePoint deadline) override;

 private:
  RecordMap records_;
  uint64_t revision_ = 0;
  ChangeRing ring_;
};

}  // namespace berth::scheduler
