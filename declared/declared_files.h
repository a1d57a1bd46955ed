// The files of volumes.d, read and checked, and what a new reading of them changes.
//
// Any thread; ReadDeclaredFiles blocks on a local disk and on look-ups of names: not on the loop.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "berth/v1/node.pb.h"
#include "declared/declared.h"
#include "declared/declared_directory.h"

namespace berth {

struct DeclaredFile {
  std::string name;  // "data.toml"
  std::string path;
  v1::PublishVolumeRequest request;  // as the API shows it; of a broken file: empty
  absl::StatusOr<DeclaredUse> use;   // an error names every mistake, a line each
};

// Files there may be; those beyond are broken.
inline constexpr size_t kDeclaredFilesLimit = 4096;

// Every *.toml in `directory`, by its name. If two files declare the same use one is broken, and so it is if
// their paths are the same, or lie in one another: not the one in `in_use`, the names of the files with
// volumes here; else the second by name. A file is also broken if its path lies in one of berthd's
// directories `own`, or above it. NOT_FOUND: there is no such directory; other errors: it cannot be read.
[[nodiscard]] absl::StatusOr<std::vector<DeclaredFile>> ReadDeclaredFiles(
    const std::string& directory, const std::set<std::string>& in_use = {},
    const std::vector<std::string>& own = {});

[[nodiscard]] DeclaredKey KeyOf(const DeclaredUse& use);

// What is declared: the last sound reading of each file.
struct DeclaredSet {
  std::map<std::string, DeclaredFile> files;  // by name; each is as it was read last, broken or not
  std::map<std::string, DeclaredUse> uses;    // by the name of the file: its last sound reading
};

// Takes in what was read: a broken file keeps what it declared before.
[[nodiscard]] DeclaredReload TakeIn(std::vector<DeclaredFile> read, DeclaredSet* set);

}  // namespace berth
