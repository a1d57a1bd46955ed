#include "fingerprint/probe_schedule.h"

#include <algorithm>
#include <chrono>

namespace berth {
namespace {

using std::chrono::milliseconds;

constexpr Duration kLeastStartingDelay = milliseconds(5);
constexpr int kStartingShare = 16;
constexpr Duration kLeastFailingDelay = milliseconds(100);
constexpr Duration kMostDelay = std::chrono::seconds(1);

}  // namespace

ProbeSchedule::ProbeSchedule(Duration interval)
    : interval_(std::max<Duration>(interval, milliseconds(1))) {}  // Never a hot loop.

Duration ProbeSchedule::After(bool ok) {
  if (ok) {
    phase_ = Phase::kWell;
  } else if (phase_ == Phase::kWell) {
    phase_ = Phase::kFailing;
  }
  switch (phase_) {
    case Phase::kStarting: {
      const Duration share = std::clamp<Duration>(waited_ / kStartingShare, kLeastStartingDelay, kMostDelay);
      const Duration delay = std::min(share, interval_);
      waited_ += delay;
      return delay;
    }
    case Phase::kWell:
      return interval_;
    case Phase::kFailing:
      return std::min(std::clamp<Duration>(interval_ / 4, kLeastFailingDelay, kMostDelay), interval_);
  }
  return interval_;  // Not reached by a value of the enum.
}

}  // namespace berth
