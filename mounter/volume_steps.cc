#include "mounter/volume_steps.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "mounter/mount_table.h"

namespace berth {
namespace {

// How often a reverse call that was answered OK, with no effect, is made before we unmount ourselves.
constexpr int kReverseCalls = 3;
constexpr Duration kBetweenReverseCalls = std::chrono::milliseconds(50);
// How many mounts on top of one another we take away at most.
constexpr int kStackedMounts = 16;
constexpr size_t kLeftoverMountLimit = 1000;

template <class Response>
Awaitable<absl::Status> StatusOf(Awaitable<absl::StatusOr<Response>> call) {
  const absl::StatusOr<Response> answer = co_await std::move(call);
  co_return answer.status();
}

StepReport Report(CsiRpc rpc, const std::string& plugin_id, const absl::Status& status) {
  return {.outcome = Classify(rpc, status.code()),
          .error = Annotate(status, fmt::format("plugin {}: {}", plugin_id, RpcName(rpc)))};
}

// Before anything was sent: a plugin that is away may come back, anything else stays as it is.
StepReport NotSent(const absl::Status& status) {
  const bool later =
      status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded;
  return {.outcome = later ? CallOutcome::kRetry : CallOutcome::kFinal, .error = status};
}

bool Occupied(const PathFacts& facts) { return facts.mount_root || (facts.exists && S_ISBLK(facts.mode)); }

}  // namespace

Duration MounterContext::RetryAfter(int failures, Duration first, Duration limit) {
  const double share = std::uniform_real_distribution<double>(0, 1)(random);
  return RetryDelay(failures, first, limit, share);
}

void VolumeSteps::Sending(const StepProgress& progress, CsiRpc rpc) const {
  progress.sending(RpcName(rpc));
  context_.Boundary(fmt::format("rpc {}: sending", RpcName(rpc)));
}

void VolumeSteps::Answered(CsiRpc rpc) const {
  context_.Boundary(fmt::format("rpc {}: answered", RpcName(rpc)));
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
    const absl::string_view why = entry.status().message();
    progress.waiting(std::string(why.data(), why.size()));
    co_await context_.plugins.WaitUsable(plugin_id, deadline);
  }
}

Awaitable<absl::StatusOr<VolumeSteps::Admission>> VolumeSteps::Admit(std::string plugin_id,
                                                                     StepProgress progress,
                                                                     TimePoint deadline) {
  auto entry = co_await FindPlugin(plugin_id, progress, deadline);
  if (!entry.ok()) co_return entry.status();
  auto pass = co_await context_.gates.Enter(plugin_id, deadline);
  if (!pass) {
    co_return absl::UnavailableError(
        fmt::format("plugin {}: busy with {} calls", plugin_id, context_.options.calls_per_plugin));
  }
  // It may have gone, or come back as another process, while we waited at the gate.
  entry = context_.plugins.Find(plugin_id);
  if (!entry.ok()) co_return entry.status();
  if (context_.stopping) co_return absl::UnavailableError("berthd is stopping");
  co_return Admission{.client = std::move(entry->client),
                      .volumes_path = std::move(entry->volumes_path),
                      .pass = *std::move(pass)};
}

Awaitable<StepReport> VolumeSteps::Perform(VolumeRecord record, Step step, Secrets secrets,
                                           StepProgress progress, TimePoint deadline) {
  const PublicationRecord* found = record.Find(step.key);
  const PublicationRecord publication = found != nullptr ? *found : PublicationRecord{};
  switch (step.kind) {
    case StepKind::kNone:
      break;
    case StepKind::kStage:
      co_return co_await Stage(std::move(record), std::move(secrets), std::move(progress), deadline);
    case StepKind::kPublish:
      co_return co_await Publish(std::move(record), publication, std::move(secrets), std::move(progress),
                                 deadline);
    case StepKind::kUnpublish:
      co_return co_await Unpublish(std::move(record), publication, std::move(progress), deadline);
    case StepKind::kUnstage:
      co_return co_await Unstage(std::move(record), std::move(progress), deadline);
    case StepKind::kForget:
      co_return co_await Forget(std::move(record));
  }
  co_return StepReport{};
}

