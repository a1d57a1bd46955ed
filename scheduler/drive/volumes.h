// The volumes that are registered.
//
//   Register ─► the same? ─► a plugin of the driver confirms it ─► written: volume, external id, head
//   Deregister ─► not claimed ─► deleted: the same three
//
// Owned by Scheduler; loop thread only. The records are in memory, too, and are what the store has: only this
// scheduler writes, as long as its term holds.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "berth/v1/cluster.pb.h"
#include "scheduler/links/node_links.h"
#include "scheduler/records/records.pb.h"
#include "scheduler/records/term.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

inline constexpr size_t kMostRegistered = 262'144;

class Volumes {
 public:
  // `store` and `links` outlive it.
  Volumes(Store& store, Term term, NodeLinks& links) : store_(store), term_(term), links_(links) {}

  // Everything that is stored. DATA_LOSS, FAILED_PRECONDITION: a record cannot be read (codec.h).
  [[nodiscard]] Awaitable<absl::Status> Load();

  // What cluster.proto says, without cluster_id.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::RegisterVolumeResponse>> Register(v1::VolumeSpec spec,
                                                                               TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<v1::DeregisterVolumeResponse>> Deregister(std::string name_space,
                                                                                   std::string id);
  [[nodiscard]] absl::StatusOr<v1::ListClusterVolumesResponse> List(
      const v1::ListClusterVolumesRequest& request) const;
  [[nodiscard]] absl::StatusOr<v1::GetClusterVolumeResponse> Get(
      const v1::GetClusterVolumeRequest& request) const;

 private:
  using Name = std::pair<std::string, std::string>;      // namespace, id
  using External = std::pair<std::string, std::string>;  // driver, external id
  struct Volume {
    pb::VolumeRecord record;
    pb::HeadRecord head;
    uint64_t record_modified = 0;
    uint64_t head_modified = 0;
  };

  // OK: nothing is registered under this name or of this volume of the storage. `same`: all of it is.
  [[nodiscard]] absl::Status CheckNew(const v1::VolumeSpec& spec, bool* same) const;
  // OK, with whether it needs an attachment: a plugin confirms that the volume is there and can be used so.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> Validate(v1::VolumeSpec spec, TimePoint deadline);
  // Reads the records of `name` again, after a commit that may have been carried out.
  [[nodiscard]] Awaitable<absl::Status> Reload(Name name);
  [[nodiscard]] absl::Status Take(const Snapshot& snapshot);
  void Forget(const Name& name);
  [[nodiscard]] static v1::ClusterVolume ToProto(const Volume& volume);

  Store& store_;
  Term term_;
  NodeLinks& links_;
  std::map<Name, Volume> volumes_;
  std::map<External, Name> externals_;
};

}  // namespace berth::scheduler
