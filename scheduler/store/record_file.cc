#include "scheduler/store/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/file.h"
#include "base/number_text.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::scheduler {
namespace {

// Raised when an older program must not touch the file any more.
constexpr int64_t kSchema = 1;
// "Brts": marks the file as the scheduler's.
constexpr int64_t kApplicationId = 0x42727473;
constexpr int kFramesOfLog = 1000;  // 4 MiB
constexpr std::string_view kPrefix = "records-";
constexpr std::string_view kSuffix = ".db";

// A statement for the length of one scope.
class Statement {
 public:
  ~Statement() { sqlite3_finalize(statement_); }
  [[nodiscard]] int Prepare(sqlite3* db, const char* sql) {
    return sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  // The parameters, from 1 on, as bytes.
  [[nodiscard]] int Bind(int parameter, std::string_view bytes) {
    // A null pointer would be NULL.
    return sqlite3_bind_blob64(statement_, parameter, bytes.empty() ? "" : bytes.data(), bytes.size(),
                               SQLITE_STATIC);
  }
  [[nodiscard]] int Bind(int parameter, uint64_t number) {
    return sqlite3_bind_int64(statement_, parameter, static_cast<sqlite3_int64>(number));
  }
  [[nodiscard]] int Step() { return sqlite3_step(statement_); }
  void Reset() { sqlite3_reset(statement_); }
  [[nodiscard]] std::string Text(int column) const {
    const void* const bytes = sqlite3_column_blob(statement_, column);
    const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
    return size == 0 ? std::string() : std::string(static_cast<const char*>(bytes), size);
  }
  [[nodiscard]] int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

// SQLite has none of its own: a page that was read wrong would go unnoticed.
std::string Checksum(std::string_view key, const RecordValue& value) {
  return HashComponent({key, value.value, fmt::to_string(value.modified)});
}

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("remove {}", path));
}

}  // namespace

std::string RecordFile::Path(uint64_t number) const {
  return fmt::format("{}/{}{}{}", options_.directory, kPrefix, number, kSuffix);
}

absl::StatusOr<std::vector<uint64_t>> RecordFile::Numbers() const {
  std::vector<uint64_t> numbers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string name = entry.path().filename().string();
    uint64_t number = 0;
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) &&
        ParseNumber(
            std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()),
            &number))
      numbers.push_back(number);
  }
  if (error) return ErrnoStatus(error.value(), fmt::format("list {}", options_.directory));
  std::ranges::sort(numbers);
  return numbers;
}

absl::StatusOr<RecordFile::Opened> RecordFile::Open(Options options) {
  Opened opened{.file = std::unique_ptr<RecordFile>(new RecordFile(std::move(options)))};
  RecordFile& file = *opened.file;
  BERTH_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, file.Numbers());
  if (numbers.empty()) {
    BERTH_RETURN_IF_ERROR(file.Rewrite({}, 0));
  } else {
    file.number_ = numbers.back();
    BERTH_RETURN_IF_ERROR(file.Connect(file.Path(file.number_), /*is_new=*/false));
  }
  if (absl::Status loaded = file.Load(&opened); !loaded.ok()) {
    file.Disconnect(/*checkpoint=*/false);
    return loaded;
  }
  file.RemoveOthers();
  return opened;
}

RecordFile::~RecordFile() { Disconnect(/*checkpoint=*/true); }

// What an earlier rewrite has left.
void RecordFile::RemoveOthers() {
  const auto numbers = Numbers();
  if (!numbers.ok()) return;
  for (const uint64_t number : *numbers) {
    if (number >= number_) continue;
    for (const char* const end : {"-wal", "-shm", "-journal", ""}) {
      if (const absl::Status removed = Remove(Path(number) + end); !removed.ok())
        SPDLOG_WARN("{}", MessageOf(removed));
    }
  }
}

