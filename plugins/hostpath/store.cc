#include "plugins/hostpath/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <sys/statvfs.h>

#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

constexpr int kSchemaVersion = 1;

// Of the write-ahead log, for what is forgotten on a full disk: twice what it holds before it is moved into
// the file and begun anew.
constexpr off_t kReservedBytes = 512 << 10;

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

constexpr std::string_view kVolumeColumns =
    "sequence, id, name, lifecycle, kind, fs_type, capacity, format, grow_pending, preallocate, direct_io, "
    "parameters, source_snapshot, source_volume";
constexpr std::string_view kSnapshotColumns =
    "sequence, id, name, lifecycle, source_volume, kind, fs_type, size, format, grow_pending, created_ns";
constexpr std::string_view kStagingColumns = "volume_id, path, capability, block, read_only, complete";
constexpr std::string_view kPublicationColumns =
    "target, volume_id, capability, mode, block, asked_read_only, read_only, complete";

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

// A prepared statement with its parameters bound in order. Column and Bind positions count up by themselves.
class Store::Statement {
 public:
  Statement(sqlite3* database, std::string_view sql) {
    sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(std::string_view text) {
    // With a null pointer the parameter would be NULL, not empty.
    sqlite3_bind_text(statement_, ++bound_, text.empty() ? "" : text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Statement& Bind(int64_t number) {
    sqlite3_bind_int64(statement_, ++bound_, number);
    return *this;
  }

  // A statement that could not be prepared fails here.
  int Step() {
    column_ = 0;
    return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
  }

  std::string Text() {
    const int column = column_++;
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    if (text == nullptr) return {};
    return {text, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }
  int64_t Int() { return sqlite3_column_int64(statement_, column_++); }
  bool Bool() { return Int() != 0; }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  int column_ = 0;
};

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
  std::unique_ptr<Store> store(new Store(database, path));
  if (result != SQLITE_OK) return store->Failure(fmt::format("open {}", path));
  for (const char* pragma :
       {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON",
        "PRAGMA busy_timeout = 5000", "PRAGMA wal_autocheckpoint = 64"}) {
    BERTH_RETURN_IF_ERROR(Annotate(store->Run(pragma), path));
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

absl::Status Store::Run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  absl::Status status = Failure("state database");
  // A statement that failed in the middle leaves the transaction open.
  if (sqlite3_get_autocommit(database_) == 0) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status Store::Migrate() {
  int64_t version = 0;
  {
    Statement statement(database_, "PRAGMA user_version");
    BERTH_ASSIGN_OR_RETURN(version, Number(statement));
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "the state has version {}, made by a newer program; this one knows {}", version, kSchemaVersion));
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  return Run(
      fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT", kSchema, kSchemaVersion).c_str());
}

absl::StatusOr<int64_t> Store::Number(Statement& statement) {
  const int result = statement.Step();
  if (result == SQLITE_ROW) return statement.Int();
  if (result == SQLITE_DONE) return 0;
  return Failure("read state");
}

absl::Status Store::Check() {
  const std::lock_guard lock(mutex_);
  MakeUp();
  Statement statement(database_, "SELECT count(*) FROM volumes WHERE sequence < 0");
  return Number(statement).status();
}

absl::Status Store::Claim(int64_t bytes, int64_t pool) {
  if (pool <= 0) return absl::OkStatus();
  Statement statement(database_,
                      "SELECT (SELECT coalesce(sum(capacity), 0) FROM volumes) + "
                      "(SELECT coalesce(sum(size), 0) FROM snapshots)");
  int64_t claimed = 0;
  BERTH_ASSIGN_OR_RETURN(claimed, Number(statement));
  if (bytes <= pool - claimed) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "the pool has {} bytes, of which {} are given away: {} more do not fit", pool, claimed, bytes));
}

absl::StatusOr<int64_t> Store::ClaimedBytes() {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      "SELECT (SELECT coalesce(sum(capacity), 0) FROM volumes) + "
                      "(SELECT coalesce(sum(size), 0) FROM snapshots)");
  return Number(statement);
}

absl::StatusOr<std::vector<VolumeRecord>> Store::ReadVolumes(Statement& statement) {
  std::vector<VolumeRecord> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    VolumeRecord& record = records.emplace_back();
    record.sequence = statement.Int();
    record.id = statement.Text();
    record.name = statement.Text();
    record.lifecycle = static_cast<Lifecycle>(statement.Int());
    record.kind = ParseKind(statement.Text()).value_or(Kind::kDirectory);
    record.fs_type = statement.Text();
    record.capacity = statement.Int();
    record.format = static_cast<FormatState>(statement.Int());
    record.grow_pending = statement.Bool();
    record.preallocate = statement.Bool();
    record.direct_io = statement.Bool();
    record.parameters = statement.Text();
    record.source_snapshot = statement.Text();
    record.source_volume = statement.Text();
  }
  if (result != SQLITE_DONE) return Failure("read volumes");
  return records;
}

absl::StatusOr<VolumeRecord> Store::GetVolume(std::string_view id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM volumes WHERE id = ?", kVolumeColumns));
  statement.Bind(id);
  return OnlyOne(ReadVolumes(statement), "volume", id);
}

absl::StatusOr<VolumeRecord> Store::GetVolumeByName(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM volumes WHERE name = ?", kVolumeColumns));
  statement.Bind(name);
  return OnlyOne(ReadVolumes(statement), "volume named", name);
}

absl::StatusOr<std::vector<VolumeRecord>> Store::ListVolumes(int64_t after, int64_t limit) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM volumes WHERE lifecycle = ? AND sequence > ? "
                                             "ORDER BY sequence LIMIT ?",
                                             kVolumeColumns));
  statement.Bind(static_cast<int64_t>(Lifecycle::kReady)).Bind(after).Bind(limit == 0 ? -1 : limit);
  return ReadVolumes(statement);
}

