// The volumes that are registered, each with the actor that drives its claims.
//
//   Register ─► the same? ─► a plugin of the driver confirms it ─► written: volume, external id, head
//   Deregister ─► not claimed ─► deleted: the same three
//   what a node says ─► the actors of the volumes that are claimed there
//
// Owned by Scheduler; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "berth/v1/cluster.pb.h"
#include "scheduler/drive/volume_actor.h"
#include "scheduler/links/node_links.h"
#include "scheduler/records/term.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

inline constexpr size_t kMostRegistered = 262'144;

class Volumes final : public NodeObserver {
 public:
  // All outlive it, and no stream is served before Load.
  Volumes(Store& store, Term term, NodeRecords& nodes, NodeLinks& links,
          Duration found_after = std::chrono::seconds(10));
  ~Volumes() override;

  // Everything that is stored; from then on claims are driven. DATA_LOSS, FAILED_PRECONDITION: a record
  // cannot be read (codec.h).
  [[nodiscard]] Awaitable<absl::Status> Load();
  // Once no caller is left.
  [[nodiscard]] Awaitable<void> Stop();

  // What cluster.proto says, without cluster_id.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::RegisterVolumeResponse>> Register(v1::VolumeSpec spec,
                                                                               TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<v1::DeregisterVolumeResponse>> Deregister(
      v1::DeregisterVolumeRequest request, TimePoint deadline);
  [[nodiscard]] absl::StatusOr<v1::ListClusterVolumesResponse> List(
      const v1::ListClusterVolumesRequest& request) const;
  [[nodiscard]] absl::StatusOr<v1::GetClusterVolumeResponse> Get(
      const v1::GetClusterVolumeRequest& request) const;
  [[nodiscard]] Awaitable<absl::StatusOr<v1::ClaimClusterVolumeResponse>> Claim(
      v1::ClaimClusterVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<v1::ReleaseClusterClaimResponse>> Release(
      v1::ReleaseClusterClaimRequest request, TimePoint deadline);
  [[nodiscard]] absl::StatusOr<v1::ListClusterClaimsResponse> ListClaims(
      const v1::ListClusterClaimsRequest& request) const;

  // ForgetNode.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::ForgetNodeResponse>> ForgetNode(std::string name,
                                                                             TimePoint deadline);

  void MachineChanged(const std::string& node, bool synced) override;
  void StateChanged(const std::string& node, const v1::State& state) override;

 private:
  using Name = std::pair<std::string, std::string>;      // namespace, id
  using External = std::pair<std::string, std::string>;  // driver, external id
  struct Indexed {
    std::shared_ptr<VolumeActor> actor;
    std::vector<VolumeActor::Place> places;  // as `places_` has them
  };

  // OK: nothing is registered under this name or of this volume of the storage. `same`: all of it is.
  [[nodiscard]] absl::Status CheckNew(const v1::VolumeSpec& spec, bool* same) const;
  // OK, with whether it needs an attachment: a plugin confirms that the volume is there and can be used so.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> Validate(v1::VolumeSpec spec, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> WriteNew(v1::VolumeSpec spec, bool needs_attach);
  [[nodiscard]] absl::Status Add(const std::vector<StoredRecord>& records);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<VolumeActor>> Find(const std::string& name_space,
                                                                  const std::string& id) const;
  [[nodiscard]] static v1::ClusterVolume ToProto(const VolumeActor& actor);
  void ClaimsChanged(VolumeActor& actor);
  // Ended consumers and forced releases: acknowledges those that are about no claim any more.
  void TakeNotices(const std::string& node, bool at_synced);
  // Uses that may have no claim.
  void TakeShown(const std::string& node, const NodeFacts::VolumeKey& key);
  [[nodiscard]] Awaitable<void> LookAgain();

  NodeLinks& links_;
  TaskScope tasks_;
  DriveParts parts_;
  std::map<Name, Indexed> volumes_;
  std::map<External, Name> externals_;
  // Of each node: the volumes with claims there, as its State names them.
  std::map<std::string, std::multimap<NodeFacts::VolumeKey, VolumeActor*>> places_;
  // Where uses without a claim are, which State has not shown for long enough.
  std::set<VolumeActor::Place> to_look_at_;
};

}  // namespace berth::scheduler
