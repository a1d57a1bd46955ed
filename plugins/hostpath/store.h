// What berth-hostpath knows of its volumes, kept in SQLite (WAL, synchronous=FULL): every method that
// changes something has made it durable when it returns OK.
//
// An intent is written before its effect and completed after it, so that a crash between the two is seen
// and repaired, by the repeat of the request or at the next start:
//
//   volume, snapshot   creating → ready → deleting → (gone)     creating and deleting: thrown away at start
//   staging            begun → complete                         begun: undone and done again by the repeat
//   publication        begun → complete                         likewise
//
// On a full disk nothing new is recorded, and what was is forgotten still: space for that is set aside. Where
// the disk takes no write at all, a staging or publication that was undone is forgotten in memory, and from
// the disk as soon as that can be written. A process that ends before has it again: then it counts as in use
// until it is published and unpublished once more, or unstaged.
//
// Any thread: one connection, one mutex, statements that take microseconds (a commit: about an fsync).
// Errors are INTERNAL unless a method says otherwise; a full disk is RESOURCE_EXHAUSTED.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csi/csi.pb.h"
#include "plugins/hostpath/volume_kind.h"

struct sqlite3;

namespace berth::hostpath {

enum class Lifecycle { kCreating = 0, kReady = 1, kDeleting = 2 };

struct VolumeRecord {
  int64_t sequence = 0;  // given by the store; grows with each creation; never given out twice
  std::string id;        // ours: letters, digits, dashes; safe as a file name
  std::string name;      // the caller's; any text
  Lifecycle lifecycle = Lifecycle::kCreating;
  Kind kind = Kind::kDirectory;
  std::string fs_type;  // empty: none
  int64_t capacity = 0;
  FormatState format = FormatState::kNone;
  bool grow_pending = false;  // the file system is still smaller than its image
  bool preallocate = false;
  bool direct_io = false;
  std::string parameters;  // Parameters::canonical
  std::string source_snapshot;
  std::string source_volume;
};

struct SnapshotRecord {
  int64_t sequence = 0;
  std::string id;
  std::string name;
  Lifecycle lifecycle = Lifecycle::kCreating;
  std::string source_volume;
  Kind kind = Kind::kDirectory;
  std::string fs_type;
  int64_t size = 0;
  FormatState format = FormatState::kNone;
  bool grow_pending = false;
  int64_t created_ns = 0;  // since the epoch
};

// A ControllerPublishVolume that stands.
struct Attachment {
  std::string volume_id;
  std::string node_id;
  std::string capability;  // CapabilityDigest
  bool read_only = false;
  bool several_nodes = false;  // the access mode is one of MULTI_NODE_…
};

// A NodeStageVolume that stands: one per volume.
struct Staging {
  std::string volume_id;
  std::string path;
  std::string capability;
  bool block = false;
  bool read_only = false;
  bool complete = false;
};

// A NodePublishVolume that stands: one per target.
struct Publication {
  std::string target;
  std::string volume_id;
  std::string capability;
  ::csi::v1::VolumeCapability::AccessMode::Mode mode = ::csi::v1::VolumeCapability::AccessMode::UNKNOWN;
  bool block = false;
  bool asked_read_only = false;  // the request's flag
  bool read_only = false;        // what came of it, access mode and mount flags counted in
  bool complete = false;
};

class Store {
 public:
  // Opens or makes the database. FAILED_PRECONDITION where a newer program made it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Whether the database can be read, for Probe. Writes what could not be written before.
  [[nodiscard]] absl::Status Check();

  // Volumes. Lookups find every life-cycle state; NOT_FOUND if it does not exist.
  [[nodiscard]] absl::StatusOr<VolumeRecord> GetVolume(std::string_view id);
  [[nodiscard]] absl::StatusOr<VolumeRecord> GetVolumeByName(std::string_view name);
  // Ready ones after `sequence`, in order, at most `limit` of them (0: all).
  [[nodiscard]] absl::StatusOr<std::vector<VolumeRecord>> ListVolumes(int64_t after, int64_t limit);
  // Those with an interrupted creation or deletion.
  [[nodiscard]] absl::StatusOr<std::vector<VolumeRecord>> UnfinishedVolumes();
  // The sequence number is given by the store. With `pool` > 0, RESOURCE_EXHAUSTED where all volumes and
  // snapshots together would exceed it.
  [[nodiscard]] absl::Status InsertVolume(const VolumeRecord& volume, int64_t pool);
  [[nodiscard]] absl::Status SetVolumeLifecycle(std::string_view id, Lifecycle lifecycle);
  [[nodiscard]] absl::Status SetVolumeFormat(std::string_view id, FormatState format);
  [[nodiscard]] absl::Status SetVolumeGrowPending(std::string_view id, bool pending);
  // RESOURCE_EXHAUSTED as InsertVolume.
  [[nodiscard]] absl::Status GrowVolume(std::string_view id, int64_t capacity, bool grow_pending,
                                        int64_t pool);
  // Its attachments, staging and publications go with it.
  [[nodiscard]] absl::Status DeleteVolume(std::string_view id);

