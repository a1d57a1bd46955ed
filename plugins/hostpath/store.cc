#include "plugins/hostpath/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <sys/statvfs.h>

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

constexpr int kSchemaVersion = 1;

// Of the write-ahead log, for deletions on a full disk: twice its size before it is moved into the file and
// begun again.
constexpr off_t kReservedBytes = 512 << 10;

constexpr const char* kClaimed =
    "SELECT (SELECT coalesce(sum(capacity), 0) FROM volumes) + "
    "(SELECT coalesce(sum(size), 0) FROM snapshots)";
constexpr const char* kForgetStaging = "DELETE FROM stagings WHERE volume_id = ?";
constexpr const char* kForgetPublication = "DELETE FROM publications WHERE target = ?";

// AUTOINCREMENT: a sequence number is never given out again, so that a paging token stays meaningful after
// the volume that it points at is gone.
constexpr const char* kSchema = R"sql(
CREATE TABLE volumes (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL UNIQUE,
  lifecycle INTEGER NOT NULL,
  kind TEXT NOT NULL,
  fs_type TEXT NOT NULL,
  capacity INTEGER NOT NULL,
  format INTEGER NOT NULL,
  grow_pending INTEGER NOT NULL,
  preallocate INTEGER NOT NULL,
  direct_io INTEGER NOT NULL,
  parameters TEXT NOT NULL,
  source_snapshot TEXT NOT NULL,
  source_volume TEXT NOT NULL
) STRICT;
CREATE TABLE snapshots (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL UNIQUE,
  lifecycle INTEGER NOT NULL,
  source_volume TEXT NOT NULL,
  kind TEXT NOT NULL,
  fs_type TEXT NOT NULL,
  size INTEGER NOT NULL,
  format INTEGER NOT NULL,
  grow_pending INTEGER NOT NULL,
  created_ns INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_by_source ON snapshots (source_volume, sequence);
CREATE TABLE attachments (
  volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
  node_id TEXT NOT NULL,
  capability TEXT NOT NULL,
  read_only INTEGER NOT NULL,
  several_nodes INTEGER NOT NULL,
  PRIMARY KEY (volume_id, node_id)
) STRICT;
CREATE TABLE stagings (
  volume_id TEXT PRIMARY KEY REFERENCES volumes (id) ON DELETE CASCADE,
  path TEXT NOT NULL UNIQUE,
  capability TEXT NOT NULL,
  block INTEGER NOT NULL,
  read_only INTEGER NOT NULL,
  complete INTEGER NOT NULL
) STRICT;
CREATE TABLE publications (
  target TEXT PRIMARY KEY,
  volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
  capability TEXT NOT NULL,
  mode INTEGER NOT NULL,
  block INTEGER NOT NULL,
  asked_read_only INTEGER NOT NULL,
  read_only INTEGER NOT NULL,
  complete INTEGER NOT NULL
) STRICT;
CREATE INDEX publications_by_volume ON publications (volume_id);
)sql";

// The columns of each table, in the order of kSchema. Tables that number their rows have the number before
// them.
template <class Record>
auto Columns(Record& r) {
  using Table = std::remove_const_t<Record>;
  if constexpr (std::same_as<Table, VolumeRecord>) {
    return std::tie(r.id, r.name, r.lifecycle, r.kind, r.fs_type, r.capacity, r.format, r.grow_pending,
                    r.preallocate, r.direct_io, r.parameters, r.source_snapshot, r.source_volume);
  } else if constexpr (std::same_as<Table, SnapshotRecord>) {
    return std::tie(r.id, r.name, r.lifecycle, r.source_volume, r.kind, r.fs_type, r.size, r.format,
                    r.grow_pending, r.created_ns);
  } else if constexpr (std::same_as<Table, Attachment>) {
    return std::tie(r.volume_id, r.node_id, r.capability, r.read_only, r.several_nodes);
  } else if constexpr (std::same_as<Table, Staging>) {
    return std::tie(r.volume_id, r.path, r.capability, r.block, r.read_only, r.complete);
  } else {
    static_assert(std::same_as<Table, Publication>);
    return std::tie(r.target, r.volume_id, r.capability, r.mode, r.block, r.asked_read_only, r.read_only,
                    r.complete);
  }
}

