// Decides which of a scheduler's addresses a node dials next, and when.
//
// Pure: no clock, no randomness, no I/O. The caller passes both in and dials. Confined to the event loop.
//
// Addresses are tried in rounds. In a round each of them is tried once, without a pause from one to the next;
// between rounds there is a pause that doubles up to a limit, and is longer or shorter by chance, so that a
// thousand nodes that lost one scheduler do not come back in step. A link that held for a stable period makes
// pauses short again.
//
//   the first round, at once:   A ─▶ B ─▶ C ─ pause ─▶ A ─▶ B ─▶ C ─ pause × 2 ─▶ …
//   B held, then broke:         a short pause ─▶ B ─▶ C ─▶ A ─ pause ─▶ …
//   B held, then UNAVAILABLE:   C at once ─▶ A ─ pause ─▶ …
//   B held not long enough:     as if it had not let the node in at all
#pragma once

#include <cstddef>

#include "base/clock.h"

namespace berth {

struct DialLimits {
  Duration initial_backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::minutes(1);
  Duration stable_after = std::chrono::seconds(30);
};

class DialSchedule {
 public:
  struct Attempt {
    size_t address = 0;  // its place in the list
    TimePoint at;        // not before
  };

  // `addresses`: how many there are, at least 1. The first attempt is due at `now`.
  DialSchedule(size_t addresses, DialLimits limits, TimePoint now);

  // The attempt that is due next: the same until one of the functions below is called.
  [[nodiscard]] Attempt next() const { return next_; }

  // That attempt failed. `random`: evenly out of [0, 1).
  void OnFailed(TimePoint now, double random);

  enum class End {
    kBroken,
    kUnavailable,  // the scheduler said so: another address is to be tried
  };
  // That attempt made a link, which ended after `uptime`.
  void OnLinkEnded(End end, Duration uptime, TimePoint now, double random);

 private:
  // The next address at once, or, where all have been tried, after a pause.
  void TryNextAddress(TimePoint now, double random);
  [[nodiscard]] Duration Pause(double random) const;

  size_t addresses_;
  DialLimits limits_;
  Attempt next_;
  size_t tried_ = 0;  // in this round
  int rounds_ = 0;    // that failed, since the last stable link; one that is begun is not counted
};

}  // namespace berth
