#include "mounter/volume_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/race.h"
#include "base/status.h"
#include "mounter/secrets_reference.h"

namespace berth {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kRetryLimit = std::chrono::seconds(5);
// How long a caller waits for holders of the volume to end, before it gets their names.
constexpr Duration kHoldersMayEnd = std::chrono::seconds(1);
constexpr size_t kHoldersWatched = 16;
// How often the plugin is asked before a volume is released without it, where that was asked for.
constexpr int kRefusalsBeforeForce = 3;

constexpr std::string_view kSuperseded = "replaced by a later request";

bool GoesForward(StepKind kind) {
  return kind == StepKind::kStage || kind == StepKind::kPublish || kind == StepKind::kRenew ||
         kind == StepKind::kExpand || kind == StepKind::kMountPath;
}

// `task`'s result; nothing once `should_end` holds, which is asked whenever `changed` is notified. Either way
// both have ended by then.
template <class T>
Awaitable<std::optional<T>> Unless(Condition* changed, std::function<bool()> should_end, Awaitable<T> task) {
  return Race(std::move(task), changed->WaitUntil(std::move(should_end), TimePoint::max()));
}

}  // namespace

Awaitable<absl::Status> VolumeDriver::Drive(PublicationKey key) {
  // Of a step of another publication: its caller has the error already.
  [[maybe_unused]] const auto old = volume_.machine.TakeFailure(key);
  bool published = false;
  while (true) {
    const Step step = volume_.machine.plan().NextFor(key);
    if (step.kind == StepKind::kNone) co_return co_await CommitOutcome(key, published);
    if (step.kind == StepKind::kMountPath && volume_.machine.NotePath(key)) {
      const absl::Status noted = co_await volume_.row.Commit();
      if (!noted.ok()) {
        volume_.machine.UnnotePath(key);
        co_return noted;
      }
    }
    const FollowUp follow_up = co_await RunStep(step);
    published = published || step.kind == StepKind::kPublish;
    if (follow_up != FollowUp::kPause) continue;
    if (step.kind == StepKind::kMountPath) {
      // It is published nevertheless.
      const absl::Status why = volume_.status.last_error();
      BERTH_CO_RETURN_IF_ERROR(co_await CommitOutcome(key, published));
      co_return why;
    }
    volume_.row.SaveSoon();
    const auto failure = volume_.machine.TakeFailure(key);
    if (!failure && ForwardBlocked(step)) co_return absl::UnavailableError(WhyForwardBlocked(step));
    co_return failure ? *failure : volume_.status.last_error();
  }
}

Awaitable<absl::Status> VolumeDriver::CommitOutcome(PublicationKey key, bool was_published) {
  const auto failure = volume_.machine.TakeFailure(key);
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  if (publication != nullptr && publication->state == PublicationState::kPublishing) {
    volume_.row.SaveSoon();
    if (!publication->blocked.empty()) co_return absl::FailedPreconditionError(publication->blocked);
    if (!publication->forward_blocked.empty()) co_return absl::UnavailableError(publication->forward_blocked);
    if (!volume_.machine.leaving().empty()) co_return absl::UnavailableError(volume_.machine.leaving());
    if (publication->AwaitsSecrets()) {
      co_return absl::FailedPreconditionError(
          "this publication needs its secrets again, since they are never written down: repeat the publish "
          "with them, or unpublish it");
    }
    co_return absl::UnavailableError("the volume's staging is being repaired first");
  }
  if (volume_.machine.present()) {
    const absl::Status status = co_await volume_.row.Commit();
    if (!status.ok()) {
      volume_.machine.Unsettle(key, std::string(MessageOf(status)));
      co_return status;
    }
  }
  volume_.tokens.DropSecrets(key);
  const bool remounted = volume_.remounting.erase(key) > 0;
  if (failure) co_return *failure;
  // Looked up again: the commit was awaited.
  publication = volume_.machine.record().Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) {
    co_return absl::OkStatus();
  }
  if (remounted) {
    volume_.reporter.Emit(
        "volume.remounted", key.consumer,
        fmt::format("mounted again for {}, which has to be restarted if it had the old mount",
                    Describe(key)));
  } else if (was_published) {
    volume_.reporter.Emit(
        "volume.published", key.consumer,
        fmt::format("published for {}{} at {}", Describe(key), publication->readonly ? ", read-only" : "",
                    volume_.context.paths->TargetPath(volume_.machine.record(), *publication)));
  }
  co_return absl::OkStatus();
}