template <class Record>
constexpr bool kNumbered = requires(Record record) { record.sequence; };

template <class Record>
absl::StatusOr<Record> OnlyOne(absl::StatusOr<std::vector<Record>> records, std::string_view what,
                               std::string_view key) {
  if (!records.ok()) return records.status();
  if (records->empty()) {
    return absl::NotFoundError(fmt::format("there is no {} {}", what, Printable(key, 128)));
  }
  return std::move(records->front());
}

template <class Record>
absl::StatusOr<std::optional<Record>> AtMostOne(absl::StatusOr<std::vector<Record>> records) {
  if (!records.ok()) return records.status();
  if (records->empty()) return std::optional<Record>();
  return std::optional<Record>(std::move(records->front()));
}

}  // namespace

// A prepared statement with its parameters bound in order.
class Store::Statement {
 public:
  template <class... Values>
  Statement(sqlite3* database, std::string_view sql, const Values&... values) {
    sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr);
    (Bind(values), ...);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // A statement that could not be prepared fails here.
  int Step() {
    column_ = 0;
    return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
  }

  // The next column of the row.
  void Read(std::string& value) {
    const int column = column_++;
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    if (text != nullptr) value.assign(text, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }
  void Read(Kind& value) {
    std::string name;
    Read(name);
    value = ParseKind(name).value_or(Kind::kDirectory);
  }
  template <class Number>
  void Read(Number& value) {
    value = static_cast<Number>(sqlite3_column_int64(statement_, column_++));
  }

 private:
  void Bind(std::string_view text) {
    // With a null pointer the parameter would be NULL, not empty.
    sqlite3_bind_text(statement_, ++bound_, text.empty() ? "" : text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  void Bind(Kind kind) { Bind(KindName(kind)); }
  template <class Number>
    requires std::integral<Number> || std::is_enum_v<Number>
  void Bind(Number number) {
    sqlite3_bind_int64(statement_, ++bound_, static_cast<int64_t>(number));
  }

  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  int column_ = 0;
};

template <class... Values>
absl::Status Store::Change(std::string_view what, std::string_view sql, const Values&... values) {
  return Statement(database_, sql, values...).Step() == SQLITE_DONE ? absl::OkStatus() : Failure(what);
}

template <class Record>
absl::Status Store::Insert(std::string_view what, std::string_view into, const Record& record) {
  return std::apply(
      [&](const auto&... values) {
        std::string marks = kNumbered<Record> ? "NULL" : "";
        for (size_t i = 0; i < sizeof...(values); i++) marks += marks.empty() ? "?" : ", ?";
        return Change(what, fmt::format("{} VALUES ({})", into, marks), values...);
      },
      Columns(record));
}

template <class Record, class... Values>
absl::StatusOr<std::vector<Record>> Store::Rows(std::string_view sql, const Values&... values) {
  Statement statement(database_, sql, values...);
  std::vector<Record> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    Record& record = records.emplace_back();
    if constexpr (kNumbered<Record>) statement.Read(record.sequence);
    std::apply([&](auto&... fields) { (statement.Read(fields), ...); }, Columns(record));
    if (IsUndone(record)) records.pop_back();
  }
  if (result != SQLITE_DONE) return Failure("read state");
  return records;
}

template <class... Values>
absl::StatusOr<int64_t> Store::Number(std::string_view sql, const Values&... values) {
  Statement statement(database_, sql, values...);
  const int result = statement.Step();
  int64_t number = 0;
  if (result == SQLITE_ROW) statement.Read(number);
  if (result == SQLITE_ROW || result == SQLITE_DONE) return number;
  return Failure("read state");
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
  std::unique_ptr<Store> store(new Store(database, path));
  if (result != SQLITE_OK) return store->Failure(fmt::format("open {}", path));
  for (const char* pragma :
       {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON",
        "PRAGMA busy_timeout = 5000", "PRAGMA wal_autocheckpoint = 64"}) {
    BERTH_RETURN_IF_ERROR(Annotate(store->Execute(pragma), path));
  }
  BERTH_RETURN_IF_ERROR(Annotate(store->Migrate(), path));
  // Where it cannot be had, the disk is full already.
  const UniqueFd log(open((path + "-wal").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (log.valid()) {
    [[maybe_unused]] const int reserved = fallocate(log.get(), FALLOC_FL_KEEP_SIZE, 0, kReservedBytes);
  }
  return store;
}

Store::~Store() { sqlite3_close(database_); }

absl::Status Store::Failure(std::string_view what) {
  const std::string message = fmt::format("{}: {}", what, sqlite3_errmsg(database_));
  if (sqlite3_errcode(database_) == SQLITE_FULL) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status Store::Execute(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  absl::Status status = Failure("state database");
  // A statement that failed in the middle leaves the transaction open.
  if (sqlite3_get_autocommit(database_) == 0) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status Store::Migrate() {
  BERTH_ASSIGN_OR_RETURN(const int64_t version, Number("PRAGMA user_version"));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "the state has version {}, made by a newer program; this one knows {}", version, kSchemaVersion));
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  return Execute(
      fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT", kSchema, kSchemaVersion).c_str());
}

absl::Status Store::Check() {
  const std::lock_guard lock(mutex_);
  MakeUp();
  return Number("SELECT count(*) FROM volumes WHERE sequence < 0").status();
}

absl::Status Store::Claim(int64_t bytes, int64_t pool) {
  if (pool <= 0) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const int64_t claimed, Number(kClaimed));
  if (bytes <= pool - claimed) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "the pool has {} bytes, {} of them are allocated: {} more do not fit", pool, claimed, bytes));
}

absl::StatusOr<int64_t> Store::ClaimedBytes() {
  const std::lock_guard lock(mutex_);
  return Number(kClaimed);
}

absl::StatusOr<VolumeRecord> Store::GetVolume(std::string_view id) {
  const std::lock_guard lock(mutex_);
  return OnlyOne(Rows<VolumeRecord>("SELECT * FROM volumes WHERE id = ?", id), "volume", id);
}

absl::StatusOr<VolumeRecord> Store::GetVolumeByName(std::string_view name) {
  const std::lock_guard lock(mutex_);
  return OnlyOne(Rows<VolumeRecord>("SELECT * FROM volumes WHERE name = ?", name), "volume named", name);
}

absl::StatusOr<std::vector<VolumeRecord>> Store::ListVolumes(int64_t after, int64_t limit) {
  const std::lock_guard lock(mutex_);
  return Rows<VolumeRecord>(
      "SELECT * FROM volumes WHERE lifecycle = ? AND sequence > ? ORDER BY sequence LIMIT ?",
      Lifecycle::kReady, after, limit == 0 ? -1 : limit);
}

absl::StatusOr<std::vector<VolumeRecord>> Store::UnfinishedVolumes() {
  const std::lock_guard lock(mutex_);
  return Rows<VolumeRecord>("SELECT * FROM volumes WHERE lifecycle <> ?", Lifecycle::kReady);
}

absl::Status Store::InsertVolume(const VolumeRecord& volume, int64_t pool) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  BERTH_RETURN_IF_ERROR(Claim(volume.capacity, pool));
  return Insert("record a volume", "INSERT INTO volumes", volume);
}

absl::Status Store::SetVolumeLifecycle(std::string_view id, Lifecycle lifecycle) {
  const std::lock_guard lock(mutex_);
  return Change("record a volume's state", "UPDATE volumes SET lifecycle = ? WHERE id = ?", lifecycle, id);
}

absl::Status Store::SetVolumeFormat(std::string_view id, FormatState format) {
  const std::lock_guard lock(mutex_);
  return Change("record a volume's format", "UPDATE volumes SET format = ? WHERE id = ?", format, id);
}

absl::Status Store::SetVolumeGrowPending(std::string_view id, bool pending) {
  const std::lock_guard lock(mutex_);
  return Change("record a volume's growth", "UPDATE volumes SET grow_pending = ? WHERE id = ?", pending, id);
}

absl::Status Store::GrowVolume(std::string_view id, int64_t capacity, bool grow_pending, int64_t pool) {
  const std::lock_guard lock(mutex_);
  BERTH_ASSIGN_OR_RETURN(const int64_t present, Number("SELECT capacity FROM volumes WHERE id = ?", id));
  BERTH_RETURN_IF_ERROR(Claim(capacity - present, pool));
  return Change("record a volume's size", "UPDATE volumes SET capacity = ?, grow_pending = ? WHERE id = ?",
                capacity, grow_pending, id);
}

absl::Status Store::DeleteVolume(std::string_view id) {
  const std::lock_guard lock(mutex_);
  return Change("forget a volume", "DELETE FROM volumes WHERE id = ?", id);
}

absl::StatusOr<SnapshotRecord> Store::GetSnapshot(std::string_view id) {
  const std::lock_guard lock(mutex_);
  return OnlyOne(Rows<SnapshotRecord>("SELECT * FROM snapshots WHERE id = ?", id), "snapshot", id);
}

absl::StatusOr<SnapshotRecord> Store::GetSnapshotByName(std::string_view name) {
  const std::lock_guard lock(mutex_);
  return OnlyOne(Rows<SnapshotRecord>("SELECT * FROM snapshots WHERE name = ?", name), "snapshot named",
                 name);
}

absl::StatusOr<std::vector<SnapshotRecord>> Store::ListSnapshots(std::string_view source_volume,
                                                                 int64_t after, int64_t limit) {
  const std::lock_guard lock(mutex_);
  // Two statements, so that either can use its index.
  const int64_t most = limit == 0 ? -1 : limit;
  if (source_volume.empty()) {
    return Rows<SnapshotRecord>(
        "SELECT * FROM snapshots WHERE lifecycle = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        Lifecycle::kReady, after, most);
  }
  return Rows<SnapshotRecord>(
      "SELECT * FROM snapshots WHERE lifecycle = ? AND sequence > ? AND source_volume = ? "
      "ORDER BY sequence LIMIT ?",
      Lifecycle::kReady, after, source_volume, most);
}

absl::StatusOr<std::vector<SnapshotRecord>> Store::UnfinishedSnapshots() {
  const std::lock_guard lock(mutex_);
  return Rows<SnapshotRecord>("SELECT * FROM snapshots WHERE lifecycle <> ?", Lifecycle::kReady);
}

absl::Status Store::InsertSnapshot(const SnapshotRecord& snapshot, int64_t pool) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  BERTH_RETURN_IF_ERROR(Claim(snapshot.size, pool));
  return Insert("record a snapshot", "INSERT INTO snapshots", snapshot);
}

absl::Status Store::FinishSnapshot(std::string_view id, int64_t created_ns) {
  const std::lock_guard lock(mutex_);
  return Change("record a snapshot's state",
                "UPDATE snapshots SET lifecycle = ?, created_ns = ? WHERE id = ?", Lifecycle::kReady,
                created_ns, id);
}

absl::Status Store::SetSnapshotLifecycle(std::string_view id, Lifecycle lifecycle) {
  const std::lock_guard lock(mutex_);
  return Change("record a snapshot's state", "UPDATE snapshots SET lifecycle = ? WHERE id = ?", lifecycle,
                id);
}

absl::Status Store::DeleteSnapshot(std::string_view id) {
  const std::lock_guard lock(mutex_);
  return Change("forget a snapshot", "DELETE FROM snapshots WHERE id = ?", id);
}

absl::StatusOr<int64_t> Store::LastVolumeSequence() {
  const std::lock_guard lock(mutex_);
  return Number("SELECT seq FROM sqlite_sequence WHERE name = 'volumes'");
}

absl::StatusOr<int64_t> Store::LastSnapshotSequence() {
  const std::lock_guard lock(mutex_);
  return Number("SELECT seq FROM sqlite_sequence WHERE name = 'snapshots'");
}

absl::StatusOr<std::vector<Attachment>> Store::AttachmentsOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  return Rows<Attachment>("SELECT * FROM attachments WHERE volume_id = ? ORDER BY node_id", volume_id);
}

