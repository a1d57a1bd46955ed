// The small values of a command line, read and shown: sizes, durations, times, K=V pairs, names of enums.
//
// Pure; any thread. Errors are UsageErrors; the message names the text and what would be right.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

// A number of bytes: digits, then nothing, or a unit in any case. K, Ki, KiB are 1024 bytes, KB is 1000;
// so on for M, G, T, P. At most 2^63 - 1. "64MiB", "64M" and "67108864" are the same.
[[nodiscard]] absl::StatusOr<int64_t> ParseSize(std::string_view text);
inline constexpr std::string_view kSizeHelp = "64MiB = 64Mi = 64M (units of 1024), 64MB (of 1000), or bytes";

// A time above zero: "90s", "2m", "1m30s", "500ms", "1h"; a number alone is seconds. At most ten years.
[[nodiscard]] absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);

// K=V each; a value may hold further equals signs, and be empty. A key given twice is an error. `option`
// names the option in messages ("--context").
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> ParsePairs(
    const std::vector<std::string>& pairs, std::string_view option);

// A value of `type` by name: "SINGLE_NODE_WRITER", "single-node-writer". The zero value, which stands for
// "unknown", cannot be named. `option` as above.
[[nodiscard]] absl::StatusOr<int> ParseEnum(std::string_view text,
                                            const google::protobuf::EnumDescriptor* type,
                                            std::string_view option);

// Lower case, without '-' and '_': how names are compared where people may write them in several ways.
[[nodiscard]] std::string Fold(std::string_view name);

// The names in `known` that `wrong` may have been meant for, nearest first, three at most.
[[nodiscard]] std::vector<std::string> Nearest(std::string_view wrong, const std::vector<std::string>& known);

// "; did you mean a or b?", or nothing.
[[nodiscard]] std::string DidYouMean(std::string_view wrong, const std::vector<std::string>& known);

// "64 MiB", "1.5 GiB", "12 B".
[[nodiscard]] std::string FormatSize(int64_t bytes);

// "<1ms", "800ms", "42s", "3m", "2h", "5d": the largest unit that fits, rounded down.
[[nodiscard]] std::string FormatDuration(std::chrono::milliseconds duration);
[[nodiscard]] std::string FormatDuration(const google::protobuf::Duration& duration);

// "3m ago", "in 12s", "now".
[[nodiscard]] std::string FormatRelative(const google::protobuf::Timestamp& time,
                                         std::chrono::system_clock::time_point now);

// "2026-03-01 12:00:00" in local time, for columns.
[[nodiscard]] std::string FormatLocal(const google::protobuf::Timestamp& time);

}  // namespace berth::cli