  // Snapshots, likewise.
  [[nodiscard]] absl::StatusOr<SnapshotRecord> GetSnapshot(std::string_view id);
  [[nodiscard]] absl::StatusOr<SnapshotRecord> GetSnapshotByName(std::string_view name);
  // `source_volume` empty: of every volume.
  [[nodiscard]] absl::StatusOr<std::vector<SnapshotRecord>> ListSnapshots(std::string_view source_volume,
                                                                          int64_t after, int64_t limit);
  [[nodiscard]] absl::StatusOr<std::vector<SnapshotRecord>> UnfinishedSnapshots();
  [[nodiscard]] absl::Status InsertSnapshot(const SnapshotRecord& snapshot, int64_t pool);
  [[nodiscard]] absl::Status FinishSnapshot(std::string_view id, int64_t created_ns);
  [[nodiscard]] absl::Status SetSnapshotLifecycle(std::string_view id, Lifecycle lifecycle);
  [[nodiscard]] absl::Status DeleteSnapshot(std::string_view id);

  // The highest sequence number that was ever given to a volume, or to a snapshot.
  [[nodiscard]] absl::StatusOr<int64_t> LastVolumeSequence();
  [[nodiscard]] absl::StatusOr<int64_t> LastSnapshotSequence();
  // The bytes that all volumes and snapshots lay claim to.
  [[nodiscard]] absl::StatusOr<int64_t> ClaimedBytes();

  // Attachments.
  [[nodiscard]] absl::StatusOr<std::vector<Attachment>> AttachmentsOf(std::string_view volume_id);
  // RESOURCE_EXHAUSTED where the node has `limit` (> 0) others already.
  [[nodiscard]] absl::Status PutAttachment(const Attachment& attachment, int64_t limit);
  // From every node if `node_id` is empty. OK if there is no such entry.
  [[nodiscard]] absl::Status DeleteAttachment(std::string_view volume_id, std::string_view node_id);

  // Stagings and publications.
  [[nodiscard]] absl::StatusOr<std::optional<Staging>> StagingOf(std::string_view volume_id);
  [[nodiscard]] absl::StatusOr<std::optional<Staging>> StagingAt(std::string_view path);
  // Adds or replaces the volume's. RESOURCE_EXHAUSTED where there are `limit` (> 0) others already.
  [[nodiscard]] absl::Status PutStaging(const Staging& staging, int64_t limit);
  [[nodiscard]] absl::Status DeleteStaging(std::string_view volume_id);
  [[nodiscard]] absl::StatusOr<std::vector<Publication>> PublicationsOf(std::string_view volume_id);
  [[nodiscard]] absl::StatusOr<std::optional<Publication>> PublicationAt(std::string_view target);
  [[nodiscard]] absl::Status PutPublication(const Publication& publication);
  [[nodiscard]] absl::Status DeletePublication(std::string_view target);

 private:
  class Statement;

  Store(sqlite3* database, std::string path) : database_(database), path_(std::move(path)) {}
  absl::Status Migrate();
  absl::Status Execute(const char* sql);
  absl::Status Failure(std::string_view what);
  // Of one statement each, with `values` for its parameters; the caller holds the mutex.
  template <class... Values>
  absl::Status Change(std::string_view what, std::string_view sql, const Values&... values);
  template <class Record>
  absl::Status Insert(std::string_view what, std::string_view into, const Record& record);
  template <class Record, class... Values>
  absl::StatusOr<std::vector<Record>> Rows(std::string_view sql, const Values&... values);
  // 0 where there is no row.
  template <class... Values>
  absl::StatusOr<int64_t> Number(std::string_view sql, const Values&... values);
  absl::Status Claim(int64_t bytes, int64_t pool);
  // One row, by its key. What cannot be written is kept in `undone`.
  absl::Status Forget(const char* sql, std::string_view key, std::set<std::string, std::less<>>* undone,
                      std::string_view what);
  void MakeUp();
  // RESOURCE_EXHAUSTED: the disk is nearly full, and what is left of it is for what has to be written.
  [[nodiscard]] absl::Status HasRoom() const;
  [[nodiscard]] bool IsUndone(const auto& /*record*/) const { return false; }
  [[nodiscard]] bool IsUndone(const Staging& record) const {
    return undone_stagings_.contains(record.volume_id);
  }
  [[nodiscard]] bool IsUndone(const Publication& record) const {
    return undone_publications_.contains(record.target);
  }

  std::mutex mutex_;  // guards the connection and everything that is read from it
  sqlite3* database_;
  const std::string path_;
  // Undone, and on the disk still.
  std::set<std::string, std::less<>> undone_stagings_;      // by volume
  std::set<std::string, std::less<>> undone_publications_;  // by target
};

}  // namespace berth::hostpath