absl::Status Store::PutAttachment(const Attachment& attachment, int64_t limit) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  BERTH_ASSIGN_OR_RETURN(const int64_t others,
                         Number("SELECT count(*) FROM attachments WHERE node_id = ? AND volume_id <> ?",
                                attachment.node_id, attachment.volume_id));
  if (limit > 0 && others >= limit) {
    return absl::ResourceExhaustedError(fmt::format("{} volumes are attached to node {}, which is its limit",
                                                    others, Printable(attachment.node_id, 256)));
  }
  return Insert("record an attachment", "INSERT OR REPLACE INTO attachments", attachment);
}

absl::Status Store::DeleteAttachment(std::string_view volume_id, std::string_view node_id) {
  const std::lock_guard lock(mutex_);
  return Change("forget an attachment",
                "DELETE FROM attachments WHERE volume_id = ?1 AND (node_id = ?2 OR ?2 = '')", volume_id,
                node_id);
}

absl::StatusOr<std::optional<Staging>> Store::StagingOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  return AtMostOne(Rows<Staging>("SELECT * FROM stagings WHERE volume_id = ?", volume_id));
}

absl::StatusOr<std::optional<Staging>> Store::StagingAt(std::string_view path) {
  const std::lock_guard lock(mutex_);
  return AtMostOne(Rows<Staging>("SELECT * FROM stagings WHERE path = ?", path));
}

