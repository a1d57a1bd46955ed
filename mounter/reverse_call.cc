#include "mounter/reverse_call.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/race.h"
#include "base/status.h"
#include "mounter/holder_names.h"
#include "mounter/volume_rpcs.h"

namespace berth {
namespace {

// How often a reverse call that was answered OK, with no effect, is made before we unmount ourselves.
constexpr int kReverseCalls = 3;
constexpr Duration kBetweenReverseCalls = std::chrono::milliseconds(50);
// How many mounts on top of one another one try unmounts.
constexpr int kStackedMounts = 16;
// How long the abort of a file system, and a detach, may take of a step's time.
constexpr Duration kAbort = std::chrono::seconds(10);
constexpr Duration kDetach = std::chrono::seconds(3);
// While a reverse call does not return: when its file system is aborted again, when it is detached, how long
// the call may go on then, and when it counts as hung. All of them earlier if its deadline is near.
constexpr Duration kAbortAgain = std::chrono::seconds(1);
constexpr Duration kAbortPause = std::chrono::seconds(5);
constexpr Duration kDetachAfter = std::chrono::seconds(5);
constexpr Duration kAfterDetach = std::chrono::seconds(5);
constexpr Duration kHangsAfter = std::chrono::seconds(10);
constexpr Duration kLookAgain = std::chrono::seconds(1);
// How long to wait for a plugin that is away, if the volume may be released without it.
constexpr Duration kPluginComesBack = std::chrono::seconds(10);
// How long our own probe, once killed, may take to end.
constexpr Duration kEndAProbe = std::chrono::seconds(2);

template <class Response>
Awaitable<absl::Status> StatusOf(Awaitable<absl::StatusOr<Response>> call) {
  const absl::StatusOr<Response> answer = co_await std::move(call);
  co_return answer.status();
}

bool Occupied(const PathFacts& facts) { return facts.mount_root || (facts.exists && S_ISBLK(facts.mode)); }

bool IsDone(CallOutcome outcome) { return outcome == CallOutcome::kDone || outcome == CallOutcome::kAbsent; }

bool IsBusy(const absl::Status& status) { return ErrnoOf(status) == EBUSY; }

// Whether the plugin itself answered that it could not, rather than that it was not asked.
bool PluginRefused(const absl::Status& status) {
  return !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status) &&
         !absl::IsAborted(status);
}

// `most`, or a quarter of the time to `deadline` if that is less.
Duration AtMostAQuarter(Duration most, TimePoint now, TimePoint deadline) {
  return std::min(most, std::max(Duration(0), (deadline - now) / 4));
}

}  // namespace

ReverseCall::ReverseCall(MounterContext& context, VolumeRecord record, Target target, StepProgress progress,
                         TimePoint deadline)
    : context_(context),
      caller_(context),
      record_(std::move(record)),
      target_(std::move(target)),
      progress_(std::move(progress)),
      deadline_(deadline) {}

ReverseCall ReverseCall::Unpublish(MounterContext& context, VolumeRecord record,
                                   const PublicationRecord& publication, StepProgress progress,
                                   TimePoint deadline) {
  Target target{
      .rpc = CsiRpc::kNodeUnpublishVolume,
      .path = context.paths->TargetPath(record, publication),
      .top = [path = context.paths->TargetPath(record, publication)] { return path; },
      .consumer = publication.key.consumer,
      .call =
          [request = NodeUnpublishRequest(record, publication, *context.paths)](
              const PluginCaller::Admission& admission, TimePoint until) {
            return StatusOf(admission.client->NodeUnpublishVolume(admission.Seen(request), until));
          },
      .look = [&context, record, publication] { return context.paths->LookAtTarget(record, publication); },
      .remake = [&context, record, publication] { return context.paths->Remake(record, publication); },
      .mount_id = publication.mount_id};
  return {context, std::move(record), std::move(target), std::move(progress), deadline};
}