absl::Status RecordFile::Connect(const std::string& path, bool is_new) {
  {
    // Made here rather than by SQLite, so that the mode is right from the first moment.
    const UniqueFd made(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  }
  BERTH_RETURN_IF_ERROR(SyncParent(path));
  path_ = path;
  const int code = sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                                   options_.vfs.empty() ? nullptr : options_.vfs.c_str());
  absl::Status status = code == SQLITE_OK ? absl::OkStatus() : Error(code, "open");
  if (status.ok()) sqlite3_extended_result_codes(db_, 1);
  // Before the first access: then the index of the write-ahead log needs no shared memory, and the lock of
  // the first transaction is kept until the connection ends.
  if (status.ok()) status = Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (status.ok() && is_new) {
    status = Execute(
        fmt::format("PRAGMA application_id={};PRAGMA user_version={}", kApplicationId, kSchema).c_str());
  } else if (status.ok()) {
    status = Check();
  }
  if (status.ok()) status = Execute("PRAGMA journal_mode=WAL");
  if (status.ok()) status = Execute("PRAGMA synchronous=FULL");
  // In Write, which learns how it went.
  if (status.ok()) status = Execute("PRAGMA wal_autocheckpoint=0");
  if (status.ok()) status = Execute("BEGIN EXCLUSIVE;COMMIT");
  if (!status.ok()) {
    Disconnect(/*checkpoint=*/false);
    return status;
  }
  log_frames_ = 0;
  const auto hook = [](void* self, sqlite3* /*db*/, const char* /*name*/, int frames) {
    static_cast<RecordFile*>(self)->log_frames_ = frames;
    return SQLITE_OK;
  };
  sqlite3_wal_hook(db_, hook, this);
  return status;
}

void RecordFile::Disconnect(bool checkpoint) {
  if (db_ == nullptr) return;
  if (!checkpoint) sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_close_v2(db_);
  db_ = nullptr;
}

absl::Status RecordFile::Error(int code, std::string_view what) const {
  const std::string message =
      fmt::format("{}: {}: {}", path_, what, db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code));
  const int number = db_ != nullptr ? sqlite3_system_errno(db_) : 0;
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(fmt::format("{}: another process has it", path_));
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

absl::Status RecordFile::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(sqlite3_extended_errcode(db_), sql);
}

absl::StatusOr<int64_t> RecordFile::QueryNumber(const char* sql) {
  Statement statement;
  int code = statement.Prepare(db_, sql);
  if (code == SQLITE_OK) code = statement.Step();
  if (code != SQLITE_ROW) return Error(code, sql);
  return statement.Number(0);
}

absl::Status RecordFile::Check() {
  BERTH_ASSIGN_OR_RETURN(const int64_t schema, QueryNumber("PRAGMA user_version"));
  BERTH_ASSIGN_OR_RETURN(const int64_t application, QueryNumber("PRAGMA application_id"));
  if (application != kApplicationId)
    return absl::FailedPreconditionError(fmt::format("{}: it is no file of a berth-scheduler", path_));
  if (schema > kSchema) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: a newer berth-scheduler wrote it (format {}; this one knows {})", path_, schema, kSchema));
  }
  Statement statement;
  int code = statement.Prepare(db_, "PRAGMA quick_check(1)");
  if (code == SQLITE_OK) code = statement.Step();
  if (code != SQLITE_ROW) return Error(code, "check its pages");
  if (const std::string found = statement.Text(0); found != "ok")
    return absl::DataLossError(fmt::format("{}: it is damaged: {}", path_, Printable(found, 256)));
  return absl::OkStatus();
}

absl::Status RecordFile::Load(Opened* opened) {
  BERTH_ASSIGN_OR_RETURN(const int64_t revision, QueryNumber("SELECT revision FROM meta"));
  opened->revision = static_cast<uint64_t>(revision);
  Statement statement;
  int code = statement.Prepare(db_, "SELECT key, value, modified, checksum FROM records");
  if (code != SQLITE_OK) return Error(code, "read");
  while ((code = statement.Step()) == SQLITE_ROW) {
    std::string key = statement.Text(0);
    RecordValue value{.value = statement.Text(1), .modified = static_cast<uint64_t>(statement.Number(2))};
    if (statement.Text(3) != Checksum(key, value) || value.modified > opened->revision) {
      return absl::DataLossError(
          fmt::format("{}: the record {} is not as it was written", path_, Printable(key, 256)));
    }
    opened->records[std::move(key)] = std::move(value);
  }
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "read");
}

