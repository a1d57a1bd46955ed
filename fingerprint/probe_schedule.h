// Decides when a plugin is probed next.
//
//   starting ──ok──▶ well ──not ok──▶ failing ──ok──▶ well
//
//   starting   a sixteenth of what was waited so far, within 5 ms … 1 s: a plugin is found the moment it can
//              answer (one that takes 300 ms, within 20 ms of it), and one that takes minutes costs little
//   well       the plugin's interval
//   failing    a quarter of the interval, within 100 ms … 1 s: recovery is seen soon, yet one slow moment
//              does not use up a threshold of several failures
//
// No delay is longer than the interval. Pure: no clock; the caller measures the delays from the end of each
// probe.
#pragma once

#include "base/clock.h"

namespace berth {

class ProbeSchedule {
 public:
  // `interval` between probes of a plugin that is well; above zero.
  explicit ProbeSchedule(Duration interval);

  // How long to wait after a probe that ended so.
  [[nodiscard]] Duration After(bool ok);

 private:
  enum class Phase { kStarting, kWell, kFailing };

  Duration interval_;
  Duration waited_{};  // while starting
  Phase phase_ = Phase::kStarting;
};

}  // namespace berth
