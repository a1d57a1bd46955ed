// A status's message as fmt can show it: absl::string_view is a type of its own in this build.
#pragma once

#include <absl/status/status.h>

#include <string_view>

namespace berth {

// Lives as long as `status` does.
[[nodiscard]] inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace berth
