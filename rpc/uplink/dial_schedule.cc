#include "rpc/uplink/dial_schedule.h"

#include <algorithm>

namespace berth {
namespace {

// A pause is this part of its full length at least; chance gives the rest.
constexpr double kLeastPart = 0.5;

}  // namespace

DialSchedule::DialSchedule(size_t addresses, DialLimits limits, TimePoint now)
    : addresses_(addresses), limits_(limits), next_{.address = 0, .at = now} {}

Duration DialSchedule::Pause(double random) const {
  Duration pause = limits_.initial_backoff;
  for (int i = 0; i < rounds_ && pause < limits_.max_backoff; ++i) pause *= 2;
  pause = std::min(pause, limits_.max_backoff);
  return std::chrono::duration_cast<Duration>(pause * (kLeastPart + (1.0 - kLeastPart) * random));
}

void DialSchedule::TryNextAddress(TimePoint now, double random) {
  next_ = {.address = (next_.address + 1) % addresses_, .at = now};
  if (++tried_ < addresses_) return;
  next_.at = now + Pause(random);
  tried_ = 0;
  ++rounds_;
}

void DialSchedule::OnFailed(TimePoint now, double random) { TryNextAddress(now, random); }

void DialSchedule::OnLinkEnded(End end, Duration uptime, TimePoint now, double random) {
  if (uptime < limits_.stable_after) {
    TryNextAddress(now, random);
    return;
  }
  tried_ = 0;
  rounds_ = 0;
  if (end == End::kUnavailable) {
    TryNextAddress(now, random);
  } else {
    // Not at once: every node that this scheduler served has just lost it.
    next_.at = now + Pause(random);
  }
}

}  // namespace berth
