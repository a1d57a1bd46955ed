// What is owed to declared volumes, on disk: a small file for each, written durably before anything is done
// and removed once nothing is owed any more.
//
// The calls block on a local disk: not on the loop. One caller at a time for a key.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "declared/declared.h"

namespace berth {

class Obligations {
 public:
  // `directory` is made where it is missing.
  explicit Obligations(std::string directory) : directory_(std::move(directory)) {}

  // All of them. `unreadable` is told of each file that is none, or of a newer version: it stays as it is.
  // An error: the directory cannot be read.
  [[nodiscard]] absl::StatusOr<std::vector<Obligation>> Load(std::vector<std::string>* unreadable) const;
  [[nodiscard]] absl::Status Write(const Obligation& obligation) const;
  // OK where there is none.
  [[nodiscard]] absl::Status Remove(const DeclaredKey& key) const;

 private:
  [[nodiscard]] std::string PathOf(const DeclaredKey& key) const;

  std::string directory_;
};

}  // namespace berth