ReverseCall ReverseCall::Unstage(MounterContext& context, VolumeRecord record, StepProgress progress,
                                 TimePoint deadline) {
  Target target{.rpc = CsiRpc::kNodeUnstageVolume,
                .path = context.paths->StagedPath(record),
                .top = [&context, record] { return context.paths->StagedPath(record); },
                .consumer = "",
                .call =
                    [request = UnstageRequest(record, *context.paths)](
                        const PluginCaller::Admission& admission, TimePoint until) {
                      return StatusOf(admission.client->NodeUnstageVolume(admission.Seen(request), until));
                    },
                .look = [&context, record] { return context.paths->LookAtStaged(record); },
                .remake = [&context, record] { return context.paths->RemakeStaging(record); },
                .mount_id = record.staging_mount_id};
  return {context, std::move(record), std::move(target), std::move(progress), deadline};
}

Awaitable<StepReport> ReverseCall::Run(StepInput input) {
  input_ = std::move(input);
  aborted_ = input_.aborted;
  // Before the plugin and before its gate: what hangs in there may be waiting for this.
  if (input_.force) {
    const TimePoint begin = Clock::now();
    const absl::Status aborted = co_await Abort(begin + std::min(kAbort, (deadline_ - begin) / 2));
    if (!aborted.ok()) co_return Failed(aborted);
    aborted_ = true;
  }
  // From here on nothing of ours is in there, if the kernel lets it end.
  const TimePoint now = Clock::now();
  const auto probe_pause =
      co_await context_.helper.PauseProbes(target_.path, now + AtMostAQuarter(kEndAProbe, now, deadline_));
  if (input_.detach_first) {
    const absl::Status gone = co_await LazyUnmount();
    if (!gone.ok()) co_return Failed(gone);
  }
  co_return co_await CallUntilUnmounted();
}

Awaitable<StepReport> ReverseCall::UnmountWithoutPlugin(bool lazy) {
  const auto probe_pause =
      co_await context_.helper.PauseProbes(target_.path, std::min(deadline_, Clock::now() + kEndAProbe));
  absl::Status gone = co_await UnmountOurselves({}, deadline_);
  if (!gone.ok() && lazy) gone = co_await LazyUnmount();
  if (gone.ok()) co_return StepReport{};
  co_return co_await WithHolders(context_, record_, Failed(Annotate(gone, "without its plugin")),
                                 target_.path, deadline_);
}

Awaitable<StepReport> ReverseCall::RemoveOverlays() {
  const auto facts = target_.look();
  const bool overlaid =
      target_.mount_id != 0 && facts.ok() && facts->mount_root && facts->mount_id != target_.mount_id;
  if (!overlaid) co_return StepReport{};
  // A probe of ours is no reason for it to be busy.
  const auto probe_pause =
      co_await context_.helper.PauseProbes(target_.path, std::min(deadline_, Clock::now() + kEndAProbe));
  const absl::Status bare = co_await UnmountOverlays();
  if (bare.ok()) co_return StepReport{};
  StepReport report =
      Failed(Annotate(bare, "what is mounted over the volume's staging has to be unmounted first"));
  report.outcome = CallOutcome::kRetry;
  co_return co_await WithHolders(context_, record_, std::move(report), target_.path, deadline_);
}

Awaitable<StepReport> ReverseCall::CallUntilUnmounted() {
  const TimePoint back_by = input_.force ? std::min(deadline_, Clock::now() + kPluginComesBack) : deadline_;
  const auto admission = co_await caller_.Admit(target_.rpc, record_.plugin_id, progress_, back_by);
  if (!admission.ok()) co_return NotAdmitted(admission.status());
  const absl::Status made = target_.remake();
  if (!made.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = made};
  const absl::Status safe = SafeToHandOut(target_.look(), target_.path);
  if (!safe.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = safe};
  // What stays shows itself after the plugin's answer.
  overlays_ = co_await UnmountOverlays();
  hung_since_ = input_.hung_since.value_or(HungSince{.time = Clock::now(), .shown = WallClock::now()});
  for (int number = 1;; ++number) {
    auto report = co_await CallOnce(*admission, number);
    if (report) co_return *std::move(report);
  }
}

