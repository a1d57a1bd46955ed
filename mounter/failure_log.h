// Which failures of what is tried again and again are told: the first of a kind, then those after 1, 10 and
// 60 minutes, and one each hour. What is the same for days must not fill the log of a node.
//
// Pure; whoever has it calls it.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"

namespace berth {

class FailureLog {
 public:
  // One more failure of this kind, at `now`. Whether it is to be told. A kind is what stays the same from one
  // try to the next, as a step and its error code: a plugin's message may carry a number that differs each
  // time.
  [[nodiscard]] bool ShouldReport(const std::string& kind, TimePoint now);
  // What was tried has been done: whatever fails next is told.
  void Clear() { kinds_.clear(); }

 private:
  struct Kind {
    TimePoint first;
    TimePoint last;
    TimePoint next;  // one that comes before this is not told
    int told = 0;
  };
  std::map<std::string, Kind> kinds_;
};

}  // namespace berth
