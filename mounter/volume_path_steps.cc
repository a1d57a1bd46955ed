// VolumeSteps: what is published is mounted once more, at the path that the file which declares it names.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/status.h"
#include "mounter/statmount.h"
#include "mounter/volume_steps.h"

namespace berth {
namespace {

// How long the search for who keeps the path busy may take.
constexpr Duration kLookForHolders = std::chrono::seconds(5);

}  // namespace

Awaitable<StepReport> VolumeSteps::MountPath(VolumeRecord record, PublicationRecord publication,
                                             StepInput input, StepProgress progress, TimePoint deadline) {
  if (publication.path_made != publication.path) {
    const std::string left = publication.path_made.path;
    StepReport report =
        co_await UnmountPath(record, publication, std::move(input), std::move(progress), deadline);
    if (report.outcome != CallOutcome::kDone || left == publication.path.path || left.empty())
      co_return report;
    const absl::Status freed = co_await context_.helper.FreePath(left, deadline);
    if (freed.ok()) co_return report;
    report = FromHelper(freed, left);
    if (!report.stuck) report.outcome = CallOutcome::kRetry;
    co_return report;
  }
  const std::string source = context_.paths->TargetPath(record, publication);
  auto mounted = co_await context_.helper.MountPath(source, publication.path, publication.readonly, deadline);
  context_.Boundary("mounted at the path");
  if (mounted.ok()) co_return StepReport{.path = *std::move(mounted)};
  StepReport report = FromHelper(mounted.status(), publication.path.path);
  // What stands in the way is for a person to remove. It is tried again later all the same.
  if (!absl::IsDeadlineExceeded(mounted.status())) report.outcome = CallOutcome::kFinal;
  co_return report;
}

Awaitable<StepReport> VolumeSteps::UnmountPath(VolumeRecord record, PublicationRecord publication,
                                               StepInput input, StepProgress progress, TimePoint deadline) {
  const std::string path = publication.path_made.path;
  if (path.empty()) co_return StepReport{};
  std::vector<std::string> sources{context_.paths->TargetPath(record, publication)};
  if (record.stages) sources.push_back(context_.paths->StagingPath(record));
  const uint64_t id = publication.path_mount_id;
  absl::Status unmounted = co_await context_.helper.UnmountPath(path, id, sources, /*lazy=*/false, deadline);
  context_.Boundary("unmounted at the path");
  // Something else is mounted there: that is no reason to keep the volume unless ours lies beneath it.
  if (absl::IsFailedPrecondition(unmounted) && (id == 0 || absl::IsNotFound(StatMount(id).status()))) {
    co_return StepReport{};
  }
  if (ErrnoOf(unmounted) == EBUSY && input.lazy) {
    unmounted = co_await context_.helper.UnmountPath(path, id, sources, /*lazy=*/true, deadline);
    if (unmounted.ok())
      TellMayLiveOn(record,
                    {.rpc = CsiRpc::kNodeUnpublishVolume, .path = path, .consumer = publication.key.consumer},
                    progress, "was detached while it was used");
  }
  if (unmounted.ok()) co_return StepReport{};
  StepReport report = FromHelper(unmounted, path);
  if (ErrnoOf(unmounted) != EBUSY) co_return report;
  const auto target = context_.paths->LookAtTarget(record, publication);
  const dev_t device = target.ok() && target->mount_root ? target->device : 0;
  co_return co_await WithHolders(record, std::move(report), path, device,
                                 std::min(deadline, Clock::now() + kLookForHolders));
}

}  // namespace berth
