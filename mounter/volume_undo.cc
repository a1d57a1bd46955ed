// VolumeSteps' way out: what was published and staged is taken back, and the kernel must agree.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/race.h"
#include "mounter/holder_names.h"
#include "mounter/volume_steps.h"

namespace berth {
namespace {

using volume_steps_internal::NotSent;
using volume_steps_internal::Report;
using volume_steps_internal::SafeToHandOut;

// How often a reverse call that was answered OK, with no effect, is made before we unmount ourselves.
constexpr int kReverseCalls = 3;
constexpr Duration kBetweenReverseCalls = std::chrono::milliseconds(50);
// How many mounts on top of one another one try takes away.
constexpr int kStackedMounts = 16;
// How long a look for holders, and the abort of a file system, may take of a step's time.
constexpr Duration kLookForHolders = std::chrono::seconds(5);
constexpr Duration kAbort = std::chrono::seconds(10);
constexpr Duration kDetach = std::chrono::seconds(3);
// While a reverse call does not return: when its file system is aborted again, when it is detached, how long
// the call may go on then, and when it counts as hung. All of them earlier where its deadline is near.
constexpr Duration kAbortAgain = std::chrono::seconds(1);
constexpr Duration kAbortPause = std::chrono::seconds(5);
constexpr Duration kDetachAfter = std::chrono::seconds(5);
constexpr Duration kAfterDetach = std::chrono::seconds(5);
constexpr Duration kHangsAfter = std::chrono::seconds(10);
constexpr Duration kLookAgain = std::chrono::seconds(1);
// How long a plugin that is away is waited for, where the volume may be released without it.
constexpr Duration kPluginComesBack = std::chrono::seconds(10);
// How long our own probe, once killed, may take to let go.
constexpr Duration kEndAProbe = std::chrono::seconds(2);

template <class Response>
Awaitable<absl::Status> StatusOf(Awaitable<absl::StatusOr<Response>> call) {
  const absl::StatusOr<Response> answer = co_await std::move(call);
  co_return answer.status();
}

bool Occupied(const PathFacts& facts) { return facts.mount_root || (facts.exists && S_ISBLK(facts.mode)); }

bool IsDone(CallOutcome outcome) { return outcome == CallOutcome::kDone || outcome == CallOutcome::kAbsent; }

bool IsBusy(const absl::Status& status) { return ErrnoOf(status) == EBUSY; }

// Whether the plugin itself said that it could not, rather than somebody else that it was not asked.
bool ThePluginRefused(const absl::Status& status) {
  return !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status) &&
         !absl::IsAborted(status);
}

}  // namespace

Awaitable<StepReport> VolumeSteps::Unpublish(VolumeRecord record, PublicationRecord publication,
                                             StepInput input, StepProgress progress, TimePoint deadline) {
  // Its other mount first: while that is there the file system is in use.
  const StepReport path = co_await UnmountPath(record, publication, input, progress, deadline);
  if (path.outcome != CallOutcome::kDone) co_return path;
  StepReport report = co_await Undo(record, UnpublishCall(record, publication), std::move(input),
                                    std::move(progress), deadline);
  if (report.outcome != CallOutcome::kDone) {
    // A plugin that cannot remove a directory with files in it says less than that.
    const absl::Status free = TargetIsFree(record, publication);
    if (!free.ok() && !report.error.ok()) {
      report.error =
          absl::Status(report.error.code(), fmt::format("{}; {}", MessageOf(report.error), MessageOf(free)));
    }
    co_return report;
  }
  const absl::Status removed = context_.paths->RemovePublication(record, publication);
  context_.Boundary("removed the publication's directory");
  if (removed.ok()) co_return report;
  const std::filesystem::path target = context_.paths->TargetPath(record, publication);
  const absl::Status left = OnLeftover(record, target.parent_path().string(), removed);
  if (left.ok()) co_return report;
  report.outcome = CallOutcome::kUncertain;
  report.error = left;
  co_return report;
}

Awaitable<StepReport> VolumeSteps::Unstage(VolumeRecord record, StepInput input, StepProgress progress,
                                           TimePoint deadline) {
  if (!record.stages) co_return StepReport{};
  if (!input.force && !input.lazy) {
    if (auto in_use = co_await InUseOutside(record, deadline)) co_return *std::move(in_use);
  }
  co_return co_await Undo(record, UnstageCall(record), std::move(input), std::move(progress), deadline);
}

