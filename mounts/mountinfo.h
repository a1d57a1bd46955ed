// The mount table of one process, line by line, as /proc/PID/mountinfo shows it: for tables of other mount
// namespaces, and where only a few of very many lines are wanted. Of one's own, all at once: mount_table.h.
//
// Blocks, and touches no file system but /proc. Any thread.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <vector>

#include "mounts/mountinfo_line.h"

namespace berth {

// Calls `each` for every line until it returns false. Lines in an unknown form are skipped. Errors: those of
// reading; OUT_OF_RANGE beyond 256 MiB.
[[nodiscard]] absl::Status ReadMountinfo(const std::string& path,
                                         const std::function<bool(const MountinfoLine& line)>& each);

// Which mounts there were before a volume was.
struct EarlierMounts {
  // Those with a smaller unique id (PathFacts::mount_id). 0: not known, or the kernel has no such ids.
  uint64_t below = 0;
  // Where it has none (before 6.8): MountFingerprint of those outside of the tree in this mount namespace, as
  // far as their file systems can be a volume's; the last kFingerprintsKept.
  std::vector<uint64_t> fingerprints;

  bool operator==(const EarlierMounts&) const = default;
};
inline constexpr size_t kFingerprintsKept = 256;

// All that there are now. `tree`: the root of the volume tree.
[[nodiscard]] EarlierMounts MountsNow(const std::string& tree);
// The second way alone; for tests. None where the table cannot be read.
[[nodiscard]] std::vector<uint64_t> FingerprintsOutside(const std::string& tree);

}  // namespace berth
