// Durations as people write them in files and read them in messages: "500ms", "30s", "2m", "1h".
//
// Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace berth {

// One whole number and one unit of ms, s, m or h; at most kLongestDuration. Nothing else is a duration.
inline constexpr Duration kLongestDuration = std::chrono::hours(24 * 365);
[[nodiscard]] std::optional<Duration> ParseDuration(std::string_view text);

// The shortest of these forms: 90 s is "90s", 120 s is "2m", below a millisecond it is "0ms".
[[nodiscard]] std::string FormatDuration(Duration duration);

}  // namespace berth