VolumeSteps::Reverse VolumeSteps::UnpublishCall(const VolumeRecord& record,
                                                const PublicationRecord& publication) const {
  auto request = NodeUnpublishRequest(record, publication, *context_.paths);
  return {.rpc = CsiRpc::kNodeUnpublishVolume,
          .path = context_.paths->TargetPath(record, publication),
          .consumer = publication.key.consumer,
          .call =
              [this, request](const Admission& admission, TimePoint until) {
                return StatusOf(admission.client->NodeUnpublishVolume(Seen(request, admission), until));
              },
          .look = [this, record, publication] { return context_.paths->LookAtTarget(record, publication); },
          .remake = [this, record, publication] { return context_.paths->Remake(record, publication); },
          .mount_id = publication.mount_id};
}

VolumeSteps::Reverse VolumeSteps::UnstageCall(const VolumeRecord& record) const {
  auto request = UnstageRequest(record, *context_.paths);
  return {.rpc = CsiRpc::kNodeUnstageVolume,
          .path = context_.paths->StagingPath(record),
          .consumer = "",
          .call =
              [this, request](const Admission& admission, TimePoint until) {
                return StatusOf(admission.client->NodeUnstageVolume(Seen(request, admission), until));
              },
          .look = [this, record] { return context_.paths->LookAtStaging(record); },
          .remake = [this, record] { return context_.paths->RemakeStaging(record); },
          .mount_id = record.staging_mount_id};
}

Awaitable<StepReport> VolumeSteps::ReleaseWithoutPlugin(VolumeRecord record, StepInput input,
                                                        StepProgress progress, TimePoint deadline) {
  std::vector<Reverse> mounts;
  bool whole = true;
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kUnpublishing || publication.again) {
      whole = false;
      continue;
    }
    StepReport path = co_await UnmountPath(record, publication, input, progress, deadline);
    if (path.outcome != CallOutcome::kDone) co_return path;
    mounts.push_back(UnpublishCall(record, publication));
  }
  // What others publish from stays staged.
  if (whole && record.stages) mounts.push_back(UnstageCall(record));
  for (const Reverse& mount : mounts) {
    const auto unprobed =
        co_await context_.helper.KeepFromProbes(mount.path, std::min(deadline, Clock::now() + kEndAProbe));
    absl::Status gone = co_await UnmountOurselves(mount.path, mount.look, {}, deadline);
    if (!gone.ok() && input.lazy) gone = co_await Detach(record, mount, progress, deadline);
    if (gone.ok()) continue;
    StepReport report = FromHelper(Annotate(gone, "without its plugin"), mount.path);
    co_return co_await WithHolders(record, std::move(report), mount.path, deadline);
  }
  if (!whole) co_return StepReport{};
  ReleaseCheck check = co_await context_.release.CheckReleased(record, deadline);
  if (check.released) co_return StepReport{};
  co_return StepReport{
      .outcome = CallOutcome::kRetry,
      .error = absl::UnavailableError(fmt::format(
          "unmounted without its plugin, and not released: {}; once that has ended, repeat this", check.why)),
      .holders = std::move(check.holders),
      .in_use = true,
      .objects = std::move(check.objects)};
}

Awaitable<std::optional<StepReport>> VolumeSteps::InUseOutside(VolumeRecord record, TimePoint deadline) {
  const TimePoint until = std::min(deadline, Clock::now() + kLookForHolders);
  auto holders = co_await context_.release.HoldersBeforeUnstage(record, until);
  if (holders.ok() && holders->empty()) co_return std::nullopt;
  StepReport report{.outcome = CallOutcome::kRetry, .error = holders.status(), .in_use = true};
  if (holders.ok()) {
    report.error = absl::UnavailableError(fmt::format(
        "{}; it stays staged until then, and is unstaged once they have ended", DescribeUse(*holders)));
    report.holders = *std::move(holders);
  }
  co_return report;
}

