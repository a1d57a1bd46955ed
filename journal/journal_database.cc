#include "journal/journal_database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "journal/journal_files.h"

namespace berth {
namespace {

// Raised when an older berthd must not touch the file any more. Schema 1 was never released.
constexpr int64_t kSchema = 2;
// "Brth": marks the file as a journal of Berth.
constexpr int64_t kApplicationId = 0x42727468;
constexpr int kPageBytes = 4096;

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

// SQLite has none of its own: a page that was read wrong would go unnoticed.
std::string Checksum(const std::string& key, const std::string& record) {
  return HashComponent({key, record});
}

}  // namespace

void JournalContents::Apply(const JournalChange& change) {
  if (change.table == JournalChange::Table::kDamaged) {
    damaged.push_back({.key = change.key, .record = change.value, .reason = change.reason});
    return;
  }
  auto& rows = change.table == JournalChange::Table::kVolumes ? volumes : meta;
  if (change.value.empty()) {
    rows.erase(change.key);
  } else {
    rows[change.key] = change.value;
  }
}

absl::StatusOr<std::unique_ptr<JournalDatabase>> JournalDatabase::Open(Options options) {
  const std::string path = options.path;
  {
    // Made here rather than by SQLite, so that the mode is right from the first moment; the write-ahead log
    // gets the same mode. Closed before SQLite locks the file: to close any descriptor of it would release
    // the lock.
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return ErrnoStatus(errno, fmt::format("open the journal {}", path));
  }
  BERTH_RETURN_IF_ERROR(SyncParent(path));
  std::unique_ptr<JournalDatabase> database(new JournalDatabase(std::move(options)));
  BERTH_RETURN_IF_ERROR(database->Connect());
  return database;
}

absl::Status JournalDatabase::WriteNew(Options options, const JournalContents& contents) {
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<JournalDatabase> database, Open(std::move(options)));
  std::vector<JournalChange> changes;
  // What Connect has put there for a file that begins.
  changes.push_back({.table = JournalChange::Table::kMeta, .key = kBegunAnew, .value = {}});
  for (const auto& [key, record] : contents.volumes) {
    changes.push_back({.table = JournalChange::Table::kVolumes, .key = key, .value = record});
  }
  for (const auto& [key, value] : contents.meta) {
    changes.push_back({.table = JournalChange::Table::kMeta, .key = key, .value = value});
  }
  for (const auto& row : contents.damaged) {
    changes.push_back(
        {.table = JournalChange::Table::kDamaged, .key = row.key, .value = row.record, .reason = row.reason});
  }
  BERTH_RETURN_IF_ERROR(database->Apply(changes));
  // Everything into the file itself, so that it is whole without a log.
  return database->Execute("PRAGMA journal_mode=DELETE");
}

JournalDatabase::~JournalDatabase() { Disconnect(/*checkpoint=*/written_); }

absl::Status JournalDatabase::Error(int code, std::string_view what) const {
  const std::string message = fmt::format("journal {}: {}: {}", options_.path, what,
                                          db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code));
  const int number = db_ != nullptr ? sqlite3_system_errno(db_) : 0;
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return JournalInUse(options_.path);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_IOERR:
      if (code == SQLITE_IOERR_WRITE && number == EDQUOT) return absl::ResourceExhaustedError(message);
      return absl::UnavailableError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status JournalDatabase::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(sqlite3_extended_errcode(db_), sql);
}

absl::StatusOr<int64_t> JournalDatabase::QueryNumber(const char* sql) {
  Statement statement;
  int code = sqlite3_prepare_v2(db_, sql, -1, statement.out(), nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW) return Error(code, sql);
  return sqlite3_column_int64(statement.get(), 0);
}

absl::Status JournalDatabase::CheckSchema() {
  BERTH_ASSIGN_OR_RETURN(schema_, QueryNumber("PRAGMA user_version"));
  BERTH_ASSIGN_OR_RETURN(const int64_t application, QueryNumber("PRAGMA application_id"));
  BERTH_ASSIGN_OR_RETURN(const int64_t tables, QueryNumber("SELECT count(*) FROM sqlite_master"));
  if (schema_ == 0 && application == 0 && tables == 0) return absl::OkStatus();
  if (application != kApplicationId) {
    return absl::FailedPreconditionError(fmt::format(
        "journal {}: a database, but not one of Berth: move it away; nothing was changed", options_.path));
  }
  if (schema_ > kSchema) {
    return absl::FailedPreconditionError(
        fmt::format("journal {}: written by a newer berthd (schema {}, this one knows {}): install that "
                    "version again; nothing was changed",
                    options_.path, schema_, kSchema));
  }
  if (schema_ < kSchema) {
    return absl::FailedPreconditionError(
        fmt::format("journal {}: written by a berthd that was never released (schema {}), and not read: move "
                    "the state directory away; nothing was changed",
                    options_.path, schema_));
  }
  return absl::OkStatus();
}

