// A Unix socket that berthd listens on, with one owner, one group and one mode; or one that systemd listens
// on for it, with these in its unit.
//
// The caller has the lock of the socket's directory (base/lock_file.h), so an existing socket file was left
// by a berthd that has ended. Any thread, at start-up, reload and shutdown; calls do not block.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace berth {

// Removes the socket file that a berthd which has ended left at `path`. FAILED_PRECONDITION: something that
// is not a socket is there.
[[nodiscard]] absl::Status RemoveStaleSocket(const std::string& path);

class ListenSocket {
 public:
  // Listens at `path`, in place of a socket that was left there; with `group` (unset: berthd's own) and
  // `mode` exactly, whatever the umask. FAILED_PRECONDITION: something that is not a socket is there.
  // INVALID_ARGUMENT: the path is too long for a socket, or not absolute.
  [[nodiscard]] static absl::StatusOr<ListenSocket> Bind(const std::string& path, std::optional<gid_t> group,
                                                         mode_t mode);

  // Takes over a socket that listens already (sd_listen_fds(3)). Its file stays, and who may connect is its
  // unit's to say. INVALID_ARGUMENT where it is not a listening Unix stream socket.
  [[nodiscard]] static absl::StatusOr<ListenSocket> Adopt(UniqueFd fd);

  ListenSocket(ListenSocket&&) = default;
  ListenSocket& operator=(ListenSocket&&) = default;
  ~ListenSocket() = default;  // Closes; the file stays (Remove), as it does after a crash.

  // Non-blocking, close-on-exec.
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }

  // Whether its path leads to it still. An adopted one is systemd's to see to: true.
  [[nodiscard]] bool AtItsPath() const { return inode_ == 0 || IsOurs(); }

  // Changes who may connect from now on. In between only the owner may. FAILED_PRECONDITION: it was adopted,
  // or is not at its path any more.
  [[nodiscard]] absl::Status SetAccess(std::optional<gid_t> group, mode_t mode);

  // Closes the socket, after unlinking its file if it is still the one that was made here.
  void Remove();

 private:
  ListenSocket() = default;
  [[nodiscard]] bool IsOurs() const;

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace berth