Awaitable<StepReport> VolumeSteps::Stage(VolumeRecord record, Secrets secrets, StepProgress progress,
                                         TimePoint deadline) {
  auto admission = co_await Admit(record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  Sending(progress, CsiRpc::kNodeStageVolume);
  auto request = Seen(StageRequest(record, *context_.paths, secrets), *admission);
  const auto answer = co_await admission->client->NodeStageVolume(std::move(request), deadline);
  Answered(CsiRpc::kNodeStageVolume);
  // A mount at the staging path is not demanded: some plugins only remember.
  co_return Report(CsiRpc::kNodeStageVolume, record.plugin_id, answer.status());
}

Awaitable<StepReport> VolumeSteps::Publish(VolumeRecord record, PublicationRecord publication,
                                           Secrets secrets, StepProgress progress, TimePoint deadline) {
  auto admission = co_await Admit(record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  Sending(progress, CsiRpc::kNodePublishVolume);
  auto request = Seen(NodePublishRequest(record, publication, *context_.paths, secrets), *admission);
  const auto answer = co_await admission->client->NodePublishVolume(std::move(request), deadline);
  Answered(CsiRpc::kNodePublishVolume);
  if (!answer.ok()) co_return Report(CsiRpc::kNodePublishVolume, record.plugin_id, answer.status());

  const absl::Status verified = co_await VerifyPublished(record, publication, deadline);
  if (verified.ok()) co_return StepReport{};
  if (verified.code() != absl::StatusCode::kInternal) {
    co_return StepReport{.outcome = CallOutcome::kUncertain, .error = verified};
  }
  const absl::string_view shown = verified.message();
  const std::string lie = fmt::format("plugin {} answered OK to NodePublishVolume, but {}", record.plugin_id,
                                      std::string_view(shown.data(), shown.size()));
  ReportLie(record, publication.key.consumer, lie);
  co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
}

Awaitable<absl::Status> VolumeSteps::VerifyPublished(VolumeRecord record, PublicationRecord publication,
                                                     TimePoint deadline) {
  const std::string path = context_.paths->TargetPath(record, publication);
  const auto facts = context_.paths->LookAtTarget(record, publication);
  if (!facts.ok()) co_return Annotate(absl::UnavailableError(facts.status().ToString()), path);
  if (record.use.access_type == AccessType::kBlock) {
    if (facts->exists && S_ISBLK(facts->mode)) co_return absl::OkStatus();
    co_return absl::InternalError(fmt::format("there is no block device at {}", path));
  }
  if (!facts->mount_root || !S_ISDIR(facts->mode)) {
    co_return absl::InternalError(fmt::format("nothing is mounted at {}", path));
  }
  if (!publication.readonly) co_return absl::OkStatus();

  auto readonly = MountIsReadonly(path);
  if (!readonly.ok()) co_return absl::UnavailableError(readonly.status().ToString());
  if (!readonly->has_value()) {
    const auto told = co_await context_.helper.IsReadonly(path, deadline);
    if (!told.ok()) co_return absl::UnavailableError(told.status().ToString());
    *readonly = *told;
  }
  if (**readonly) co_return absl::OkStatus();
  co_return absl::InternalError(fmt::format("the mount at {} is not read-only, as was asked for", path));
}

Awaitable<StepReport> VolumeSteps::Unpublish(VolumeRecord record, PublicationRecord publication,
                                             StepProgress progress, TimePoint deadline) {
  auto request = NodeUnpublishRequest(record, publication, *context_.paths);
  Reverse reverse{
      .rpc = CsiRpc::kNodeUnpublishVolume,
      .path = context_.paths->TargetPath(record, publication),
      .consumer = publication.key.consumer,
      .call =
          [this, request](const Admission& admission, TimePoint until) {
            return StatusOf(admission.client->NodeUnpublishVolume(Seen(request, admission), until));
          },
      .look = [this, record, publication] { return context_.paths->LookAtTarget(record, publication); }};
  StepReport report = co_await Undo(record, std::move(reverse), std::move(progress), deadline);
  if (report.outcome != CallOutcome::kDone) co_return report;
  const absl::Status removed = context_.paths->RemovePublication(record, publication);
  context_.Boundary("removed the publication's directory");
  if (removed.ok()) co_return report;
  const std::filesystem::path target = context_.paths->TargetPath(record, publication);
  const absl::Status left = OnLeftover(record, target.parent_path().string(), removed);
  if (!left.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = left};
  co_return report;
}

Awaitable<StepReport> VolumeSteps::Unstage(VolumeRecord record, StepProgress progress, TimePoint deadline) {
  if (!record.stages) co_return StepReport{};
  auto request = UnstageRequest(record, *context_.paths);
  Reverse reverse{.rpc = CsiRpc::kNodeUnstageVolume,
                  .path = context_.paths->StagingPath(record),
                  .consumer = "",
                  .call =
                      [this, request](const Admission& admission, TimePoint until) {
                        return StatusOf(admission.client->NodeUnstageVolume(Seen(request, admission), until));
                      },
                  .look = [this, record] { return context_.paths->LookAtStaging(record); }};
  co_return co_await Undo(record, std::move(reverse), std::move(progress), deadline);
}

Awaitable<StepReport> VolumeSteps::Undo(VolumeRecord record, Reverse reverse, StepProgress progress,
                                        TimePoint deadline) {
  auto admission = co_await Admit(record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  for (int call = 1;; ++call) {
    Sending(progress, reverse.rpc);
    const absl::Status status = co_await reverse.call(*admission, deadline);
    Answered(reverse.rpc);
    StepReport report = Report(reverse.rpc, record.plugin_id, status);
    if (report.outcome != CallOutcome::kDone && report.outcome != CallOutcome::kAbsent) co_return report;

    const auto facts = reverse.look();
    if (!facts.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = facts.status()};
    if (!Occupied(*facts)) co_return StepReport{};
    const std::string lie = fmt::format("plugin {} answered {} to {}, but there is still a {} at {}",
                                        record.plugin_id, CodeName(status.code()), RpcName(reverse.rpc),
                                        facts->mount_root ? "mount" : "block device", reverse.path);
    if (call == 1) ReportLie(record, reverse.consumer, lie);
    if (call < kReverseCalls && report.outcome == CallOutcome::kDone) {
      co_await SleepUntil(std::min(Clock::now() + call * kBetweenReverseCalls, deadline));
      continue;
    }
    const absl::Status unmounted = co_await UnmountOurselves(reverse.path, reverse.look, deadline);
    if (unmounted.ok()) co_return StepReport{};
    co_return StepReport{.outcome = CallOutcome::kUncertain, .error = Annotate(unmounted, lie)};
  }
}

Awaitable<absl::Status> VolumeSteps::UnmountOurselves(std::string path,
                                                      std::function<absl::StatusOr<PathFacts>()> look,
                                                      TimePoint deadline) {
  for (int i = 0; i < kStackedMounts; ++i) {
    BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, look());
    if (!Occupied(facts)) co_return absl::OkStatus();
    // A device node is not ours to remove, whoever made it.
    if (!facts.mount_root)
      co_return absl::UnavailableError(fmt::format("{}: a device node is left there", path));
    BERTH_CO_RETURN_IF_ERROR(co_await context_.helper.Unmount(path, deadline));
  }
  co_return absl::UnavailableError(fmt::format("{}: still mounted after {} unmounts", path, kStackedMounts));
}

absl::Status VolumeSteps::OnLeftover(const VolumeRecord& record, const std::string& directory,
                                     const absl::Status& error) {
  if (error.code() != absl::StatusCode::kFailedPrecondition) return error;
  BERTH_ASSIGN_OR_RETURN(const auto mounts, MountsBeneath(directory, kLeftoverMountLimit));
  if (!mounts.empty()) {
    return absl::UnavailableError(
        fmt::format("something is still mounted at {}", Printable(mounts[0].target)));
  }
  const absl::string_view why = error.message();
  context_.events.Append({.type = "volume.leftover",
                          .plugin_id = record.plugin_id,
                          .volume_id = record.volume_id,
                          .consumer = "",
                          .message = fmt::format("left as it is, since something is in it: {}",
                                                 std::string_view(why.data(), why.size()))});
  return absl::OkStatus();
}

Awaitable<StepReport> VolumeSteps::Forget(VolumeRecord record) {
  const std::string key = VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
  absl::Status status = context_.paths->RemoveVolume(record);
  if (!status.ok()) status = OnLeftover(record, fmt::format("{}/{}", context_.paths->tree(), key), status);
  if (!status.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = status};
  context_.Boundary("removed the volume's directory");
  status = co_await context_.journal->Delete(key);
  if (!status.ok()) co_return StepReport{.outcome = CallOutcome::kUncertain, .error = status};
  context_.Boundary("deleted the row");
  co_return StepReport{};
}

Awaitable<VolumeSteps::ExpandReport> VolumeSteps::Expand(VolumeRecord record, ::csi::v1::CapacityRange range,
                                                         Secrets secrets, StepProgress progress,
                                                         TimePoint deadline) {
  const auto published =
      std::ranges::find(record.publications, PublicationState::kPublished, &PublicationRecord::state);
  if (published == record.publications.end()) {
    co_return ExpandReport{
        .step = {.outcome = CallOutcome::kFinal, .error = absl::NotFoundError("not published on this node")}};
  }
  auto admission = co_await Admit(record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return ExpandReport{.step = NotSent(admission.status())};
  Sending(progress, CsiRpc::kNodeExpandVolume);
  auto request = Seen(NodeExpandRequest(record, *published, *context_.paths, range, secrets), *admission);
  const auto answer = co_await admission->client->NodeExpandVolume(std::move(request), deadline);
  Answered(CsiRpc::kNodeExpandVolume);
  ExpandReport report{.step = Report(CsiRpc::kNodeExpandVolume, record.plugin_id, answer.status())};
  if (answer.ok()) report.capacity_bytes = answer->capacity_bytes();
  co_return report;
}

}  // namespace berth
