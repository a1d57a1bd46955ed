// Time as Berth uses it: a monotonic clock for every deadline and timer (a jump of the wall clock moves
// nothing), and the wall clock only for what people read.
#pragma once

#include <chrono>

namespace berth {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

using WallClock = std::chrono::system_clock;
using WallTime = WallClock::time_point;

}  // namespace berth