StepReport ReverseCall::NotAdmitted(const absl::Status& why) const {
  if (absl::IsNotFound(why)) {
    // Not of the volume, which is here.
    StepReport report = NotSent(absl::FailedPreconditionError(fmt::format(
        "{}; the volume stays as it is until its plugin is back, or is released without it (--force)",
        MessageOf(why))));
    report.plugin_cannot = true;
    return report;
  }
  StepReport report = NotSent(why);
  report.plugin_cannot = !context_.stopping && !context_.plugins.Find(record_.plugin_id).ok();
  return report;
}

Awaitable<std::optional<StepReport>> ReverseCall::CallOnce(const PluginCaller::Admission& admission,
                                                           int number) {
  const WallTime began = WallClock::now();
  auto asked = caller_.Ask(target_.rpc, progress_, target_.call(admission, deadline_));
  const auto answer = co_await Race(std::move(asked), WatchCall());
  if (restart_) co_return co_await RestartHung();
  if (!answer) co_return std::nullopt;  // it may wait in what was detached meanwhile
  StepReport report = ReportAnswer(target_.rpc, record_.plugin_id, *answer, began, deadline_);
  report.detached_lazily = detached_;
  report.plugin_cannot = !IsDone(report.outcome) && PluginRefused(*answer);
  // "Another call is pending" is what a plugin answers if its first call has not returned.
  const bool refused = absl::IsAborted(*answer) && Clock::now() >= hung_since_.time + kHangsAfter;
  if (report.stuck || refused) report.stuck = Hanging();
  if (refused && RestartIsDue()) co_return co_await RestartHung();

  const auto facts = target_.look();
  if (!facts.ok()) {
    report.outcome = CallOutcome::kUncertain;
    report.error = facts.status();
    co_return report;
  }
  if (IsDone(report.outcome) && !Occupied(*facts)) co_return Unmounted();
  if (HasNoSuchStep(*answer) && (co_await UnmountOurselves({}, deadline_)).ok()) {
    context_.events.Append(
        {.type = "volume.undone_without_plugin",
         .plugin_id = record_.plugin_id,
         .volume_id = record_.volume_id,
         .consumer = target_.consumer,
         .message = fmt::format("plugin {} has no {} any more; berthd has unmounted {} by itself",
                                record_.plugin_id, RpcName(target_.rpc), target_.path)});
    co_return Unmounted();
  }
  if (IsDone(report.outcome)) {
    auto unmounted = co_await UnmountAfterOk(*answer, report.outcome, *facts, number);
    if (!unmounted) co_return std::nullopt;
    report = *std::move(unmounted);
    if (!IsBusy(report.error)) co_return report;
  } else if (!facts->mount_root) {
    co_return report;
  }
  // Neither the plugin nor berthd could unmount it: it is in use.
  if (input_.lazy && facts->mount_root && !report.detached_lazily) {
    const absl::Status gone = co_await LazyUnmount();
    if (!gone.ok()) co_return Failed(gone);
    detached_ = true;
    // The plugin does not know yet that it is unmounted.
    co_return std::nullopt;
  }
  if (!IsDone(report.outcome) && !report.plugin_cannot) co_return report;
  co_return co_await WithHolders(context_, record_, std::move(report), target_.path, deadline_);
}

Awaitable<std::optional<StepReport>> ReverseCall::UnmountAfterOk(absl::Status answer, CallOutcome outcome,
                                                                 PathFacts facts, int number) {
  const bool overlaid = !overlays_.ok() && facts.mount_root && facts.mount_id != target_.mount_id;
  const std::string why = overlaid
                              ? "what is mounted over it has to be unmounted first"
                              : fmt::format("plugin {} answered {} to {}, but there is still a {} at {}",
                                            record_.plugin_id, CodeName(answer.code()), RpcName(target_.rpc),
                                            facts.mount_root ? "mount" : "block device", target_.path);
  if (number == 1 && !overlaid) caller_.ReportLie(record_, target_.consumer, why);
  if (number < kReverseCalls && outcome == CallOutcome::kDone) {
    co_await SleepUntil(std::min(Clock::now() + number * kBetweenReverseCalls, deadline_));
    co_return std::nullopt;
  }
  const absl::Status unmounted = co_await UnmountOurselves({}, deadline_);
  if (unmounted.ok()) co_return Unmounted();
  StepReport report = Failed(Annotate(unmounted, why));
  report.detached_lazily = detached_;
  co_return report;
}