Awaitable<StepReport> VolumeSteps::Undo(VolumeRecord record, Reverse reverse, StepInput input,
                                        StepProgress progress, TimePoint deadline) {
  // Before the plugin's turn and before its gate: what hangs in there may be waiting for this.
  if (input.force) {
    const TimePoint begin = Clock::now();
    const absl::Status aborted =
        co_await Abort(reverse, progress, begin + std::min(kAbort, (deadline - begin) / 2));
    if (!aborted.ok()) co_return FromHelper(aborted, reverse.path);
    input.aborted = true;
  }
  // From here on nothing of ours is in there, if the kernel lets go of it.
  const TimePoint now = Clock::now();
  const Duration patience = std::min<Duration>(kEndAProbe, std::max(Duration(0), (deadline - now) / 4));
  const auto unprobed = co_await context_.helper.KeepFromProbes(reverse.path, now + patience);
  if (input.detach_first) {
    const absl::Status gone = co_await Detach(record, reverse, progress, deadline);
    if (!gone.ok()) co_return FromHelper(gone, reverse.path);
  }
  co_return co_await TakeBack(std::move(record), std::move(reverse), std::move(input), std::move(progress),
                              deadline);
}

Awaitable<StepReport> VolumeSteps::TakeBack(VolumeRecord record, Reverse reverse, StepInput input,
                                            StepProgress progress, TimePoint deadline) {
  const TimePoint back_by = input.force ? std::min(deadline, Clock::now() + kPluginComesBack) : deadline;
  auto admission = co_await Admit(reverse.rpc, record.plugin_id, progress, back_by);
  if (absl::IsNotFound(admission.status())) {
    // Not of the volume, which is here.
    StepReport report = NotSent(absl::FailedPreconditionError(fmt::format(
        "{}; the volume stays as it is until its plugin is back, or is released without it (--force)",
        MessageOf(admission.status()))));
    report.plugin_cannot = true;
    co_return report;
  }
  if (!admission.ok()) {
    StepReport report = NotSent(admission.status());
    report.plugin_cannot = !context_.stopping && !context_.plugins.Find(record.plugin_id).ok();
    co_return report;
  }
  const absl::Status made = reverse.remake();
  if (!made.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = made};
  const absl::Status safe = SafeToHandOut(reverse.look(), reverse.path);
  if (!safe.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = safe};
  // What cannot be taken away shows itself after the plugin's answer.
  const absl::Status uncovered = co_await Uncover(reverse.look, reverse.path, reverse.mount_id, deadline);
  const auto watch = std::make_shared<CallWatch>(CallWatch{
      .hung_since = input.hung_since.value_or(HungSince{.time = Clock::now(), .shown = WallClock::now()}),
      .aborted = input.aborted});
  bool& detached = watch->detached;
  for (int call = 1;; ++call) {
    const WallTime began = WallClock::now();
    auto asked = Ask(reverse.rpc, progress, reverse.call(*admission, deadline));
    const auto answer =
        co_await Race(std::move(asked), WatchCall(record, reverse, input, progress, deadline, watch));
    if (watch->restart) {
      co_return co_await RestartHung(std::move(record), std::move(reverse), watch->hung_since, deadline);
    }
    if (!answer) continue;  // it may wait in what was detached meanwhile
    const absl::Status& status = *answer;
    StepReport report = Report(reverse.rpc, record.plugin_id, status, began, deadline);
    report.detached_lazily = detached;
    report.plugin_cannot = !IsDone(report.outcome) && ThePluginRefused(status);
    // "Another call is pending" is what a plugin says whose first call has not returned.
    const bool refused = absl::IsAborted(status) && Clock::now() >= watch->hung_since.time + kHangsAfter;
    if (report.stuck || refused) {
      report.stuck = StuckView{.on = std::string(RpcName(reverse.rpc)),
                               .pid = 0,
                               .since = watch->hung_since.shown,
                               .plugin_hangs = PluginHangs(reverse, *watch)};
    }
    if (refused && RestartIsDue(record, reverse, *watch)) {
      co_return co_await RestartHung(std::move(record), std::move(reverse), watch->hung_since, deadline);
    }

    const auto facts = reverse.look();
    if (!facts.ok()) {
      report.outcome = CallOutcome::kUncertain;
      report.error = facts.status();
      co_return report;
    }
    const bool mounted = facts->mount_root;
    if (IsDone(report.outcome) && !Occupied(*facts)) {
      co_return StepReport{.detached_lazily = detached};
    }
    if (HasNoSuchStep(record, reverse, status)) {
      const absl::Status unmounted = co_await UnmountOurselves(reverse.path, reverse.look, {}, deadline);
      if (unmounted.ok()) {
        context_.events.Append(
            {.type = "volume.undone_without_plugin",
             .plugin_id = record.plugin_id,
             .volume_id = record.volume_id,
             .consumer = reverse.consumer,
             .message = fmt::format("plugin {} has no {} any more; berthd has unmounted {} by itself",
                                    record.plugin_id, RpcName(reverse.rpc), reverse.path)});
        co_return StepReport{.detached_lazily = detached};
      }
    }
    if (IsDone(report.outcome)) {
      const bool strangers = !uncovered.ok() && mounted && facts->mount_id != reverse.mount_id;
      const std::string why =
          strangers ? "what is mounted over it has to be unmounted first"
                    : fmt::format("plugin {} answered {} to {}, but there is still a {} at {}",
                                  record.plugin_id, CodeName(status.code()), RpcName(reverse.rpc),
                                  mounted ? "mount" : "block device", reverse.path);
      if (call == 1 && !strangers) ReportLie(record, reverse.consumer, why);
      if (call < kReverseCalls && report.outcome == CallOutcome::kDone) {
        co_await SleepUntil(std::min(Clock::now() + call * kBetweenReverseCalls, deadline));
        continue;
      }
      const absl::Status unmounted = co_await UnmountOurselves(reverse.path, reverse.look, {}, deadline);
      if (unmounted.ok()) co_return StepReport{.detached_lazily = detached};
      report = FromHelper(Annotate(unmounted, why), reverse.path);
      report.detached_lazily = detached;
      if (!IsBusy(unmounted)) co_return report;
    } else if (!mounted) {
      co_return report;
    }
    // The plugin could not, or we could not: somebody is in there.
    if (input.lazy && mounted && !report.detached_lazily) {
      const absl::Status gone = co_await Detach(record, reverse, progress, deadline);
      if (!gone.ok()) co_return FromHelper(gone, reverse.path);
      detached = true;
      // The plugin does not know yet that it is unmounted.
      continue;
    }
    if (!IsDone(report.outcome) && !report.plugin_cannot) co_return report;
    co_return co_await WithHolders(record, std::move(report), reverse.path, deadline);
  }
}

