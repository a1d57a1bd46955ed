// For tests: a small real FUSE file system, served by a process of its own, that hangs, answers again, or
// dies on request.
//
//   root directory 0755 root:root
//     hello      a regular file, 0644, "hello\n"; it may be written, truncated, chmodded
//     cached     the same file; the kernel keeps its pages, so that it can be mapped to be shared
//
// Nothing else can be made in it. But for those pages the kernel caches nothing: every look-up asks the
// server. Any thread; the server holds none of this process's descriptors, and ends when this process does.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace berth {

class FuseServer {
 public:
  // Mounts at the directory `path`, as "fuse.berth-test", and answers. Mounts in the caller's namespace.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FuseServer>> Mount(const std::string& path);
  // Dies, and takes the mount away (lazily) where it is still at `path`.
  ~FuseServer();
  FuseServer(const FuseServer&) = delete;
  FuseServer& operator=(const FuseServer&) = delete;

  // Takes requests and does not answer them: their waiters cannot even be killed. Returns once the server
  // hangs.
  void Hang() const;
  // Whether it has taken a request that it does not answer.
  [[nodiscard]] bool HoldsRequest() const;
  // Answers all those, and everything else.
  void Resume() const;
  // Ends the server: everything fails with ENOTCONN, the mount stays. It takes no more commands.
  void Die();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  FuseServer(std::string path, dev_t device, pid_t pid, UniqueFd control)
      : path_(std::move(path)), device_(device), pid_(pid), control_(std::move(control)) {}
  // Returns the answer; empty if the server has died.
  std::string Tell(std::string_view command) const;

  std::string path_;
  dev_t device_;
  pid_t pid_;
  UniqueFd control_;
};

// The same as a process of its own (fuse_main.cc): mounts at `path` and serves until a command or the end of
// its input. Commands are lines read from `control_fd`: "hang", "resume", "die"; each is answered by a line
// "ok" on `answer_fd`, which says "ready" first. "held?" is answered by "yes" or "no".
[[nodiscard]] absl::Status RunFuseServer(const std::string& path, int control_fd, int answer_fd);

}  // namespace berth
