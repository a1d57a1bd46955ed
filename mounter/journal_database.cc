#include "mounter/journal_database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// Raised when an older berthd must not touch the file any more.
constexpr int64_t kSchema = 1;
// "Brth": marks the file as a journal of Berth.
constexpr int64_t kApplicationId = 0x42727468;
constexpr char kNextEventNumber[] = "next_event_number";

// A statement for the length of one scope.
class Statement {
 public:
  Statement() = default;
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  sqlite3_stmt** out() { return &statement_; }
  [[nodiscard]] sqlite3_stmt* get() const { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

std::string Column(sqlite3_stmt* statement, int column) {
  const void* bytes = sqlite3_column_blob(statement, column);
  const int size = sqlite3_column_bytes(statement, column);
  return size > 0 ? std::string(static_cast<const char*>(bytes), static_cast<size_t>(size)) : std::string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JournalDatabase>> JournalDatabase::Open(const std::string& path) {
  // Made here rather than by SQLite, so that the mode is right from the first moment; the write-ahead log
  // takes it over from the file.
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("open the journal {}", path));
  const std::string directory = std::filesystem::path(path).parent_path().string();
  const UniqueFd parent(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.valid() || fsync(parent.get()) != 0)
    return ErrnoStatus(errno, fmt::format("fsync {}", directory));
  std::unique_ptr<JournalDatabase> database(new JournalDatabase(path));
  BERTH_RETURN_IF_ERROR(database->Connect());
  return database;
}

JournalDatabase::~JournalDatabase() { Disconnect(/*checkpoint=*/true); }

absl::Status JournalDatabase::Error(int code, std::string_view what) const {
  const std::string message = fmt::format("journal {}: {}: {}", path_, what,
                                          db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(fmt::format(
          "journal {}: in use by another process: is another berthd running on this state directory?",
          path_));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status JournalDatabase::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

absl::StatusOr<int64_t> JournalDatabase::QueryNumber(const char* sql) {
  Statement statement;
  int code = sqlite3_prepare_v2(db_, sql, -1, statement.out(), nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW) return Error(code, sql);
  return sqlite3_column_int64(statement.get(), 0);
}

absl::Status JournalDatabase::CheckSchema() {
  BERTH_ASSIGN_OR_RETURN(const int64_t schema, QueryNumber("PRAGMA user_version"));
  BERTH_ASSIGN_OR_RETURN(const int64_t application, QueryNumber("PRAGMA application_id"));
  BERTH_ASSIGN_OR_RETURN(const int64_t tables, QueryNumber("SELECT count(*) FROM sqlite_master"));
  const bool fresh = schema == 0 && application == 0 && tables == 0;
  if (fresh) return absl::OkStatus();
  if (application != kApplicationId) {
    return absl::DataLossError(fmt::format("journal {}: a database, but not one of Berth", path_));
  }
  if (schema > kSchema) {
    return absl::FailedPreconditionError(
        fmt::format("journal {}: written by a newer berthd (schema {}, this one knows {}): install that "
                    "version again; nothing was changed",
                    path_, schema, kSchema));
  }
  return absl::OkStatus();
}

absl::Status JournalDatabase::Connect() {
  const int code = sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  absl::Status status = code == SQLITE_OK ? absl::OkStatus() : Error(code, "open");
  // Exclusive before the first access: then the index of the write-ahead log needs no shared memory, and
  // the first transaction's lock is kept until the connection ends.
  if (status.ok()) status = Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (status.ok()) status = CheckSchema();
  if (status.ok()) status = Execute("PRAGMA journal_mode=WAL");
  if (status.ok()) status = Execute("PRAGMA synchronous=FULL");
  if (status.ok()) {
    status = Execute(
        fmt::format(
            "BEGIN EXCLUSIVE;"
            "CREATE TABLE IF NOT EXISTS volumes(key TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
            "PRAGMA application_id={};PRAGMA user_version={};COMMIT",
            kApplicationId, kSchema)
            .c_str());
  }
  if (!status.ok()) Disconnect(/*checkpoint=*/false);
  return status;
}

void JournalDatabase::Disconnect(bool checkpoint) {
  if (db_ == nullptr) return;
  if (!checkpoint) sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_close_v2(db_);
  db_ = nullptr;
}

absl::StatusOr<std::map<std::string, std::string>> JournalDatabase::LoadVolumes() {
  std::map<std::string, std::string> rows;
  Statement statement;
  int code = sqlite3_prepare_v2(db_, "SELECT key, record FROM volumes", -1, statement.out(), nullptr);
  if (code != SQLITE_OK) return Error(code, "read the volumes");
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
    rows[Column(statement.get(), 0)] = Column(statement.get(), 1);
  }
  if (code != SQLITE_DONE) return Error(code, "read the volumes");
  return rows;
}

absl::StatusOr<uint64_t> JournalDatabase::LoadNextEventNumber() {
  Statement statement;
  int code = sqlite3_prepare_v2(db_, "SELECT value FROM meta WHERE key = ?", -1, statement.out(), nullptr);
  if (code == SQLITE_OK) code = sqlite3_bind_text(statement.get(), 1, kNextEventNumber, -1, SQLITE_STATIC);
  if (code != SQLITE_OK) return Error(code, "read the event number");
  code = sqlite3_step(statement.get());
  if (code == SQLITE_DONE) return 1;
  if (code != SQLITE_ROW) return Error(code, "read the event number");
  const std::string text = Column(statement.get(), 0);
  uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
    return absl::DataLossError(fmt::format("journal {}: the event number is none", path_));
  }
  return number;
}

absl::Status JournalDatabase::ApplyOne(const JournalChange& change) {
  const bool volumes = change.table == JournalChange::Table::kVolumes;
  const bool erase = volumes && change.value.empty();
  const char* sql = "INSERT INTO meta(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
  if (volumes) {
    sql = "INSERT INTO volumes(key, record) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET record = ?2";
  }
  if (erase) sql = "DELETE FROM volumes WHERE key = ?1";
  Statement statement;
  int code = sqlite3_prepare_v2(db_, sql, -1, statement.out(), nullptr);
  if (code == SQLITE_OK) {
    code = sqlite3_bind_text64(statement.get(), 1, change.key.data(), change.key.size(), SQLITE_STATIC,
                               SQLITE_UTF8);
  }
  if (code == SQLITE_OK && !erase) {
    code = sqlite3_bind_blob64(statement.get(), 2, change.value.data(), change.value.size(), SQLITE_STATIC);
  }
  if (code == SQLITE_OK) code = sqlite3_step(statement.get());
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "write");
}

absl::Status JournalDatabase::Apply(const std::vector<JournalChange>& changes) {
  if (db_ == nullptr) {
    absl::Status status = Connect();
    if (status.ok()) status = Execute("PRAGMA wal_checkpoint(TRUNCATE)");
    if (!status.ok()) {
      Disconnect(/*checkpoint=*/false);
      return status;
    }
  }
  absl::Status status = Execute("BEGIN IMMEDIATE");
  for (const JournalChange& change : changes) {
    if (status.ok()) status = ApplyOne(change);
  }
  if (status.ok()) status = Execute("COMMIT");
  if (status.ok()) return status;
  // A full disk refuses before anything is synced, and the log's space is kept for the next transaction: it
  // needs no more than a rollback. After anything else closing rolls back what is left.
  const bool full = status.code() == absl::StatusCode::kResourceExhausted;
  const bool idle = sqlite3_get_autocommit(db_) != 0;
  if (!full || (!idle && !Execute("ROLLBACK").ok())) Disconnect(/*checkpoint=*/false);
  return status;
}

}  // namespace berth
