// The records of declared volumes on disk: a small file for each, written durably before anything is done and
// removed once everything was undone.
//
// The calls block on a local disk: not on the loop. One caller at a time for a key.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "declared/declared.h"

namespace berth {

class DeclaredRecords {
 public:
  // `directory` is made where it is missing.
  explicit DeclaredRecords(std::string directory) : directory_(std::move(directory)) {}

  // All of them. `unreadable` is called for each file that is not a record, or is of a newer version: it
  // stays as it is. An error: the directory cannot be read.
  [[nodiscard]] absl::StatusOr<std::vector<DeclaredRecord>> Load(std::vector<std::string>* unreadable) const;
  [[nodiscard]] absl::Status Write(DeclaredRecord record) const;
  // OK if it does not exist.
  [[nodiscard]] absl::Status Remove(const DeclaredKey& key) const;

 private:
  [[nodiscard]] std::string PathOf(const DeclaredKey& key) const;

  std::string directory_;
};

}  // namespace berth
