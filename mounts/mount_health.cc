#include "mounts/mount_health.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/blocking.h"
#include "mounts/storage_state.h"

namespace berth {

// A mount of a round.
struct AskedMount {
  WatchedMount mount;
  uint64_t id = 0;
  dev_t device = 0;
  absl::Status kernel_verdict;  // what the kernel says by itself
};

namespace {

// How long the kernel's own tables may take to read.
constexpr Duration kSortedWithin = std::chrono::seconds(30);

struct Sorted {
  std::vector<AskedMount> known;   // nothing more can be learned
  std::vector<AskedMount> to_ask;  // their file systems have to be asked
};

// The mounts that exist. Never asks their file systems.
Sorted Sort(const std::vector<WatchedMount>& mounts) {
  StorageLook look;
  Sorted sorted;
  for (const WatchedMount& mount : mounts) {
    const StorageState state = look.At(mount.path, mount.objects);
    if (!state.there) continue;
    AskedMount asked{
        .mount = mount, .id = state.mount_id, .device = state.device, .kernel_verdict = absl::OkStatus()};
    if (!state.dead.empty()) {
      asked.kernel_verdict = absl::UnavailableError(state.dead);
    } else if (!state.read_only.empty() && mount.writes) {
      asked.kernel_verdict = absl::FailedPreconditionError(state.read_only);
    }
    const bool ask = CanDie(state.fs_type) && !absl::IsUnavailable(asked.kernel_verdict);
    (ask ? sorted.to_ask : sorted.known).push_back(std::move(asked));
  }
  return sorted;
}

// False: it could not be asked, and is as it was.
bool IsVerdict(const absl::Status& status) {
  return status.ok() || status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

// Those of `mounts` that answered, and whose file system has died.
std::vector<AskedMount> AnsweredOf(const std::vector<AskedMount>& mounts,
                                   const std::vector<absl::Status>& verdicts, const std::set<dev_t>& died) {
  std::vector<AskedMount> answered;
  for (size_t i = 0; i < mounts.size(); ++i) {
    if (verdicts[i].ok() && died.contains(mounts[i].device)) answered.push_back(mounts[i]);
  }
  return answered;
}

}  // namespace

MountHealth::MountHealth(const asio::any_io_executor& /*executor*/, MountHelper& helper, Duration interval,
                         Which which, OnVerdict on_verdict, Duration patience)
    : helper_(helper),
      interval_(interval),
      which_(std::move(which)),
      on_verdict_(std::move(on_verdict)),
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
  for (const AskedMount& asked : sorted->known) present.insert(asked.mount.path);
  for (const AskedMount& asked : sorted->to_ask) present.insert(asked.mount.path);
  std::erase_if(bad_, [&present](const auto& entry) { return !present.contains(entry.first); });

  for (const AskedMount& asked : sorted->known) Conclude(asked.mount, asked.id, asked.kernel_verdict);

  co_await Ask(std::move(sorted->to_ask));
}

std::map<dev_t, absl::Status> MountHealth::Hanging(const std::vector<AskedMount>& to_ask) const {
  std::map<dev_t, absl::Status> hanging;
  for (const AskedMount& asked : to_ask) {
    const auto known = bad_.find(asked.mount.path);
    const bool hangs = known != bad_.end() && known->second.code == absl::StatusCode::kDeadlineExceeded;
    if (!hangs || helper_.MayProbe(asked.mount.path)) continue;
    hanging.insert_or_assign(
        asked.device, absl::DeadlineExceededError("another mount of the same file system does not answer"));
  }
  return hanging;
}

Awaitable<void> MountHealth::Ask(std::vector<AskedMount> to_ask) {
  std::map<dev_t, absl::Status> by_device = Hanging(to_ask);
  std::vector<AskedMount> first;
  std::vector<AskedMount> rest;
  for (AskedMount& asked : to_ask) {
    if (!helper_.MayProbe(asked.mount.path)) continue;
    const bool is_first = by_device.try_emplace(asked.device, absl::UnknownError("not asked")).second;
    (is_first ? first : rest).push_back(std::move(asked));
  }
  const std::vector<absl::Status> first_verdicts = co_await Probe(first);
  for (size_t i = 0; i < first.size(); ++i) {
    by_device.insert_or_assign(first[i].device, first_verdicts[i]);
    ConcludeAsked(first[i], first_verdicts[i]);
  }
  std::vector<AskedMount> second;
  for (AskedMount& asked : rest) {
    const absl::Status& other = by_device.at(asked.device);
    if (other.code() == absl::StatusCode::kDeadlineExceeded) {
      ConcludeAsked(asked, other);
    } else if (IsVerdict(other)) {
      second.push_back(std::move(asked));
    }
  }
  const std::vector<absl::Status> second_verdicts = co_await Probe(second);

  // A file system may have died after one of its mounts answered. That mount is asked again, and its verdict
  // comes first: a volume must not be mounted again from a staging that is dead, too.
  std::set<dev_t> died;
  for (size_t i = 0; i < second.size(); ++i) {
    if (second_verdicts[i].code() == absl::StatusCode::kUnavailable) died.insert(second[i].device);
  }
  std::vector<AskedMount> answered = AnsweredOf(first, first_verdicts, died);
  for (AskedMount& asked : AnsweredOf(second, second_verdicts, died)) answered.push_back(std::move(asked));
  const std::vector<absl::Status> third_verdicts = co_await Probe(answered);
  for (size_t i = 0; i < answered.size(); ++i) ConcludeAsked(answered[i], third_verdicts[i]);
  for (size_t i = 0; i < second.size(); ++i) {
    if (second_verdicts[i].ok() && died.contains(second[i].device)) continue;
    ConcludeAsked(second[i], second_verdicts[i]);
  }
}

Awaitable<std::vector<absl::Status>> MountHealth::Probe(const std::vector<AskedMount>& mounts) {
  std::vector<std::string> paths;
  for (const AskedMount& asked : mounts) paths.push_back(asked.mount.path);
  return helper_.Probe(std::move(paths), Clock::now() + patience_);
}

// Of one that answers, what the kernel says of it.
void MountHealth::ConcludeAsked(const AskedMount& asked, const absl::Status& verdict) {
  if (IsVerdict(verdict)) Conclude(asked.mount, asked.id, verdict.ok() ? asked.kernel_verdict : verdict);
}

void MountHealth::Conclude(const WatchedMount& mount, uint64_t mount_id, const absl::Status& verdict) {
  const auto known = bad_.find(mount.path);
  if (verdict.ok()) {
    if (known == bad_.end()) return;
    bad_.erase(known);
  } else {
    const bool reported_before =
        known != bad_.end() && known->second.code == verdict.code() && known->second.mount_id == mount_id;
    if (reported_before) return;
    bad_.insert_or_assign(mount.path, Bad{.code = verdict.code(), .mount_id = mount_id});
  }
  on_verdict_(mount, verdict);
}

}  // namespace berth
