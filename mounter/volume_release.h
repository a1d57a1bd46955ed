// Says whether the kernel still has a volume, and who keeps it there. Everything that unstages, detaches,
// deletes a volume or reports it as free rests on this answer.
//
//   last NodeUnpublishVolume ──► HoldersOutside: mounts in other mount namespaces ──► any: blocked, stays
//   staged
//                                                                                └──► none: NodeUnstageVolume
//   nothing published, nothing staged ──► CheckReleased, for each object recorded of the volume:
//       its disk was detached ───────────────────────────────────────────────► released
//       a mount of it in any namespace ──────────────────────────────────────► in use, by the processes there
//       a process on a mount that was detached (umount --lazy) ──────────────► in use
//       the same file system is mounted elsewhere, for others ───────────────► released
//       no mount anywhere: the superblock has ended ─────────────────────────► released
//                          it has not, or cannot be asked ───────────────────► in use, by the kernel
//       a block device: open in a process, mounted, swap, under another device ► in use
//
// The row of a volume that is in use stays in the journal, so nobody takes it for free, also after a restart.
//
// Sort* are pure. Loop thread; what may block runs on helper threads and in helper processes.
#pragma once

#include <absl/status/statusor.h>

#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/mount_helper.h"
#include "mounter/mount_namespaces.h"
#include "mounter/mounter.h"
#include "mounter/volume_record.h"

namespace berth {

struct ReleaseCheck {
  bool released = false;
  std::string
      why;  // not released: "still used by pid 812 (podman) in another mount namespace, mounted at /data"
  std::vector<MountHolder> holders;  // where processes are known
  // Those that the kernel has still, or may have.
  std::vector<KernelObject> objects;
};

// Where a mount of the volume counts.
struct MountScope {
  std::string tree;              // the volume tree
  std::string volume;            // this volume's directory in it, absolute
  std::string plugin_namespace;  // the plugin's mount namespace; empty: ours, or unknown
};

// Of `found`, the mounts that keep the volume in use while it is still staged: not those that go when ours
// go, not the plugin's own, and not other volumes' uses of the same file system.
[[nodiscard]] std::vector<FoundMount> SortBlockingUnstage(const FoundMounts& found, const MountScope& scope);

// Of `found`, the mounts that keep the volume in use once nothing of it is published or staged here.
[[nodiscard]] std::vector<FoundMount> SortRemaining(const FoundMounts& found, const MountScope& scope);

class VolumeRelease {
 public:
  VolumeRelease(MountNamespaces& namespaces, MountHelper& helper, std::string tree)
      : namespaces_(namespaces), helper_(helper), tree_(std::move(tree)) {}

  // Who uses the volume in other mount namespaces, before it is unstaged. Empty: nobody. An error: it cannot
  // be known now (UNAVAILABLE). `plugin_pid`, here and below: who serves the plugin's socket; 0: unknown.
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<MountHolder>>> HoldersOutside(VolumeRecord record,
                                                                                   pid_t plugin_pid,
                                                                                   TimePoint deadline);

  // Whether the kernel has released all that was recorded of a volume that is neither published nor staged.
  [[nodiscard]] Awaitable<ReleaseCheck> CheckReleased(VolumeRecord record, pid_t plugin_pid,
                                                      TimePoint deadline);

 private:
  [[nodiscard]] MountScope ScopeOf(const VolumeRecord& record, pid_t plugin_pid) const;
  [[nodiscard]] Awaitable<void> CheckFileSystem(KernelObject object, FoundMounts found, MountScope scope,
                                                std::vector<uint64_t> detached_mounts, TimePoint deadline,
                                                ReleaseCheck* check);
  [[nodiscard]] Awaitable<void> CheckDevice(KernelObject object, TimePoint deadline, ReleaseCheck* check);

  MountNamespaces& namespaces_;
  MountHelper& helper_;
  std::string tree_;
};

// "still used by pid 812 (podman) in another mount namespace, mounted at /data; pid 9 (sh): ..."
[[nodiscard]] std::string DescribeUse(const std::vector<MountHolder>& holders);

}  // namespace berth
