// The volumes of this node, by the journal's key, and which of them each consumer uses.
//
// Owned by the Mounter; loop thread only. A volume's actor leaves the table by itself once nothing of the
// volume is left, which may be as soon as it is given anything to do: copy all() before a loop that does.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mounter/mounter_context.h"
#include "mounter/volume_actor.h"

namespace berth {

class VolumeTable {
 public:
  using Actors = std::map<std::string, std::shared_ptr<VolumeActor>>;

  // Sets what the volumes ask `context` about each other.
  explicit VolumeTable(MounterContext& context);
  VolumeTable(const VolumeTable&) = delete;
  VolumeTable& operator=(const VolumeTable&) = delete;

  [[nodiscard]] const Actors& all() const { return volumes_; }
  // Null: it is not here.
  [[nodiscard]] std::shared_ptr<VolumeActor> Find(const std::string& plugin_id,
                                                  const std::string& volume_id) const;
  [[nodiscard]] std::shared_ptr<VolumeActor> FindOrAdd(const std::string& plugin_id,
                                                       const std::string& volume_id);
  // The volumes that a consumer uses; the others are not looked at.
  [[nodiscard]] std::vector<std::shared_ptr<VolumeActor>> Of(const std::string& consumer) const;
  std::shared_ptr<VolumeActor> Add(const std::string& key, VolumeMachine machine);
  void Clear() { volumes_.clear(); }

  // Reports that a consumer has ended, once for each origin until it uses something again.
  void ReportEnded(const std::string& consumer, const std::string& cause, Origin origin);
  void ForgetEnded(const std::string& consumer);

 private:
  [[nodiscard]] std::vector<const VolumeRecord*> SameAs(const VolumeRecord& record) const;
  void Leaves(const VolumeRecord& record);
  [[nodiscard]] size_t CountThrough(const std::string& plugin_id) const;
  [[nodiscard]] std::vector<uint64_t> RecordedMounts(const std::set<dev_t>& devices) const;
  void Uses(const std::string& consumer, const std::string& key, bool used);

  MounterContext& context_;
  Actors volumes_;
  std::map<std::string, std::set<std::string>> by_consumer_;  // the keys of the volumes that each uses
  std::set<std::pair<std::string, Origin>> reported_ended_;   // their volumes are leaving
};

}  // namespace berth
