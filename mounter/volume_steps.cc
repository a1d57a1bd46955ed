#include "mounter/volume_steps.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>

#include "base/backoff.h"
#include "mounter/recovery.h"
#include "mounter/root_permissions.h"
#include "mounts/files_in_the_way.h"
#include "mounts/mount_table.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

using volume_steps_internal::NotSent;
using volume_steps_internal::NotWanted;
using volume_steps_internal::Report;
using volume_steps_internal::SafeToHandOut;

constexpr size_t kLeftoverMountLimit = 1000;
constexpr size_t kNamesShown = 5;

// What lies at a path, for people.
std::string_view WhatIsThere(const PathFacts& facts) {
  if (!facts.exists) return "nothing";
  if (S_ISBLK(facts.mode)) return "a block device";
  if (S_ISCHR(facts.mode)) return "a character device";
  if (S_ISLNK(facts.mode)) return "a symbolic link";
  if (S_ISDIR(facts.mode)) return facts.mount_root ? "a mounted directory" : "a directory that is no mount";
  if (S_ISREG(facts.mode)) return facts.mount_root ? "a mounted file" : "a plain file";
  return "a socket or pipe";
}

}  // namespace

namespace volume_steps_internal {

StepReport Report(CsiRpc rpc, const std::string& plugin_id, const absl::Status& status, WallTime began,
                  TimePoint deadline) {
  StepReport report{.outcome = Classify(rpc, status.code()),
                    .error = Annotate(status, fmt::format("plugin {}: {}", plugin_id, RpcName(rpc)))};
  if (absl::IsDeadlineExceeded(status) && Clock::now() >= deadline) {
    report.stuck = StuckView{.on = std::string(RpcName(rpc)), .pid = 0, .since = began};
  }
  return report;
}

absl::Status SafeToHandOut(const absl::StatusOr<PathFacts>& facts, const std::string& path) {
  if (!facts.ok()) return facts.status();
  if (!S_ISLNK(facts->mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: a symbolic link is there, which would lead the plugin elsewhere; remove it", path));
}

std::optional<StepReport> NotWanted(const StepProgress& progress) {
  if (!progress.still_wanted || progress.still_wanted()) return std::nullopt;
  return StepReport{.outcome = CallOutcome::kRetry, .error = absl::AbortedError("not wanted any more")};
}

StepReport NotSent(const absl::Status& status) {
  const bool later =
      status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded;
  return {.outcome = later ? CallOutcome::kRetry : CallOutcome::kFinal, .error = status};
}

}  // namespace volume_steps_internal

Duration MounterContext::RetryAfter(int failures, Duration first, Duration limit) {
  return Backoff(failures, first, limit, RandomShare());
}

RpcTrace VolumeSteps::Sending(const StepProgress& progress, CsiRpc rpc) const {
  progress.sending(RpcName(rpc));
  context_.Boundary(fmt::format("rpc {}: sending", RpcName(rpc)));
  return {.rpc = std::string(RpcName(rpc)), .started_at = WallClock::now(), .error = ""};
}

void VolumeSteps::Answered(const StepProgress& progress, CsiRpc rpc, RpcTrace trace, Duration took,
                           const absl::Status& status) const {
  context_.Boundary(fmt::format("rpc {}: answered", RpcName(rpc)));
  if (!progress.answered) return;
  trace.took = took;
  trace.code = status.code();
  trace.error = std::string(MessageOf(status));
  progress.answered(trace);
}

Awaitable<absl::Status> VolumeSteps::Ask(CsiRpc rpc, StepProgress progress, Awaitable<absl::Status> call) {
  const RpcTrace begun = Sending(progress, rpc);
  const TimePoint start = Clock::now();
  absl::Status status = co_await std::move(call);
  Answered(progress, rpc, begun, Clock::now() - start, status);
  co_return status;
}

void VolumeSteps::ReportLie(const VolumeRecord& record, const std::string& consumer,
                            const std::string& message) {
  context_.events.Append({.type = "plugin.lied",
                          .plugin_id = record.plugin_id,
                          .volume_id = record.volume_id,
                          .consumer = consumer,
                          .message = message});
}

Awaitable<absl::StatusOr<PluginDirectory::Entry>> VolumeSteps::FindPlugin(std::string plugin_id,
                                                                          StepProgress progress,
                                                                          TimePoint deadline) {
  while (true) {
    auto entry = context_.plugins.Find(plugin_id);
    const bool wait = entry.status().code() == absl::StatusCode::kUnavailable;
    if (!wait || Clock::now() >= deadline || context_.stopping) co_return entry;
    progress.waiting(std::string(MessageOf(entry.status())));
    co_await context_.plugins.WaitUsable(plugin_id, deadline);
  }
}

Awaitable<absl::StatusOr<VolumeSteps::Admission>> VolumeSteps::Admit(CsiRpc rpc, std::string plugin_id,
                                                                     StepProgress progress,
                                                                     TimePoint deadline) {
  const std::string name = fmt::format("{} waits", RpcName(rpc));
  StepProgress named = progress;
  named.waiting = [progress, name](std::string why) { progress.waiting(fmt::format("{}: {}", name, why)); };
  auto entry = co_await FindPlugin(plugin_id, named, deadline);
  if (!entry.ok()) co_return Annotate(entry.status(), name);
  const std::string busy =
      fmt::format("plugin {}: busy with {} calls", plugin_id, context_.options.calls_per_plugin);
  if (context_.gates.Full(plugin_id)) named.waiting(busy);
  auto pass = co_await context_.gates.Enter(plugin_id, deadline);
  if (!pass) co_return absl::UnavailableError(fmt::format("{}: {}", name, busy));
  // It may have gone, or come back as another process, while we waited at the gate.
  entry = context_.plugins.Find(plugin_id);
  if (!entry.ok()) co_return Annotate(entry.status(), name);
  if (context_.stopping) co_return absl::UnavailableError(fmt::format("{}: berthd is stopping", name));
  co_return Admission{.client = std::move(entry->client),
                      .volumes_path = std::move(entry->volumes_path),
                      .pod_info = entry->pod_info,
                      .pass = *std::move(pass)};
}

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
  auto admission = co_await Admit(kRpc, record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  // A plugin may have taken the directory away when it unstaged, and somebody may have put something else
  // there.
  const absl::Status made = context_.paths->Remake(record, publication);
  if (!made.ok()) co_return StepReport{.outcome = CallOutcome::kRetry, .error = made};
  const StepReport bare = co_await UncoverStaging(record, deadline);
  if (bare.outcome != CallOutcome::kDone) co_return bare;
  if (const auto not_wanted = NotWanted(progress)) co_return *not_wanted;
  auto request = Seen(StageRequest(record, *context_.paths, secrets), *admission);
  const WallTime began = WallClock::now();
  auto call = admission->client->NodeStageVolume(std::move(request), deadline);
  const auto answer = co_await Ask(kRpc, progress, std::move(call));
  // A mount at the staging path is not demanded: some plugins only remember. One that had made a mount, which
  // somebody took away, has to make it again: what is published from a bare directory is the node's own disk.
  const auto facts = context_.paths->LookAtStaging(record);
  if (answer.ok() && record.staging_lost && facts.ok() && !facts->mount_root) {
    const std::string lie = fmt::format(
        "plugin {} answered OK to {}, but the mount that was at {} is not there again; once the volume is "
        "unpublished everywhere, the plugin is asked to unstage it",
        record.plugin_id, RpcName(kRpc), context_.paths->StagingPath(record));
    ReportLie(record, publication.key.consumer, lie);
    co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
  }
  if (answer.ok()) {
    const std::string path = context_.paths->StagingPath(record);
    const absl::Status usable = CheckUsable(path, {}, publication.Writes(record.use));
    if (!usable.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = usable};
  }
  co_return Report(kRpc, record.plugin_id, answer.status(), began, deadline);
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
  const std::string name = fmt::format("{} waits", RpcName(CsiRpc::kNodePublishVolume));
  StepProgress named = progress;
  named.waiting = [progress, name](std::string why) { progress.waiting(fmt::format("{}: {}", name, why)); };
  const auto plugin = co_await FindPlugin(record.plugin_id, named, deadline);
  if (!plugin.ok()) co_return Annotate(plugin.status(), name);
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
  auto admission = co_await Admit(kRpc, record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  // Those of a repair went when it was undone. What is there stays.
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
  if (const auto not_wanted = NotWanted(progress)) co_return *not_wanted;
  // Its file may be another one since they were made out, and it may not have been there at all before.
  if (context_.plugins.TokensWanted(record.plugin_id) != tokens.wanted) {
    co_return StepReport{.outcome = CallOutcome::kRetry,
                         .error = absl::UnavailableError("the plugin wants other tokens by now")};
  }
  auto request = Seen(NodePublishRequest(record, publication, *context_.paths, secrets), *admission);
  if (admission->pod_info) AddPodInfo(publication, &request);
  PassTo(tokens, &request);
  const WallTime began = WallClock::now();
  auto call = admission->client->NodePublishVolume(std::move(request), deadline, TokensIn(tokens));
  const auto answer = co_await Ask(kRpc, progress, std::move(call));
  if (!answer.ok()) co_return Report(kRpc, record.plugin_id, answer.status(), began, deadline);

  const absl::Status verified = co_await VerifyPublished(record, publication, deadline);
  if (absl::IsInternal(verified)) {
    std::string lie = fmt::format("plugin {} answered OK to {}, but {}", record.plugin_id, RpcName(kRpc),
                                  MessageOf(verified));
    const auto left = context_.paths->LookAtTarget(record, publication);
    if (left.ok() && S_ISLNK(left->mode)) {
      // It was not there before the call. A link is no data, and would keep the volume from being undone.
      const absl::Status removed = context_.paths->RemoveTargetLink(record, publication);
      lie += removed.ok() ? ", which was removed" : fmt::format(", which stays: {}", MessageOf(removed));
    }
    ReportLie(record, publication.key.consumer, lie);
    co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
  }
  const std::string path = context_.paths->TargetPath(record, publication);
  if (!verified.ok()) {
    StepReport report = FromHelper(verified, path);
    report.outcome = CallOutcome::kUncertain;
    co_return report;
  }
  const absl::Status usable = CheckUsable(path, record.objects, publication.Writes(record.use));
  if (!usable.ok()) co_return StepReport{.outcome = CallOutcome::kFinal, .error = usable};
  if (publication.permissions_set || !Wanted(publication.permissions)) co_return StepReport{};
  co_return co_await SetPermissions(path, publication.permissions, deadline);
}

Awaitable<StepReport> VolumeSteps::SetPermissions(std::string path, RootPermissions permissions,
                                                  TimePoint deadline) {
  const absl::Status set = co_await context_.helper.SetPermissions(path, permissions, deadline);
  if (set.ok()) co_return StepReport{.permissions_set = true};
  StepReport report = FromHelper(set, path);
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
  if (absl::IsResourceExhausted(names.status())) return FilesInTheWay(path, destination, {}, kTargetLimit);
  if (!names.ok() || names->empty()) return absl::OkStatus();
  const size_t shown = std::min(names->size(), kNamesShown);
  const size_t more = names->size() - shown;
  names->resize(shown);
  return FilesInTheWay(path, destination, *names, more);
}

StepReport VolumeSteps::FromHelper(const absl::Status& failed, const std::string& path) const {
  StepReport report{.outcome = CallOutcome::kUncertain, .error = failed};
  if (!absl::IsDeadlineExceeded(failed)) return report;
  for (const StuckHelper& helper : context_.helper.stuck()) {
    if (helper.what.ends_with(path)) {
      report.stuck = StuckView{.on = helper.what, .pid = helper.pid, .since = helper.since};
    }
  }
  return report;
}

absl::Status VolumeSteps::VerifyFileSystem(const VolumeRecord& record, const PathFacts& target,
                                           const std::string& path) const {
  const auto shows = [](const KernelObject& what, const KernelObject& whole) {
    return what.device == whole.device && IsAtOrBeneath(what.root, whole.root);
  };
  BERTH_ASSIGN_OR_RETURN(const KernelObject mounted, ShownAt(path, target));
  const std::string& tree_path = context_.paths->tree();
  BERTH_ASSIGN_OR_RETURN(const PathFacts tree_facts, LookAt(tree_path));
  BERTH_ASSIGN_OR_RETURN(const KernelObject tree, ShownAt(tree_path, tree_facts));
  if (shows(mounted, tree)) {
    return absl::InternalError(
        fmt::format("{} shows a directory of the volumes' tree itself, and no storage: what is written there "
                    "is in memory",
                    path));
  }
  const auto staging = context_.paths->LookAtStaging(record);
  const bool staged = record.stages && record.staging_mount_id != 0 && staging.ok() && staging->mount_root &&
                      staging->mount_id == record.staging_mount_id && target.mount_id != staging->mount_id;
  if (!staged) return absl::OkStatus();
  const std::string staging_path = context_.paths->StagingPath(record);
  BERTH_ASSIGN_OR_RETURN(const KernelObject whole, ShownAt(staging_path, *staging));
  if (shows(mounted, whole)) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} shows another directory than the one that was staged at {}: {} of {}, not of {}", path,
                  staging_path, Printable(mounted.root, 256), Printable(mounted.fs_type, 64),
                  Printable(whole.fs_type, 64)));
}

