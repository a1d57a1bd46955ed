#include "base/duration_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace berth {

std::optional<Duration> ParseDuration(std::string_view text) {
  int64_t count = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
  if (parsed.ec != std::errc() || count < 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<size_t>(parsed.ptr - text.data()));
  Duration one{};
  if (unit == "ms") {
    one = std::chrono::milliseconds(1);
  } else if (unit == "s") {
    one = std::chrono::seconds(1);
  } else if (unit == "m") {
    one = std::chrono::minutes(1);
  } else if (unit == "h") {
    one = std::chrono::hours(1);
  } else {
    return std::nullopt;
  }
  if (count > kLongestDuration / one) return std::nullopt;
  return one * count;
}

std::string FormatDuration(Duration duration) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms == 0 || ms % 1000 != 0) return fmt::format("{}ms", ms);
  const int64_t s = ms / 1000;
  if (s % 3600 == 0) return fmt::format("{}h", s / 3600);
  if (s % 60 == 0) return fmt::format("{}m", s / 60);
  return fmt::format("{}s", s);
}

}  // namespace berth