absl::Status RecordFile::WriteAll(const std::vector<RecordChange>& changes, uint64_t revision) {
  BERTH_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  Statement put;
  Statement remove;
  Statement meta;
  int code = put.Prepare(db_,
                         "INSERT INTO records(key, value, modified, checksum) VALUES(?1, ?2, ?3, ?4) "
                         "ON CONFLICT(key) DO UPDATE SET value = ?2, modified = ?3, checksum = ?4");
  if (code == SQLITE_OK) code = remove.Prepare(db_, "DELETE FROM records WHERE key = ?1");
  if (code == SQLITE_OK) code = meta.Prepare(db_, "UPDATE meta SET revision = ?1");
  for (const auto& [key, value] : changes) {
    if (code != SQLITE_OK) break;
    Statement& statement = value == nullptr ? remove : put;
    const std::string checksum = value == nullptr ? "" : Checksum(key, *value);
    code = statement.Bind(1, key);
    if (code == SQLITE_OK && value != nullptr) code = statement.Bind(2, value->value);
    if (code == SQLITE_OK && value != nullptr) code = statement.Bind(3, value->modified);
    if (code == SQLITE_OK && value != nullptr) code = statement.Bind(4, checksum);
    if (code == SQLITE_OK) code = statement.Step();
    if (code == SQLITE_DONE) code = SQLITE_OK;
    if (code == SQLITE_OK) statement.Reset();
  }
  if (code == SQLITE_OK) code = meta.Bind(1, revision);
  if (code == SQLITE_OK) code = meta.Step();
  if (code != SQLITE_DONE) return Error(code, "write");
  meta.Reset();
  return Execute("COMMIT");
}

absl::Status RecordFile::Write(const std::vector<RecordChange>& changes, uint64_t revision) {
  absl::Status status = WriteAll(changes, revision);
  if (status.ok()) {
    // It is durable in the log, whatever becomes of moving it. On a full disk the log just grows.
    const absl::Status moved = Checkpoint();
    return absl::IsResourceExhausted(moved) ? absl::OkStatus() : moved;
  }
  // A full disk refuses before anything is synced: a rollback is enough.
  const bool is_idle = sqlite3_get_autocommit(db_) != 0;
  if (absl::IsResourceExhausted(status) && !is_idle && !Execute("ROLLBACK").ok())
    return absl::UnavailableError(status.message());
  return status;
}

absl::Status RecordFile::Checkpoint() {
  if (log_frames_ < kFramesOfLog) return absl::OkStatus();
  const int code = sqlite3_wal_checkpoint_v2(db_, "main", SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, "checkpoint");
}

absl::Status RecordFile::Rewrite(const RecordMap& records, uint64_t revision) {
  Disconnect(/*checkpoint=*/false);
  const uint64_t next = number_ + 1;
  const std::string made = Path(next) + ".new";
  for (const char* const end : {"-wal", "-shm", "-journal", ""}) BERTH_RETURN_IF_ERROR(Remove(made + end));
  BERTH_RETURN_IF_ERROR(Connect(made, /*is_new=*/true));
  std::vector<RecordChange> all;
  for (const auto& [key, value] : records) all.emplace_back(key, &value);
  absl::Status status = Execute(
      "CREATE TABLE records(key BLOB PRIMARY KEY, value BLOB NOT NULL, modified INTEGER NOT NULL, checksum "
      "BLOB NOT "
      "NULL);CREATE TABLE meta(revision INTEGER NOT NULL);INSERT INTO meta VALUES(0)");
  if (status.ok()) status = WriteAll(all, revision);
  // Everything into the file itself, so that it is whole without a log.
  if (status.ok()) status = Execute("PRAGMA journal_mode=DELETE");
  Disconnect(/*checkpoint=*/false);
  BERTH_RETURN_IF_ERROR(status);
  if (rename(made.c_str(), Path(next).c_str()) != 0)
    return ErrnoStatus(errno, fmt::format("rename {}", made));
  // From here on the new file counts.
  number_ = next;
  BERTH_RETURN_IF_ERROR(SyncParent(made));
  BERTH_RETURN_IF_ERROR(Connect(Path(next), /*is_new=*/false));
  RemoveOthers();
  return absl::OkStatus();
}

uint64_t RecordFile::FreeBytes() const {
  struct statvfs info{};
  if (statvfs(options_.directory.c_str(), &info) != 0) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace berth::scheduler