Awaitable<FollowUp> VolumeDriver::RunStep(Step step) {
  const TimePoint began = Clock::now();
  const TimePoint deadline = began + volume_.context.options.rpc_timeout;
  absl::Status before;  // what the try before this one failed with
  int refusals = 0;     // by the plugin
  for (int failures = 1;; ++failures) {
    if (reconciler_.StagingComesFirst(step)) co_return FollowUp::kNext;
    StepReport report;
    volume_.sent = false;
    std::optional<absl::StatusOr<StepInput>> input = co_await TakeInput(step, deadline);
    const bool forced = input && input->ok() && (*input)->force;
    if (!input) {
      report = {.outcome = CallOutcome::kRetry, .error = absl::AbortedError(std::string(kSuperseded))};
    } else if (input->ok()) {
      report = co_await Try(step, **std::move(input), deadline);
    } else {
      // Nothing was sent. The file may appear later.
      report = {.outcome = CallOutcome::kRetry, .error = input->status()};
    }
    // A pause follows; any request may interrupt it.
    volume_.sent = false;
    // A try that the step's own deadline cut short says nothing: the one before it said why.
    if (absl::IsDeadlineExceeded(report.error) && !before.ok() && !report.stuck && Clock::now() >= deadline) {
      report.error = before;
    }
    before = report.error;
    volume_.status.OnEnded();
    volume_.status.SetLastError(report.error);
    const Duration pause = Backoff(failures, kFirstRetry, kRetryLimit, RandomShare());
    // A try that would begin at the deadline could only say that it is over.
    // The next search may find out who the holders are.
    const bool unknown = step.kind == StepKind::kUnstage && report.holders.empty();
    const TimePoint until = report.in_use && !unknown ? began + kHoldersMayEnd : deadline;
    if (report.plugin_cannot) ++refusals;
    const bool in_vain = forced && refusals == kRefusalsBeforeForce;
    // In the background each try is one, with pauses that grow.
    const bool asked = volume_.queue.current() != nullptr || step.kind == StepKind::kRenew;
    const bool time_left = asked && !in_vain && !report.needs_person && Clock::now() + pause < until &&
                           !MayNotRepeat(step) && !volume_.context.stopping;
    const bool comes_again =
        report.outcome == CallOutcome::kRetry || report.outcome == CallOutcome::kUncertain;
    gives_way_ = GoesForward(step.kind) && comes_again && volume_.queue.UnpublishWaits();
    const FollowUp follow_up =
        volume_.machine.OnOutcome(step, report.outcome, report.error, time_left, WallClock::now());
    AfterTry(step, report);
    volume_.ReportUsers();
    volume_.status.Report(step, report, follow_up);
    if (follow_up != FollowUp::kRepeat) co_return follow_up;

    volume_.status.SetNextRetry(WallClock::now() + pause);
    auto disturbed = [this, &step] { return MayNotRepeat(step) || volume_.context.stopping; };
    if (co_await volume_.changed.WaitUntil(std::move(disturbed), std::min(Clock::now() + pause, deadline))) {
      gives_way_ = GoesForward(step.kind) && volume_.queue.UnpublishWaits();
      co_return FollowUp::kPause;
    }
    volume_.status.SetNextRetry({});
  }
}

Awaitable<std::optional<absl::StatusOr<StepInput>>> VolumeDriver::TakeInput(Step step, TimePoint deadline) {
  std::optional<absl::StatusOr<StepInput>> input = InputAtHand(step);
  if (input) co_return input;
  auto should_end = [this, step] { return ShouldEnd(step); };
  input = co_await Unless(&volume_.changed, std::move(should_end), ReadInput(step, deadline));
  if (ForwardBlocked(step)) input.reset();
  co_return input;
}

