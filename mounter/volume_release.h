// Says whether the kernel still has a volume, and who keeps it there. Everything that unstages, detaches,
// deletes a volume or reports it as free rests on this answer.
//
//   last NodeUnpublishVolume ──► HoldersBeforeUnstage: a census of its file systems
//       a hold ──► blocked, stays staged          none ──► NodeUnstageVolume
//
//   nothing published, nothing staged ──► CheckReleased, for each object recorded of the volume:
//       the volume's directory, if berthd ended before it knew what was mounted: a hold ─► in use
//       its disk was detached ─────────────────────────────────────────────────────► released
//       a hold in a census, or the census is incomplete ───────────────────────────► in use
//       the same file system is mounted elsewhere, for others ─────────────────────► released
//       no mount anywhere: the superblock has ended, its disk is unclaimed,
//                          and nobody may write to that (where it is still there) ──► released
//                          it has not, or cannot be asked ─────────────────────────► in use, by the kernel
//       a block device: mounted, swap, under another device ───────────────────────► in use
//                       what was written is on its disk, and nobody has it then ───► released
//
// The census of a whole disk covers only mounts: any other use shows in its superblock. The census of a
// directory, a network file system or a block device covers processes, too.
//
// inotify's IN_UNMOUNT does not prove the end of a superblock: it comes before the last data is written (5 ms
// before, of 150 MB on ext4, Linux 6.18). ustat(2) waits for that, and the kernel releases the disk after it.
//
// The row of a volume that is in use stays in the journal, so the volume never counts as free, also after a
// restart.
//
// Loop thread; what may block runs in helper processes.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"
#include "mounts/census.h"
#include "mounts/mount_helper.h"

namespace berth {

inline constexpr size_t kHoldersShown = 64;
// How long a step of a volume looks for the holders that keep it from being done.
inline constexpr Duration kHolderSearch = std::chrono::seconds(5);

struct ReleaseCheck {
  bool released = true;
  std::string
      why;  // not released: "still used by pid 812 (podman) in another mount namespace, mounted at /data"
  std::vector<MountHolder> holders;  // where processes are known
  // Those that the kernel has still, or may have. Not released, and none: what there is, is not known.
  std::vector<KernelObject> objects;
};

class VolumeRelease {
 public:
  // `tree`: the root of the volume tree.
  VolumeRelease(Census& census, MountHelper& helper, std::string tree)
      : census_(census), helper_(helper), tree_(std::move(tree)) {}

  // The users of a volume that is only staged here. Empty: there are none. UNAVAILABLE: it cannot be known
  // now.
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<MountHolder>>> HoldersBeforeUnstage(VolumeRecord record,
                                                                                         TimePoint deadline);

  // Whether the kernel has released all that was recorded of a volume that is neither published nor staged.
  [[nodiscard]] Awaitable<ReleaseCheck> CheckReleased(VolumeRecord record, TimePoint deadline);

  // The users of what the volume has mounted at `path`, anywhere on the node; without the consumers' names.
  // An error only if no user is known.
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<MountHolder>>> HoldersAt(VolumeRecord record,
                                                                              std::string path,
                                                                              TimePoint deadline);

 private:
  // The question about `objects`; after them about the volume's directory, if not all of its mounts are
  // known.
  [[nodiscard]] absl::StatusOr<CensusQuestion> Question(const VolumeRecord& record,
                                                        const std::vector<KernelObject>& objects,
                                                        bool staged) const;
  // Incomplete where there is no question.
  [[nodiscard]] Awaitable<CensusAnswer> Ask(absl::StatusOr<CensusQuestion> question, TimePoint deadline);
  [[nodiscard]] Awaitable<void> CheckFileSystem(VolumeRecord record, KernelObject object, bool elsewhere,
                                                TimePoint deadline, ReleaseCheck* check);
  [[nodiscard]] Awaitable<void> CheckWriters(VolumeRecord record, KernelObject object, TimePoint deadline,
                                             ReleaseCheck* check);
  [[nodiscard]] Awaitable<void> CheckDevice(VolumeRecord record, KernelObject object, TimePoint deadline,
                                            ReleaseCheck* check);
  [[nodiscard]] Awaitable<void> CheckQuiet(VolumeRecord record, KernelObject object, TimePoint deadline,
                                           ReleaseCheck* check);

  Census& census_;
  MountHelper& helper_;
  std::string tree_;
};

// For people. A process's command is read from /proc.
[[nodiscard]] MountHolder HolderOf(const Hold& hold);

// "still used by pid 812 (podman) in another mount namespace, mounted at /data; pid 9 (sh): ..."
[[nodiscard]] std::string DescribeUse(const std::vector<MountHolder>& holders);

}  // namespace berth