absl::StatusOr<std::vector<VolumeRecord>> Store::UnfinishedVolumes() {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM volumes WHERE lifecycle <> ?", kVolumeColumns));
  statement.Bind(static_cast<int64_t>(Lifecycle::kReady));
  return ReadVolumes(statement);
}

absl::Status Store::InsertVolume(const VolumeRecord& volume, int64_t pool) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  BERTH_RETURN_IF_ERROR(Claim(volume.capacity, pool));
  Statement statement(
      database_,
      "INSERT INTO volumes (id, name, lifecycle, kind, fs_type, capacity, format, grow_pending, "
      "preallocate, direct_io, parameters, source_snapshot, source_volume) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  statement.Bind(volume.id)
      .Bind(volume.name)
      .Bind(static_cast<int64_t>(volume.lifecycle))
      .Bind(KindName(volume.kind))
      .Bind(volume.fs_type)
      .Bind(volume.capacity)
      .Bind(static_cast<int64_t>(volume.format))
      .Bind(int64_t{volume.grow_pending})
      .Bind(int64_t{volume.preallocate})
      .Bind(int64_t{volume.direct_io})
      .Bind(volume.parameters)
      .Bind(volume.source_snapshot)
      .Bind(volume.source_volume);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a volume");
}

absl::Status Store::SetVolumeLifecycle(std::string_view id, Lifecycle lifecycle) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "UPDATE volumes SET lifecycle = ? WHERE id = ?");
  statement.Bind(static_cast<int64_t>(lifecycle)).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a volume's state");
}

absl::Status Store::SetVolumeFormat(std::string_view id, FormatState format) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "UPDATE volumes SET format = ? WHERE id = ?");
  statement.Bind(static_cast<int64_t>(format)).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a volume's format");
}

absl::Status Store::SetVolumeGrowPending(std::string_view id, bool pending) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "UPDATE volumes SET grow_pending = ? WHERE id = ?");
  statement.Bind(int64_t{pending}).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a volume's growth");
}

absl::Status Store::GrowVolume(std::string_view id, int64_t capacity, bool grow_pending, int64_t pool) {
  const std::lock_guard lock(mutex_);
  int64_t present = 0;
  {
    Statement statement(database_, "SELECT capacity FROM volumes WHERE id = ?");
    statement.Bind(id);
    BERTH_ASSIGN_OR_RETURN(present, Number(statement));
  }
  BERTH_RETURN_IF_ERROR(Claim(capacity - present, pool));
  Statement statement(database_, "UPDATE volumes SET capacity = ?, grow_pending = ? WHERE id = ?");
  statement.Bind(capacity).Bind(int64_t{grow_pending}).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a volume's size");
}

