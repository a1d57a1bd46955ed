// The journal's file: SQLite in WAL mode with synchronous=FULL, held exclusively by one berthd.
//
//   <state_dir>/journal.db    volumes(key, record)   one row per volume
//                             meta(key, value)       next_event_number
//                             user_version           the schema's number
//
// Everything here blocks on the disk. Used by the thread that opened it until the Journal's writer thread
// takes it over; never by two at once.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace berth {

// One change of one row. An empty `value` deletes a volume's row.
struct JournalChange {
  enum class Table { kVolumes, kMeta };
  Table table = Table::kVolumes;
  std::string key;
  std::string value;
};

class JournalDatabase {
 public:
  // Makes the file (mode 0600) where there is none, and locks it.
  // FAILED_PRECONDITION: another process holds it, or its schema is newer than this program's; then nothing
  // in it was changed. DATA_LOSS: it is damaged, or no journal at all.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JournalDatabase>> Open(const std::string& path);
  ~JournalDatabase();
  JournalDatabase(const JournalDatabase&) = delete;
  JournalDatabase& operator=(const JournalDatabase&) = delete;

  // Every row of volumes. DATA_LOSS where the file is damaged.
  [[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> LoadVolumes();
  [[nodiscard]] absl::StatusOr<uint64_t> LoadNextEventNumber();

  // Makes all of `changes` durable in one transaction, or none. After a failure other than a full disk the
  // connection is closed, and the next call opens it anew and moves what the write-ahead log holds into the
  // file first: after a failed fsync nobody knows which pages of the log reached the disk, so it is not
  // appended to.
  // RESOURCE_EXHAUSTED: the disk is full. DATA_LOSS: the file is damaged. Else UNAVAILABLE.
  [[nodiscard]] absl::Status Apply(const std::vector<JournalChange>& changes);

 private:
  explicit JournalDatabase(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] absl::Status Connect();
  void Disconnect(bool checkpoint);
  [[nodiscard]] absl::Status Execute(const char* sql);
  [[nodiscard]] absl::StatusOr<int64_t> QueryNumber(const char* sql);
  [[nodiscard]] absl::Status CheckSchema();
  [[nodiscard]] absl::Status ApplyOne(const JournalChange& change);
  [[nodiscard]] absl::Status Error(int code, std::string_view what) const;

  std::string path_;
  sqlite3* db_ = nullptr;
};

}  // namespace berth
