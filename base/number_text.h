// Numbers as text. No library but the standard one: berth-mount-helper uses this, too. Pure; any thread.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace berth {

// Whether all of `text` is a number, in digits of `base`; of a signed Number also with a '-' before them.
// False: it is not, or the number is out of range; then *number may have changed.
template <class Number>
[[nodiscard]] bool ParseNumber(std::string_view text, Number* number, int base = 10) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *number, base);
  return error == std::errc() && stopped == end;
}

}  // namespace berth