absl::Status Store::DeleteVolume(std::string_view id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "DELETE FROM volumes WHERE id = ?");
  statement.Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("forget a volume");
}

absl::StatusOr<std::vector<SnapshotRecord>> Store::ReadSnapshots(Statement& statement) {
  std::vector<SnapshotRecord> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    SnapshotRecord& record = records.emplace_back();
    record.sequence = statement.Int();
    record.id = statement.Text();
    record.name = statement.Text();
    record.lifecycle = static_cast<Lifecycle>(statement.Int());
    record.source_volume = statement.Text();
    record.kind = ParseKind(statement.Text()).value_or(Kind::kDirectory);
    record.fs_type = statement.Text();
    record.size = statement.Int();
    record.format = static_cast<FormatState>(statement.Int());
    record.grow_pending = statement.Bool();
    record.created_ns = statement.Int();
  }
  if (result != SQLITE_DONE) return Failure("read snapshots");
  return records;
}

absl::StatusOr<SnapshotRecord> Store::GetSnapshot(std::string_view id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM snapshots WHERE id = ?", kSnapshotColumns));
  statement.Bind(id);
  return OnlyOne(ReadSnapshots(statement), "snapshot", id);
}

absl::StatusOr<SnapshotRecord> Store::GetSnapshotByName(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM snapshots WHERE name = ?", kSnapshotColumns));
  statement.Bind(name);
  return OnlyOne(ReadSnapshots(statement), "snapshot named", name);
}

absl::StatusOr<std::vector<SnapshotRecord>> Store::ListSnapshots(std::string_view source_volume,
                                                                 int64_t after, int64_t limit) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      fmt::format("SELECT {} FROM snapshots WHERE lifecycle = ? AND sequence > ? {} "
                                  "ORDER BY sequence LIMIT ?",
                                  kSnapshotColumns, source_volume.empty() ? "" : "AND source_volume = ?"));
  statement.Bind(static_cast<int64_t>(Lifecycle::kReady)).Bind(after);
  if (!source_volume.empty()) statement.Bind(source_volume);
  statement.Bind(limit == 0 ? -1 : limit);
  return ReadSnapshots(statement);
}

absl::StatusOr<std::vector<SnapshotRecord>> Store::UnfinishedSnapshots() {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      fmt::format("SELECT {} FROM snapshots WHERE lifecycle <> ?", kSnapshotColumns));
  statement.Bind(static_cast<int64_t>(Lifecycle::kReady));
  return ReadSnapshots(statement);
}

absl::Status Store::InsertSnapshot(const SnapshotRecord& snapshot, int64_t pool) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  BERTH_RETURN_IF_ERROR(Claim(snapshot.size, pool));
  Statement statement(
      database_,
      "INSERT INTO snapshots (id, name, lifecycle, source_volume, kind, fs_type, size, format, "
      "grow_pending, created_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  statement.Bind(snapshot.id)
      .Bind(snapshot.name)
      .Bind(static_cast<int64_t>(snapshot.lifecycle))
      .Bind(snapshot.source_volume)
      .Bind(KindName(snapshot.kind))
      .Bind(snapshot.fs_type)
      .Bind(snapshot.size)
      .Bind(static_cast<int64_t>(snapshot.format))
      .Bind(int64_t{snapshot.grow_pending})
      .Bind(snapshot.created_ns);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a snapshot");
}

absl::Status Store::FinishSnapshot(std::string_view id, int64_t created_ns) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "UPDATE snapshots SET lifecycle = ?, created_ns = ? WHERE id = ?");
  statement.Bind(static_cast<int64_t>(Lifecycle::kReady)).Bind(created_ns).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a snapshot's state");
}

absl::Status Store::SetSnapshotLifecycle(std::string_view id, Lifecycle lifecycle) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "UPDATE snapshots SET lifecycle = ? WHERE id = ?");
  statement.Bind(static_cast<int64_t>(lifecycle)).Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record a snapshot's state");
}

