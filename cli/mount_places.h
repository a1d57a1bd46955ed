// Where a consumer's volumes are to be in its own file system: said with --at, else /volumes/<name>.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// A volume of a consumer, and where the consumer is to see it.
struct PlacedMount {
  v1::ConsumerMount mount;
  std::string destination;
};

// `at` are the values of --at: "NAME=/path" each, NAME being a publication's name or its volume's id; or one
// "/path" alone, for a consumer with one mount. The others are at /volumes/<name>, or /volumes/<volume> where
// they have no name. UsageError: an --at that fits none or several, a path that is not absolute or holds
// "..", two at one path, and a name that makes no path where --at says nothing.
[[nodiscard]] absl::StatusOr<std::vector<PlacedMount>> PlaceMounts(
    const v1::ListConsumerMountsResponse& mounts, const std::vector<std::string>& at);

}  // namespace berth::cli
