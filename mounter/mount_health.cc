#include "mounter/mount_health.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/blocking.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"
#include "mounter/mountinfo.h"

namespace berth {
namespace {

// How long the kernel's own books may take to read.
constexpr Duration kSortedWithin = std::chrono::seconds(30);

// A mount that is worth asking.
struct Asked {
  WatchedMount mount;
  uint64_t id = 0;
  dev_t device = 0;
};

// Types by target, for kernels that do not tell of one mount alone.
std::map<std::string, std::string> TypesByTarget() {
  std::map<std::string, std::string> types;
  const absl::Status read = ReadMountinfo("/proc/self/mountinfo", [&types](const MountinfoLine& line) {
    // The last one with a path lies on top.
    if (CanDie(line.fs_type)) {
      types.insert_or_assign(DecodeMountinfo(line.target), line.fs_type);
    } else if (!types.empty()) {
      types.erase(DecodeMountinfo(line.target));
    }
    return true;
  });
  read.IgnoreError();  // then nothing is asked this time
  return types;
}

// Those of `mounts` that are there and can die. Never asks their file systems.
std::vector<Asked> Sort(const std::vector<WatchedMount>& mounts) {
  std::optional<std::map<std::string, std::string>> types;
  std::vector<Asked> asked;
  for (const WatchedMount& mount : mounts) {
    const auto facts = LookAt(mount.path);
    if (!facts.ok() || !facts->mount_root) continue;
    const auto told = StatMount(facts->mount_id);
    std::string fs_type;
    if (told.ok() && told->has_value()) {
      fs_type = (*told)->fs_type;
    } else if (told.ok()) {
      if (!types.has_value()) types = TypesByTarget();
      const auto it = types->find(mount.path);
      if (it != types->end()) fs_type = it->second;
    }
    if (CanDie(fs_type)) asked.push_back({.mount = mount, .id = facts->mount_id, .device = facts->device});
  }
  return asked;
}

bool IsVerdict(const absl::Status& status) {
  return status.ok() || status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

bool CanDie(std::string_view fs_type) {
  constexpr std::array<std::string_view, 18> kTypes = {
      "9p",   "afs",       "beegfs", "ceph",  "cifs", "davfs", "fuse",  "fuseblk",  "gfs2",
      "gpfs", "glusterfs", "lustre", "ncpfs", "nfs",  "nfs4",  "ocfs2", "orangefs", "virtiofs"};
  const std::string_view base = fs_type.substr(0, fs_type.find('.'));
  return base.starts_with("smb") || std::ranges::find(kTypes, base) != kTypes.end();
}

MountHealth::MountHealth(const asio::any_io_executor& /*executor*/, MountHelper& helper, Duration interval,
                         Which which, Told told, Duration patience)
    : helper_(helper),
      interval_(interval),
      which_(std::move(which)),
      told_(std::move(told)),
      patience_(patience) {}

Awaitable<void> MountHealth::Run() {
  while (true) {
    // What hung and has come to its end is asked at once.
    co_await helper_.WaitUnstuck(Clock::now() + interval_);
    co_await Round();
  }
}

Awaitable<void> MountHealth::Round() {
  auto mounts = which_();
  auto sort = [mounts = std::move(mounts)] { return Sort(mounts); };
  auto sorted =
      co_await RunBlocking("sort the mounts by what they are", std::move(sort), Clock::now() + kSortedWithin);
  if (!sorted.ok()) co_return;

  // What is not there any more has no verdict.
  std::set<std::string> present;
  for (const Asked& asked : *sorted) present.insert(asked.mount.path);
  std::erase_if(bad_, [&present](const auto& entry) { return !present.contains(entry.first); });

  // One mount of each file system first: of one that hangs, the others hang too, and are not asked.
  std::map<dev_t, absl::Status> by_device;
  std::vector<Asked> first;
  std::vector<Asked> rest;
  // Also in later rounds, while the probe of the first hangs: each would leave a helper behind.
  for (const Asked& asked : *sorted) {
    const auto known = bad_.find(asked.mount.path);
    const bool hangs = known != bad_.end() && known->second.code == absl::StatusCode::kDeadlineExceeded;
    if (hangs && !helper_.MayProbe(asked.mount.path)) {
      by_device.insert_or_assign(
          asked.device, absl::DeadlineExceededError("another mount of the same file system does not answer"));
    }
  }
  for (Asked& asked : *sorted) {
    if (!helper_.MayProbe(asked.mount.path)) continue;
    const bool is_first = by_device.try_emplace(asked.device, absl::UnknownError("not asked")).second;
    (is_first ? first : rest).push_back(std::move(asked));
  }
  const auto paths = [](const std::vector<Asked>& all) {
    std::vector<std::string> each;
    for (const Asked& asked : all) each.push_back(asked.mount.path);
    return each;
  };
  std::vector<std::string> first_paths = paths(first);
  const auto first_verdicts = co_await helper_.Probe(std::move(first_paths), Clock::now() + patience_);
  for (size_t i = 0; i < first.size(); ++i) {
    by_device.insert_or_assign(first[i].device, first_verdicts[i]);
    Conclude(first[i].mount, first[i].id, first_verdicts[i]);
  }
  std::vector<Asked> second;
  for (Asked& asked : rest) {
    const absl::Status& other = by_device.at(asked.device);
    if (other.code() == absl::StatusCode::kDeadlineExceeded) {
      Conclude(asked.mount, asked.id, other);
    } else if (IsVerdict(other)) {
      second.push_back(std::move(asked));
    }
  }
  std::vector<std::string> second_paths = paths(second);
  const auto second_verdicts = co_await helper_.Probe(std::move(second_paths), Clock::now() + patience_);

  // A file system may have died after one of its mounts answered. That mount is asked again, and its verdict
  // comes first: a volume must not be mounted again from a staging that is dead, too.
  std::set<dev_t> died;
  for (size_t i = 0; i < second.size(); ++i) {
    if (second_verdicts[i].code() == absl::StatusCode::kUnavailable) died.insert(second[i].device);
  }
  std::vector<Asked> again;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first_verdicts[i].ok() && died.contains(first[i].device)) again.push_back(first[i]);
  }
  for (size_t i = 0; i < second.size(); ++i) {
    if (second_verdicts[i].ok() && died.contains(second[i].device)) again.push_back(second[i]);
  }
  std::vector<std::string> again_paths = paths(again);
  const auto again_verdicts = co_await helper_.Probe(std::move(again_paths), Clock::now() + patience_);
  for (size_t i = 0; i < again.size(); ++i) Conclude(again[i].mount, again[i].id, again_verdicts[i]);
  for (size_t i = 0; i < second.size(); ++i) {
    if (second_verdicts[i].ok() && died.contains(second[i].device)) continue;
    Conclude(second[i].mount, second[i].id, second_verdicts[i]);
  }
}

void MountHealth::Conclude(const WatchedMount& mount, uint64_t mount_id, const absl::Status& verdict) {
  if (!IsVerdict(verdict)) return;  // it could not be asked: as it was
  const auto known = bad_.find(mount.path);
  if (verdict.ok()) {
    if (known == bad_.end()) return;
    bad_.erase(known);
  } else {
    const bool told_before =
        known != bad_.end() && known->second.code == verdict.code() && known->second.mount_id == mount_id;
    if (told_before) return;
    bad_.insert_or_assign(mount.path, Bad{.code = verdict.code(), .mount_id = mount_id});
  }
  told_(mount, verdict);
}

}  // namespace berth
