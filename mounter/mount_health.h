// Finds mounts whose file system does not answer (hung: its server may come back), and those whose file
// system has ended (dead): a FUSE daemon that hangs or has died, an NFS server that is away.
//
// Owned by the Mounter; loop thread only. In rounds, and only file systems that can die so (not those of a
// local disk, which the kernel itself serves). Asked by helper processes (mount_helper.h); a mount whose
// probe hangs is not asked again while that hangs, and at once when it has ended; one that is being unmounted
// is left alone.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/task_scope.h"
#include "mounter/mount_helper.h"

namespace berth {

struct WatchedMount {
  std::string key;        // the volume's directory
  std::string component;  // the publication's; empty: the staging path
  std::string path;

  bool operator==(const WatchedMount&) const = default;
};

// Whether a file system of this type lives in a process or on another machine. As mountinfo names it:
// "fuse.sshfs", "nfs4".
[[nodiscard]] bool CanDie(std::string_view fs_type);

class MountHealth {
 public:
  using Which = std::function<std::vector<WatchedMount>()>;
  // OK: it answers (again). UNAVAILABLE: dead. DEADLINE_EXCEEDED: hung. The message is for people.
  using Told = std::function<void(const WatchedMount& mount, absl::Status verdict)>;

  // `which` is asked before each round; `told` is called for each verdict that is not the last one of that
  // mount's (of a mount not asked before: not OK). `patience`: how long a file system may take to answer.
  MountHealth(const asio::any_io_executor& executor, MountHelper& helper, Duration interval, Which which,
              Told told, Duration patience = std::chrono::seconds(10));

  // Runs rounds until it is cancelled. This and the helper outlive it.
  [[nodiscard]] Awaitable<void> Run();

 private:
  [[nodiscard]] Awaitable<void> Round();
  void Conclude(const WatchedMount& mount, uint64_t mount_id, const absl::Status& verdict);

  MountHelper& helper_;
  Duration interval_;
  Which which_;
  Told told_;
  Duration patience_;

  // By path: what is not well, and of which mount that was told.
  struct Bad {
    absl::StatusCode code = absl::StatusCode::kOk;
    uint64_t mount_id = 0;
  };
  std::map<std::string, Bad> bad_;
};

}  // namespace berth
