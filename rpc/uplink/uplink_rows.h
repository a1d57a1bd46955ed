// The rows of link.db that are the uplink's, by their keys. Pure; any thread.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace berth {

inline constexpr std::string_view kResultRow = "result/";
inline constexpr std::string_view kAcknowledgedRow = "acknowledged/";
inline constexpr std::string_view kEndedRow = "ended/";
inline constexpr std::string_view kSettledRow = "settled";
inline constexpr std::string_view kEndedNumberRow = "ended_next";
inline constexpr std::string_view kInstanceRow = "instance";
inline constexpr std::string_view kClusterRow = "cluster";

inline std::string Row(std::string_view kind, uint64_t number) { return fmt::format("{}{}", kind, number); }

// The number that `text` is, beyond `prefix`; nullopt where it is none.
inline std::optional<uint64_t> NumberIn(std::string_view text, std::string_view prefix = "") {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace berth
