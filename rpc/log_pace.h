// Decides how much the log is told of what anybody may bring about as often as they like, such as connections
// that are refused: so many lines in a while, and then how many were left out.
//
// Pure: no clock, no I/O; two numbers and a time. Confined to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace berth {

class LogPace {
 public:
  // `lines` at most in each `window`, which begins with the first line after the one before is over.
  LogPace(size_t lines, Duration window) : lines_(lines), window_(window) {}

  // There is a line to be told. nullopt: not this one. Else how many were left out since the last that was.
  [[nodiscard]] std::optional<uint64_t> Take(TimePoint now);

 private:
  size_t lines_;
  Duration window_;
  std::optional<TimePoint> began_;  // the present window
  size_t told_ = 0;                 // in it
  uint64_t left_out_ = 0;           // since the last line that was told
};

}  // namespace berth
