// Expansions that are pending for volumes that are not here: to how many bytes. A volume's row in the journal
// is deleted with its last use; the pending expansion has a row of its own until the next use.
//
//   row deleted ──────► expansion/KEY ──► first row of the next use: takes it over
//   asked while not here ────┘
//
// Owned by the MounterContext; loop thread only. No I/O: the caller writes the returned rows in the same
// transaction as the volume's row.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>

#include "journal/journal_database.h"

namespace berth {

class PendingExpansions {
 public:
  explicit PendingExpansions(size_t limit = 1024) : limit_(limit) {}

  // What the journal holds, once, at start. A row that cannot be read is logged, and left out.
  void Load(const std::map<std::string, std::string>& meta);

  // To so many bytes; 0: none is pending.
  [[nodiscard]] int64_t Of(const std::string& plugin_id, const std::string& volume_id) const;

  // Replaces what was pending, with `bytes` > 0. RESOURCE_EXHAUSTED: of too many others; nothing was changed.
  [[nodiscard]] absl::StatusOr<JournalRows> Set(const std::string& plugin_id, const std::string& volume_id,
                                                int64_t bytes);
  // Nothing is pending any more. Where nothing was, no row is to be written.
  [[nodiscard]] JournalRows End(const std::string& plugin_id, const std::string& volume_id);

 private:
  const size_t limit_;
  std::map<std::string, int64_t> bytes_;  // by the volume's key
};

}  // namespace berth
