// VolumeActor: how a publication is taken to its goal, step by step.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/race.h"
#include "base/status.h"
#include "mounter/secrets_reference.h"
#include "mounter/volume_actor.h"
#include "mounts/mount_watch.h"

namespace berth {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kRetryLimit = std::chrono::seconds(5);
constexpr size_t kRpcsKept = 16;
// How long a caller waits for holders of the volume to end, before it is told who they are.
constexpr Duration kHoldersMayEnd = std::chrono::seconds(1);
constexpr size_t kHoldersWatched = 16;
// How often the plugin is asked before a volume is released without it, where that was asked for.
constexpr int kRefusalsBeforeForce = 3;

constexpr std::string_view kGivenUp = "replaced by a later request";

bool GoesForward(StepKind kind) {
  return kind == StepKind::kStage || kind == StepKind::kPublish || kind == StepKind::kRenew ||
         kind == StepKind::kExpand || kind == StepKind::kMountPath;
}

// `task`'s result; nothing once `given_up` holds, which is asked whenever `changed` is notified. Either way
// both have ended by then.
template <class T>
Awaitable<std::optional<T>> Unless(Condition* changed, std::function<bool()> given_up, Awaitable<T> task) {
  return Race(std::move(task), changed->WaitUntil(std::move(given_up), TimePoint::max()));
}

}  // namespace

Awaitable<absl::Status> VolumeActor::Drive(PublicationKey key) {
  // Of a step of another publication: who waited for it has been told.
  [[maybe_unused]] const auto old = machine_.TakeFailure(key);
  bool published = false;
  while (true) {
    const Step step = machine_.NextFor(key);
    if (step.kind == StepKind::kNone) co_return co_await CommitOutcome(key, published);
    if (step.kind == StepKind::kMountPath && machine_.NotePath(key)) {
      const absl::Status noted = co_await Commit();
      if (!noted.ok()) {
        machine_.UnnotePath(key);
        co_return noted;
      }
    }
    const FollowUp follow_up = co_await RunStep(step);
    published = published || step.kind == StepKind::kPublish;
    if (follow_up != FollowUp::kPause) continue;
    if (step.kind == StepKind::kMountPath) {
      // It is published all the same.
      const absl::Status why = last_error_;
      BERTH_CO_RETURN_IF_ERROR(co_await CommitOutcome(key, published));
      co_return why;
    }
    SaveSoon();
    const auto failure = machine_.TakeFailure(key);
    if (!failure && Withheld(step)) co_return absl::UnavailableError(WhyWithheld(step));
    co_return failure ? *failure : last_error_;
  }
}

Awaitable<absl::Status> VolumeActor::CommitOutcome(PublicationKey key, bool was_published) {
  const auto failure = machine_.TakeFailure(key);
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication != nullptr && publication->state == PublicationState::kPublishing) {
    SaveSoon();
    if (!publication->blocked.empty()) co_return absl::FailedPreconditionError(publication->blocked);
    if (!publication->withheld.empty()) co_return absl::UnavailableError(publication->withheld);
    if (!machine_.leaving().empty()) co_return absl::UnavailableError(machine_.leaving());
    if (machine_.AwaitsSecrets(*publication)) {
      co_return absl::FailedPreconditionError(
          "this publication needs its secrets again, since they are never written down: repeat the publish "
          "with them, or unpublish it");
    }
    co_return absl::UnavailableError("the volume's staging is being repaired first");
  }
  if (machine_.present()) {
    const absl::Status status = co_await Commit();
    if (!status.ok()) {
      machine_.Unsettle(key, std::string(MessageOf(status)));
      co_return status;
    }
  }
  tokens_.DropSecrets(key);
  const bool remounted = remounting_.erase(key) > 0;
  if (failure) co_return *failure;
  // Looked up again: the commit was awaited.
  publication = machine_.record().Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) {
    co_return absl::OkStatus();
  }
  if (remounted) {
    reporter_.Emit("volume.remounted", key.consumer,
                   fmt::format("mounted again for {}, which has to be restarted if it had the old mount",
                               Describe(key)));
  } else if (was_published) {
    reporter_.Emit(
        "volume.published", key.consumer,
        fmt::format("published for {}{} at {}", Describe(key), publication->readonly ? ", read-only" : "",
                    context_.paths->TargetPath(machine_.record(), *publication)));
  }
  co_return absl::OkStatus();
}

