// Runs berth-mount-helper (helper/main.cc): what may hang on a dead file system, in a process that
// berthd can leave behind.
//
// Owned by the Mounter; loop thread only. At its deadline a helper is killed, and is left behind if the
// kernel does not end it: it holds nothing of berthd's, costs one process, and ends when its file system
// answers. While one hangs, the same is not asked of the same path again: another caller waits for it, and
// gets DEADLINE_EXCEEDED, with its pid and age, at its own deadline. At most kStuckHelpers are left behind,
// with a share for each kind (probes, reads, flushes, the rest); beyond that nothing is begun:
// RESOURCE_EXHAUSTED, as for want of a process, memory or a descriptor.
//
// A probe keeps its mount busy until that answers. Before an unmount the probe is ended: PauseProbes.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/values.h"
#include "mounts/census_question.h"
#include "mounts/mount_types.h"

namespace berth {

inline constexpr size_t kStuckHelpers = 64;

// The helper's path: next to this program, else in ../libexec/berth from there, else `configured`. NOT_FOUND
// names the paths.
[[nodiscard]] absl::StatusOr<std::string> FindMountHelper(const std::string& configured);

// An operator's levers; see UnpublishRequest.
struct UnmountOptions {
  bool force = false;  // MNT_FORCE: what waits for the file system gets an error
  bool lazy = false;   // MNT_DETACH: out of sight at once, and gone when its last user ends
};

struct FileContent {
  mode_t mode = 0;  // type and rights, as stat(2) has them
  uid_t owner = 0;
  std::string text;  // empty unless it is a regular file
};

// A mount at a PublishedPath.
struct PathMount {
  uint64_t mount_id = 0;  // PathFacts::mount_id
  bool fresh = false;     // it was not there before
  std::string unguarded;  // why the directory beneath is not immutable; empty: it is, or was not looked at
};

// A helper that was killed and does not end.
struct StuckHelper {
  pid_t pid = 0;
  std::string what;  // "umount /var/lib/..."
  WallTime since;    // when it began
};

class MountHelper {
 public:
  // `reaper` outlives the helper processes that were left behind; usually the Mounter's own scope.
  // `locks`: the file by which helpers of one path take turns, whichever berthd launched them (MountPath and
  // UnmountPath; made when it is needed, 0600).
  MountHelper(std::string executable, TaskScope& reaper, std::string locks = {});
  ~MountHelper();
  MountHelper(const MountHelper&) = delete;
  MountHelper& operator=(const MountHelper&) = delete;