Awaitable<absl::Status> VolumeSteps::VerifyPublished(VolumeRecord record, PublicationRecord publication,
                                                     TimePoint deadline) {
  const std::string path = context_.paths->TargetPath(record, publication);
  const auto facts = context_.paths->LookAtTarget(record, publication);
  if (!facts.ok()) co_return Annotate(absl::UnavailableError(facts.status().ToString()), path);
  if (record.use.access_type == AccessType::kBlock) {
    if (!facts->exists || !S_ISBLK(facts->mode)) {
      co_return absl::InternalError(
          fmt::format("there is no block device at {}: there is {}", path, WhatIsThere(*facts)));
    }
    const bool writable = publication.readonly && !DeviceIsReadonly(facts->special).value_or(true);
    if (!writable) co_return absl::OkStatus();
    co_return absl::InternalError(
        fmt::format("the block device at {} is not read-only, as was asked for", path));
  }
  if (!facts->mount_root || !S_ISDIR(facts->mode)) {
    co_return absl::InternalError(fmt::format("{} is mounted at {}: there is {}",
                                              facts->mount_root ? "no directory" : "nothing", path,
                                              WhatIsThere(*facts)));
  }
  BERTH_CO_RETURN_IF_ERROR(VerifyFileSystem(record, *facts, path));
  if (!publication.readonly) co_return absl::OkStatus();

  auto readonly = MountIsReadonly(path);
  if (!readonly.ok()) co_return absl::UnavailableError(readonly.status().ToString());
  if (!readonly->has_value()) {
    const auto told = co_await context_.helper.IsReadonly(path, deadline);
    // A helper that ends oddly has not said that it is writable.
    if (absl::IsInternal(told.status())) co_return absl::UnavailableError(told.status().message());
    if (!told.ok()) co_return Annotate(told.status(), "is it read-only");
    *readonly = *told;
  }
  if (**readonly) co_return absl::OkStatus();
  co_return absl::InternalError(fmt::format("the mount at {} is not read-only, as was asked for", path));
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
  status = co_await context_.journal->Delete(key, context_.KeepPending(record));
  if (!status.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = status};
  context_.Boundary("deleted the row");
  co_return StepReport{};
}

}  // namespace berth
