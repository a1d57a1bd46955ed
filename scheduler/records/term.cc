#include "scheduler/records/term.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {
namespace {

constexpr int kTries = 5;
// Ids of operations count up from this at least, for the same reason as epochs; a thousand in a millisecond.
constexpr uint64_t kIdsInAMillisecond = 1000;

}  // namespace

Compare Term::Holds() const { return {.key = std::string(kTermKey), .modified = revision}; }

Awaitable<absl::StatusOr<Term>> BeginTerm(Store& store, TermRequest request) {
  const auto since_1970 =
      std::chrono::duration_cast<std::chrono::milliseconds>(request.now.time_since_epoch());
  const auto now_ms = static_cast<uint64_t>(since_1970.count());
  const auto lease_ms = std::chrono::duration_cast<std::chrono::milliseconds>(request.lease).count();
  absl::Status failed;
  for (int i = 0; i < kTries; ++i) {
    std::vector<KeyRange> ranges{KeyRange::Key(std::string(kClusterKey)),
                                 KeyRange::Key(std::string(kTermKey))};
    BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store.Read(std::move(ranges)));
    pb::ClusterRecord cluster;
    pb::TermRecord term;
    Compare known_cluster{.key = std::string(kClusterKey)};
    Compare known_term{.key = std::string(kTermKey)};
    for (const StoredRecord& record : snapshot.records) {
      if (record.key == kClusterKey) {
        BERTH_CO_ASSIGN_OR_RETURN(cluster, Decode<pb::ClusterRecord>(record.key, record.value));
        known_cluster.modified = record.modified;
      } else {
        BERTH_CO_ASSIGN_OR_RETURN(term, Decode<pb::TermRecord>(record.key, record.value));
        known_term.modified = record.modified;
      }
    }
    if (known_cluster.modified != 0 && cluster.cluster_id() != request.cluster_id) {
      co_return absl::FailedPreconditionError(fmt::format(
          "this is the record of cluster {}, and the settings say {}: cluster_id never changes; another "
          "cluster needs another state_dir",
          Printable(cluster.cluster_id(), 128), Printable(request.cluster_id, 128)));
    }
    const int64_t longest_ms = known_term.modified == 0 ? lease_ms : term.longest_lease_ms();
    cluster.set_cluster_id(request.cluster_id);
    cluster.set_next_operation_id(std::max(cluster.next_operation_id(), now_ms * kIdsInAMillisecond));
    term.set_epoch(std::max(term.epoch() + 1, now_ms));
    term.set_holder(request.holder);
    term.set_longest_lease_ms(std::max(longest_ms, lease_ms));
    const auto committed = co_await store.Commit(
        {.compares = {known_cluster, known_term},
         .puts = {{std::string(kClusterKey), Encode(cluster)}, {std::string(kTermKey), Encode(term)}},
         .deletes = {}});
    if (committed.ok()) {
      co_return Term{.epoch = term.epoch(),
                     .revision = *committed,
                     .longest_before = std::chrono::milliseconds(longest_ms)};
    }
    failed = committed.status();
    if (!absl::IsAborted(failed)) break;
  }
  co_return Annotate(failed, "begin a term");
}

}  // namespace berth::scheduler