void VolumeSteps::ReportDetached(const VolumeRecord& record, const std::string& path,
                                 const std::string& consumer, uint64_t mount_id,
                                 const StepProgress& progress) {
  if (progress.detached) progress.detached(mount_id);
  context_.events.Append(
      {.type = "volume.still_in_use",
       .plugin_id = record.plugin_id,
       .volume_id = record.volume_id,
       .consumer = consumer,
       .message = fmt::format(
           "{} was detached while it was used: the volume is not free before that has ended", path)});
}

Awaitable<absl::Status> VolumeSteps::Detach(VolumeRecord record, Reverse reverse, StepProgress progress,
                                            TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, reverse.look());
  if (!facts.mount_root) co_return absl::OkStatus();
  const TimePoint now = Clock::now();
  const TimePoint until = now + std::min<Duration>(kDetach, std::max(Duration(0), (deadline - now) / 4));
  const absl::Status unmounted = co_await UnmountOurselves(reverse.path, reverse.look, {.lazy = true}, until);
  // It is detached at once. Where nobody uses it, its end is waited for then, as long as its server is away.
  BERTH_CO_ASSIGN_OR_RETURN(const PathFacts after, reverse.look());
  if (after.mount_root) co_return unmounted;
  ReportDetached(record, reverse.path, reverse.consumer, facts.mount_id, progress);
  co_return absl::OkStatus();
}

bool VolumeSteps::HasNoSuchStep(const VolumeRecord& record, const Reverse& reverse,
                                const absl::Status& answer) const {
  if (!absl::IsUnimplemented(answer) || reverse.rpc != CsiRpc::kNodeUnstageVolume) return false;
  const auto plugin = context_.plugins.Find(record.plugin_id);
  return plugin.ok() && !plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME);
}

