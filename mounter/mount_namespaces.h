// Finds mounts of given file systems in every mount namespace of the node, from /proc/PID/mountinfo. Touches
// no file system but /proc, so a dead one does not stop it.
//
//   Find ──► waiting ──┐ one scan at a time, on a helper thread: all that wait when it begins share it
//   Find ──► waiting ──┴──► list processes, read each distinct namespace's table once ──► all their answers
//
// A namespace that no process is in (kept by an open file or a bind mount of it) is not found here: what it
// keeps is noticed by the superblock that does not end.
//
// Owned by the MounterContext; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/kernel_object.h"

namespace berth {

// How much one scan looks at. More is RESOURCE_EXHAUSTED: what was not seen may hold a volume.
inline constexpr size_t kScannedProcesses = 1'000'000;
inline constexpr size_t kScannedNamespaces = 16'384;
inline constexpr size_t kFoundMounts = 65'536;

// A mount of one of the objects that were asked for (MountMatch::kSubtree).
struct FoundMount {
  KernelObject object;
  // A process that sees it: the one with the lowest pid in that namespace and root directory.
  pid_t pid = 0;
  // Of the file /proc/PID/ns/mnt: "mnt:[4026531841]".
  std::string mount_namespace;
  bool own_namespace = false;  // ours
  std::string target;          // decoded, as seen by that process
  // The mount beneath it receives the unmounts of the volume tree: what we unmount there vanishes here, too.
  bool follows_tree = false;
  // It is the copy of a mount at the same path in our namespace, outside of the tree, and comes and goes with
  // that.
  bool follows_outside = false;
};

struct FoundMounts {
  std::vector<FoundMount> mounts;
  // Which of the objects' file systems are mounted elsewhere in them (kSibling), and which device numbers
  // belong to another file system by now (kReused).
  std::set<dev_t> mounted_elsewhere;
  std::set<dev_t> reused;
};

class MountNamespaces {
 public:
  // `tree`: the root of the volume tree.
  MountNamespaces(const asio::any_io_executor& executor, TaskScope& scope, std::string tree);
  ~MountNamespaces();
  MountNamespaces(const MountNamespaces&) = delete;
  MountNamespaces& operator=(const MountNamespaces&) = delete;

  // Every mount of `objects`, in every mount namespace, read after this call. An error says that some may
  // have been missed: DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, or that of reading a table.
  [[nodiscard]] Awaitable<absl::StatusOr<FoundMounts>> Find(std::vector<KernelObject> objects,
                                                            TimePoint deadline);

  // How many scans have begun, for tests.
  [[nodiscard]] uint64_t scans() const { return scans_; }

 private:
  struct Query;
  [[nodiscard]] Awaitable<void> Run();

  TaskScope& scope_;
  std::string tree_;
  std::vector<std::shared_ptr<Query>> waiting_;
  Condition answered_;
  bool running_ = false;
  uint64_t scans_ = 0;
};

// The scan itself: blocks. Any thread.
[[nodiscard]] absl::StatusOr<FoundMounts> ScanMountNamespaces(const std::vector<KernelObject>& objects,
                                                              const std::string& tree, TimePoint deadline);

}  // namespace berth