absl::Status JournalDatabase::CheckPages() {
  Statement statement;
  int code = sqlite3_prepare_v2(db_, "PRAGMA integrity_check(1)", -1, statement.out(), nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW) return Error(code, "check its pages");
  const std::string found = Column(statement.get(), 0);
  if (found == "ok") return absl::OkStatus();
  return absl::DataLossError(fmt::format("journal {}: {}", options_.path, Printable(found, 256)));
}

absl::Status JournalDatabase::MakeTables() {
  if (schema_ == kSchema) return absl::OkStatus();
  const std::string sql = fmt::format(
      "BEGIN EXCLUSIVE;"
      "CREATE TABLE volumes(key TEXT PRIMARY KEY, record BLOB NOT NULL, checksum TEXT) WITHOUT ROWID;"
      "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
      "INSERT INTO meta(key, value) VALUES('is_new', '1');"
      "CREATE TABLE damaged(key TEXT, record BLOB, reason TEXT, at TEXT);"
      "PRAGMA application_id={};PRAGMA user_version={};COMMIT",
      kApplicationId, kSchema);
  return Execute(sql.c_str());
}

absl::Status JournalDatabase::Connect() {
  const int code = sqlite3_open_v2(options_.path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                                   options_.vfs.empty() ? nullptr : options_.vfs.c_str());
  absl::Status status = code == SQLITE_OK ? absl::OkStatus() : Error(code, "open");
  if (status.ok()) sqlite3_extended_result_codes(db_, 1);
  // Exclusive before the first access: then the index of the write-ahead log needs no shared memory, and
  // the first transaction's lock is kept until the connection ends.
  if (status.ok()) status = Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (status.ok()) status = CheckSchema();
  if (status.ok() && schema_ != 0) status = CheckPages();
  if (status.ok()) status = Execute("PRAGMA journal_mode=WAL");
  if (status.ok()) status = Execute("PRAGMA synchronous=FULL");
  // Ours to do, so that we learn how it went: ReserveSpace, Checkpoint.
  if (status.ok()) status = Execute("PRAGMA wal_autocheckpoint=0");
  // Takes the lock even where there is nothing to make.
  if (status.ok() && schema_ == kSchema) status = Execute("BEGIN EXCLUSIVE;COMMIT");
  if (status.ok()) status = MakeTables();
  if (!status.ok()) {
    Disconnect(/*checkpoint=*/false);
    return status;
  }
  auto hook = [](void* self, sqlite3* /*db*/, const char* /*name*/, int frames) {
    static_cast<JournalDatabase*>(self)->log_frames_ = frames;
    return SQLITE_OK;
  };
  sqlite3_wal_hook(db_, hook, this);
  return status;
}