absl::Status Store::PutStaging(const Staging& staging, int64_t limit) {
  const std::lock_guard lock(mutex_);
  if (!staging.complete) BERTH_RETURN_IF_ERROR(HasRoom());
  MakeUp();
  BERTH_ASSIGN_OR_RETURN(const int64_t others,
                         Number("SELECT count(*) FROM stagings WHERE volume_id <> ?", staging.volume_id));
  if (limit > 0 && others >= limit) {
    return absl::ResourceExhaustedError(
        fmt::format("{} volumes are staged on this node, which is its limit", others));
  }
  BERTH_RETURN_IF_ERROR(Insert("record a staging", "INSERT OR REPLACE INTO stagings", staging));
  undone_stagings_.erase(staging.volume_id);
  return absl::OkStatus();
}

absl::Status Store::DeleteStaging(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  return Forget(kForgetStaging, volume_id, &undone_stagings_, "forget a staging");
}

absl::StatusOr<std::vector<Publication>> Store::PublicationsOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  return Rows<Publication>("SELECT * FROM publications WHERE volume_id = ? ORDER BY target", volume_id);
}

absl::StatusOr<std::optional<Publication>> Store::PublicationAt(std::string_view target) {
  const std::lock_guard lock(mutex_);
  return AtMostOne(Rows<Publication>("SELECT * FROM publications WHERE target = ?", target));
}

