// The journal's file: SQLite in WAL mode with synchronous=FULL, held exclusively by one berthd.
//
//   <state_dir>/journal.db    volumes(key, record, checksum)   one row per volume
//                             meta(key, value)                 is_new, expansion/KEY
//                             damaged(key, record, reason, at) rows that could not be read, kept for people
//                             user_version                     the schema's number
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

// Space that is reserved for releasing volumes on a full disk. It is allocated ahead for the log and the
// file, so that no other program takes it.
struct JournalReserve {
  uint64_t free_bytes = 4 << 20;  // with less free on the disk, new work is refused
  uint64_t log_bytes = 2 << 20;   // of the write-ahead log
  int file_bytes = 256 << 10;     // beyond what the file holds
};

// One change of one row. An empty `value` deletes it from kVolumes and kMeta; kDamaged is only added to.
struct JournalChange {
  enum class Table { kVolumes, kMeta, kDamaged };
  Table table = Table::kVolumes;
  std::string key;
  std::string value;
  std::string reason = {};  // of kDamaged
};

using JournalRows = std::vector<JournalChange>;

// Everything that the file holds.
struct JournalContents {
  std::map<std::string, std::string> volumes;
  std::map<std::string, std::string> meta;
  struct Damaged {
    std::string key;
    std::string record;
    std::string reason;
  };
  std::vector<Damaged> damaged;
  // Rows of volumes with other bytes than were written.
  std::map<std::string, std::string> unreadable;

  void Apply(const JournalChange& change);
};

// meta's keys.
inline constexpr char kBegunAnew[] = "is_new";
inline constexpr std::string_view kExpansion = "expansion/";  // before a volume's key

class JournalDatabase {
 public:
  struct Options {
    std::string path;
    std::string vfs;  // empty: SQLite's own
    JournalReserve reserve;
  };
  // Makes the file (mode 0600) if it does not exist, and locks it. An existing file is not changed before the
  // first Apply. FAILED_PRECONDITION: another process holds it, its schema is not this program's, or it is
  // another program's database. DATA_LOSS: it is damaged, or no database at all.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JournalDatabase>> Open(Options options);
  // A new file at `path`, whole and on the disk when this returns; there must be none.
  [[nodiscard]] static absl::Status WriteNew(Options options, const JournalContents& contents);
  ~JournalDatabase();
  JournalDatabase(const JournalDatabase&) = delete;
  JournalDatabase& operator=(const JournalDatabase&) = delete;

  // DATA_LOSS where the file is damaged.
  [[nodiscard]] absl::StatusOr<JournalContents> Load();

  // Makes all of `changes` durable in one transaction, or none. RESOURCE_EXHAUSTED: the disk is full; nothing
  // happened. After any other error (DATA_LOSS: the file is damaged; UNAVAILABLE: writing or syncing it
  // failed) the content of the disk is unknown, and the file must not be written to any more.
  [[nodiscard]] absl::Status Apply(const std::vector<JournalChange>& changes);

  // Closes the file as it is: nothing more is written to it.
  void Abandon() { Disconnect(/*checkpoint=*/false); }

 private:
  explicit JournalDatabase(Options options) : options_(std::move(options)) {}
  [[nodiscard]] absl::Status Connect();
  void Disconnect(bool checkpoint);
  [[nodiscard]] absl::Status Execute(const char* sql);
  // What every transaction uses is prepared once.
  [[nodiscard]] absl::StatusOr<sqlite3_stmt*> Prepared(const char* sql);
  [[nodiscard]] absl::Status Run(sqlite3_stmt* statement, std::string_view what);
  [[nodiscard]] absl::Status RunPrepared(const char* sql);
  [[nodiscard]] absl::StatusOr<int64_t> QueryNumber(const char* sql);
  [[nodiscard]] absl::Status CheckSchema();
  [[nodiscard]] absl::Status CheckPages();
  [[nodiscard]] absl::Status MakeTables();
  [[nodiscard]] absl::Status ApplyAll(const std::vector<JournalChange>& changes);
  [[nodiscard]] absl::Status ApplyOne(const JournalChange& change);
  [[nodiscard]] absl::Status Checkpoint();
  void ReserveSpace();
  [[nodiscard]] absl::Status Error(int code, std::string_view what) const;

  Options options_;
  sqlite3* db_ = nullptr;
  std::map<std::string, sqlite3_stmt*> prepared_;  // by their texts; this connection's
  int64_t schema_ = 0;                             // the file's; 0: it is empty
  bool written_ = false;
  int log_frames_ = 0;  // in the write-ahead log since the last checkpoint
};

}  // namespace berth