std::optional<StepInput> VolumeDriver::InputAtHand(const Step& step) const {
  switch (step.kind) {
    case StepKind::kUnpublish:
    case StepKind::kUnstage: {
      const bool meant = step.kind == StepKind::kUnstage
                             ? volume_.machine.plan().NextTeardown().kind != StepKind::kNone
                             : volume_.forced.for_keys.contains(step.key);
      return StepInput{.force = meant && volume_.forced.force,
                       .lazy = meant && volume_.forced.lazy,
                       .detach_first = meant && volume_.forced.lazy && volume_.forced.call_hung,
                       .aborted = meant && volume_.forced.aborted_at.has_value(),
                       .hung_since = hung_since_};
    }
    case StepKind::kNone:
    case StepKind::kMountPath:
    case StepKind::kForget:
      return StepInput{};
    case StepKind::kStage:
    case StepKind::kPublish:
    case StepKind::kRenew:
    case StepKind::kExpand:
      break;
  }
  if (const auto it = volume_.secrets.find(step.key); it != volume_.secrets.end())
    return StepInput{.secrets = it->second};
  const PublicationRecord* publication = volume_.machine.record().Find(step.key);
  const bool elsewhere = publication != nullptr && IsSet(publication->secrets_reference);
  const bool lacks = step.kind == StepKind::kRenew && publication != nullptr && publication->had_secrets;
  return elsewhere || lacks ? std::nullopt : std::optional(StepInput{});
}

Awaitable<absl::StatusOr<StepInput>> VolumeDriver::ReadInput(Step step, TimePoint deadline) {
  const PublicationRecord* publication = volume_.machine.record().Find(step.key);
  if (publication == nullptr) co_return StepInput{};
  if (!IsSet(publication->secrets_reference)) {
    co_return absl::FailedPreconditionError(
        "new tokens are passed together with its secrets, which are never written down: repeat the publish "
        "with them, once, or give a secrets_reference");
  }
  auto read =
      co_await ReadSecretsReference(publication->secrets_reference, volume_.context.options.credentials_dir,
                                    volume_.context.helper, deadline);
  if (!read.ok()) co_return Annotate(read.status(), "its secrets");
  co_return StepInput{.secrets = *std::move(read)};
}

Awaitable<StepReport> VolumeDriver::Try(Step step, StepInput input, TimePoint deadline) {
  if (step.kind == StepKind::kExpand) {
    const auto plugin = volume_.context.plugins.Find(volume_.machine.record().plugin_id);
    if (plugin.ok() && !plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::EXPAND_VOLUME)) {
      co_return StepReport{
          .outcome = CallOutcome::kFinal,
          .error = absl::FailedPreconditionError(fmt::format(
              "plugin {} has no EXPAND_VOLUME on the node: its part of an expansion stays pending",
              volume_.machine.record().plugin_id))};
    }
  }
  volume_.trying = step;
  BeforeTry(step);
  auto should_end = [this, step] { return ShouldEnd(step); };
  auto perform = steps_.Perform(volume_.machine.record(), step, std::move(input), Progress(step), deadline);
  auto report = co_await Unless(&volume_.changed, std::move(should_end), std::move(perform));
  volume_.trying = {};
  if (report) co_return *std::move(report);
  const std::string why = volume_.status.waiting_for().empty()
                              ? std::string(kSuperseded)
                              : fmt::format("{}: {}", kSuperseded, volume_.status.waiting_for());
  co_return StepReport{.outcome = volume_.sent ? CallOutcome::kUncertain : CallOutcome::kRetry,
                       .error = absl::AbortedError(why)};
}

Awaitable<StepReport> VolumeDriver::TryExpand(ExpandRequest request, TimePoint deadline) {
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(request.required_bytes);
  range.set_limit_bytes(request.limit_bytes);
  volume_.sent = false;
  auto should_end = [this] { return ExpansionShouldEnd(); };
  StepProgress progress = Progress({});
  progress.still_wanted = [this] {
    return volume_.machine.leaving().empty() &&
           (volume_.status.waiting_for().empty() || !ExpansionShouldEnd());
  };
  auto expand = steps_.Expand(volume_.machine.record(), range, std::move(request.secrets),
                              std::move(progress), deadline);
  auto report = co_await Unless(&volume_.changed, std::move(should_end), std::move(expand));
  if (report) co_return *std::move(report);
  co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::AbortedError(std::string(kSuperseded))};
}

