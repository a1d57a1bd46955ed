// Files in the directory over which the tree of volumes is mounted. They were put there before berthd had
// mounted it. They are left where they are, and reported.
//
// Blocks on the local disk; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/safe_path.h"

namespace berth {

struct Leftover {
  std::string name;                  // of the entry in that directory
  std::vector<std::string> entries;  // the first files in it, as paths beneath `name`
  size_t more = 0;                   // how many entries are not named
};
[[nodiscard]] absl::StatusOr<std::vector<Leftover>> ListLeftovers(const SafeRoot& directory);

// "HASH/publish/HASH/target: a.db, b.db and 3 more".
[[nodiscard]] std::string Describe(const Leftover& leftover);

}  // namespace berth
