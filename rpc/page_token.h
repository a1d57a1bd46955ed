// Where the next page of a list of volumes begins, as a text that callers hand back unread.
//
// It names the last volume of the page before, so that volumes that come or go between two pages neither
// repeat others nor hide them. Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <utility>

namespace berth {

// Plugin and volume id; lists are in this order.
using VolumeName = std::pair<std::string, std::string>;

[[nodiscard]] std::string PageTokenAfter(const VolumeName& last);

// INVALID_ARGUMENT: no token of ours.
[[nodiscard]] absl::StatusOr<VolumeName> ReadPageToken(const std::string& token);

}  // namespace berth
