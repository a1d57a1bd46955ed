// NodeGetVolumeStats and NodeGetVolumeHealth of one volume, past its queue: what its plugin says of it.
//
// Owned by the volume's actor, and kept alive by the calls in flight; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "mounter/plugin_caller.h"
#include "mounter/volume_state.h"

namespace berth {

class VolumeHealth {
 public:
  // `volume` outlives it.
  explicit VolumeHealth(VolumeState& volume) : volume_(volume), caller_(volume.context) {}

  // One call in flight, which later callers share. NOT_FOUND: it is not published here.
  [[nodiscard]] static Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::shared_ptr<VolumeHealth> self, TimePoint deadline);
  // Asks the plugin whether something is wrong with the volume, if it is published and the plugin can say so.
  // False: the plugin did not answer in time.
  [[nodiscard]] static Awaitable<bool> Ask(std::shared_ptr<VolumeHealth> self, TimePoint deadline);

 private:
  struct SharedStats;
  void NoteCondition(ConditionView now);

  VolumeState& volume_;
  PluginCaller caller_;
  std::shared_ptr<SharedStats> stats_;
};

}  // namespace berth
