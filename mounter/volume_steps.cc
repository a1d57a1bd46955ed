#include "mounter/volume_steps.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "mounter/holder_names.h"
#include "mounter/publish_check.h"
#include "mounter/recovery.h"
#include "mounter/reverse_call.h"
#include "mounter/root_permissions.h"
#include "mounter/verify_published.h"
#include "mounts/earlier_mounts.h"
#include "mounts/mount_table.h"
#include "mounts/storage_state.h"
#include "mounts/target_not_empty.h"

namespace berth {
namespace {

constexpr size_t kLeftoverMountLimit = 1000;
constexpr size_t kNamesShown = 5;

}  // namespace

Awaitable<StepReport> VolumeSteps::Perform(VolumeRecord record, Step step, StepInput input,
                                           StepProgress progress, TimePoint deadline) {
  const PublicationRecord* found = record.Find(step.key);
  const PublicationRecord publication = found != nullptr ? *found : PublicationRecord{};
  switch (step.kind) {
    case StepKind::kNone:
      break;
    case StepKind::kStage:
      co_return co_await Stage(std::move(record), publication, std::move(input.secrets), std::move(progress),
                               deadline);
    case StepKind::kPublish:
    case StepKind::kRenew:
      co_return co_await Publish(std::move(record), publication, std::move(input.secrets),
                                 std::move(progress), deadline);
    case StepKind::kExpand: {
      ::csi::v1::CapacityRange range;
      range.set_required_bytes(record.pending_expansion_bytes);
      co_return co_await Expand(std::move(record), range, std::move(input.secrets), std::move(progress),
                                deadline);
    }
    case StepKind::kMountPath:
      co_return co_await MountPath(std::move(record), publication, std::move(input), std::move(progress),
                                   deadline);
    case StepKind::kUnpublish:
      co_return co_await Unpublish(std::move(record), publication, std::move(input), std::move(progress),
                                   deadline);
    case StepKind::kUnstage:
      co_return co_await Unstage(std::move(record), std::move(input), std::move(progress), deadline);
    case StepKind::kForget:
      co_return co_await Forget(std::move(record), deadline);
  }
  co_return StepReport{};
}

Awaitable<StepReport> VolumeSteps::Stage(VolumeRecord record, PublicationRecord publication, Secrets secrets,
                                         StepProgress progress, TimePoint deadline) {
  constexpr CsiRpc kRpc = CsiRpc::kNodeStageVolume;
  auto admission = co_await caller_.Admit(kRpc, record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  // A plugin may have removed the directory when it unstaged, and another process may have made something
  // there.
  const absl::Status made = context_.paths->Remake(record, publication);
  if (!made.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = made};
  auto staging = ReverseCall::Unstage(context_, record, progress, deadline);
  const StepReport bare = co_await staging.RemoveOverlays();
  if (bare.outcome != CallOutcome::kDone) co_return bare;
  if (const auto not_wanted = NotWanted(progress)) co_return *not_wanted;
  auto request = admission->Seen(StageRequest(record, *context_.paths, secrets));
  const WallTime began = WallClock::now();
  auto call = admission->client->NodeStageVolume(std::move(request), deadline);
  const auto answer = co_await caller_.Ask(kRpc, progress, std::move(call));
  if (!answer.ok()) co_return ReportAnswer(kRpc, record.plugin_id, answer.status(), began, deadline);
  // A mount is not required: some plugins only remember. If a plugin had made one, and it was unmounted, it
  // has to make it again: a publish from a bare directory would show the node's own disk.
  const std::string lost = context_.paths->StagedPath(record);
  const auto found = context_.paths->FindStagingMount(record);
  if (record.staging_lost && found.ok() && found->mount_id == 0) {
    const std::string lie = fmt::format(
        "plugin {} answered OK to {}, but the mount that was at {} is not there again; once the volume is "
        "unpublished everywhere, the plugin is asked to unstage it",
        record.plugin_id, RpcName(kRpc), lost);
    caller_.ReportLie(record, publication.key.consumer, lie);
    co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
  }
  StagingMount mounted = found.value_or(StagingMount{});
  mounted.others = MountsNow(context_.paths->tree());
  record.staging_mount_path = mounted.path;
  const absl::Status usable =
      CheckUsable(context_.paths->StagedPath(record), {}, publication.Writes(record.use));
  if (!usable.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = usable};
  co_return StepReport{.staging = std::move(mounted)};
}

Awaitable<absl::StatusOr<PluginTokens>> VolumeSteps::GetTokens(VolumeRecord record,
                                                               PublicationRecord publication,
                                                               StepProgress progress, TimePoint deadline) {
  if (context_.plugins.TokensWanted(record.plugin_id).empty()) co_return PluginTokens{};
  constexpr const char* kAwaiting = "awaiting tokens";
  BERTH_CO_RETURN_IF_ERROR(MayHaveTokens(publication.origin, record.plugin_id));
  if (context_.options.tokens == nullptr) {
    co_return absl::FailedPreconditionError(fmt::format("{}: none can be issued", kAwaiting));
  }
  const StepProgress named = WaitingFor(CsiRpc::kNodePublishVolume, std::move(progress));
  const auto plugin = co_await caller_.FindPlugin(record.plugin_id, named, deadline);
  if (!plugin.ok()) co_return Annotate(plugin.status(), "NodePublishVolume waits");
  // Its file may be another one by now.
  const std::vector<WantedToken> wanted = context_.plugins.TokensWanted(record.plugin_id);
  if (wanted.empty()) co_return PluginTokens{};
  named.waiting(kAwaiting);
  auto pass = co_await context_.token_gate.Enter("", deadline);
  if (!pass) co_return absl::UnavailableError(fmt::format("{}: too many are asked for", kAwaiting));
  TokenQuery query{
      .plugin_id = record.plugin_id, .volume_id = record.volume_id, .consumer = publication.key.consumer};
  for (const WantedToken& want : wanted) query.audiences.push_back(want.audience);
  const TimePoint until = std::min(deadline, Clock::now() + context_.options.tokens_within);
  auto came = co_await context_.options.tokens->Get(std::move(query), until);
  if (!came.ok()) co_return Annotate(came.status(), kAwaiting);
  auto tokens = ForPlugin(wanted, *std::move(came), BootClock::now(), WallClock::now());
  if (!tokens.ok()) co_return Annotate(tokens.status(), kAwaiting);
  co_return tokens;
}

Awaitable<StepReport> VolumeSteps::Publish(VolumeRecord record, PublicationRecord publication,
                                           Secrets secrets, StepProgress progress, TimePoint deadline) {
  // Before the plugin's gate: who waits for a scheduler keeps no place there.
  auto tokens = co_await GetTokens(record, publication, progress, deadline);
  if (!tokens.ok()) {
    co_return StepReport{.outcome = ClassifyNoTokens(tokens.status().code()), .error = tokens.status()};
  }
  const std::optional<TokenLife> life = tokens->life;
  StepReport report = co_await PublishWith(std::move(record), std::move(publication), std::move(secrets),
                                           *std::move(tokens), std::move(progress), deadline);
  if (report.outcome == CallOutcome::kDone) report.tokens = life;
  co_return report;
}

Awaitable<StepReport> VolumeSteps::PublishWith(VolumeRecord record, PublicationRecord publication,
                                               Secrets secrets, PluginTokens tokens, StepProgress progress,
                                               TimePoint deadline) {
  constexpr CsiRpc kRpc = CsiRpc::kNodePublishVolume;
  auto admission = co_await caller_.Admit(kRpc, record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  // A repair has removed the directories when it was undone. Existing ones stay.
  const absl::Status made = context_.paths->Remake(record, publication);
  if (!made.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = made};
  const absl::Status safe = SafeToHandOut(context_.paths->LookAtTarget(record, publication),
                                          context_.paths->TargetPath(record, publication));
  if (!safe.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = safe};
  const absl::Status free = TargetIsFree(record, publication);
  if (!free.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = free};
  // It may have waited for the plugin, and a plugin binds whatever lies there.
  const auto staging =
      publication.ephemeral ? std::nullopt : PlanStaging(record, LookAtStagingMount(record, *context_.paths));
  if (staging)
    co_return StepReport{.outcome = CallOutcome::kRetry, .error = absl::UnavailableError(staging->why)};
  const absl::Status alone = CheckAlone(record, publication);
  if (!alone.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = alone};
  if (const auto not_wanted = NotWanted(progress)) co_return *not_wanted;
  // Its file may be another one since they were made out, and it may not have been there at all before.
  if (context_.plugins.TokensWanted(record.plugin_id) != tokens.wanted) {
    co_return StepReport{.outcome = CallOutcome::kRetry,
                         .error = absl::UnavailableError("the plugin wants other tokens by now")};
  }
  auto request = admission->Seen(NodePublishRequest(record, publication, *context_.paths, secrets));
  if (admission->pod_info) AddPodInfo(publication, &request);
  PassTo(tokens, &request);
  const WallTime began = WallClock::now();
  auto call = admission->client->NodePublishVolume(std::move(request), deadline, TokensIn(tokens));
  const auto answer = co_await caller_.Ask(kRpc, progress, std::move(call));
  if (!answer.ok()) co_return ReportAnswer(kRpc, record.plugin_id, answer.status(), began, deadline);

  const absl::Status verified = co_await VerifyPublished(context_, record, publication, deadline);
  if (absl::IsInternal(verified)) {
    std::string lie = fmt::format("plugin {} answered OK to {}, but {}", record.plugin_id, RpcName(kRpc),
                                  MessageOf(verified));
    const auto left = context_.paths->LookAtTarget(record, publication);
    if (left.ok() && S_ISLNK(left->mode)) {
      // It was not there before the call. A link is no data, and would keep the volume from being undone.
      const absl::Status removed = context_.paths->RemoveTargetLink(record, publication);
      lie += removed.ok() ? ", which was removed" : fmt::format(", which stays: {}", MessageOf(removed));
    }
    caller_.ReportLie(record, publication.key.consumer, lie);
    co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
  }
  const std::string path = context_.paths->TargetPath(record, publication);
  if (!verified.ok()) {
    StepReport report = FromHelper(context_.helper, verified, path);
    report.outcome = CallOutcome::kUncertain;
    co_return report;
  }
  const absl::Status usable = CheckUsable(path, record.objects, publication.Writes(record.use));
  if (!usable.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = usable};
  // What it is may be seen here only: a plugin may stage without a mount, or not at all.
  if (const auto shown = ObjectsAt(path, context_.paths->tree()); shown.ok()) {
    MergeObjects(*shown, &record.objects);
  }
  const absl::Status still_alone = CheckAlone(record, publication);
  if (!still_alone.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = still_alone};
  if (publication.permissions_set || !Wanted(publication.permissions)) co_return StepReport{};
  co_return co_await SetPermissions(path, publication.permissions, deadline);
}

absl::Status VolumeSteps::CheckAlone(const VolumeRecord& record, const PublicationRecord& publication) const {
  PublishRequest wanted;
  wanted.use = record.use;
  wanted.consumer = publication.key.consumer;
  wanted.readonly = publication.readonly;
  for (const VolumeRecord* const other : context_.same_volumes(record)) {
    BERTH_RETURN_IF_ERROR(CheckSame(wanted, *other));
  }
  return absl::OkStatus();
}

Awaitable<StepReport> VolumeSteps::SetPermissions(std::string path, RootPermissions permissions,
                                                  TimePoint deadline) {
  const absl::Status set = co_await context_.helper.SetPermissions(path, permissions, deadline);
  if (set.ok()) co_return StepReport{.permissions_set = true};
  StepReport report = FromHelper(context_.helper, set, path);
  const PermissionsFailure failure = WhyNotSet(set);
  report.outcome = failure.outcome;
  report.error = failure.error;
  co_return report;
}

absl::Status VolumeSteps::TargetIsFree(const VolumeRecord& record,
                                       const PublicationRecord& publication) const {
  const auto facts = context_.paths->LookAtTarget(record, publication);
  if (!facts.ok() || facts->mount_root || !S_ISDIR(facts->mode)) return absl::OkStatus();
  auto names = context_.paths->ListTarget(record, publication);
  const std::string path = context_.paths->TargetPath(record, publication);
  const std::string destination = fmt::format("/var/tmp/berth-{}", publication.component);
  if (absl::IsResourceExhausted(names.status())) return TargetNotEmpty(path, destination, {}, kTargetLimit);
  if (!names.ok() || names->empty()) return absl::OkStatus();
  const size_t shown = std::min(names->size(), kNamesShown);
  const size_t more = names->size() - shown;
  names->resize(shown);
  return TargetNotEmpty(path, destination, *names, more);
}

Awaitable<StepReport> VolumeSteps::Unpublish(VolumeRecord record, PublicationRecord publication,
                                             StepInput input, StepProgress progress, TimePoint deadline) {
  // Its other mount first: while that is there the file system is in use.
  const StepReport path = co_await UnmountPath(record, publication, input, progress, deadline);
  if (path.outcome != CallOutcome::kDone) co_return path;
  auto call = ReverseCall::Unpublish(context_, record, publication, std::move(progress), deadline);
  StepReport report = co_await call.Run(std::move(input));
  if (report.outcome != CallOutcome::kDone) {
    // A plugin that cannot remove a directory with files in it says less than that.
    const absl::Status free = TargetIsFree(record, publication);
    if (!free.ok() && !report.error.ok()) {
      report.needs_person = report.plugin_cannot;
      report.error = absl::Status(report.needs_person ? free.code() : report.error.code(),
                                  fmt::format("{}; {}", MessageOf(report.error), MessageOf(free)));
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
  auto call = ReverseCall::Unstage(context_, std::move(record), std::move(progress), deadline);
  co_return co_await call.Run(std::move(input));
}

Awaitable<StepReport> VolumeSteps::ReleaseWithoutPlugin(VolumeRecord record, StepInput input,
                                                        StepProgress progress, TimePoint deadline) {
  std::vector<ReverseCall> mounts;
  bool whole = true;
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kUnpublishing || publication.remount_after_undo) {
      whole = false;
      continue;
    }
    StepReport path = co_await UnmountPath(record, publication, input, progress, deadline);
    if (path.outcome != CallOutcome::kDone) co_return path;
    mounts.push_back(ReverseCall::Unpublish(context_, record, publication, progress, deadline));
  }
  // What others publish from stays staged.
  if (whole && record.stages) {
    mounts.push_back(ReverseCall::Unstage(context_, record, progress, deadline));
  }
  for (ReverseCall& mount : mounts) {
    StepReport report = co_await mount.UnmountWithoutPlugin(input.lazy);
    if (report.outcome != CallOutcome::kDone) co_return report;
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
  const TimePoint until = std::min(deadline, Clock::now() + kHolderSearch);
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

absl::Status VolumeSteps::OnLeftover(const VolumeRecord& record, const std::string& directory,
                                     const absl::Status& error) {
  if (error.code() != absl::StatusCode::kFailedPrecondition) return error;
  BERTH_ASSIGN_OR_RETURN(const auto mounts, MountsBeneath(directory, kLeftoverMountLimit));
  if (!mounts.empty()) {
    return absl::UnavailableError(
        fmt::format("something is still mounted at {}", Printable(mounts[0].target)));
  }
  context_.events.Append(
      {.type = "volume.leftover",
       .plugin_id = record.plugin_id,
       .volume_id = record.volume_id,
       .consumer = "",
       .message = fmt::format("left as it is, since something is in it: {}", MessageOf(error))});
  return absl::OkStatus();
}

Awaitable<StepReport> VolumeSteps::Forget(VolumeRecord record, TimePoint deadline) {
  ReleaseCheck check = co_await context_.release.CheckReleased(record, deadline);
  if (!check.released) {
    co_return StepReport{.outcome = CallOutcome::kRetry,
                         .error = absl::UnavailableError(check.why),
                         .holders = std::move(check.holders),
                         .in_use = true,
                         .objects = std::move(check.objects)};
  }
  const std::string key = VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
  absl::Status status = context_.paths->RemoveVolume(record);
  if (!status.ok()) status = OnLeftover(record, fmt::format("{}/{}", context_.paths->tree(), key), status);
  if (!status.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = status};
  context_.Boundary("removed the volume's directory");
  context_.leaves(record);
  status = co_await context_.journal->Delete(key, context_.KeepPending(record));
  if (!status.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = status};
  context_.Boundary("deleted the row");
  co_return StepReport{};
}

}  // namespace berth
