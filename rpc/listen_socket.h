// The Unix socket that berthd listens on: made without a race against another berthd, or handed over by
// systemd.
//
// Any thread, at start-up and shutdown; calls do not block.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"

namespace berth {

class ListenSocket {
 public:
  // Binds and listens at `path`, with `mode` exactly, whatever the umask. A socket file that nobody listens
  // on any more is replaced. FAILED_PRECONDITION: another process serves there (the message names it), or
  // something that is not a socket is there. UNAVAILABLE: another process is making its socket there just
  // now. INVALID_ARGUMENT: the path is too long for a socket, or not absolute.
  [[nodiscard]] static absl::StatusOr<ListenSocket> Bind(const std::string& path, mode_t mode);

  // Takes over a socket that listens already (sd_listen_fds). Its file stays its maker's.
  // INVALID_ARGUMENT where it is not a listening Unix stream socket.
  [[nodiscard]] static absl::StatusOr<ListenSocket> Adopt(UniqueFd fd);

  ListenSocket(ListenSocket&&) = default;
  ListenSocket& operator=(ListenSocket&&) = default;
  ~ListenSocket() = default;  // Closes; the file stays (Remove), as it does after a crash.

  // Non-blocking, close-on-exec.
  [[nodiscard]] int fd() const { return fd_.get(); }
  // Empty for one that was handed over without a name.
  [[nodiscard]] const std::string& path() const { return path_; }

  // Closes the socket, after unlinking its file if it is ours and still the one that we made.
  void Remove();

 private:
  ListenSocket() = default;

  UniqueFd fd_;
  std::string path_;
  bool ours_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace berth