bool VolumeSteps::PluginHangs(const Reverse& reverse, const CallWatch& watch) {
  if (watch.aborted) return true;
  const auto facts = reverse.look();
  return facts.ok() && !Occupied(*facts);
}

bool VolumeSteps::RestartIsDue(const VolumeRecord& record, const Reverse& reverse,
                               const CallWatch& watch) const {
  const Duration budget = context_.plugins.RestartAfterHungCall(record.plugin_id);
  return budget > Duration::zero() && Clock::now() >= watch.hung_since.time + budget &&
         PluginHangs(reverse, watch);
}

Awaitable<StepReport> VolumeSteps::RestartHung(VolumeRecord record, Reverse reverse, HungSince since,
                                               TimePoint deadline) {
  const auto hung = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since.time);
  const std::string what = fmt::format("plugin {} itself hangs in {}, for {} s", record.plugin_id,
                                       RpcName(reverse.rpc), hung.count());
  const absl::Status restarted = co_await context_.plugins.RestartHung(record.plugin_id, deadline);
  StepReport report{.outcome = CallOutcome::kUncertain};
  if (restarted.ok()) {
    const std::string message = fmt::format("{}: it was restarted (restart_after_hung_call)", what);
    context_.events.Append({.type = "plugin.hung",
                            .plugin_id = record.plugin_id,
                            .volume_id = record.volume_id,
                            .consumer = reverse.consumer,
                            .message = message});
    report.error = absl::UnavailableError(message);
    co_return report;
  }
  report.error =
      absl::DeadlineExceededError(fmt::format("{}, and is not restarted: {}", what, MessageOf(restarted)));
  report.stuck = StuckView{
      .on = std::string(RpcName(reverse.rpc)), .pid = 0, .since = since.shown, .plugin_hangs = true};
  co_return report;
}

Awaitable<bool> VolumeSteps::WatchCall(VolumeRecord record, Reverse reverse, StepInput input,
                                       StepProgress progress, TimePoint deadline,
                                       std::shared_ptr<CallWatch> watch) {
  const TimePoint began = Clock::now();
  // A part of the time that there is, where that is little.
  const auto after = [began, deadline](Duration time) {
    return began + std::min(time, std::max(Duration(0), (deadline - began) / 4));
  };
  TimePoint abort_at = after(kAbortAgain);
  TimePoint detach_at = after(kDetachAfter);
  std::optional<TimePoint> give_up_at;
  bool reported = false;
  while (true) {
    co_await SleepUntil(std::min({Clock::now() + kLookAgain, abort_at, detach_at}));
    const auto facts = reverse.look();
    const bool mounted = facts.ok() && facts->mount_root;
    if (input.force && mounted && Clock::now() >= abort_at) {
      const absl::Status aborted =
          co_await Abort(reverse, progress, std::min(deadline, Clock::now() + kAbort));
      watch->aborted = watch->aborted || aborted.ok();
    }
    if (Clock::now() >= abort_at) abort_at = Clock::now() + kAbortPause;
    if (input.lazy && mounted && !give_up_at && Clock::now() >= detach_at) {
      if ((co_await Detach(record, reverse, progress, deadline)).ok()) {
        watch->detached = true;
        give_up_at = Clock::now() + std::min(kAfterDetach, std::max(Duration(0), (deadline - began) / 4));
      }
    }
    if (Clock::now() >= detach_at) detach_at = Clock::now() + kAbortPause;
    if (give_up_at && Clock::now() >= *give_up_at) co_return true;
    // Without a lever it may be merely slow: that is known at its deadline.
    if (!reported && (watch->detached || (watch->aborted && Clock::now() >= after(kHangsAfter)))) {
      reported = true;
      progress.hangs({.on = std::string(RpcName(reverse.rpc)),
                      .pid = 0,
                      .since = watch->hung_since.shown,
                      .plugin_hangs = PluginHangs(reverse, *watch)});
    }
    if (RestartIsDue(record, reverse, *watch)) {
      watch->restart = true;
      co_return true;
    }
  }
}