void JournalDatabase::ReserveSpace() {
  // Where it cannot be had, the disk is full already: then new work is refused, and what is left is better
  // used for what has to be written.
  const auto file_bytes = static_cast<uint64_t>(std::max(options_.reserve.file_bytes, 0));
  if (FreeBytes(options_.path) < options_.reserve.log_bytes + 2 * file_bytes) return;
  if (options_.reserve.log_bytes > 0) {
    const UniqueFd log(open((options_.path + "-wal").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (log.valid()) {
      [[maybe_unused]] const int allocated =
          fallocate(log.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(options_.reserve.log_bytes));
    }
  }
  if (options_.reserve.file_bytes > 0) {
    int chunk = options_.reserve.file_bytes;
    sqlite3_file_control(db_, "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk);
    const auto pages = QueryNumber("PRAGMA page_count");
    sqlite3_int64 size = (pages.ok() ? *pages : 0) * kPageBytes + options_.reserve.file_bytes;
    sqlite3_file_control(db_, "main", SQLITE_FCNTL_SIZE_HINT, &size);
  }
}

void JournalDatabase::Disconnect(bool checkpoint) {
  if (db_ == nullptr) return;
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  prepared_.clear();
  if (!checkpoint) sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_close_v2(db_);
  db_ = nullptr;
}

absl::StatusOr<JournalContents> JournalDatabase::Load() {
  JournalContents contents;
  const auto each = [this](const char* sql, const auto& take) -> absl::Status {
    Statement statement;
    int code = sqlite3_prepare_v2(db_, sql, -1, statement.out(), nullptr);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
      code = sqlite3_step(statement.get());
      if (code == SQLITE_ROW) take(statement.get());
      if (code == SQLITE_DONE) return absl::OkStatus();
    }
    return Error(code, sql);
  };
  BERTH_RETURN_IF_ERROR(each("SELECT key, record, checksum FROM volumes", [&](sqlite3_stmt* row) {
    const std::string key = Column(row, 0);
    const std::string record = Column(row, 1);
    (Column(row, 2) == Checksum(key, record) ? contents.volumes : contents.unreadable)[key] = record;
  }));
  BERTH_RETURN_IF_ERROR(each("SELECT key, value FROM meta",
                             [&](sqlite3_stmt* row) { contents.meta[Column(row, 0)] = Column(row, 1); }));
  BERTH_RETURN_IF_ERROR(each("SELECT key, record, reason FROM damaged", [&](sqlite3_stmt* row) {
    contents.damaged.push_back({.key = Column(row, 0), .record = Column(row, 1), .reason = Column(row, 2)});
  }));
  return contents;
}

absl::Status JournalDatabase::ApplyOne(const JournalChange& change) {
  const char* sql = nullptr;
  std::string third;
  const bool erase = change.table != JournalChange::Table::kDamaged && change.value.empty();
  switch (change.table) {
    case JournalChange::Table::kVolumes:
      sql = erase ? "DELETE FROM volumes WHERE key = ?1"
                  : "INSERT INTO volumes(key, record, checksum) VALUES(?1, ?2, ?3) "
                    "ON CONFLICT(key) DO UPDATE SET record = ?2, checksum = ?3";
      third = erase ? "" : Checksum(change.key, change.value);
      break;
    case JournalChange::Table::kMeta:
      sql = erase ? "DELETE FROM meta WHERE key = ?1"
                  : "INSERT INTO meta(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
      break;
    case JournalChange::Table::kDamaged:
      sql = "INSERT INTO damaged(key, record, reason, at) VALUES(?1, ?2, ?3, datetime())";
      third = change.reason;
      break;
  }
  BERTH_ASSIGN_OR_RETURN(sqlite3_stmt* const statement, Prepared(sql));
  int code =
      sqlite3_bind_text64(statement, 1, change.key.data(), change.key.size(), SQLITE_STATIC, SQLITE_UTF8);
  if (code == SQLITE_OK && !erase) {
    code = sqlite3_bind_blob64(statement, 2, change.value.data(), change.value.size(), SQLITE_STATIC);
  }
  if (code == SQLITE_OK && !third.empty()) {
    code = sqlite3_bind_text64(statement, 3, third.data(), third.size(), SQLITE_STATIC, SQLITE_UTF8);
  }
  if (code != SQLITE_OK) return Error(code, "write");
  return Run(statement, "write");
}

absl::StatusOr<sqlite3_stmt*> JournalDatabase::Prepared(const char* sql) {
  sqlite3_stmt*& statement = prepared_[sql];
  if (statement != nullptr) return statement;
  const int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return Error(code, sql);
  return statement;
}

absl::Status JournalDatabase::Run(sqlite3_stmt* statement, std::string_view what) {
  const int code = sqlite3_step(statement);
  absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error(code, what);
  sqlite3_reset(statement);  // says the same once more
  sqlite3_clear_bindings(statement);
  return status;
}

absl::Status JournalDatabase::RunPrepared(const char* sql) {
  BERTH_ASSIGN_OR_RETURN(sqlite3_stmt* const statement, Prepared(sql));
  return Run(statement, sql);
}

absl::Status JournalDatabase::ApplyAll(const std::vector<JournalChange>& changes) {
  BERTH_RETURN_IF_ERROR(RunPrepared("BEGIN IMMEDIATE"));
  for (const JournalChange& change : changes) BERTH_RETURN_IF_ERROR(ApplyOne(change));
  return RunPrepared("COMMIT");
}

absl::Status JournalDatabase::Checkpoint() {
  // Half of what is reserved for the log: the other half is for what comes before the next one.
  const uint64_t limit = std::max<uint64_t>(options_.reserve.log_bytes / 2 / kPageBytes, 16);
  if (static_cast<uint64_t>(log_frames_) < limit) return absl::OkStatus();
  const int code = sqlite3_wal_checkpoint_v2(db_, "main", SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  if (code != SQLITE_OK) return Error(code, "checkpoint");
  ReserveSpace();
  return absl::OkStatus();
}

absl::Status JournalDatabase::Apply(const std::vector<JournalChange>& changes) {
  if (db_ == nullptr) return absl::UnavailableError(fmt::format("journal {}: not open", options_.path));
  // Not before: the caller of Open may have found a record in it that is not for this program.
  if (!std::exchange(written_, true)) ReserveSpace();
  absl::Status status = ApplyAll(changes);
  if (!status.ok()) {
    // A full disk refuses before anything is synced: it needs no more than a rollback.
    const bool idle = sqlite3_get_autocommit(db_) != 0;
    const bool full = status.code() == absl::StatusCode::kResourceExhausted;
    if (full && !idle && !Execute("ROLLBACK").ok()) return {absl::StatusCode::kUnavailable, status.message()};
    return status;
  }
  const absl::Status moved = Checkpoint();
  // The transaction is in the log and durable there, whatever became of moving it. On a full disk the log
  // just grows; another error says that the file is not sound.
  if (!moved.ok() && moved.code() != absl::StatusCode::kResourceExhausted) return moved;
  return status;
}

}  // namespace berth
