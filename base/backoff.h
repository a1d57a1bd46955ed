// How long to wait between tries that fail: longer each time, and not the same for all who lost the same
// thing.
//
// Pure, but for RandomShare; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.h"

namespace berth {

// Before the next try after `failures` (at least 1) in a row: `first`, doubling up to `longest`, of which one
// half is fixed and the other one scaled by `random`, evenly out of [0, 1).
[[nodiscard]] inline Duration Backoff(int failures, Duration first, Duration longest, double random) {
  const double doubled = static_cast<double>(first.count()) * std::exp2(std::clamp(failures - 1, 0, 40));
  const double full = std::min(doubled, static_cast<double>(longest.count()));
  return Duration(static_cast<Duration::rep>(full * (0.5 + 0.5 * random)));
}

// Evenly out of [0, 1).
[[nodiscard]] inline double RandomShare() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

// The pauses of one loop.
class BackoffTimer {
 public:
  BackoffTimer(Duration first, Duration longest) : first_(first), longest_(longest) {}

  // The pause after one more failure.
  [[nodiscard]] Duration Next() { return Backoff(++failures_, first_, longest_, RandomShare()); }
  void Reset() { failures_ = 0; }
  // Since the last Reset.
  [[nodiscard]] int failures() const { return failures_; }

 private:
  Duration first_;
  Duration longest_;
  int failures_ = 0;
};

}  // namespace berth