Awaitable<absl::StatusOr<PluginDirectory::Entry>> VolumeDriver::AwaitPlugin(std::string plugin_id,
                                                                            std::function<bool()> should_end,
                                                                            TimePoint until) {
  auto find = caller_.FindPlugin(std::move(plugin_id), Progress({}), until);
  auto found = co_await Unless(&volume_.changed, std::move(should_end), std::move(find));
  if (found) co_return *std::move(found);
  co_return absl::AbortedError(volume_.status.waiting_for().empty()
                                   ? std::string(kSuperseded)
                                   : fmt::format("{}: {}", kSuperseded, volume_.status.waiting_for()));
}

void VolumeDriver::BeforeTry(const Step& step) {
  if (step.kind == StepKind::kUnpublish) {
    if (const PublicationRecord* publication = volume_.machine.record().Find(step.key)) {
      volume_.context.Untrack(publication->mount_id);
      volume_.NoteObjects(volume_.context.paths->TargetPath(volume_.machine.record(), *publication),
                          publication->mount_id, VolumeState::Noted::kBefore);
      volume_.context.Untrack(publication->path_mount_id);
    }
    volume_.machine.DoubtPath(step.key, "");
    volume_.tokens.Forget(step.key);
  }
  if (step.kind == StepKind::kUnstage) {
    volume_.context.Untrack(volume_.machine.record().staging_mount_id);
    volume_.NoteObjects(volume_.context.paths->StagedPath(volume_.machine.record()),
                        volume_.machine.record().staging_mount_id, VolumeState::Noted::kBefore);
  }
  if (step.kind == StepKind::kMountPath) {
    const PublicationRecord* publication = volume_.machine.record().Find(step.key);
    if (publication != nullptr && publication->path_made != publication->path) {
      volume_.context.Untrack(publication->path_mount_id);
    }
  }
}

void VolumeDriver::AfterTry(const Step& step, const StepReport& report) {
  // A call that was ended early, or is refused because of an earlier one, has not returned.
  if (!absl::IsAborted(report.error) && !absl::IsDeadlineExceeded(report.error)) hung_since_.reset();
  volume_.forced.ForgetOld(volume_.machine.record());
  plugin_cannot_ = report.plugin_cannot;
  holders_ = report.holders;
  if (report.stuck) volume_.machine.OnStuck(*report.stuck);
  if (report.permissions_set) volume_.machine.SetPermissionsSet(step.key);
  if (step.kind == StepKind::kUnstage || step.kind == StepKind::kForget) AfterInUse(report);
  if (step.kind == StepKind::kRenew) {
    // A call that has not returned may still mount it again.
    if (!report.stuck && volume_.tokens.AfterCall(step.key)) volume_.row.SaveSoon();
    // If something came in between it begins again: that is no failure.
    const bool interrupted =
        !volume_.tokens.Renews(step.key) || !volume_.queue.empty() || volume_.context.stopping;
    if (report.outcome != CallOutcome::kDone && interrupted) return;
    volume_.reconcile_again = volume_.tokens.OnOutcome(step.key, report) || volume_.reconcile_again;
    return;
  }
  if (report.outcome != CallOutcome::kDone) return;
  if (step.kind == StepKind::kPublish) {
    volume_.tokens.OnPublished(step.key, report.tokens);
    const PublicationRecord* publication = volume_.machine.record().Find(step.key);
    if (publication == nullptr) return;
    const auto facts = volume_.context.paths->LookAtTarget(volume_.machine.record(), *publication);
    const uint64_t id = facts.ok() && facts->mount_root ? facts->mount_id : 0;
    volume_.machine.SetMountId(step.key, id);
    volume_.context.Track(id, volume_.key);
    volume_.NoteObjects(volume_.context.paths->TargetPath(volume_.machine.record(), *publication), id,
                        VolumeState::Noted::kNow);
  }
  if (report.path) reconciler_.OnPathMounted(step.key, *report.path);
  if (step.kind == StepKind::kStage) {
    reconciler_.OnStaged();
    volume_.machine.SetStagingMount(report.staging);
    volume_.context.Track(report.staging.mount_id, volume_.key);
    volume_.NoteObjects(volume_.context.paths->StagedPath(volume_.machine.record()), report.staging.mount_id,
                        VolumeState::Noted::kNow);
  }
}

