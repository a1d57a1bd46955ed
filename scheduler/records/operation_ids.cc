#include "scheduler/records/operation_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {

Awaitable<absl::Status> OperationIds::Reserve() {
  if (!Empty()) co_return absl::OkStatus();
  std::vector<KeyRange> range{KeyRange::Key(std::string(kClusterKey))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store_.Read(std::move(range)));
  if (snapshot.records.empty()) co_return absl::DataLossError("the record of the cluster is gone");
  const StoredRecord& stored = snapshot.records[0];
  BERTH_CO_ASSIGN_OR_RETURN(pb::ClusterRecord cluster, Decode<pb::ClusterRecord>(stored.key, stored.value));
  const uint64_t first = std::max(cluster.next_operation_id(), seen_ + 1);
  cluster.set_next_operation_id(first + kIdsInABlock);
  Transaction transaction{.compares = {term_.Holds(), {.key = stored.key, .modified = stored.modified}},
                          .puts = {{stored.key, Encode(cluster)}},
                          .deletes = {}};
  const auto committed = co_await store_.Commit(std::move(transaction));
  // Another caller may have taken a block meanwhile.
  if (!Empty()) co_return absl::OkStatus();
  if (!committed.ok()) co_return Annotate(committed.status(), "take ids for operations");
  next_ = first;
  end_ = first + kIdsInABlock;
  co_return absl::OkStatus();
}

absl::Status OperationIds::Above(uint64_t id) {
  if (id > kHighestId)
    return absl::OutOfRangeError(fmt::format("{} is above every id of a berth-scheduler", id));
  seen_ = std::max(seen_, id);
  if (!Empty() && next_ <= id) next_ = end_;
  return absl::OkStatus();
}

}  // namespace berth::scheduler
