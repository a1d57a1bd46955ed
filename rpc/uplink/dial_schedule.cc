#include "rpc/uplink/dial_schedule.h"

#include "base/backoff.h"

namespace berth {

DialSchedule::DialSchedule(size_t addresses, DialLimits limits, TimePoint now)
    : addresses_(addresses), limits_(limits), next_{.address = 0, .at = now} {}

Duration DialSchedule::Pause(double random) const {
  return Backoff(rounds_ + 1, limits_.initial_backoff, limits_.max_backoff, random);
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
