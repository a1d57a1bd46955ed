// How names and reasons from outside stand in errors and in the log. Messages are longer: Printable
// (base/status.h). Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace berth {

[[nodiscard]] inline std::string PrintableName(std::string_view name) {
  constexpr size_t kNameLimit = 256;
  return Printable(name, kNameLimit);
}

// A reason after what it explains: ": no space left on device"; empty if there is no reason.
[[nodiscard]] inline std::string ReasonSuffix(std::string_view reason) {
  constexpr size_t kReasonLimit = 512;
  return reason.empty() ? std::string() : ": " + Printable(reason, kReasonLimit);
}

}  // namespace berth
