#include "rpc/uplink/lease_keeper.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/backoff.h"
#include "base/blocking.h"
#include "base/status.h"
#include "base/utc_text.h"

namespace berth {
namespace {

// A small file on the node's own disk.
constexpr Duration kWriteWithin = std::chrono::seconds(20);
constexpr size_t kEventsAtOnce = 100;

// What lies beyond a day is cut by the lease itself.
Duration DurationOf(const google::protobuf::Duration& duration) {
  constexpr int64_t kMostSeconds = 1'000'000;
  return std::chrono::seconds(std::clamp<int64_t>(duration.seconds(), -1, kMostSeconds)) +
         std::chrono::nanoseconds(duration.nanos());
}

// When `at` was, or will be, by the clock on the wall: for people.
std::string OnTheWall(BootTime at) {
  return UtcText(WallClock::now() - std::chrono::duration_cast<WallClock::duration>(BootClock::now() - at));
}

}  // namespace

LeaseKeeper::LeaseKeeper(asio::any_io_executor executor, LeaseKeeperOptions options, Mounter& mounter,
                         EventLog& events, LinkRows& rows)
    : options_(std::move(options)),
      mounter_(mounter),
      events_(events),
      rows_(rows),
      store_(options_.state_dir, options_.runtime_dir, options_.boot_id),
      executor_(executor),
      timer_(executor),
      changed_(executor),
      tasks_(executor, "lease") {}

void LeaseKeeper::Start(const std::map<std::string, std::string>& rows) {
  LeaseStore::Kept kept = store_.Load(BootClock::now());
  for (const std::string& problem : kept.problems) SPDLOG_ERROR("{}", problem);
  damaged_ = std::move(kept.problems);
  if (const absl::Status reserved = store_.Reserve(); !reserved.ok()) SPDLOG_WARN("{}", MessageOf(reserved));
  std::string unknown = kept.epoch_problem;
  if (kept.epoch_missing) unknown = HadScheduler(rows, kept);
  if (unknown.empty()) {
    lease_ = Lease(kept.highest_epoch);
    const std::string row = std::to_string(kept.highest_epoch);
    const auto known = rows.find(std::string(kLeaseEpochRow));
    if (kept.highest_epoch != 0 && (known == rows.end() || known->second != row)) {
      rows_.PutSoon(std::string(kLeaseEpochRow), row);
    }
  } else {
    lease_ = Lease::WithUnknownEpoch();
    unknown_epoch_ = fmt::format(
        "{}: it is not known which scheduler this node obeys, so no lease is accepted and nothing new is "
        "begun "
        "for a scheduler; volumes can be released. Find out which scheduler is the current one, write the "
        "epoch of its leases into {} as a line (0: obey the next one that grants a lease), and restart "
        "berthd",
        unknown, store_.EpochPath());
    SPDLOG_ERROR("{}", unknown_epoch_);
  }
  if (kept.lease) lease_.Restore(*kept.lease);
  saved_ = lease_.last();

  for (const auto& [key, value] : rows) {
    std::string_view name = key;
    if (name == kForcedReleaseNumberRow) {
      last_number_ = std::max(last_number_, NumberIn(value).value_or(0));
    } else if (name.starts_with(kForcedReleaseRow) && !value.empty()) {
      v1::ForcedRelease forced_release;
      const auto number = NumberIn(name, kForcedReleaseRow);
      if (!number || !forced_release.ParseFromString(value) || forced_release.number() != *number) {
        damaged_.push_back(fmt::format("the record of a forced release is damaged ({})", Printable(key, 64)));
        SPDLOG_ERROR("{}", damaged_.back());
        continue;
      }
      last_number_ = std::max(last_number_, *number);
      forced_releases_[*number] = std::move(forced_release);
    }
  }
  for (const auto& [number, forced_release] : forced_releases_) {
    if (forced_release.progress() == v1::ForcedRelease::RELEASING) SpawnFinish(number);
  }
  tasks_.Spawn("save", SaveLease());
  tasks_.Spawn("watch", WatchEnd());
  // One that ended while berthd was away has ended.
  Look();
  if (state() == v1::LEASE_VALID) {
    SPDLOG_INFO("the scheduler's lease of epoch {} holds", lease_.epoch());
    UnblockForward();
  } else if (!unknown_epoch_.empty()) {
    mounter_.BlockForward(Origin::kScheduler, "no lease is accepted: " + unknown);
  }
}

std::string LeaseKeeper::HadScheduler(const std::map<std::string, std::string>& rows,
                                      const LeaseStore::Kept& kept) const {
  const std::string missing = store_.EpochPath() + " is missing, and this node has obeyed a scheduler";
  if (const auto row = rows.find(std::string(kLeaseEpochRow)); row != rows.end()) {
    return fmt::format("{} (the last epoch known was {})", missing, Printable(row->second, 32));
  }
  if (kept.lease) return fmt::format("{} (the last lease was of epoch {})", missing, kept.lease->epoch);
  for (const VolumeView& volume : mounter_.List({})) {
    const auto& uses = volume.publications;
    if (std::ranges::find(uses, Origin::kScheduler, &PublicationView::origin) == uses.end()) continue;
    return fmt::format("{} (which published volume {})", missing, Printable(volume.volume_id, 128));
  }
  return "";
}

size_t LeaseKeeper::UnblockForward() {
  forward_ = true;
  return mounter_.UnblockForward(Origin::kScheduler, lease_.last()->since);
}

Awaitable<void> LeaseKeeper::Shutdown() { co_await tasks_.Join(); }

Awaitable<void> LeaseKeeper::WatchEnd() {
  while (true) {
    Look();
    timer_.ExpireAt(lease_.NextLook());
    co_await timer_.Wait();
  }
}

void LeaseKeeper::Look() {
  if (lease_.OnTime(BootClock::now())) OnExpired();
}

void LeaseKeeper::BlockForward(BootTime since) {
  forward_ = false;
  mounter_.BlockForward(Origin::kScheduler, "no valid lease of the scheduler since " + OnTheWall(since));
}

void LeaseKeeper::OnExpired() {
  const Lease::Term term = *lease_.last();
  const bool release = options_.on_expiry == v1::RELEASE;
  Emit("lease.expired",
       fmt::format("the lease of epoch {} has run out: the scheduler was not heard; what is mounted stays "
                   "mounted{}, and nothing new is begun",
                   term.epoch, release ? ", but for volumes that only one node may write to" : ""));
  BlockForward(term.ends);
  if (release) ForceReleaseVolumes();
  Changed();
}

void LeaseKeeper::ForceReleaseVolumes() {
  const uint64_t epoch = lease_.last()->epoch;
  for (VolumeRef& volume : mounter_.SingleWriterVolumes(Origin::kScheduler)) {
    if (force_releasing(volume.plugin_id, volume.volume_id)) continue;
    const std::string name = fmt::format("release volume {}", Printable(volume.volume_id, 128));
    tasks_.Spawn(name, ForceRelease(std::move(volume), epoch));
  }
}

Awaitable<absl::Status> LeaseKeeper::OnAnswer(v1::HeartbeatAnswer answer) {
  std::optional<LeaseGrant> grant;
  if (answer.has_lease()) {
    grant = {.epoch = answer.lease().epoch(), .duration = DurationOf(answer.lease().duration())};
  }
  // A lease that ran out unnoticed, as in a sleep, has run out, whatever comes now.
  Look();
  const AnswerVerdict verdict = lease_.OnAnswer(answer.number(), grant, BootClock::now());
  if (!lease_.epoch_known()) {
    const uint64_t offered = grant ? grant->epoch : 0;
    if (std::exchange(offered_epoch_, offered) != offered) Changed();
    co_return absl::OkStatus();
  }
  if (verdict.kind == AnswerVerdict::Kind::kOvertaken) co_return absl::FailedPreconditionError(verdict.why);
  if (verdict.kind == AnswerVerdict::Kind::kIgnored) SPDLOG_WARN("ignored: {}", verdict.why);
  if (verdict.epoch_to_write != 0) {
    // Nothing goes on for the old one while the new one is written down, and if this is cancelled.
    if (forward_) {
      BlockForward(BootClock::now());
      Changed();
    }
    co_await WriteEpoch(verdict.epoch_to_write);
  }

  timer_.ExpireAt(lease_.NextLook());
  changed_.NotifyAll();
  const bool valid = state() == v1::LEASE_VALID;
  if (valid && !forward_) {
    const size_t unconfirmed = UnblockForward();
    Emit("lease.granted",
         fmt::format("the scheduler has granted a lease of epoch {}{}", lease_.epoch(),
                     unconfirmed == 0 ? ""
                                      : fmt::format("; {} publications from before it are blocked until the "
                                                    "scheduler confirms them",
                                                    unconfirmed)));
    Changed();
  } else if (!valid && forward_) {
    // Of a higher epoch nothing is granted.
    BlockForward(BootClock::now());
    Changed();
  }
  co_return absl::OkStatus();
}

Awaitable<void> LeaseKeeper::WriteEpoch(uint64_t epoch) {
  const uint64_t before = saved_ ? saved_->epoch : 0;
  auto write = [store = store_, epoch] { return store.WriteEpoch(epoch); };
  const absl::Status written =
      co_await RunBlocking("write down the lease epoch", std::move(write), Clock::now() + kWriteWithin);
  if (!written.ok()) {
    epoch_problem_ =
        fmt::format("the scheduler's lease epoch {} cannot be written down, so it is not obeyed: {}", epoch,
                    MessageOf(written));
    SPDLOG_ERROR("{}", epoch_problem_);
    co_return;
  }
  epoch_problem_.clear();
  lease_.OnEpochWritten(epoch);
  rows_.PutSoon(std::string(kLeaseEpochRow), std::to_string(epoch));
  Emit("lease.epoch",
       fmt::format(
           "a scheduler of lease epoch {} is obeyed from now on, and none of a lower one{}", epoch,
           before != 0 && before < epoch ? fmt::format("; the last lease was of epoch {}", before) : ""));
  Changed();
}

Awaitable<void> LeaseKeeper::SaveLease() {
  while (true) {
    auto to_save = [this] { return lease_.last() != saved_; };
    co_await changed_.WaitUntil(std::move(to_save), TimePoint::max());
    if (lease_.last() == saved_) continue;
    const Lease::Term term = *lease_.last();
    auto write = [store = store_, term] { return store.WriteLease(term); };
    const absl::Status written =
        co_await RunBlocking("note the lease", std::move(write), Clock::now() + kWriteWithin);
    saved_ = term;  // the next one is near, also where this could not be written
    const bool failed = !written.ok();
    if (failed && !lease_file_failed_) {
      SPDLOG_WARN("a restarted berthd will not know whether the lease runs: {}", MessageOf(written));
    }
    lease_file_failed_ = failed;
  }
}

Awaitable<void> LeaseKeeper::ForceRelease(VolumeRef volume, uint64_t epoch) {
  // Until something is done, a lease that is back is reason enough not to.
  auto back = [this] { return state() == v1::LEASE_VALID; };
  if (back() || force_releasing(volume.plugin_id, volume.volume_id) || !beginning_.insert(volume).second)
    co_return;
  const uint64_t number = ++last_number_;
  v1::ForcedRelease forced_release;
  forced_release.set_number(number);
  forced_release.set_plugin_id(volume.plugin_id);
  forced_release.set_volume_id(volume.volume_id);
  forced_release.set_lease_epoch(epoch);
  forced_release.set_progress(v1::ForcedRelease::RELEASING);
  const bool written =
      co_await PutRow(std::string(kForcedReleaseNumberRow), std::to_string(number), back) &&
      co_await PutRow(Row(kForcedReleaseRow, number), forced_release.SerializeAsString(), back);
  if (!written || back()) {
    // Taken back for certain: a row that turned up again after a crash would be finished.
    (void)co_await PutRow(Row(kForcedReleaseRow, number), "", [] { return false; });
    rows_.DeleteSoon(Row(kForcedReleaseRow, number));
    beginning_.erase(volume);
    // It may have run out once more while that was written.
    if (!back() && options_.on_expiry == v1::RELEASE) ForceReleaseVolumes();
    co_return;
  }
  beginning_.erase(volume);
  forced_releases_[number] = std::move(forced_release);
  Emit(
      "volume.forced_release",
      fmt::format("it is released, since the lease of epoch {} has expired: its consumers are ended, then it "
                  "is unpublished",
                  epoch),
      volume);
  Changed();
  co_await Finish(number);
}

void LeaseKeeper::SpawnFinish(uint64_t number) {
  tasks_.Spawn(fmt::format("finish giving up {}", number), Finish(number));
}

Awaitable<void> LeaseKeeper::Finish(uint64_t number) {
  const VolumeRef volume{.plugin_id = forced_releases_[number].plugin_id(),
                         .volume_id = forced_releases_[number].volume_id()};
  for (int failures = 1;; ++failures) {
    const uint64_t seen = events_.next_sequence() - 1;
    const auto result =
        co_await mounter_.ForceRelease(volume, Origin::kScheduler, Clock::now() + options_.give_up_timeout);
    v1::ForcedRelease& forced_release = forced_releases_[number];
    if (result.ok()) {
      v1::ForcedRelease released = forced_release;
      released.set_progress(v1::ForcedRelease::RELEASED);
      released.set_still_in_use(false);
      released.clear_last_error();
      // Reported once it is on the disk: a report is not taken back.
      (void)co_await PutRow(Row(kForcedReleaseRow, number), released.SerializeAsString(),
                            [] { return false; });
      forced_releases_[number] = std::move(released);
      ForgetOlder(number);
      break;
    }
    const std::string error = Printable(MessageOf(result.status()));
    const auto view = mounter_.Find(volume.plugin_id, volume.volume_id);
    if (error != forced_release.last_error()) {
      SPDLOG_WARN("{}; trying again", error);
      forced_release.set_last_error(error);
      forced_release.set_still_in_use(view && view->still_in_use);
      Changed();
    }
    co_await WaitFree(volume, seen, Clock::now() + PauseAfter(failures));
  }
  Emit("volume.forced_release",
       "it is released: every consumer that is known has ended, and the kernel no longer has it", volume);
  Changed();
}

Awaitable<bool> LeaseKeeper::PutRow(std::string key, std::string value, std::function<bool()> stop) {
  for (int failures = 1;; ++failures) {
    const absl::Status written = co_await rows_.Put(key, value);
    if (written.ok()) co_return true;
    if (failures == 1) SPDLOG_WARN("forced release: {}; trying again", MessageOf(written));
    if (co_await changed_.WaitUntil(stop, Clock::now() + PauseAfter(failures))) co_return false;
  }
}

Duration LeaseKeeper::PauseAfter(int failures) const {
  return Backoff(failures, options_.first_pause, options_.retry_limit, RandomShare());
}

Awaitable<void> LeaseKeeper::WaitFree(VolumeRef volume, uint64_t seen, TimePoint then) {
  while (co_await events_.WaitAfter(seen, then)) {
    const EventLog::Batch batch = events_.After(seen, kEventsAtOnce);
    if (batch.missed > 0) co_return;
    for (const Event& event : batch.events) {
      seen = event.sequence;
      const bool its = event.plugin_id == volume.plugin_id && event.volume_id == volume.volume_id;
      if (its && event.type == "volume.free") co_return;
    }
  }
}

std::optional<Duration> LeaseKeeper::left() const {
  if (state() != v1::LEASE_VALID) return std::nullopt;
  return std::max(Duration(0), lease_.last()->ends - BootClock::now());
}

std::string LeaseKeeper::why_not_valid() const {
  if (!unknown_epoch_.empty()) return unknown_epoch_;
  const v1::LeaseState now = state();
  if (now == v1::LEASE_VALID) return "";
  return now == v1::LEASE_EXPIRED ? "the node's lease has run out" : "the node has been granted no lease yet";
}

absl::Status LeaseKeeper::OnWelcome(uint64_t epoch) {
  if (epoch != 0 && epoch < lease_.epoch()) {
    return absl::FailedPreconditionError(
        fmt::format("the scheduler is of lease epoch {}, and {} is obeyed: another one has taken over", epoch,
                    lease_.epoch()));
  }
  lease_.OnWelcome(epoch);
  return absl::OkStatus();
}

std::vector<v1::ForcedRelease> LeaseKeeper::forced_release() const {
  std::vector<v1::ForcedRelease> list;
  for (const auto& [number, forced_release] : forced_releases_) list.push_back(forced_release);
  return list;
}

void LeaseKeeper::AcknowledgeForcedRelease(uint64_t number) {
  const auto found = forced_releases_.find(number);
  if (found == forced_releases_.end() || found->second.progress() != v1::ForcedRelease::RELEASED) return;
  forced_releases_.erase(found);
  rows_.DeleteSoon(Row(kForcedReleaseRow, number));
  Changed();
}

// Of one volume the newest says it all: a scheduler that never acknowledges costs no more than one row for
// each.
void LeaseKeeper::ForgetOlder(uint64_t number) {
  const v1::ForcedRelease& newest = forced_releases_.at(number);
  std::erase_if(forced_releases_, [&](const auto& entry) {
    const v1::ForcedRelease& older = entry.second;
    const bool same = older.plugin_id() == newest.plugin_id() && older.volume_id() == newest.volume_id();
    if (!same || older.number() >= number || older.progress() != v1::ForcedRelease::RELEASED) return false;
    rows_.DeleteSoon(Row(kForcedReleaseRow, older.number()));
    return true;
  });
}

bool LeaseKeeper::force_releasing(const std::string& plugin_id, const std::string& volume_id) const {
  return std::ranges::any_of(forced_releases_, [&](const auto& entry) {
    const v1::ForcedRelease& forced_release = entry.second;
    return forced_release.progress() == v1::ForcedRelease::RELEASING &&
           forced_release.plugin_id() == plugin_id && forced_release.volume_id() == volume_id;
  });
}

std::vector<std::string> LeaseKeeper::Problems() const {
  std::vector<std::string> problems = damaged_;
  if (!unknown_epoch_.empty()) {
    problems.push_back(unknown_epoch_);
    if (offered_epoch_ != 0) {
      problems.back() +=
          fmt::format(". The scheduler that is connected grants leases of epoch {}", offered_epoch_);
    }
  }
  if (!epoch_problem_.empty()) problems.push_back(epoch_problem_);
  return problems;
}

void LeaseKeeper::Emit(std::string type, std::string message, const VolumeRef& volume) {
  events_.Append({.type = std::move(type),
                  .plugin_id = volume.plugin_id,
                  .volume_id = volume.volume_id,
                  .consumer = "",
                  .message = std::move(message)});
}

void LeaseKeeper::Changed() {
  changed_.NotifyAll();
  if (!options_.on_change || std::exchange(telling_, true)) return;
  tasks_.Spawn("report of a change", ReportChange());
}

Awaitable<void> LeaseKeeper::ReportChange() {
  // Not from within the call that changed it; several changes are one.
  co_await asio::post(executor_, asio::use_awaitable);
  telling_ = false;
  options_.on_change();
}

}  // namespace berth