absl::Status Store::DeleteSnapshot(std::string_view id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "DELETE FROM snapshots WHERE id = ?");
  statement.Bind(id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("forget a snapshot");
}

absl::StatusOr<int64_t> Store::LastVolumeSequence() {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "SELECT seq FROM sqlite_sequence WHERE name = 'volumes'");
  return Number(statement);
}

absl::StatusOr<int64_t> Store::LastSnapshotSequence() {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, "SELECT seq FROM sqlite_sequence WHERE name = 'snapshots'");
  return Number(statement);
}

absl::StatusOr<std::vector<Attachment>> Store::AttachmentsOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      "SELECT volume_id, node_id, capability, read_only, several_nodes FROM attachments "
                      "WHERE volume_id = ? ORDER BY node_id");
  statement.Bind(volume_id);
  std::vector<Attachment> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    Attachment& record = records.emplace_back();
    record.volume_id = statement.Text();
    record.node_id = statement.Text();
    record.capability = statement.Text();
    record.read_only = statement.Bool();
    record.several_nodes = statement.Bool();
  }
  if (result != SQLITE_DONE) return Failure("read attachments");
  return records;
}

absl::Status Store::PutAttachment(const Attachment& attachment, int64_t limit) {
  const std::lock_guard lock(mutex_);
  BERTH_RETURN_IF_ERROR(HasRoom());
  if (limit > 0) {
    Statement others(database_, "SELECT count(*) FROM attachments WHERE node_id = ? AND volume_id <> ?");
    others.Bind(attachment.node_id).Bind(attachment.volume_id);
    int64_t count = 0;
    BERTH_ASSIGN_OR_RETURN(count, Number(others));
    if (count >= limit) {
      return absl::ResourceExhaustedError(
          fmt::format("{} volumes are attached to node {}, which is its limit", count,
                      Printable(attachment.node_id, 256)));
    }
  }
  Statement statement(database_, "INSERT OR REPLACE INTO attachments VALUES (?, ?, ?, ?, ?)");
  statement.Bind(attachment.volume_id)
      .Bind(attachment.node_id)
      .Bind(attachment.capability)
      .Bind(int64_t{attachment.read_only})
      .Bind(int64_t{attachment.several_nodes});
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("record an attachment");
}

absl::Status Store::DeleteAttachment(std::string_view volume_id, std::string_view node_id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      "DELETE FROM attachments WHERE volume_id = ?1 AND (node_id = ?2 OR ?2 = '')");
  statement.Bind(volume_id).Bind(node_id);
  return statement.Step() == SQLITE_DONE ? absl::OkStatus() : Failure("forget an attachment");
}

absl::StatusOr<std::vector<Staging>> Store::ReadStagings(Statement& statement) {
  std::vector<Staging> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    Staging& record = records.emplace_back();
    record.volume_id = statement.Text();
    record.path = statement.Text();
    record.capability = statement.Text();
    record.block = statement.Bool();
    record.read_only = statement.Bool();
    record.complete = statement.Bool();
    if (undone_stagings_.contains(record.volume_id)) records.pop_back();
  }
  if (result != SQLITE_DONE) return Failure("read stagings");
  return records;
}

absl::StatusOr<std::optional<Staging>> Store::StagingOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM stagings WHERE volume_id = ?", kStagingColumns));
  statement.Bind(volume_id);
  return AtMostOne(ReadStagings(statement));
}

absl::StatusOr<std::optional<Staging>> Store::StagingAt(std::string_view path) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_, fmt::format("SELECT {} FROM stagings WHERE path = ?", kStagingColumns));
  statement.Bind(path);
  return AtMostOne(ReadStagings(statement));
}

