#include "mounts/earlier_mounts.h"

#include <sys/sysmacros.h>

#include <deque>
#include <set>
#include <string_view>

#include "base/mountinfo.h"
#include "base/statmount.h"

namespace berth {

std::vector<uint64_t> FingerprintsOutside(const std::string& tree) {
  // The kernel's own, and file systems that no two mounts share unless one is a bind mount.
  static const std::set<std::string_view> kNoVolumes = {
      "autofs", "binfmt_misc", "bpf",        "cgroup",  "cgroup2", "configfs", "debugfs",
      "devpts", "devtmpfs",    "efivarfs",   "fusectl", "mqueue",  "nsfs",     "overlay",
      "proc",   "pstore",      "securityfs", "sysfs",   "tracefs"};
  std::deque<uint64_t> found;
  const absl::Status read = ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    const std::string target = DecodeMountinfo(line.target);
    if (kNoVolumes.contains(line.fs_type) || IsAtOrBeneath(target, tree)) return true;
    found.push_back(MountFingerprint(line.id, makedev(line.device_major, line.device_minor),
                                     DecodeMountinfo(line.root), target));
    if (found.size() > kFingerprintsKept) found.pop_front();
    return true;
  });
  if (!read.ok()) return {};
  return {found.begin(), found.end()};
}

EarlierMounts MountsNow(const std::string& tree) {
  EarlierMounts mounts{.below = MountIdNow(tree), .fingerprints = {}};
  if (mounts.below == 0) mounts.fingerprints = FingerprintsOutside(tree);
  return mounts;
}

}  // namespace berth
