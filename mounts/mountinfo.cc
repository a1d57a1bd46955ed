#include "mounts/mountinfo.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <optional>
#include <set>
#include <string_view>

#include "base/statmount.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr size_t kChunk = size_t{64} * 1024;
constexpr size_t kLineLimit = size_t{64} * 1024;
constexpr size_t kFileLimit = size_t{256} * 1024 * 1024;

}  // namespace

absl::Status ReadMountinfo(const std::string& path,
                           const std::function<bool(const MountinfoLine& line)>& each) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  std::string buffer;
  size_t total = 0;
  while (true) {
    const size_t kept = buffer.size();
    buffer.resize(kept + kChunk);
    const ssize_t count = read(fd.get(), buffer.data() + kept, kChunk);
    if (count < 0) {
      buffer.resize(kept);
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, fmt::format("read {}", path));
    }
    buffer.resize(kept + static_cast<size_t>(count));
    total += static_cast<size_t>(count);
    if (total > kFileLimit) return absl::OutOfRangeError(fmt::format("{}: too long", path));
    std::string_view rest = buffer;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      const std::optional<MountinfoLine> line = ParseMountinfoLine(rest.substr(0, end));
      if (line.has_value() && !each(*line)) return absl::OkStatus();
      rest.remove_prefix(end + 1);
    }
    if (count == 0) return absl::OkStatus();
    if (rest.size() > kLineLimit) return absl::OutOfRangeError(fmt::format("{}: a line is too long", path));
    buffer.erase(0, buffer.size() - rest.size());
  }
}

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