Awaitable<absl::Status> ReverseCall::LazyUnmount() {
  BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, target_.look());
  if (!facts.mount_root) co_return absl::OkStatus();
  const TimePoint now = Clock::now();
  const absl::Status unmounted =
      co_await UnmountOurselves({.lazy = true}, now + AtMostAQuarter(kDetach, now, deadline_));
  // It is detached at once. If it is not in use, the kernel then waits for its end, as long as its server is
  // away.
  BERTH_CO_ASSIGN_OR_RETURN(const PathFacts after, target_.look());
  if (after.mount_root) co_return unmounted;
  ReportDetached(context_, record_, target_.path, target_.consumer, facts.mount_id, progress_);
  co_return absl::OkStatus();
}

bool ReverseCall::HasNoSuchStep(const absl::Status& answer) const {
  if (!absl::IsUnimplemented(answer) || target_.rpc != CsiRpc::kNodeUnstageVolume) return false;
  const auto plugin = context_.plugins.Find(record_.plugin_id);
  return plugin.ok() && !plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME);
}

bool ReverseCall::PluginHangs() const {
  if (aborted_) return true;
  const auto facts = target_.look();
  return facts.ok() && !Occupied(*facts);
}

StuckView ReverseCall::Hanging() const {
  return {.on = std::string(RpcName(target_.rpc)),
          .pid = 0,
          .since = hung_since_.shown,
          .plugin_hangs = PluginHangs()};
}

bool ReverseCall::RestartIsDue() const {
  const Duration budget = context_.plugins.RestartAfterHungCall(record_.plugin_id);
  return budget > Duration::zero() && Clock::now() >= hung_since_.time + budget && PluginHangs();
}

Awaitable<StepReport> ReverseCall::RestartHung() {
  const auto hung = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - hung_since_.time);
  const std::string what = fmt::format("plugin {} itself hangs in {}, for {} s", record_.plugin_id,
                                       RpcName(target_.rpc), hung.count());
  const absl::Status restarted = co_await context_.plugins.RestartHung(record_.plugin_id, deadline_);
  StepReport report{.outcome = CallOutcome::kUncertain};
  if (restarted.ok()) {
    const std::string message = fmt::format("{}: it was restarted (restart_after_hung_call)", what);
    context_.events.Append({.type = "plugin.hung",
                            .plugin_id = record_.plugin_id,
                            .volume_id = record_.volume_id,
                            .consumer = target_.consumer,
                            .message = message});
    report.error = absl::UnavailableError(message);
    co_return report;
  }
  report.error =
      absl::DeadlineExceededError(fmt::format("{}, and is not restarted: {}", what, MessageOf(restarted)));
  report.stuck = StuckView{
      .on = std::string(RpcName(target_.rpc)), .pid = 0, .since = hung_since_.shown, .plugin_hangs = true};
  co_return report;
}

Awaitable<bool> ReverseCall::WatchCall() {
  const TimePoint began = Clock::now();
  const auto after = [began, deadline = deadline_](Duration time) {
    return began + AtMostAQuarter(time, began, deadline);
  };
  TimePoint abort_at = after(kAbortAgain);
  TimePoint detach_at = after(kDetachAfter);
  std::optional<TimePoint> end_at;
  bool reported = false;
  while (true) {
    co_await SleepUntil(std::min({Clock::now() + kLookAgain, abort_at, detach_at}));
    const auto facts = target_.look();
    const bool mounted = facts.ok() && facts->mount_root;
    if (input_.force && mounted && Clock::now() >= abort_at) {
      const absl::Status aborted = co_await Abort(std::min(deadline_, Clock::now() + kAbort));
      aborted_ = aborted_ || aborted.ok();
    }
    if (Clock::now() >= abort_at) abort_at = Clock::now() + kAbortPause;
    if (input_.lazy && mounted && !end_at && Clock::now() >= detach_at) {
      if ((co_await LazyUnmount()).ok()) {
        detached_ = true;
        end_at = Clock::now() + AtMostAQuarter(kAfterDetach, began, deadline_);
      }
    }
    if (Clock::now() >= detach_at) detach_at = Clock::now() + kAbortPause;
    if (end_at && Clock::now() >= *end_at) co_return true;
    // Without a lever it may be merely slow: that is known at its deadline.
    if (!reported && (detached_ || (aborted_ && Clock::now() >= after(kHangsAfter)))) {
      reported = true;
      progress_.hangs(Hanging());
    }
    if (RestartIsDue()) {
      restart_ = true;
      co_return true;
    }
  }
}

