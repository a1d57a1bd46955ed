// Paths beneath one root that hostile names, symlinks and mounts cannot lead astray.
//
// Every walk starts at the root's descriptor and uses openat2 with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
// RESOLVE_NO_MAGICLINKS, and RESOLVE_NO_XDEV unless said otherwise. Nothing here removes anything but an
// empty directory or one named file. Calls do not touch what lies under a mount point, so they do not hang
// on a dead file system there. Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

// A path component for `parts` of any bytes: 32 hex digits of SHA-256 over each part's length and bytes, so
// that no two lists of parts share one by being joined differently.
[[nodiscard]] std::string HashComponent(std::initializer_list<std::string_view> parts);

// What is at a path, from the kernel without waking a file system (statx with AT_STATX_DONT_SYNC and
// AT_NO_AUTOMOUNT): about two microseconds with any number of mounts. Some file systems ask their server
// nevertheless (cifs, gfs2, 9p): the root of such a mount is not asked for anything on Linux 6.12 and later,
// and older kernels cannot distinguish them. A mount exists also if its file system only gives errors (it was
// shut down, its server has gone): then `refused` is set, and the rest is what the kernel knows of the mount.
struct PathFacts {
  bool exists = false;
  bool mount_root = false;  // a mount lies on top here
  mode_t mode = 0;          // with the file type; of a mount's root the type alone may be known
  dev_t device = 0;         // the file system's
  uint64_t inode = 0;       // 0: not known
  dev_t special = 0;        // the device that a device node stands for
  uint64_t size = 0;
  uint64_t mount_id = 0;
  int refused = 0;  // the errno that a mount's file system answers with; 0: it is well, or no mount lies here
};

class SafeRoot {
 public:
  // Opens `path`, which must be an absolute path of a directory.
  [[nodiscard]] static absl::StatusOr<SafeRoot> Open(std::string path);
  // Of a directory that is open, and may lie beneath a mount. `path` is for messages.
  [[nodiscard]] static SafeRoot Of(std::string path, UniqueFd directory) {
    return {std::move(path), std::move(directory)};
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::string Absolute(std::string_view relative) const;

  // Whether its path leads to it still. An error: that cannot be asked.
  [[nodiscard]] absl::StatusOr<bool> AtItsPath() const;
  // From now on what lies at its path. Other threads may use it meanwhile.
  [[nodiscard]] absl::Status Reopen();

  // Makes `relative`'s directories, `mode` exactly for the new ones. Those that are there stay as they are;
  // FAILED_PRECONDITION where something else is there.
  [[nodiscard]] absl::Status MakeDirectories(std::string_view relative, mode_t mode) const;

  // Writes a file of ours (a temporary file, renamed): whole after a crash of the program, anything after one
  // of the host, until Sync of it and of its directory.
  [[nodiscard]] absl::Status WriteFile(std::string_view relative, std::string_view content,
                                       mode_t mode) const;
  // Makes a file or directory durable as it is now; "" is the root. NOT_FOUND: it has gone.
  [[nodiscard]] absl::Status Sync(std::string_view relative) const;
  [[nodiscard]] absl::StatusOr<std::string> ReadFile(std::string_view relative, size_t limit) const;

  // The names in a directory, "." and ".." left out. RESOURCE_EXHAUSTED beyond `limit`.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> List(std::string_view relative, size_t limit) const;

  // Checks without following a symlink at the end. A path with a missing parent does not exist.
  [[nodiscard]] absl::StatusOr<PathFacts> Look(std::string_view relative) const;

  // rmdir. OK where there is nothing. FAILED_PRECONDITION (ErrnoOf: ENOTEMPTY or EBUSY) where it is not
  // empty or a mount lies on it.
  [[nodiscard]] absl::Status RemoveEmptyDirectory(std::string_view relative) const;

  // Unlinks a symbolic link; what it leads to is not looked at. OK where there is nothing.
  // FAILED_PRECONDITION where something else is there.
  [[nodiscard]] absl::Status RemoveLink(std::string_view relative) const;

  // Unlinks one regular file of ours; OK where there is nothing. FAILED_PRECONDITION where something else
  // is there, where a mount lies on it, or (`must_be_empty`) where it holds a byte.
  [[nodiscard]] absl::Status RemoveFile(std::string_view relative, bool must_be_empty) const;

 private:
  SafeRoot(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  [[nodiscard]] absl::StatusOr<UniqueFd> OpenBeneath(std::string_view relative, int flags) const;
  // The parent directory of `relative` and its last component.
  [[nodiscard]] absl::StatusOr<std::pair<UniqueFd, std::string>> OpenParent(std::string_view relative) const;

  std::string path_;
  UniqueFd fd_;
};

// Look for an absolute path of our own making (a plugin's socket, a tree's root).
[[nodiscard]] absl::StatusOr<PathFacts> LookAt(const std::string& path);

}  // namespace berth
