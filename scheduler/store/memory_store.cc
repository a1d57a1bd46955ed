#include "scheduler/store/memory_store.h"

#include "base/status.h"

namespace berth::scheduler {

Awaitable<absl::StatusOr<Snapshot>> MemoryStore::Read(std::vector<KeyRange> ranges) {
  co_return ReadRecords(records_, revision_, ranges);
}

Awaitable<absl::StatusOr<uint64_t>> MemoryStore::Commit(Transaction transaction) {
  BERTH_CO_RETURN_IF_ERROR(CheckTransaction(transaction));
  const auto revision = ApplyToRecords(records_, revision_, transaction, nullptr);
  if (revision.ok()) ring_.Add(*revision, transaction);
  co_return revision;
}

Awaitable<absl::StatusOr<std::vector<Change>>> MemoryStore::Changes(uint64_t revision, TimePoint deadline) {
  co_return co_await ring_.After(revision, deadline);
}

}  // namespace berth::scheduler
