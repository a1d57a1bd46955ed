// Time as Berth uses it: a monotonic clock for every deadline and timer (a jump of the wall clock moves
// nothing), one that counts while the machine sleeps for what is agreed with other machines, and the wall
// clock only for what people read.
#pragma once

#include <chrono>
#include <ctime>

namespace berth {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// Since boot, including the time that the machine slept: CLOCK_BOOTTIME. A lease ends by it, since the other
// machines do not stand still while this one sleeps. Its times mean the same to every process of one boot.
// Waited for with base/boot_timer.h: the other timers stand still meanwhile.
struct BootClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;

  [[nodiscard]] static time_point now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_BOOTTIME, &time);  // cannot fail: every kernel that berthd runs on has it
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
};
using BootTime = BootClock::time_point;

using WallClock = std::chrono::system_clock;
using WallTime = WallClock::time_point;

}  // namespace berth