Awaitable<FollowUp> VolumeActor::RunStep(Step step) {
  const TimePoint began = Clock::now();
  const TimePoint deadline = began + context_.options.rpc_timeout;
  absl::Status before;  // what the try before this one failed with
  int refusals = 0;     // by the plugin
  for (int failures = 1;; ++failures) {
    if (StagingComesFirst(step)) co_return FollowUp::kNext;
    StepReport report;
    sent_ = false;
    std::optional<absl::StatusOr<StepInput>> input = InputAtHand(step);
    if (!input) {
      auto given_up = [this, step] { return GivenUp(step); };
      input = co_await Unless(&changed_, std::move(given_up), ReadInput(step, deadline));
      if (Withheld(step)) input.reset();
    }
    const bool forced = input && input->ok() && (*input)->force;
    if (!input) {
      report = {.outcome = CallOutcome::kRetry, .error = absl::AbortedError(std::string(kGivenUp))};
    } else if (input->ok()) {
      report = co_await Try(step, **std::move(input), deadline);
    } else {
      // Nothing was sent. It is somebody's file, and may come.
      report = {.outcome = CallOutcome::kRetry, .error = input->status()};
    }
    // What follows is a pause, which makes way for whoever comes.
    sent_ = false;
    // A try that the step's own deadline cut short says nothing: the one before it said why.
    if (absl::IsDeadlineExceeded(report.error) && !before.ok() && !report.stuck && Clock::now() >= deadline) {
      report.error = before;
    }
    before = report.error;
    running_.clear();
    running_since_.reset();
    waiting_for_.clear();
    last_error_ = report.error;
    const Duration pause = context_.RetryAfter(failures, kFirstRetry, kRetryLimit);
    // A try that would begin at the deadline could only say that it is over.
    const TimePoint until = report.in_use ? began + kHoldersMayEnd : deadline;
    if (report.plugin_cannot) ++refusals;
    const bool in_vain = forced && refusals == kRefusalsBeforeForce;
    // In the background each try is one, with pauses that grow.
    const bool asked = queue_.current() != nullptr || step.kind == StepKind::kRenew;
    const bool time_left =
        asked && !in_vain && Clock::now() + pause < until && !MayNotRepeat(step) && !context_.stopping;
    const bool comes_again =
        report.outcome == CallOutcome::kRetry || report.outcome == CallOutcome::kUncertain;
    gives_way_ = GoesForward(step.kind) && comes_again && queue_.UnpublishWaits();
    const FollowUp follow_up =
        machine_.OnOutcome(step, report.outcome, report.error, time_left, WallClock::now());
    AfterTry(step, report);
    ReportUsers();
    Announce(step, report, follow_up);
    if (follow_up != FollowUp::kRepeat) co_return follow_up;

    next_retry_at_ = WallClock::now() + pause;
    auto disturbed = [this, &step] { return MayNotRepeat(step) || context_.stopping; };
    if (co_await changed_.WaitUntil(std::move(disturbed), std::min(Clock::now() + pause, deadline))) {
      gives_way_ = GoesForward(step.kind) && queue_.UnpublishWaits();
      co_return FollowUp::kPause;
    }
    next_retry_at_.reset();
  }
}

