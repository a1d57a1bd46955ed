// The mounts that there were before a volume: they cannot be the volume's. Any thread; asks no file system
// but /proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace berth {

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
