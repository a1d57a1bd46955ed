// A time for people and other programs, in UTC as RFC 3339 writes it: "2026-11-26T13:16:00Z".
//
// Pure; any thread. (fmt silently formats a time of the wall clock as local time.)
#pragma once

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <string>

#include "base/clock.h"

namespace berth {

[[nodiscard]] inline std::string UtcText(WallTime time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(WallClock::to_time_t(time)));
}

}  // namespace berth