std::optional<StepInput> VolumeActor::InputAtHand(const Step& step) const {
  switch (step.kind) {
    case StepKind::kUnpublish:
    case StepKind::kUnstage: {
      const bool meant = step.kind == StepKind::kUnstage ? machine_.NextTeardown().kind != StepKind::kNone
                                                         : levers_.for_keys.contains(step.key);
      return StepInput{.force = meant && levers_.force,
                       .lazy = meant && levers_.lazy,
                       .detach_first = meant && levers_.lazy && levers_.call_hung,
                       .aborted = meant && levers_.aborted_at.has_value(),
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
  if (const auto it = secrets_.find(step.key); it != secrets_.end()) return StepInput{.secrets = it->second};
  const PublicationRecord* publication = machine_.record().Find(step.key);
  const bool elsewhere = publication != nullptr && IsSet(publication->secrets_reference);
  const bool lacks = step.kind == StepKind::kRenew && publication != nullptr && publication->had_secrets;
  return elsewhere || lacks ? std::nullopt : std::optional(StepInput{});
}

Awaitable<absl::StatusOr<StepInput>> VolumeActor::ReadInput(Step step, TimePoint deadline) {
  const PublicationRecord* publication = machine_.record().Find(step.key);
  if (publication == nullptr) co_return StepInput{};
  if (!IsSet(publication->secrets_reference)) {
    co_return absl::FailedPreconditionError(
        "new tokens are passed together with its secrets, which are never written down: repeat the publish "
        "with them, once, or give a secrets_reference");
  }
  auto read = co_await ReadSecretsReference(publication->secrets_reference, context_.options.credentials_dir,
                                            context_.helper, deadline);
  if (!read.ok()) co_return Annotate(read.status(), "its secrets");
  co_return StepInput{.secrets = *std::move(read)};
}

Awaitable<StepReport> VolumeActor::Try(Step step, StepInput input, TimePoint deadline) {
  if (step.kind == StepKind::kExpand) {
    const auto plugin = context_.plugins.Find(machine_.record().plugin_id);
    if (plugin.ok() && !plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::EXPAND_VOLUME)) {
      co_return StepReport{
          .outcome = CallOutcome::kFinal,
          .error = absl::FailedPreconditionError(fmt::format(
              "plugin {} has no EXPAND_VOLUME on the node: its part of an expansion stays pending",
              machine_.record().plugin_id))};
    }
  }
  trying_ = step;
  BeforeTry(step);
  auto given_up = [this, step] { return GivenUp(step); };
  auto perform = steps_.Perform(machine_.record(), step, std::move(input), Progress(step), deadline);
  auto report = co_await Unless(&changed_, std::move(given_up), std::move(perform));
  trying_ = {};
  if (report) co_return *std::move(report);
  const std::string why =
      waiting_for_.empty() ? std::string(kGivenUp) : fmt::format("{}: {}", kGivenUp, waiting_for_);
  co_return StepReport{.outcome = sent_ ? CallOutcome::kUncertain : CallOutcome::kRetry,
                       .error = absl::AbortedError(why)};
}

Awaitable<StepReport> VolumeActor::TryExpand(ExpandRequest request, TimePoint deadline) {
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(request.required_bytes);
  range.set_limit_bytes(request.limit_bytes);
  sent_ = false;
  auto given_up = [this] { return ExpansionGivenUp(); };
  StepProgress progress = Progress({});
  progress.still_wanted = [this] {
    return machine_.leaving().empty() && (waiting_for_.empty() || !ExpansionGivenUp());
  };
  auto expand =
      steps_.Expand(machine_.record(), range, std::move(request.secrets), std::move(progress), deadline);
  auto report = co_await Unless(&changed_, std::move(given_up), std::move(expand));
  if (report) co_return *std::move(report);
  co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::AbortedError(std::string(kGivenUp))};
}

Awaitable<absl::StatusOr<PluginDirectory::Entry>> VolumeActor::AwaitPlugin(std::string plugin_id,
                                                                           std::function<bool()> given_up,
                                                                           TimePoint until) {
  auto find = caller_.FindPlugin(std::move(plugin_id), Progress({}), until);
  auto found = co_await Unless(&changed_, std::move(given_up), std::move(find));
  if (found) co_return *std::move(found);
  co_return absl::AbortedError(waiting_for_.empty() ? std::string(kGivenUp)
                                                    : fmt::format("{}: {}", kGivenUp, waiting_for_));
}

void VolumeActor::BeforeTry(const Step& step) {
  if (step.kind == StepKind::kUnpublish) {
    if (const PublicationRecord* publication = machine_.record().Find(step.key)) {
      context_.Untrack(publication->mount_id);
      NoteObjects(context_.paths->TargetPath(machine_.record(), *publication), publication->mount_id,
                  Noted::kBefore);
      context_.Untrack(publication->path_mount_id);
    }
    machine_.DoubtPath(step.key, "");
    tokens_.Forget(step.key);
  }
  if (step.kind == StepKind::kUnstage) {
    context_.Untrack(machine_.record().staging_mount_id);
    NoteObjects(context_.paths->StagingPath(machine_.record()), machine_.record().staging_mount_id,
                Noted::kBefore);
  }
  if (step.kind == StepKind::kMountPath) {
    const PublicationRecord* publication = machine_.record().Find(step.key);
    if (publication != nullptr && publication->path_made != publication->path) {
      context_.Untrack(publication->path_mount_id);
    }
  }
}

void VolumeActor::AfterTry(const Step& step, const StepReport& report) {
  // A call that was given up, or is refused because of an earlier one, has not returned.
  if (!absl::IsAborted(report.error) && !absl::IsDeadlineExceeded(report.error)) hung_since_.reset();
  ForgetOldLevers();
  plugin_cannot_ = report.plugin_cannot;
  holders_ = report.holders;
  if (report.stuck) machine_.OnStuck(*report.stuck);
  if (report.permissions_set) machine_.SetPermissionsSet(step.key);
  if (step.kind == StepKind::kUnstage || step.kind == StepKind::kForget) AfterInUse(report);
  if (step.kind == StepKind::kRenew) {
    // A call that has not come back may mount it anew yet.
    if (!report.stuck && tokens_.AfterCall(step.key)) SaveSoon();
    // If something came in between it begins again: nobody's failure.
    const bool interrupted = !tokens_.Renews(step.key) || !queue_.empty() || context_.stopping;
    if (report.outcome != CallOutcome::kDone && interrupted) return;
    reconcile_again_ = tokens_.OnOutcome(step.key, report) || reconcile_again_;
    return;
  }
  if (report.outcome != CallOutcome::kDone) return;
  if (step.kind == StepKind::kPublish) {
    tokens_.OnPublished(step.key, report.tokens);
    const PublicationRecord* publication = machine_.record().Find(step.key);
    if (publication == nullptr) return;
    const auto facts = context_.paths->LookAtTarget(machine_.record(), *publication);
    const uint64_t id = facts.ok() && facts->mount_root ? facts->mount_id : 0;
    machine_.SetMountId(step.key, id);
    context_.Track(id, key_);
    NoteObjects(context_.paths->TargetPath(machine_.record(), *publication), id, Noted::kNow);
  }
  if (report.path) OnPathMounted(step.key, *report.path);
  if (step.kind == StepKind::kStage) {
    staging_dead_ = false;
    const auto facts = context_.paths->LookAtStaging(machine_.record());
    const uint64_t id = facts.ok() && facts->mount_root ? facts->mount_id : 0;
    machine_.SetStagingMount(id);
    context_.Track(id, key_);
    NoteObjects(context_.paths->StagingPath(machine_.record()), id, Noted::kNow);
  }
}

void VolumeActor::NoteObjects(const std::string& path, uint64_t mount_id, Noted noted) {
  const auto facts = LookAt(path);
  // What somebody mounted over it is not the volume.
  if (facts.ok() && mount_id != 0 && facts->mount_id != mount_id) return;
  auto objects = ObjectsAt(path, context_.paths->tree());
  if (objects.ok()) {
    const auto another_disk = [this](const KernelObject& object) {
      return std::ranges::any_of(machine_.record().objects, [&object](const KernelObject& known) {
        return known.disk_sequence != 0 && known.device == object.device && known.disk == object.disk &&
               known.disk_sequence != object.disk_sequence;
      });
    };
    if (noted == Noted::kBefore) std::erase_if(*objects, another_disk);
    machine_.AddObjects(*objects);
    return;
  }
  SPDLOG_WARN("{}: what is mounted there is not known: {}", path, MessageOf(objects.status()));
  // Nothing is noted of it: then it counts as in use until a reboot, rather than as released.
  if (machine_.record().objects.empty()) machine_.AddObjects({KernelObject{}});
}

void VolumeActor::ForgetOldLevers() {
  const VolumeRecord& record = machine_.record();
  // Where nobody uses it any more, its staging is still to be taken back.
  if (record.publications.empty()) return;
  std::erase_if(levers_.for_keys,
                [&record](const PublicationKey& key) { return record.Find(key) == nullptr; });
  if (levers_.for_keys.empty()) levers_ = {};
}

void VolumeActor::AfterInUse(const StepReport& report) {
  if (report.objects) {
    const bool known = in_use_ && machine_.record().objects == *report.objects;
    machine_.SetInUse(*report.objects);
    if (!known) {
      SaveSoon();
      WriteIdentity();
    }
  }
  in_use_ = report.in_use;
  WatchHolders(report.in_use ? report.holders : std::vector<MountHolder>{});
}

void VolumeActor::WatchHolders(const std::vector<MountHolder>& holders) {
  const auto id = [this](size_t number) { return fmt::format("{}/holder/{}", key_, number); };
  for (size_t i = 0; i < watched_holders_; ++i) context_.consumers.Forget(id(i));
  watched_holders_ = 0;
  for (const MountHolder& holder : holders) {
    if (holder.pid == 0 || watched_holders_ == kHoldersWatched) continue;
    context_.consumers.Watch(id(watched_holders_++), ProcessLife(holder.pid),
                             [weak = weak_from_this()](const std::string& /*why*/) {
                               if (const auto self = weak.lock()) self->Start();
                             });
  }
}

Awaitable<absl::Status> VolumeActor::Commit() {
  context_.Boundary("outcome: writing");
  const absl::Status status = co_await context_.journal->Put(key_, EncodeRecord(machine_.record()));
  stale_row_ = !status.ok();
  context_.Boundary("outcome: written");
  co_return status;
}

void VolumeActor::SaveSoon() {
  if (machine_.present()) context_.journal->PutSoon(key_, EncodeRecord(machine_.record()));
}

StepProgress VolumeActor::Progress(const Step& step) {
  // They outlive the wait for a try that was given up only until it has ended, which is awaited.
  return {.waiting =
              [this](std::string why) {
                waiting_for_ = std::move(why);
                changed_.NotifyAll();
              },
          .sending =
              [this, step](std::string_view rpc) {
                sent_ = true;
                const bool row_is_stale = OverturnsRow(step);
                if (step.kind == StepKind::kRenew) tokens_.BeforeCall(step.key);
                machine_.OnSent(step);
                if (row_is_stale) SaveSoon();
                waiting_for_.clear();
                const bool reverse = step.kind == StepKind::kUnpublish || step.kind == StepKind::kUnstage;
                if (reverse && !hung_since_) hung_since_ = {.time = Clock::now(), .shown = WallClock::now()};
                running_ = rpc;
                running_since_ = WallClock::now();
              },
          .answered =
              [this](const RpcTrace& trace) {
                rpcs_.push_back(trace);
                if (rpcs_.size() > kRpcsKept) rpcs_.pop_front();
              },
          .detached =
              [this](uint64_t mount_id) {
                levers_.detached_at = WallClock::now();
                machine_.AddDetachedMount(mount_id);
                SaveSoon();
                WriteIdentity();
                reporter_.ReportView();
              },
          .aborted =
              [this] {
                levers_.aborted_at = WallClock::now();
                reporter_.ReportView();
              },
          .hangs =
              [this](StuckView stuck) {
                levers_.call_hung = true;
                machine_.OnStuck(std::move(stuck));
                reporter_.ReportView();
              },
          .still_wanted = [this, step] { return StillWanted(step); }};
}

bool VolumeActor::OverturnsRow(const Step& step) const {
  // A row that keeps the old mount's id would have the new one for somebody else's.
  if (step.kind == StepKind::kStage) return machine_.record().staging_mount_id != 0;
  const PublicationRecord* publication = machine_.record().Find(step.key);
  if (publication == nullptr) return false;
  if (step.kind == StepKind::kRenew) return publication->mount_id != 0;
  return step.kind == StepKind::kPublish && publication->before_reboot;
}

bool VolumeActor::Superseded(const Step& step) const {
  return GoesForward(step.kind) && queue_.UnpublishWaits(step.key);
}

bool VolumeActor::GivesWay(const VolumeOperation& operation, const absl::Status& status) const {
  const auto* publish = std::get_if<PublishRequest>(&operation.request);
  if (publish == nullptr || status.ok() || !gives_way_ || !queue_.UnpublishWaits() || context_.stopping)
    return false;
  const Step step{StepKind::kPublish, {.consumer = publish->consumer, .name = publish->name}};
  return operation.withheld.empty() && !Superseded(step) && Clock::now() < operation.wanted_until;
}

std::string VolumeActor::WhyWithheld(const Step& step) const {
  if (!GoesForward(step.kind)) return "";
  if (!machine_.leaving().empty()) return machine_.leaving();
  const PublicationRecord* publication = machine_.record().Find(step.key);
  if (publication == nullptr || publication->withheld.empty()) return "";
  return step.kind == StepKind::kRenew && machine_.MayRenew(step.key) ? "" : publication->withheld;
}

bool VolumeActor::StillWanted(const Step& step) const {
  if (Withheld(step)) return false;
  // What had to wait makes way for what has come meanwhile; what had not is in its turn.
  if (!waiting_for_.empty() && GivenUp(step)) return false;
  return step.kind != StepKind::kRenew || machine_.MayRenew(step.key);
}

bool VolumeActor::ExpansionGivenUp() const {
  if (!sent_) return !machine_.leaving().empty() || queue_.UnpublishWaits();
  return queue_.ForcedUnpublishWaits({}, /*whole_volume=*/true);
}

bool VolumeActor::GivenUp(const Step& step) const {
  // What is local comes to its end, and soon.
  if (step.kind == StepKind::kForget || step.kind == StepKind::kNone) return false;
  // Nothing was sent: nothing is lost by beginning anew after what waits.
  if (!sent_ && GoesForward(step.kind) && queue_.UnpublishWaits()) return true;
  if (!sent_ && (Superseded(step) || Withheld(step) || (queue_.current() == nullptr && !queue_.empty())))
    return true;
  // What it was to be renewed for has changed, as the kernel or somebody says.
  if (!sent_ && step.kind == StepKind::kRenew && !machine_.MayRenew(step.key)) return true;
  const bool whole_volume = step.kind == StepKind::kStage || step.kind == StepKind::kUnstage;
  return queue_.ForcedUnpublishWaits(step.key, whole_volume);
}

}  // namespace berth