absl::Status Store::PutPublication(const Publication& publication) {
  const std::lock_guard lock(mutex_);
  if (!publication.complete) BERTH_RETURN_IF_ERROR(HasRoom());
  MakeUp();
  BERTH_RETURN_IF_ERROR(Insert("record a publication", "INSERT OR REPLACE INTO publications", publication));
  undone_publications_.erase(publication.target);
  return absl::OkStatus();
}

absl::Status Store::DeletePublication(std::string_view target) {
  const std::lock_guard lock(mutex_);
  return Forget(kForgetPublication, target, &undone_publications_, "forget a publication");
}

absl::Status Store::HasRoom() const {
  struct statvfs disk{};
  if (statvfs(path_.c_str(), &disk) != 0) return absl::OkStatus();  // writing will show it
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (free >= static_cast<uint64_t>(kReservedBytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{}: {} bytes are free on its disk; with less than {} nothing new is begun", path_, free,
                  kReservedBytes));
}

absl::Status Store::Forget(const char* sql, std::string_view key, std::set<std::string, std::less<>>* undone,
                           std::string_view what) {
  const int code = Statement(database_, sql, key).Step();
  if (code == SQLITE_DONE) return absl::OkStatus();
  const absl::Status failure = Failure(what);
  if (code != SQLITE_FULL && code != SQLITE_IOERR && code != SQLITE_READONLY) return failure;
  SPDLOG_WARN("{} {}: {}; it is written as soon as the disk takes it", what, Printable(key, 256),
              MessageOf(failure));
  undone->emplace(key);
  return absl::OkStatus();
}

void Store::MakeUp() {
  const auto all = [this](const char* sql, std::set<std::string, std::less<>>* undone) {
    std::erase_if(*undone, [&](const std::string& key) {
      return Statement(database_, sql, key).Step() == SQLITE_DONE;
    });
  };
  all(kForgetStaging, &undone_stagings_);
  all(kForgetPublication, &undone_publications_);
}

}  // namespace berth::hostpath
