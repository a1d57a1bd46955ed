// Which failures of a repeated step are reported: the first of a kind, then those after 1, 10 and 60 minutes,
// and one each hour. A failure that stays the same for days must not fill the log of a node.
//
// Pure; any thread, one at a time.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"

namespace berth {

class FailureLog {
 public:
  // One more failure of this kind, at `now`. True if it is to be reported. A kind is what stays the same from
  // one try to the next, such as a step and its error code: a plugin's message may carry a number that
  // differs each time.
  [[nodiscard]] bool ShouldReport(const std::string& kind, TimePoint now);
  // The step has succeeded: its next failure is reported.
  void Clear() { kinds_.clear(); }

 private:
  struct Kind {
    TimePoint first;
    TimePoint last;
    TimePoint next;  // an earlier failure is not reported
    int reported = 0;
  };
  std::map<std::string, Kind> kinds_;
};

}  // namespace berth
