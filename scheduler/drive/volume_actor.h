// One volume of the cluster and its claims: decides, writes, then sends, one step after another.
//
//   a caller, a result, a node that has said something, a time ─► Next | Apply | Leave ─► one transaction ─►
//   the operation is sent, the result acknowledged, callers are answered
//
// Each transaction compares and rewrites the volume's head, so it is decided by what is stored. The records
// are in memory, too. A commit that fails may have been carried out: then they are read again before the next
// decision.
//
// Owned by Volumes, and by its own tasks; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task_scope.h"
#include "berth/v1/cluster.pb.h"
#include "scheduler/decide/claim_machine.h"
#include "scheduler/links/node_links.h"
#include "scheduler/records/node_records.h"
#include "scheduler/records/records.pb.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

// What a caller gets if `status` is a store's: ABORTED, since UNAVAILABLE is only for the scheduler.
[[nodiscard]] absl::Status StoreFailed(const absl::Status& status);

inline constexpr size_t kMostClaims = 4096;  // of one volume

// What all actors share. It outlives them.
struct DriveParts {
  TaskScope& tasks;
  Store& store;
  Term term;
  NodeRecords& nodes;
  NodeLinks& links;
  // A use that only a node knows counts once State has shown it for so long: a claim that has just ended may
  // still be in it.
  Duration found_after = std::chrono::seconds(10);
};

class VolumeActor : public std::enable_shared_from_this<VolumeActor> {
 public:
  // `changed` is called when a claim was added or has ended, and when the volume is registered no more.
  VolumeActor(DriveParts parts, std::function<void(VolumeActor&)> changed);

  // The records of the volume, all of them. DATA_LOSS, FAILED_PRECONDITION: one cannot be read (codec.h).
  [[nodiscard]] absl::Status Take(const std::vector<StoredRecord>& records);

  // What cluster.proto says. They go on when the caller has gone.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::ClusterClaim>> Claim(v1::ClaimClusterVolumeRequest request,
                                                                  TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> Release(std::string consumer, std::string name,
                                                        TimePoint deadline);
  // FAILED_PRECONDITION: it is claimed. After OK it is gone from the store, and is not used any more.
  [[nodiscard]] Awaitable<absl::Status> Deregister(TimePoint deadline);

  // Something may have changed for it.
  void Wake();
  // A node has said something of the volume: a release that waits for it is tried again soon.
  void Said();
  // The node says that a consumer has ended, or, without one, that it has released the volume. True: that is
  // about a claim that is still there.
  bool TakeEnd(const std::string& node, const v1::EndedConsumer* consumer, bool at_synced);

  // What a node that has said everything says of the volume. A use of ours without a claim, of lost records
  // for example, becomes a claim that is leaving. True: one has not been shown for long enough yet.
  bool TakeShown(const std::string& node, const v1::Volume& shown);

  [[nodiscard]] const pb::VolumeRecord& volume() const { return volume_; }
  // It is registered no more.
  [[nodiscard]] bool gone() const { return gone_; }
  [[nodiscard]] size_t claims() const { return claims_.size(); }
  [[nodiscard]] std::vector<v1::ClusterClaim> ListClaims() const;
  // Where State may show it: node, plugin there, external id.
  struct Place {
    std::string node;
    NodeFacts::VolumeKey key;
    auto operator<=>(const Place&) const = default;
  };
  [[nodiscard]] std::vector<Place> Places() const;

 private:
  using Use = std::pair<std::string, std::string>;  // consumer, name
  struct Entry {
    ClaimState state;
    std::string key;
    uint64_t modified = 0;
    std::optional<v1::OperationResult> result;  // of its operation; not applied yet
    std::string ended;                          // why it has to leave; empty: it has not
  };

  [[nodiscard]] Awaitable<void> Work();
  [[nodiscard]] Awaitable<bool> Advance(Use use);
  [[nodiscard]] Awaitable<absl::Status> TakeClaim(pb::ClaimRecord claim);
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> BeginRelease(Use use);
  [[nodiscard]] Awaitable<absl::Status> Delete();
  [[nodiscard]] Awaitable<void> WriteFound(pb::ClaimRecord claim);
  [[nodiscard]] Awaitable<absl::Status> Write(Use use, ClaimStep step);
  [[nodiscard]] Awaitable<absl::Status> Commit(Transaction transaction, pb::HeadRecord head,
                                               uint64_t* revision);
  [[nodiscard]] Awaitable<absl::Status> Reload();
  void Send(const Use& use);
  [[nodiscard]] bool OthersThere(const Use& use) const;
  [[nodiscard]] TimePoint NextTime() const;

  DriveParts parts_;
  std::function<void(VolumeActor&)> changed_claims_;
  Condition changed_;
  bool busy_ = false;     // a Turn is taken
  bool awake_ = false;    // something may have changed since Work looked
  bool working_ = false;  // Work runs
  bool gone_ = false;     // it is registered no more
  bool known_ = true;     // memory is what the store has
  // What was logged last.
  std::string store_error_;
  std::string refusal_;
  TimePoint not_before_{};  // after a store that failed
  pb::VolumeRecord volume_;
  pb::HeadRecord head_;
  uint64_t volume_modified_ = 0;
  uint64_t head_modified_ = 0;
  std::map<Use, Entry> claims_;
  // Uses without a claim: by node, since when State shows them.
  std::map<std::string, std::map<Use, TimePoint>> found_;
};

}  // namespace berth::scheduler