void VolumeDriver::AfterInUse(const StepReport& report) {
  if (report.objects) {
    const bool known = in_use_ && volume_.machine.record().objects == *report.objects;
    volume_.machine.SetInUse(*report.objects);
    if (!known) {
      volume_.row.SaveSoon();
      volume_.row.WriteIdentity();
    }
  }
  in_use_ = report.in_use;
  WatchHolders(report.in_use ? report.holders : std::vector<MountHolder>{});
}

void VolumeDriver::WatchHolders(const std::vector<MountHolder>& holders) {
  const auto id = [this](size_t number) { return fmt::format("{}/holder/{}", volume_.key, number); };
  for (size_t i = 0; i < watched_holders_; ++i) volume_.context.consumers.Forget(id(i));
  watched_holders_ = 0;
  for (const MountHolder& holder : holders) {
    if (holder.pid == 0 || watched_holders_ == kHoldersWatched) continue;
    volume_.context.consumers.Watch(id(watched_holders_++), ProcessLife(holder.pid),
                                    [start = volume_.start](const std::string& /*why*/) { start(); });
  }
}

Awaitable<absl::Status> VolumeDriver::ReleaseWithoutPlugin(std::shared_ptr<VolumeOperation> operation,
                                                           std::string requested_by, absl::Status why) {
  const TimePoint deadline = Clock::now() + volume_.context.options.rpc_timeout;
  StepInput input{.force = true, .lazy = volume_.forced.lazy};
  StepReport report = co_await steps_.ReleaseWithoutPlugin(volume_.machine.record(), std::move(input),
                                                           Progress({}), deadline);
  volume_.status.SetLastError(report.error);
  if (report.stuck) volume_.machine.OnStuck(*report.stuck);
  AfterInUse(report);
  holders_ = std::move(report.holders);
  if (report.outcome != CallOutcome::kDone) {
    co_return Annotate(report.error, MessageOf(why));
  }
  const auto& publications = volume_.machine.record().publications;
  const bool whole = std::ranges::all_of(publications, [](const PublicationRecord& p) {
    return p.state == PublicationState::kUnpublishing && !p.remount_after_undo;
  });
  const bool before = volume_.machine.record().without_plugin.has_value();
  if (whole && !before)
    volume_.machine.SetWithoutPlugin({.requested_by = requested_by, .at = WallClock::now()});
  BERTH_CO_RETURN_IF_ERROR(co_await volume_.row.Commit());
  if (!before) {
    volume_.reporter.Emit(
        "volume.released_without_plugin", "",
        fmt::format(
            "{} without plugin {}, at the request of {}; the plugin is asked to undo its part once it "
            "can: {}",
            whole ? "released" : "unmounted", volume_.machine.record().plugin_id, requested_by,
            MessageOf(why)));
  }
  operation->without_plugin = true;
  operation->aborted = volume_.forced.aborted_at.has_value();
  operation->detached = volume_.forced.detached_at.has_value();
  operation->undone = true;
  volume_.forced = {};
  co_return absl::OkStatus();
}