absl::Status Store::PutStaging(const Staging& staging, int64_t limit) {
  const std::lock_guard lock(mutex_);
  if (!staging.complete) BERTH_RETURN_IF_ERROR(HasRoom());
  MakeUp();
  if (limit > 0) {
    Statement others(database_, "SELECT count(*) FROM stagings WHERE volume_id <> ?");
    others.Bind(staging.volume_id);
    int64_t count = 0;
    BERTH_ASSIGN_OR_RETURN(count, Number(others));
    if (count >= limit) {
      return absl::ResourceExhaustedError(
          fmt::format("{} volumes are staged on this node, which is its limit", count));
    }
  }
  Statement statement(database_, "INSERT OR REPLACE INTO stagings VALUES (?, ?, ?, ?, ?, ?)");
  statement.Bind(staging.volume_id)
      .Bind(staging.path)
      .Bind(staging.capability)
      .Bind(int64_t{staging.block})
      .Bind(int64_t{staging.read_only})
      .Bind(int64_t{staging.complete});
  if (statement.Step() != SQLITE_DONE) return Failure("record a staging");
  undone_stagings_.erase(staging.volume_id);
  return absl::OkStatus();
}

absl::Status Store::DeleteStaging(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  return Forget(kForgetStaging, volume_id, &undone_stagings_, "forget a staging");
}

absl::StatusOr<std::vector<Publication>> Store::ReadPublications(Statement& statement) {
  std::vector<Publication> records;
  int result = 0;
  while ((result = statement.Step()) == SQLITE_ROW) {
    Publication& record = records.emplace_back();
    record.target = statement.Text();
    record.volume_id = statement.Text();
    record.capability = statement.Text();
    record.mode = static_cast<::csi::v1::VolumeCapability::AccessMode::Mode>(statement.Int());
    record.block = statement.Bool();
    record.asked_read_only = statement.Bool();
    record.read_only = statement.Bool();
    record.complete = statement.Bool();
    if (undone_publications_.contains(record.target)) records.pop_back();
  }
  if (result != SQLITE_DONE) return Failure("read publications");
  return records;
}

absl::StatusOr<std::vector<Publication>> Store::PublicationsOf(std::string_view volume_id) {
  const std::lock_guard lock(mutex_);
  Statement statement(
      database_,
      fmt::format("SELECT {} FROM publications WHERE volume_id = ? ORDER BY target", kPublicationColumns));
  statement.Bind(volume_id);
  return ReadPublications(statement);
}

absl::StatusOr<std::optional<Publication>> Store::PublicationAt(std::string_view target) {
  const std::lock_guard lock(mutex_);
  Statement statement(database_,
                      fmt::format("SELECT {} FROM publications WHERE target = ?", kPublicationColumns));
  statement.Bind(target);
  return AtMostOne(ReadPublications(statement));
}

absl::Status Store::PutPublication(const Publication& publication) {
  const std::lock_guard lock(mutex_);
  if (!publication.complete) BERTH_RETURN_IF_ERROR(HasRoom());
  MakeUp();
  Statement statement(database_, "INSERT OR REPLACE INTO publications VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  statement.Bind(publication.target)
      .Bind(publication.volume_id)
      .Bind(publication.capability)
      .Bind(static_cast<int64_t>(publication.mode))
      .Bind(int64_t{publication.block})
      .Bind(int64_t{publication.asked_read_only})
      .Bind(int64_t{publication.read_only})
      .Bind(int64_t{publication.complete});
  if (statement.Step() != SQLITE_DONE) return Failure("record a publication");
  undone_publications_.erase(publication.target);
  return absl::OkStatus();
}

absl::Status Store::DeletePublication(std::string_view target) {
  const std::lock_guard lock(mutex_);
  return Forget(kForgetPublication, target, &undone_publications_, "forget a publication");
}

absl::Status Store::HasRoom() const {
  struct statvfs disk{};
  if (statvfs(path_.c_str(), &disk) != 0) return absl::OkStatus();  // writing will tell
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (free >= static_cast<uint64_t>(kReservedBytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{}: {} bytes are free on its disk; with less than {} nothing new is begun", path_, free,
                  kReservedBytes));
}

absl::Status Store::Forget(const char* sql, std::string_view key, std::set<std::string, std::less<>>* undone,
                           std::string_view what) {
  Statement statement(database_, sql);
  statement.Bind(key);
  const int code = statement.Step();
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
      Statement statement(database_, sql);
      statement.Bind(key);
      return statement.Step() == SQLITE_DONE;
    });
  };
  all(kForgetStaging, &undone_stagings_);
  all(kForgetPublication, &undone_publications_);
}

}  // namespace berth::hostpath
