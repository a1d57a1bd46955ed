// The message if files lie where a volume is to be mounted. Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <string>
#include <vector>

namespace berth {

// FAILED_PRECONDITION: the directory holds the files `names`, and `more` that are not named. The message
// names them and gives the command that moves the directory to `destination`.
[[nodiscard]] absl::Status TargetNotEmpty(const std::string& directory, const std::string& destination,
                                          const std::vector<std::string>& names, size_t more);

}  // namespace berth
