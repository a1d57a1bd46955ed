// How names from outside stand in errors and in the log. Messages are longer: Printable (base/status.h).
// Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace berth {

[[nodiscard]] inline std::string Shown(std::string_view name) {
  constexpr size_t kNameLimit = 256;
  return Printable(name, kNameLimit);
}

}  // namespace berth
