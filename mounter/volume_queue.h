// The requests for one volume: those that wait, in order, and the one that runs. Decides what joins, what is
// superseded, and what goes first; carries out nothing.
//
//   Submit        an identical request that waits or runs is joined, unless another one for the same
//                 publication came after it
//   unpublish     ends the publishes of the same publication that have not begun (ABORTED)
//   force, lazy   such an unpublish goes before all that waits
//
// Owned by the volume's actor; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/volume_operation.h"

namespace berth {

class VolumeQueue {
 public:
  using Operation = std::shared_ptr<VolumeOperation>;

  // `limit`: how many may wait.
  VolumeQueue(asio::any_io_executor executor, size_t limit) : executor_(std::move(executor)), limit_(limit) {}

  // RESOURCE_EXHAUSTED: too many wait.
  [[nodiscard]] absl::StatusOr<Operation> Submit(VolumeRequest request, TimePoint until);
  // Goes before all that waits, and past the limit: no caller would repeat it.
  void SubmitFirst(UnpublishRequest request, TimePoint until);

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  // The one that runs; null: none.
  [[nodiscard]] const Operation& current() const { return current_; }

  // The first one that waits is the current one from now on. Not if it is empty.
  void Begin();
  // None is the current one any more; returns the one that was.
  [[nodiscard]] Operation End() { return std::exchange(current_, nullptr); }
  // It goes on after all that waits.
  void PutBack(Operation operation) { waiting_.push_back(std::move(operation)); }

  // Ends every request, the current one too.
  void FailAll(const absl::Status& status);
  // Those that have not begun, and for which `ends` holds, end with UNAVAILABLE; the current one must send
  // nothing forward any more (VolumeOperation::forward_blocked).
  void EndForward(const std::string& why, const std::function<bool(const VolumeOperation&)>& ends);

  // Whether a publish for this consumer waits or runs.
  [[nodiscard]] bool Expects(const std::string& consumer) const;
  // Whether an unpublish waits: any; of this publication; one with force or lazy, of this publication or, if
  // `whole_volume`, of any.
  [[nodiscard]] bool UnpublishWaits() const;
  [[nodiscard]] bool UnpublishWaits(const PublicationKey& key) const;
  [[nodiscard]] bool ForcedUnpublishWaits(const PublicationKey& key, bool whole_volume) const;

 private:
  [[nodiscard]] bool AnyUnpublish(const std::function<bool(const UnpublishRequest&)>& holds) const;

  asio::any_io_executor executor_;
  size_t limit_;
  std::deque<Operation> waiting_;
  Operation current_;
};

}  // namespace berth
