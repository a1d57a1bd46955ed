#include "bench/durable_rows.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include "base/status.h"

namespace berth {
namespace {

absl::Status Failed(sqlite3* db, const std::string& what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, sqlite3_errmsg(db)));
}

}  // namespace

void DurableRows::Close::operator()(sqlite3* db) const { sqlite3_close(db); }
void DurableRows::Close::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

absl::StatusOr<DurableRows> DurableRows::Open(const std::string& path) {
  DurableRows rows;
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  rows.db_.reset(db);
  if (opened != SQLITE_OK) return Failed(db, fmt::format("open {}", path));
  const char* const setup =
      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
      "CREATE TABLE IF NOT EXISTS rows(key TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID";
  if (sqlite3_exec(db, setup, nullptr, nullptr, nullptr) != SQLITE_OK) return Failed(db, path);
  sqlite3_stmt* put = nullptr;
  if (sqlite3_prepare_v2(db, "INSERT OR REPLACE INTO rows VALUES(?, ?)", -1, &put, nullptr) != SQLITE_OK)
    return Failed(db, path);
  rows.put_.reset(put);
  return rows;
}

absl::Status DurableRows::Put(const std::string& key) {
  constexpr int kRow = 600;
  sqlite3_reset(put_.get());
  const std::string record(kRow, 'r');
  sqlite3_bind_text(put_.get(), 1, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
  sqlite3_bind_blob(put_.get(), 2, record.data(), kRow, SQLITE_TRANSIENT);
  if (sqlite3_step(put_.get()) != SQLITE_DONE) return Failed(db_.get(), "commit");
  return absl::OkStatus();
}

absl::StatusOr<size_t> LoadRows(const std::string& path) {
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr);
  const std::unique_ptr<sqlite3, int (*)(sqlite3*)> owner(db, &sqlite3_close);
  if (opened != SQLITE_OK) return Failed(db, fmt::format("open {}", path));
  sqlite3_stmt* select = nullptr;
  if (sqlite3_prepare_v2(db, "SELECT key, record FROM volumes", -1, &select, nullptr) != SQLITE_OK)
    return Failed(db, path);
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(select, &sqlite3_finalize);
  size_t rows = 0;
  size_t bytes = 0;
  while (sqlite3_step(select) == SQLITE_ROW) {
    const std::string record(static_cast<const char*>(sqlite3_column_blob(select, 1)),
                             static_cast<size_t>(sqlite3_column_bytes(select, 1)));
    bytes += record.size();
    ++rows;
  }
  if (rows > 0 && bytes == 0) return absl::DataLossError(fmt::format("{}: empty rows", path));
  return rows;
}

}  // namespace berth
