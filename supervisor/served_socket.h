// A Unix socket that some process serves, or will: its first answer is seen at once, and its end.
//
// Loop thread. Nothing here makes or removes a socket. The path must lie on a file system that answers.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "base/unique_fd.h"

namespace berth {

// One connection, and who listens at its other end.
struct ServedSocket {
  UniqueFd connection;      // not valid where it listens, but its queue is full
  pid_t pid = 0;            // of who called listen(); 0: not visible from here
  uid_t uid = 0;            // likewise, as it was then
  uint64_t start_time = 0;  // of that process (/proc/pid/stat); 0: it has ended, or is about to

  // One that is on its way out may still take a connection, which then ends at once: no other than before.
  [[nodiscard]] bool SameServer(const ServedSocket& other) const {
    return pid == other.pid && (start_time == other.start_time || start_time == 0 || other.start_time == 0);
  }
};

struct WaitForServerOptions {
  // The kernel reports bind(), but not the listen() that follows, usually microseconds later: then it is
  // tried again, first after half a millisecond and in the end after this.
  Duration longest_retry = std::chrono::milliseconds(20);
  // The kernel reports no change of a directory that something was mounted over, or that was moved with one
  // above it. So it is tried again at least this often.
  Duration check_interval = std::chrono::seconds(30);
  // Called with what is waited for, whenever that changes: "there is no /run/x/csi.sock". May be empty.
  std::function<void(const std::string& why)> waiting = {};
};

// Waits until a server accepts connections at `path`. Directories of the path may come later, or go and come
// again. Without a limit: cancel it. Errors are those of watching directories; if no more can be watched it
// checks from time to time.
[[nodiscard]] Awaitable<absl::StatusOr<ServedSocket>> WaitForServer(std::string path,
                                                                    WaitForServerOptions options);

// One attempt, at once. Unset if no server accepts.
[[nodiscard]] std::optional<ServedSocket> TryConnect(const std::string& path);

// Which file a socket's path leads to.
struct SocketFile {
  dev_t device = 0;
  ino_t inode = 0;  // 0: nothing is there

  [[nodiscard]] static SocketFile At(const std::string& path);
  bool operator==(const SocketFile&) const = default;
};

// A socket that was connected to once, compared with what its path leads to now: an existing connection does
// not show that no new one can be made.
class SocketPath {
 public:
  // Once `server` was reached at `path`.
  void Keep(std::string path, const ServedSocket& server);
  // Why that server cannot be reached by its path any more: "its socket /x was removed", "... is another file
  // now". Empty: it can be reached, also if it has bound the path again itself; or nothing is kept.
  [[nodiscard]] std::string Trouble();
  // The path leads to something else, rather than nowhere.
  [[nodiscard]] bool Replaced() const;

 private:
  std::string path_;
  SocketFile file_;
  pid_t server_ = 0;
};

// Waits until the other end has closed the connection. What comes over it meanwhile is thrown away.
[[nodiscard]] Awaitable<void> WaitForEnd(UniqueFd connection);

}  // namespace berth
