// The tree of volumes as Berth 0.1 kept it: on the disk of the state directory, with an identity file in each
// directory.
//
//   <hash of plugin and volume id>/identity.json
//                                  staging/
//                                  publish/<hash of consumer and name>/identity.json
//                                                                      target
//
// Its identity files are taken over into the state directory. Once nothing is mounted in it, its directories
// lie beneath the tmpfs that is the tree now: those that are empty are removed, one level at a time.
// Somebody's files are left where they are, and reported.
//
// Blocks on the local disk. At start, on the loop thread; ListLeftovers on any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <set>
#include <string>
#include <vector>

#include "base/safe_path.h"
#include "mounter/volume_paths.h"

namespace berth {

// Writes the identity file of each volume of `tree` that has none in the state directory, makes all of them
// durable, and then removes those in `tree`. One that cannot be read stays there, and is logged. Returns the
// keys of these volumes.
[[nodiscard]] absl::StatusOr<std::set<std::string>> TakeOverIdentities(const SafeRoot& tree,
                                                                       const VolumePaths& paths);

// Removes those directories of `tree` that hold nothing but empty ones of ours. `paths` says which targets
// are those of block volumes: there an empty file goes, too.
[[nodiscard]] absl::Status RemoveEmptyDirectories(const SafeRoot& tree, const VolumePaths& paths);

// What lies in a directory over which the tree is mounted.
struct Leftover {
  std::string name;                  // of the entry in that directory
  std::vector<std::string> entries;  // the first of somebody's files in it, as paths beneath `name`
  size_t more = 0;                   // how many entries are not named
};
[[nodiscard]] absl::StatusOr<std::vector<Leftover>> ListLeftovers(const SafeRoot& directory);

// "HASH/publish/HASH/target: a.db, b.db and 3 more".
[[nodiscard]] std::string Describe(const Leftover& leftover);

}  // namespace berth
