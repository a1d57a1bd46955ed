#include "rpc/uplink/kept_lease.h"

#include <algorithm>
#include <chrono>

namespace berth {
namespace {

// What lies beyond a day is cut by the lease itself.
Duration DurationOf(const google::protobuf::Duration& duration) {
  constexpr int64_t kMostSeconds = 1'000'000;
  return std::chrono::seconds(std::clamp<int64_t>(duration.seconds(), -1, kMostSeconds)) +
         std::chrono::nanoseconds(duration.nanos());
}

}  // namespace

Awaitable<absl::Status> KeptLease::OnAnswer(v1::HeartbeatAnswer answer) {
  std::optional<LeaseGrant> grant;
  if (answer.has_lease()) {
    grant = {.epoch = answer.lease().epoch(), .duration = DurationOf(answer.lease().duration())};
  }
  return keeper_.OnAnswer(answer.number(), grant);
}

v1::Refusal KeptLease::Judge(uint64_t epoch, bool forward) const {
  switch (keeper_.Judge(forward ? OperationKind::kForward : OperationKind::kReverse, epoch)) {
    case LeaseVerdict::kAllow:
      return v1::REFUSAL_NONE;
    case LeaseVerdict::kEpoch:
      return v1::LEASE_EPOCH;
    case LeaseVerdict::kNotValid:
      return v1::LEASE_NOT_VALID;
  }
  return v1::LEASE_NOT_VALID;
}

v1::LeaseState KeptLease::state() const {
  switch (keeper_.standing()) {
    case LeaseStanding::kNone:
      return v1::LEASE_NONE;
    case LeaseStanding::kValid:
      return v1::LEASE_VALID;
    case LeaseStanding::kExpired:
      return v1::LEASE_EXPIRED;
  }
  return v1::LEASE_NONE;
}

std::optional<Duration> KeptLease::left() const {
  if (keeper_.standing() != LeaseStanding::kValid) return std::nullopt;
  return keeper_.left();
}

}  // namespace berth