Awaitable<absl::Status> VolumeSteps::Abort(Reverse reverse, StepProgress progress, TimePoint deadline) {
  const auto facts = reverse.look();
  if (!facts.ok() || !facts->mount_root) co_return absl::OkStatus();
  if (progress.aborted) progress.aborted();
  absl::Status status = co_await context_.helper.Unmount(reverse.path, {.force = true}, deadline);
  // Busy or not: whoever waited for its file system has got an error.
  if (!absl::IsDeadlineExceeded(status) && !absl::IsResourceExhausted(status)) co_return absl::OkStatus();
  // It may be gone, while the end of its file system is waited for.
  const auto after = reverse.look();
  if (!after.ok() || after->mount_root) co_return status;
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumeSteps::Uncover(std::function<absl::StatusOr<PathFacts>()> look,
                                             std::string path, uint64_t mount_id, TimePoint deadline) {
  if (mount_id == 0) co_return absl::OkStatus();
  for (int i = 0; i < kStackedMounts; ++i) {
    BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, look());
    if (!facts.mount_root || facts.mount_id == mount_id) co_return absl::OkStatus();
    BERTH_CO_RETURN_IF_ERROR(co_await context_.helper.Unmount(path, {}, deadline));
  }
  co_return absl::UnavailableError(fmt::format("{}: still mounted after {} unmounts", path, kStackedMounts));
}

Awaitable<StepReport> VolumeSteps::UncoverStaging(VolumeRecord record, TimePoint deadline) {
  const std::string path = context_.paths->StagingPath(record);
  auto look = [this, record] { return context_.paths->LookAtStaging(record); };
  const auto facts = look();
  if (record.staging_mount_id == 0 || !facts.ok() || !facts->mount_root ||
      facts->mount_id == record.staging_mount_id) {
    co_return StepReport{};
  }
  // Our own question is no reason for it to be busy.
  const auto unprobed =
      co_await context_.helper.KeepFromProbes(path, std::min(deadline, Clock::now() + kEndAProbe));
  const absl::Status bare = co_await Uncover(look, path, record.staging_mount_id, deadline);
  if (bare.ok()) co_return StepReport{};
  StepReport report =
      FromHelper(Annotate(bare, "what is mounted over the volume's staging has to be unmounted first"), path);
  report.outcome = CallOutcome::kRetry;
  co_return co_await WithHolders(record, std::move(report), path, deadline);
}

Awaitable<absl::Status> VolumeSteps::UnmountOurselves(std::string path,
                                                      std::function<absl::StatusOr<PathFacts>()> look,
                                                      UnmountOptions options, TimePoint deadline) {
  for (int i = 0; i < kStackedMounts; ++i) {
    BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, look());
    if (!Occupied(facts)) co_return absl::OkStatus();
    // A device node is not ours to remove, whoever made it.
    if (!facts.mount_root)
      co_return absl::UnavailableError(fmt::format("{}: a device node is left there", path));
    BERTH_CO_RETURN_IF_ERROR(co_await context_.helper.Unmount(path, options, deadline));
  }
  co_return absl::UnavailableError(fmt::format("{}: still mounted after {} unmounts", path, kStackedMounts));
}

Awaitable<StepReport> VolumeSteps::WithHolders(VolumeRecord record, StepReport report, std::string path,
                                               TimePoint deadline) {
  auto holders =
      co_await context_.release.HoldersAt(record, path, std::min(deadline, Clock::now() + kLookForHolders));
  if (!holders.ok()) co_return report;
  NameConsumers(record, &*holders);
  // It is in no list of the kernel's.
  if (const pid_t probe = context_.helper.HangingProbe(path); probe != 0) {
    holders->push_back({.pid = probe,
                        .command = "berth-mount-helper",
                        .consumer = "",
                        .how = "berthd's own question, which the file system does not answer"});
  }
  if (holders->empty()) co_return report;
  report.error = absl::UnavailableError(
      fmt::format("{}: kept busy by {}", MessageOf(report.error), DescribeHolders(*holders)));
  report.holders = *std::move(holders);
  report.plugin_cannot = false;
  // They may leave: it is worth another try, whatever the plugin's code was.
  if (report.outcome == CallOutcome::kFinal) report.outcome = CallOutcome::kUncertain;
  co_return report;
}

}  // namespace berth
