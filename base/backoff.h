// How long to wait before a failed operation is tried again: longer each time, and at random, so that a
// thousand nodes do not retry at the same moment.
//
// Pure, but for RandomShare; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.h"

namespace berth {

// The pause after `failures` failures in a row (at least 1). The full pause is `first`, doubled with each
// further failure, up to `longest`. The result is half of it plus `random` (at least 0, below 1) times the
// other half.
[[nodiscard]] inline Duration Backoff(int failures, Duration first, Duration longest, double random) {
  const double doubled = static_cast<double>(first.count()) * std::exp2(std::clamp(failures - 1, 0, 40));
  const double full = std::min(doubled, static_cast<double>(longest.count()));
  return Duration(static_cast<Duration::rep>(full * (0.5 + 0.5 * random)));
}

// A random number of at least 0 and below 1.
[[nodiscard]] inline double RandomShare() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

// The pauses of one loop.
class BackoffTimer {
 public:
  BackoffTimer(Duration first, Duration longest) : first_(first), longest_(longest) {}

  // Counts one more failure, and returns the pause after it.
  [[nodiscard]] Duration Next() { return Backoff(++failures_, first_, longest_, RandomShare()); }
  void Reset() { failures_ = 0; }
  // Calls of Next since the last Reset.
  [[nodiscard]] int failures() const { return failures_; }

 private:
  Duration first_;
  Duration longest_;
  int failures_ = 0;
};

}  // namespace berth
