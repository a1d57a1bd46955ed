// The state directory and the files in it.
//
//   STATE_DIR/lock             held by the one process that uses the directory
//   STATE_DIR/hostpath.db      store.h
//   STATE_DIR/volumes/ID/data  a directory volume
//   STATE_DIR/volumes/ID/image an image or block volume
//   STATE_DIR/snapshots/ID/…   likewise
//   STATE_DIR/trash/           what is being deleted (trash.h)
//
// Only ids of our own making become part of a path; one that comes with a request is looked up in the store
// first. Directories are closed to everybody but root: a directory volume is reached through its mounts
// alone. Blocks; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "plugins/hostpath/trash.h"
#include "plugins/hostpath/volume_kind.h"

namespace berth::hostpath {

enum class Area { kVolumes, kSnapshots };

class Storage {
 public:
  // Makes what is missing and takes the lock. FAILED_PRECONDITION where another process holds it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Storage>> Open(const std::string& state_dir);

  [[nodiscard]] std::string DatabasePath() const { return state_dir_ + "/hostpath.db"; }
  // Where the content of a volume or snapshot is: a directory or an image.
  [[nodiscard]] std::string ContentPath(Area area, std::string_view id, Kind kind) const;

  // A fresh id: `vol-` or `snap-` and 32 hex digits, never the same twice.
  [[nodiscard]] static std::string NewId(Area area);

  // Makes an empty volume, durably. What a cut-off attempt left is the caller's to discard first.
  [[nodiscard]] absl::Status MakeEmpty(std::string_view id, Kind kind, int64_t size, bool preallocate);
  // Makes a volume or snapshot as a copy, durably, an image `size` bytes long.
  [[nodiscard]] absl::Status MakeCopy(Area from_area, std::string_view from, Area to_area,
                                      std::string_view to, Kind kind, int64_t size);
  // Makes an image longer, never shorter.
  [[nodiscard]] absl::Status GrowImage(std::string_view id, Kind kind, int64_t size, bool preallocate);

  // Moves a volume or snapshot into the trash. OK if it does not exist.
  [[nodiscard]] absl::Status Discard(Area area, std::string_view id);
  // Takes the trash apart. Only space depends on it, so that errors are logged, not returned.
  void EmptyTrash();
  // Ends EmptyTrash early, for a quick end of the process; the next start goes on with it.
  void StopEmptyingTrash() { stopping_ = true; }

  // OK if the content is there, as large as it should be; DATA_LOSS, with what is wrong, if not.
  [[nodiscard]] absl::Status CheckContent(Area area, std::string_view id, Kind kind, int64_t size) const;

  struct Space {
    int64_t total = 0;
    int64_t available = 0;
  };
  // Of the file system that the state directory is on.
  [[nodiscard]] absl::StatusOr<Space> GetSpace() const;

  // Whether the state directory can still be written to, for Probe.
  [[nodiscard]] absl::Status Check() const;

 private:
  Storage(std::string state_dir, UniqueFd lock, Trash trash)
      : state_dir_(std::move(state_dir)), lock_(std::move(lock)), trash_(std::move(trash)) {}
  [[nodiscard]] std::string Place(Area area, std::string_view id) const;

  std::string state_dir_;
  UniqueFd lock_;
  Trash trash_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace berth::hostpath
