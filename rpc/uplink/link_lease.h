// The lease, as the uplink needs it: it gets heartbeats and answers, and says whether an operation may be
// run. The lease keeper implements it (lease_keeper.h). Loop thread only.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"

namespace berth {

class LinkLease {
 public:
  virtual ~LinkLease() = default;

  // A new stream begins: its heartbeats are numbered from the beginning.
  virtual void OnStream() = 0;
  // Its Welcome came, with the epoch of its leases (0: none). An error: another scheduler has taken over.
  [[nodiscard]] virtual absl::Status OnWelcome(uint64_t epoch) = 0;
  // Just before the heartbeat is sent.
  virtual void OnHeartbeat(uint64_t number) = 0;
  // Returns once what the answer says holds. An error ends the stream: another scheduler has taken over.
  [[nodiscard]] virtual Awaitable<absl::Status> OnAnswer(v1::HeartbeatAnswer answer) = 0;

  // LEASE_EPOCH, LEASE_NOT_VALID, or REFUSAL_NONE: it may be run. `forward`: it needs a valid lease. Others
  // may come from the scheduler of the Welcome, with or without one.
  [[nodiscard]] virtual v1::Refusal Judge(uint64_t epoch, bool forward) const = 0;

  [[nodiscard]] virtual v1::LeaseState state() const = 0;
  [[nodiscard]] virtual uint64_t epoch() const = 0;  // the highest ever seen; 0: none
  // Of a valid one.
  [[nodiscard]] virtual std::optional<Duration> left() const = 0;
  // Why it is not valid, for people.
  [[nodiscard]] virtual std::string why_not_valid() const = 0;

  // Forced releases that are not acknowledged.
  [[nodiscard]] virtual std::vector<v1::ForcedRelease> forced_release() const = 0;
  virtual void AcknowledgeForcedRelease(uint64_t number) = 0;
  // The volume is being released by force now: a new use would be ended, too.
  [[nodiscard]] virtual bool force_releasing(const std::string& plugin_id,
                                             const std::string& volume_id) const = 0;
};

}  // namespace berth
