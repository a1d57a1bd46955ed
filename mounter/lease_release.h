// What follows from the end of a scheduler's lease: its consumers are ended, and their volumes unpublished.
//
// Owned by the Mounter; loop thread only. mounter.h has each method's meaning and errors.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "mounter/volume_table.h"
#include "mounter/volume_types.h"

namespace berth {

class LeaseRelease {
 public:
  using Unpublish =
      std::function<Awaitable<absl::StatusOr<UnpublishResult>>(UnpublishRequest request, TimePoint deadline)>;

  // `unpublish`: Mounter::Unpublish.
  LeaseRelease(MounterContext& context, const VolumeTable& table, Unpublish unpublish)
      : context_(context), table_(table), unpublish_(std::move(unpublish)) {}

  [[nodiscard]] std::vector<VolumeRef> SingleWriterVolumes(Origin origin) const;
  [[nodiscard]] Awaitable<absl::StatusOr<UnpublishResult>> ForceRelease(VolumeRef volume, Origin origin,
                                                                        TimePoint deadline);

 private:
  struct Leaving;
  // Ends one of its consumers, and unpublishes the volume for it.
  [[nodiscard]] Awaitable<void> TakeFrom(std::shared_ptr<Leaving> leaving, size_t index, VolumeRef volume,
                                         TimePoint deadline);
  // OK once nothing of the volume is here, as the mounter knows it and as the kernel shows it.
  [[nodiscard]] absl::Status CheckReleased(const VolumeRef& volume) const;

  MounterContext& context_;
  const VolumeTable& table_;
  Unpublish unpublish_;
};

}  // namespace berth
