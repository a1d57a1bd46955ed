// When each node's last lease has ended for certain, by the scheduler's clock.
//
// A node counts a lease from when it sent the heartbeat, we from when the answer is made, which is later.
// Clocks may differ in speed by 1 %. After a start of the scheduler it is not known what the one before has
// granted: its longest lease counts from the start.
//
// Pure: the time is an argument, by the clock that goes on while the machine sleeps. Loop thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "base/clock.h"

namespace berth::scheduler {

// What a scheduler grants its nodes. The protocol's limits: a heartbeat every 100 ms to 60 s, a lease of 1 s
// to 24 h (scheduler.proto).
struct LeaseSettings {
  Duration heartbeat_interval = std::chrono::seconds(5);
  Duration duration = std::chrono::seconds(30);

  bool operator==(const LeaseSettings&) const = default;
};

class LeaseClock {
 public:
  // `longest`: the longest lease that was ever granted, also by schedulers before this one.
  LeaseClock(BootTime started, Duration longest) : floor_(started + WithMargin(longest)) {}

  void Granted(const std::string& node, BootTime now, Duration duration) {
    BootTime& end = ends_[node];
    end = std::max(end, now + WithMargin(duration));
  }

  // From then on the node has no lease of ours.
  [[nodiscard]] BootTime EndOf(const std::string& node) const {
    const auto known = ends_.find(node);
    return known == ends_.end() ? floor_ : std::max(floor_, known->second);
  }

 private:
  static Duration WithMargin(Duration duration) { return duration + duration / 100; }

  BootTime floor_;
  std::map<std::string, BootTime> ends_;
};

}  // namespace berth::scheduler