Awaitable<absl::Status> ReverseCall::Abort(TimePoint deadline) {
  const auto facts = target_.look();
  if (!facts.ok() || !facts->mount_root) co_return absl::OkStatus();
  if (progress_.aborted) progress_.aborted();
  absl::Status status = co_await context_.helper.Unmount(target_.top(), {.force = true}, deadline);
  // Busy or not: who waited for its file system has got an error.
  if (!absl::IsDeadlineExceeded(status) && !absl::IsResourceExhausted(status)) co_return absl::OkStatus();
  // It may be gone, while the kernel waits for the end of its file system.
  const auto after = target_.look();
  if (!after.ok() || after->mount_root) co_return status;
  co_return absl::OkStatus();
}

Awaitable<absl::Status> ReverseCall::UnmountOverlays() {
  if (target_.mount_id == 0) co_return absl::OkStatus();
  for (int i = 0; i < kStackedMounts; ++i) {
    BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, target_.look());
    if (!facts.mount_root || facts.mount_id == target_.mount_id) co_return absl::OkStatus();
    BERTH_CO_RETURN_IF_ERROR(co_await context_.helper.Unmount(target_.top(), {}, deadline_));
  }
  co_return absl::UnavailableError(
      fmt::format("{}: still mounted after {} unmounts", target_.path, kStackedMounts));
}

Awaitable<absl::Status> ReverseCall::UnmountOurselves(UnmountOptions options, TimePoint deadline) {
  for (int i = 0; i < kStackedMounts; ++i) {
    BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, target_.look());
    if (!Occupied(facts)) co_return absl::OkStatus();
    // A device node is not ours to remove, even if a plugin made it.
    if (!facts.mount_root) {
      co_return absl::UnavailableError(fmt::format("{}: a device node is left there", target_.path));
    }
    BERTH_CO_RETURN_IF_ERROR(co_await context_.helper.Unmount(target_.top(), options, deadline));
  }
  co_return absl::UnavailableError(
      fmt::format("{}: still mounted after {} unmounts", target_.path, kStackedMounts));
}

Awaitable<StepReport> WithHolders(MounterContext& context, VolumeRecord record, StepReport report,
                                  std::string path, TimePoint deadline) {
  auto holders =
      co_await context.release.HoldersAt(record, path, std::min(deadline, Clock::now() + kHolderSearch));
  if (!holders.ok()) {
    // Whether it is busy decides whether the refusal is one for good.
    report.error = absl::UnavailableError(fmt::format("{}; who keeps it busy is not known: {}",
                                                      MessageOf(report.error), MessageOf(holders.status())));
    co_return report;
  }
  NameConsumers(record, &*holders);
  // It is in no list of the kernel's.
  if (const pid_t probe = context.helper.HangingProbe(path); probe != 0) {
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

void ReportDetached(MounterContext& context, const VolumeRecord& record, const std::string& path,
                    const std::string& consumer, uint64_t mount_id, const StepProgress& progress) {
  if (progress.detached) progress.detached(mount_id);
  context.events.Append(
      {.type = "volume.still_in_use",
       .plugin_id = record.plugin_id,
       .volume_id = record.volume_id,
       .consumer = consumer,
       .message = fmt::format(
           "{} was detached while it was used: the volume is not free before that has ended", path)});
}

}  // namespace berth