StepProgress VolumeDriver::Progress(const Step& step) {
  // `this` outlives them: the end of a try is awaited, also of one that was ended early.
  return {.waiting =
              [this](std::string why) {
                volume_.status.OnWaiting(std::move(why));
                volume_.changed.NotifyAll();
              },
          .sending =
              [this, step](std::string_view rpc) {
                volume_.sent = true;
                const bool row_is_stale = OverturnsRow(step);
                if (step.kind == StepKind::kRenew) volume_.tokens.BeforeCall(step.key);
                volume_.machine.OnSent(step);
                if (row_is_stale) volume_.row.SaveSoon();
                const bool reverse = step.kind == StepKind::kUnpublish || step.kind == StepKind::kUnstage;
                if (reverse && !hung_since_) hung_since_ = {.time = Clock::now(), .shown = WallClock::now()};
                volume_.status.OnSending(rpc);
              },
          .answered = [this](const RpcTrace& trace) { volume_.status.OnAnswered(trace); },
          .detached =
              [this](uint64_t mount_id) {
                volume_.forced.detached_at = WallClock::now();
                volume_.machine.AddDetachedMount(mount_id);
                volume_.row.SaveSoon();
                volume_.row.WriteIdentity();
                volume_.reporter.ReportView();
              },
          .aborted =
              [this] {
                volume_.forced.aborted_at = WallClock::now();
                volume_.reporter.ReportView();
              },
          .hangs =
              [this](StuckView stuck) {
                volume_.forced.call_hung = true;
                volume_.machine.OnStuck(std::move(stuck));
                volume_.reporter.ReportView();
              },
          .still_wanted = [this, step] { return StillWanted(step); }};
}

bool VolumeDriver::OverturnsRow(const Step& step) const {
  // A row with the old mount's id would make the new mount look foreign.
  if (step.kind == StepKind::kStage) return volume_.machine.record().staging_mount_id != 0;
  const PublicationRecord* publication = volume_.machine.record().Find(step.key);
  if (publication == nullptr) return false;
  if (step.kind == StepKind::kRenew) return publication->mount_id != 0;
  return step.kind == StepKind::kPublish && publication->before_reboot;
}

bool VolumeDriver::Superseded(const Step& step) const {
  return GoesForward(step.kind) && volume_.queue.UnpublishWaits(step.key);
}

bool VolumeDriver::GivesWay(const VolumeOperation& operation, const absl::Status& status) const {
  const auto* publish = std::get_if<PublishRequest>(&operation.request);
  if (publish == nullptr || status.ok() || !gives_way_ || !volume_.queue.UnpublishWaits() ||
      volume_.context.stopping)
    return false;
  const Step step{StepKind::kPublish, {.consumer = publish->consumer, .name = publish->name}};
  return operation.forward_blocked.empty() && !Superseded(step) && Clock::now() < operation.wanted_until;
}

std::string VolumeDriver::WhyForwardBlocked(const Step& step) const {
  if (!GoesForward(step.kind)) return "";
  if (!volume_.machine.leaving().empty()) return volume_.machine.leaving();
  const PublicationRecord* publication = volume_.machine.record().Find(step.key);
  if (publication == nullptr || publication->forward_blocked.empty()) return "";
  return step.kind == StepKind::kRenew && volume_.machine.plan().MayRenew(step.key)
             ? ""
             : publication->forward_blocked;
}

bool VolumeDriver::StillWanted(const Step& step) const {
  if (ForwardBlocked(step)) return false;
  // What had to wait makes way for what has come meanwhile; what had not is in its turn.
  if (!volume_.status.waiting_for().empty() && ShouldEnd(step)) return false;
  return step.kind != StepKind::kRenew || volume_.machine.plan().MayRenew(step.key);
}

bool VolumeDriver::ExpansionShouldEnd() const {
  if (!volume_.sent) return !volume_.machine.leaving().empty() || volume_.queue.UnpublishWaits();
  return volume_.queue.ForcedUnpublishWaits({}, /*whole_volume=*/true);
}

bool VolumeDriver::ShouldEnd(const Step& step) const {
  // What is local comes to its end, and soon.
  if (step.kind == StepKind::kForget || step.kind == StepKind::kNone) return false;
  // Nothing was sent: nothing is lost if it begins again after what waits.
  if (!volume_.sent && GoesForward(step.kind) && volume_.queue.UnpublishWaits()) return true;
  if (!volume_.sent && (Superseded(step) || ForwardBlocked(step) ||
                        (volume_.queue.current() == nullptr && !volume_.queue.empty())))
    return true;
  // What it was to be renewed for has changed.
  if (!volume_.sent && step.kind == StepKind::kRenew && !volume_.machine.plan().MayRenew(step.key))
    return true;
  const bool whole_volume = step.kind == StepKind::kStage || step.kind == StepKind::kUnstage;
  return volume_.queue.ForcedUnpublishWaits(step.key, whole_volume);
}

}  // namespace berth
