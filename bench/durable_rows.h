// The least that makes a row durable as berthd's journal does: SQLite, write-ahead log, synchronous=FULL, a
// transaction a row. The reference for commits.
//
// One thread. Errors are SQLite's, UNAVAILABLE.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace berth {

class DurableRows {
 public:
  // Makes the file.
  [[nodiscard]] static absl::StatusOr<DurableRows> Open(const std::string& path);
  // Puts a row of 600 bytes, about a volume's in the journal. Returns once it is on the disk.
  [[nodiscard]] absl::Status Put(const std::string& key);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
    void operator()(sqlite3_stmt* statement) const;
  };
  DurableRows() = default;
  std::unique_ptr<sqlite3, Close> db_;
  std::unique_ptr<sqlite3_stmt, Close> put_;
};

// Reads every row of a journal that no process has open; returns their number.
[[nodiscard]] absl::StatusOr<size_t> LoadRows(const std::string& path);

}  // namespace berth
