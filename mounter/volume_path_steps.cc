// VolumeSteps: what is published is mounted once more, at the path that the file which declares it names.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>

#include "base/blocking.h"
#include "base/statmount.h"
#include "base/status.h"
#include "mounter/reverse_call.h"
#include "mounter/volume_steps.h"
#include "mounts/mount_unit.h"

namespace berth {

Awaitable<absl::Status> FreePublishedPath(MountHelper& helper, std::string path, TimePoint deadline) {
  auto remove = [path] { return RemoveMountDropIn(RuntimeUnitDirectory(), path); };
  const absl::Status removed =
      co_await RunBlocking("remove the drop-in of the mount unit of " + path, std::move(remove), deadline);
  if (!removed.ok()) SPDLOG_WARN("{}", MessageOf(removed));
  co_return co_await helper.FreePath(std::move(path), deadline);
}

Awaitable<StepReport> VolumeSteps::MountPath(VolumeRecord record, PublicationRecord publication,
                                             StepInput input, StepProgress progress, TimePoint deadline) {
  if (publication.path_made != publication.path) {
    co_return co_await UnmountPath(std::move(record), std::move(publication), std::move(input),
                                   std::move(progress), deadline);
  }
  const std::string source = context_.paths->TargetPath(record, publication);
  auto order = [path = publication.path.path] { return WriteMountDropIn(RuntimeUnitDirectory(), path); };
  const absl::Status ordered =
      co_await RunBlocking("order the mount unit of " + publication.path.path, std::move(order), deadline);
  // It is mounted nevertheless: only the order of the shutdown is another one.
  if (!ordered.ok()) SPDLOG_WARN("{}", MessageOf(ordered));
  auto mounted = co_await context_.helper.MountPath(source, publication.path, publication.readonly, deadline);
  context_.Boundary("mounted at the path");
  if (mounted.ok()) co_return StepReport{.path = *std::move(mounted)};
  StepReport report = FromHelper(context_.helper, mounted.status(), publication.path.path);
  // A person has to remove what stands in the way. It is tried again later.
  if (!absl::IsDeadlineExceeded(mounted.status())) report.outcome = CallOutcome::kFinal;
  co_return report;
}

Awaitable<StepReport> VolumeSteps::UnmountPath(VolumeRecord record, PublicationRecord publication,
                                               StepInput input, StepProgress progress, TimePoint deadline) {
  const std::string path = publication.path_made.path;
  if (path.empty()) co_return StepReport{};
  std::vector<std::string> sources{context_.paths->TargetPath(record, publication)};
  if (record.stages) sources.push_back(context_.paths->StagedPath(record));
  const uint64_t id = publication.path_mount_id;
  absl::Status unmounted = co_await context_.helper.UnmountPath(path, id, sources, /*lazy=*/false, deadline);
  context_.Boundary("unmounted at the path");
  // Something else is mounted there: that is no reason to keep the volume unless ours lies beneath it.
  if (absl::IsFailedPrecondition(unmounted) && (id == 0 || absl::IsNotFound(StatMount(id).status()))) {
    co_return StepReport{};
  }
  if (ErrnoOf(unmounted) == EBUSY && input.lazy) {
    unmounted = co_await context_.helper.UnmountPath(path, id, sources, /*lazy=*/true, deadline);
    if (unmounted.ok()) ReportDetached(context_, record, path, publication.key.consumer, id, progress);
  }
  if (unmounted.ok()) {
    // Only a path that is not wanted any more: if the volume comes back, nothing must be written there
    // meanwhile.
    if (path == publication.path.path) co_return StepReport{};
    const absl::Status freed = co_await FreePublishedPath(context_.helper, path, deadline);
    if (freed.ok()) co_return StepReport{};
    StepReport report = FromHelper(context_.helper, freed, path);
    if (!report.stuck) report.outcome = CallOutcome::kRetry;
    co_return report;
  }
  StepReport report = FromHelper(context_.helper, unmounted, path);
  if (ErrnoOf(unmounted) != EBUSY) co_return report;
  // The same file system is mounted at the target; both mounts are known as the volume's.
  const std::string target = context_.paths->TargetPath(record, publication);
  co_return co_await WithHolders(context_, record, std::move(report), target, deadline);
}

}  // namespace berth
