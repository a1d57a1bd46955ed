#include "mounts/mount_table.h"

#include <fmt/format.h>
#include <libmount.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"

namespace berth {
namespace {

std::string Text(const char* text) { return text != nullptr ? std::string(text) : std::string(); }

}  // namespace

absl::StatusOr<std::vector<Mount>> MountsBeneath(const std::string& directory, size_t limit) {
  const std::unique_ptr<libmnt_table, void (*)(libmnt_table*)> table(mnt_new_table(), mnt_unref_table);
  const std::unique_ptr<libmnt_iter, void (*)(libmnt_iter*)> iterator(mnt_new_iter(MNT_ITER_FORWARD),
                                                                      mnt_free_iter);
  if (table == nullptr || iterator == nullptr)
    return absl::ResourceExhaustedError("read the mount table: no memory");
  const int error = mnt_table_parse_file(table.get(), "/proc/self/mountinfo");
  if (error != 0) return ErrnoStatus(error < 0 ? -error : EINVAL, "read /proc/self/mountinfo");

  std::vector<Mount> mounts;
  libmnt_fs* fs = nullptr;
  while (mnt_table_next_fs(table.get(), iterator.get(), &fs) == 0) {
    const std::string target = Text(mnt_fs_get_target(fs));
    if (!IsAtOrBeneath(target, directory)) continue;
    if (mounts.size() == limit) {
      return absl::ResourceExhaustedError(fmt::format("more than {} mounts beneath {}", limit, directory));
    }
    unsigned long propagation = 0;
    mnt_fs_get_propagation(fs, &propagation);
    mounts.push_back({.target = target,
                      .source = Text(mnt_fs_get_source(fs)),
                      .fs_type = Text(mnt_fs_get_fstype(fs)),
                      .shared = (propagation & MS_SHARED) != 0,
                      .readonly = mnt_fs_match_options(fs, "ro") == 1,
                      .options = Text(mnt_fs_get_options(fs))});
  }
  return mounts;
}

absl::StatusOr<std::optional<bool>> MountIsReadonly(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  if (!facts.mount_root) return absl::NotFoundError(fmt::format("{}: no mount lies there", path));
  const auto mount = StatMount(facts.mount_id);
  if (!mount.ok()) return Annotate(mount.status(), path);
  if (!mount->has_value()) return std::nullopt;
  return (*mount)->readonly;
}

absl::StatusOr<Mount> TopMountAt(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  if (!facts.mount_root) return absl::NotFoundError(fmt::format("{}: no mount lies there", path));
  // Before Linux 6.13 statmount(2) does not give the source.
  const auto mount = StatMount(facts.mount_id);
  if (mount.ok() && mount->has_value() && !(*mount)->source.empty()) {
    const MountFacts& from_kernel = **mount;
    return Mount{.target = path,
                 .source = from_kernel.source,
                 .fs_type = from_kernel.fs_type,
                 .shared = from_kernel.shared,
                 .readonly = from_kernel.readonly};
  }
  BERTH_ASSIGN_OR_RETURN(std::vector<Mount> mounts, MountsBeneath(path, kMountLimit));
  // The last one with this path lies on top.
  const auto top = std::ranges::find(mounts.rbegin(), mounts.rend(), path, &Mount::target);
  if (top == mounts.rend()) return absl::NotFoundError(fmt::format("{}: it is in no mount table", path));
  return std::move(*top);
}

absl::StatusOr<std::string> FileSystemAt(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  if (!facts.mount_root) return absl::NotFoundError(fmt::format("{}: no mount lies there", path));
  auto mount = StatMount(facts.mount_id);
  if (!mount.ok()) return Annotate(mount.status(), path);
  if (mount->has_value() && !(*mount)->fs_type.empty()) return std::move((*mount)->fs_type);
  BERTH_ASSIGN_OR_RETURN(Mount top, TopMountAt(path));
  return std::move(top.fs_type);
}

}  // namespace berth
