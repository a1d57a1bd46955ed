// Owners, groups and modes as people write them: "postgres" or 999, "0750".
//
// Plain functions; any thread. Names are looked up in the system's databases, which may ask a network: not on
// a loop. INVALID_ARGUMENT for text that cannot be one, NOT_FOUND for a name that does not exist here.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace berth {

// A number, or the name of a user or group of this node.
[[nodiscard]] absl::StatusOr<uint32_t> UserId(const std::string& text);
[[nodiscard]] absl::StatusOr<uint32_t> GroupId(const std::string& text);

// Octal digits, 7777 at most: "0750", "2770".
[[nodiscard]] absl::StatusOr<uint32_t> ParseMode(std::string_view text);
inline constexpr std::string_view kModeForm = "octal digits, from 0000 to 7777, such as 0750";

}  // namespace berth
