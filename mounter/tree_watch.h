// Watches the tree of volumes and the mounts in it, and informs the volumes that are concerned: mounts that
// others make and remove, file systems that hang or die, plugins that report a condition, a machine that has
// slept.
//
// Owned by the Mounter; loop thread only. Its tasks are the context's scope's.
#pragma once

#include <absl/status/status.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mounter/volume_table.h"
#include "mounts/mount_health.h"

namespace berth {

class TreeWatch {
 public:
  TreeWatch(MounterContext& context, const VolumeTable& table) : context_(context), table_(table) {}

  // From now on changes by others are noticed, where the kernel lets us.
  void Start();
  // Once all volumes were compared with the kernel.
  void StartRounds();
  // Checks before anything goes forward that the tree of volumes is where it was; mounts it again if it was
  // unmounted. FAILED_PRECONDITION: something else was mounted over it.
  absl::Status RepairTree();
  [[nodiscard]] std::vector<std::string> Problems() const;

 private:
  // The mounts of these volumes may have changed; unset: of any volume.
  void OnMountChanges(const std::optional<std::set<std::string>>& keys);
  void WatchHealth();
  // Asks plugins about their volumes, each round once for every volume.
  [[nodiscard]] Awaitable<void> WatchConditions();
  // One volume after the other, until the plugin does not answer in time. `left` is counted down at the end.
  [[nodiscard]] Awaitable<void> AskConditions(std::vector<std::shared_ptr<VolumeActor>> volumes,
                                              std::shared_ptr<size_t> left);
  // Wakes the volumes after the machine has slept.
  [[nodiscard]] Awaitable<void> WatchSleep();

  MounterContext& context_;
  const VolumeTable& table_;
  std::set<std::string> reported_orphans_;  // directories with mounts that are not ours
  std::string tree_problem_;                // of RepairTree; empty: none
  std::string not_watching_;                // why changes by others are not noticed; empty: they are
  std::optional<MountHealth> health_;
  Condition conditions_asked_{context_.executor};
};

}  // namespace berth
