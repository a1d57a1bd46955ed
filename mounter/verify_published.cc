#include "mounter/verify_published.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/printable.h"
#include "base/status.h"
#include "mounts/mount_table.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

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

// OK if the mount at a target, with the path `path`, shows what was staged, or at least not the tree itself.
// INTERNAL: it does not. UNAVAILABLE: it has gone meanwhile.
absl::Status VerifyFileSystem(const VolumePaths& paths, const VolumeRecord& record, const PathFacts& target,
                              const std::string& path) {
  const auto shows = [](const KernelObject& what, const KernelObject& whole) {
    return what.device == whole.device && IsAtOrBeneath(what.root, whole.root);
  };
  BERTH_ASSIGN_OR_RETURN(const KernelObject mounted, ShownAt(path, target));
  const std::string& tree_path = paths.tree();
  BERTH_ASSIGN_OR_RETURN(const PathFacts tree_facts, LookAt(tree_path));
  BERTH_ASSIGN_OR_RETURN(const KernelObject tree, ShownAt(tree_path, tree_facts));
  if (shows(mounted, tree)) {
    return absl::InternalError(
        fmt::format("{} shows a directory of the volumes' tree itself, and no storage: what is written there "
                    "is in memory",
                    path));
  }
  // One that mounts beneath its staging path may have mounted there what is not the volume.
  if (!record.stages || record.staging_mount_id == 0 || !record.staging_mount_path.empty())
    return absl::OkStatus();
  const auto staging = paths.LookAtStaged(record);
  const bool staged = staging.ok() && staging->mount_root && staging->mount_id == record.staging_mount_id &&
                      target.mount_id != staging->mount_id;
  if (!staged) return absl::OkStatus();
  const std::string staging_path = paths.StagingPath(record);
  BERTH_ASSIGN_OR_RETURN(const KernelObject whole, ShownAt(staging_path, *staging));
  if (shows(mounted, whole)) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} shows another directory than the one that was staged at {}: {} of {}, not of {}", path,
                  staging_path, Printable(mounted.root, 256), Printable(mounted.fs_type, 64),
                  Printable(whole.fs_type, 64)));
}

}  // namespace

Awaitable<absl::Status> VerifyPublished(MounterContext& context, VolumeRecord record,
                                        PublicationRecord publication, TimePoint deadline) {
  const std::string path = context.paths->TargetPath(record, publication);
  const auto facts = context.paths->LookAtTarget(record, publication);
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
  BERTH_CO_RETURN_IF_ERROR(VerifyFileSystem(*context.paths, record, *facts, path));
  if (!publication.readonly) co_return absl::OkStatus();

  auto readonly = MountIsReadonly(path);
  if (!readonly.ok()) co_return absl::UnavailableError(readonly.status().ToString());
  if (!readonly->has_value()) {
    const auto answer = co_await context.helper.IsReadonly(path, deadline);
    // A helper that ends oddly has not said that it is writable.
    if (absl::IsInternal(answer.status())) co_return absl::UnavailableError(answer.status().message());
    if (!answer.ok()) co_return Annotate(answer.status(), "is it read-only");
    *readonly = *answer;
  }
  if (**readonly) co_return absl::OkStatus();
  co_return absl::InternalError(fmt::format("the mount at {} is not read-only, as was asked for", path));
}

}  // namespace berth
