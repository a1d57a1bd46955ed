// The file of a SqliteStore: SQLite in WAL mode with synchronous=FULL, held exclusively by one process.
//
//   <directory>/records-N.db    records(key, value, modified, checksum), meta(revision); N rises with each
//                               rewrite
//
// A rewrite writes everything to a new file under a temporary name, synced, and renames it to the next
// number; the highest number counts. So a file that cannot be trusted after a failed sync is never read
// again: the kernel may have dropped what was to be written, and still show it.
//
// Everything here blocks on the disk. Used by one thread at a time.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/store/record_map.h"

struct sqlite3;

namespace berth::scheduler {

// A record that was written, or with null one that was deleted.
using RecordChange = std::pair<std::string, const RecordValue*>;

class RecordFile {
 public:
  struct Options {
    std::string directory;
    std::string vfs;  // of SQLite; empty: its own
  };
  // A file, and what it holds.
  struct Opened {
    std::unique_ptr<RecordFile> file;
    RecordMap records;
    uint64_t revision = 0;
  };

  // Opens the file with the highest number, or makes the first one, and reads it. FAILED_PRECONDITION:
  // another process has it, a newer program wrote it, or it is another program's database. DATA_LOSS: it is
  // damaged. Nothing is changed then.
  [[nodiscard]] static absl::StatusOr<Opened> Open(Options options);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Makes all of it durable, or nothing. RESOURCE_EXHAUSTED: the disk is full, and nothing happened. After
  // any other error it is not known what is in the file: call Rewrite before the next Write.
  [[nodiscard]] absl::Status Write(const std::vector<RecordChange>& changes, uint64_t revision);
  // Everything that counts. After an error nothing has changed; try again.
  [[nodiscard]] absl::Status Rewrite(const RecordMap& records, uint64_t revision);

  // Free space on its disk, in bytes; the largest number if the kernel does not say.
  [[nodiscard]] uint64_t FreeBytes() const;

 private:
  explicit RecordFile(Options options) : options_(std::move(options)) {}
  [[nodiscard]] std::string Path(uint64_t number) const;
  [[nodiscard]] absl::StatusOr<std::vector<uint64_t>> Numbers() const;
  [[nodiscard]] absl::Status Connect(const std::string& path, bool is_new);
  void Disconnect(bool checkpoint);
  [[nodiscard]] absl::Status Execute(const char* sql);
  [[nodiscard]] absl::StatusOr<int64_t> QueryNumber(const char* sql);
  [[nodiscard]] absl::Status Check();
  [[nodiscard]] absl::Status Load(Opened* opened);
  [[nodiscard]] absl::Status WriteAll(const std::vector<RecordChange>& changes, uint64_t revision);
  [[nodiscard]] absl::Status Checkpoint();
  void RemoveOthers();
  [[nodiscard]] absl::Status Error(int code, std::string_view what) const;

  Options options_;
  uint64_t number_ = 0;
  std::string path_;  // of the connection
  sqlite3* db_ = nullptr;
  int log_frames_ = 0;  // in the write-ahead log since the last checkpoint
};

}  // namespace berth::scheduler
