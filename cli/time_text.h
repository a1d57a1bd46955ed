// Points in time as people write them.
//
// Pure but for the local time zone; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <string>
#include <string_view>

namespace berth::cli {

// One of: how long ago ("10m", "1h30m"); a local time ("2026-11-21 10:00", "2026-11-21T10:00:30",
// "2026-11-21", and of today "10:00"); RFC 3339 with its zone ("2026-11-21T10:00:00Z", "…10:00:00.5+01:00");
// "today", "yesterday"; seconds since 1970 ("@1790000000"). Seconds may have a fraction. UsageError for
// anything else, and for what lies after `now`.
[[nodiscard]] absl::StatusOr<std::chrono::system_clock::time_point> ParseTime(
    std::string_view text, std::chrono::system_clock::time_point now);
inline constexpr std::string_view kTimeHelp =
    "10m (ago), '2026-11-21 10:00' or 10:00 (local time), 2026-11-21T10:00:00Z, today, yesterday";

}  // namespace berth::cli
