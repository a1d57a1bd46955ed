// The processes that belong to a main process, each pinned before anybody signals it; and which of them
// serve file systems (hold /dev/fuse).
//
// Of /proc only what can be read safely of a process that hangs: stat, and the names of descriptors. Takes
// milliseconds on a machine with thousands of processes: the loop asks through RunBlocking. Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

struct TreeQuery {
  // The main process, which leads its session, and when it started (ProcessIdentity::start_time). It may have
  // ended: what it left behind is then known by its session alone.
  pid_t main = 0;
  uint64_t main_start_time = 0;
  // Processes known otherwise, as the members of a cgroup.
  std::vector<pid_t> members;
};

enum class FuseUse {
  kNone,
  kHolds,    // it has /dev/fuse open
  kUnknown,  // its descriptors cannot be read
};

// One process, pinned: a number that is given to another cannot be mistaken for it.
class TreeProcess {
 public:
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] pid_t parent() const { return parent_; }
  [[nodiscard]] pid_t session() const { return session_; }
  [[nodiscard]] uint64_t start_time() const { return start_time_; }
  // Of its program, as the kernel has it: 15 bytes at most, and anything may be in it.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] FuseUse fuse() const { return fuse_; }

  // NOT_FOUND once it has ended.
  [[nodiscard]] absl::Status Signal(int signal) const;
  // Readable once it has ended. Stays this object's.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

 private:
  friend class TreeFinder;
  TreeProcess() = default;

  pid_t pid_ = 0;
  pid_t parent_ = 0;
  pid_t session_ = 0;
  uint64_t start_time_ = 0;
  std::string name_;
  FuseUse fuse_ = FuseUse::kUnknown;
  UniqueFd pidfd_;
};

// The main process, the members of its session, `members`, and the descendants of all these, by number.
// Without zombies and the caller. A moment's picture: to end all of them, repeat it until it is empty.
[[nodiscard]] absl::StatusOr<std::vector<TreeProcess>> FindTree(const TreeQuery& query);

// Whether process `pid` has /dev/fuse open.
[[nodiscard]] FuseUse HoldsFuse(pid_t pid);

}  // namespace berth