  // Unmounts once. ErrnoOf says why not (EBUSY, EINVAL if nothing is mounted).
  [[nodiscard]] Awaitable<absl::Status> Unmount(std::string path, UnmountOptions options, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Unmount(std::string path, TimePoint deadline) {
    return Unmount(std::move(path), UnmountOptions{}, deadline);
  }

  // Whether the file systems at `paths` answer, each asked by a process of its own; in the order of `paths`.
  // OK: it does. UNAVAILABLE, with the errno: it is dead (ENOTCONN, ESTALE, EIO and their kin).
  // DEADLINE_EXCEEDED: it hangs. NOT_FOUND: no such path. Anything else: it could not be asked, or was kept
  // from it.
  [[nodiscard]] Awaitable<std::vector<absl::Status>> Probe(std::vector<std::string> paths,
                                                           TimePoint deadline);

  // While the result lives, `path` is not probed. Ends a probe of it that is under way, without a verdict,
  // and waits until that has released the mount; at `deadline` it may still hold it: see HangingProbe.
  class ProbePause;
  [[nodiscard]] Awaitable<std::shared_ptr<ProbePause>> PauseProbes(std::string path, TimePoint deadline);
  [[nodiscard]] bool MayProbe(const std::string& path) const;

  // Makes the root of what is mounted at `path`, or the block device there, look as asked; `recursive`
  // changes owner and group of everything below, never through a mount or a symlink. What is right already
  // stays untouched, so that a repeat goes on where the last one was interrupted. ErrnoOf says why not
  // (EROFS, EPERM, EOPNOTSUPP; EINVAL if nothing is mounted).
  [[nodiscard]] Awaitable<absl::Status> SetPermissions(std::string path, RootPermissions permissions,
                                                       TimePoint deadline);

  // Mounts what is mounted at `source` at `path` too, once: nosuid and nodev unless `path` says otherwise.
  // The directory is made if it is missing, not its parent, must be empty, and becomes immutable first, so
  // that no process writes there while nothing is mounted. FAILED_PRECONDITION says what stands in the way,
  // and what to do about it; after an error nothing was mounted over files or over another mount.
  [[nodiscard]] Awaitable<absl::StatusOr<PathMount>> MountPath(std::string source, PublishedPath path,
                                                               bool readonly, TimePoint deadline);
  // Takes that away: the mount `mount_id`, or where that is not known (0), one of what is mounted at one of
  // `sources`. OK where nothing is mounted. ErrnoOf EBUSY: it is used. FAILED_PRECONDITION: something else is
  // mounted there, and stays.
  [[nodiscard]] Awaitable<absl::Status> UnmountPath(std::string path, uint64_t mount_id,
                                                    std::vector<std::string> sources, bool lazy,
                                                    TimePoint deadline);
  // Mounter::FreePath.
  [[nodiscard]] Awaitable<absl::Status> FreePath(std::string path, TimePoint deadline);

  // Whether statvfs says that `path` is read-only.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> IsReadonly(std::string path, TimePoint deadline);

  // Content and owner of a file, up to `limit` bytes (at most 1 MiB). Not through a symlink at its end. What
  // was read is on no disk, open only to root, and in no message. ErrnoOf says why it cannot be read (ELOOP:
  // it is a symlink); an error without an errno says nothing about the file.
  [[nodiscard]] Awaitable<absl::StatusOr<FileContent>> ReadFile(std::string path, size_t limit,
                                                                TimePoint deadline);

  // Whether the kernel has a file system with this device number, mounted anywhere or not any more, or uses
  // its `disk` still, to which the last data is written after that (0: it has none). DEADLINE_EXCEEDED while
  // it is being ended, or does not answer. UNIMPLEMENTED: this kernel cannot be asked, and there is no disk.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> SuperblockIsAlive(dev_t device, dev_t disk,
                                                                  TimePoint deadline);

  // Who has the objects of `question` (census_question.h). If it is not finished at the deadline, or fails,
  // the answer holds what was found by then, and says why it is incomplete.
  [[nodiscard]] Awaitable<CensusAnswer> TakeCensus(CensusQuestion question, TimePoint deadline);

  // Whether the kernel itself uses a block device: as a mount, swap, or part of another device. False where
  // there is no such device, or it does not answer.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> DeviceIsClaimed(dev_t device, TimePoint deadline);

  // Waits until everything that was written to a block device and its partitions is on its disk, and no write
  // is in flight. Also OK if the disk has refused some of it (this is logged), if the device has gone, or if
  // it has another disk than `sequence` (0: not known). DEADLINE_EXCEEDED: it is still being written. Helpers
  // that hang here have a share of their own.
  [[nodiscard]] Awaitable<absl::Status> Flush(dev_t device, uint64_t sequence, TimePoint deadline);

  // Those left behind, the oldest first.
  [[nodiscard]] std::vector<StuckHelper> stuck() const;

  // The probe of `path` that hangs still; 0: none.
  [[nodiscard]] pid_t HangingProbe(const std::string& path) const;

  // Waits until one of those that are left behind now has ended, or `deadline`.
  [[nodiscard]] Awaitable<void> WaitUnstuck(TimePoint deadline);

 private:
  struct State;
  enum class Kind { kProbe, kRead, kFlush, kStep };

  // The helper's answer. The answer to a read is never part of a message. `input`: what it reads on standard
  // input. `unfinished`: its output until the deadline.
  [[nodiscard]] Awaitable<absl::StatusOr<std::string>> Run(Kind kind, std::string what,
                                                           std::vector<std::string> arguments,
                                                           TimePoint deadline, std::string input = {},
                                                           std::string* unfinished = nullptr);
  [[nodiscard]] Awaitable<std::vector<absl::Status>> ProbeSome(std::vector<std::string> paths,
                                                               TimePoint deadline);

  std::shared_ptr<State> state_;
  std::string locks_;
};

}  // namespace berth
