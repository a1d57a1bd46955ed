#include "base/statmount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/mount_calls.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr uint64_t kAttributeReadonly = 0x1;
// Of name_to_handle_at(2), Linux 6.12 and 6.5.
constexpr int kHandleUniqueMountId = 0x1;
constexpr int kHandleNotToOpen = 0x200;

using Answer = StatmountAnswer<size_t{8} * 1024>;

// False: the kernel does not have the call.
absl::StatusOr<bool> Ask(uint64_t mount_id, uint64_t mask, Answer* answer) {
  const MountRequest request{.size = kRequestWithoutNamespace, .mount_id = mount_id, .parameter = mask};
  if (Statmount(request, answer) == 0) return true;
  // ENOSYS: not on this kernel. EPERM: a filter of system calls that does not know it.
  if (errno == ENOSYS || errno == EPERM) return false;
  return ErrnoStatus(errno, fmt::format("statmount {}", mount_id));
}

// An answer without options: there are no options, or the kernel cannot show them.
bool TellsOptions() {
  static const bool new_enough = [] {
    utsname name{};
    int major = 0;
    int minor = 0;
    if (uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
    return std::pair(major, minor) >= std::pair(6, 11);
  }();
  return new_enough;
}

std::string FsType(const Answer& answer) {
  std::string type = answer.Text(kStatmountFsType, answer.fixed.fs_type);
  const std::string subtype = answer.Text(kStatmountFsSubtype, answer.fixed.fs_subtype);
  return subtype.empty() ? type : type + "." + subtype;
}

bool IsReadonly(const Answer& answer) {
  return (answer.fixed.attributes & kAttributeReadonly) != 0 ||
         (answer.fixed.superblock_flags & MS_RDONLY) != 0;
}

}  // namespace

absl::StatusOr<std::optional<MountFacts>> StatMount(uint64_t mount_id) {
  Answer answer;
  BERTH_ASSIGN_OR_RETURN(const bool answered,
                         Ask(mount_id,
                             kStatmountSuperblock | kStatmountMount | kStatmountRoot | kStatmountMountPoint |
                                 kStatmountFsType | kStatmountFsSubtype | kStatmountSource,
                             &answer));
  if (!answered || !answer.Has(kStatmountSuperblock | kStatmountMount)) return std::nullopt;
  MountFacts facts;
  facts.target = answer.Text(kStatmountMountPoint, answer.fixed.mount_point);
  facts.fs_type = FsType(answer);
  facts.device = makedev(answer.fixed.device_major, answer.fixed.device_minor);
  facts.root = answer.Text(kStatmountRoot, answer.fixed.root);
  facts.source = answer.Text(kStatmountSource, answer.fixed.source);
  facts.old_id = answer.fixed.old_mount_id;
  facts.readonly = IsReadonly(answer);
  facts.shared = (answer.fixed.propagation & MS_SHARED) != 0;
  return facts;
}

absl::StatusOr<std::optional<MountType>> StatMountType(uint64_t mount_id) {
  Answer answer;
  BERTH_ASSIGN_OR_RETURN(const bool answered,
                         Ask(mount_id, kStatmountSuperblock | kStatmountFsType, &answer));
  if (!answered || !answer.Has(kStatmountSuperblock)) return std::nullopt;
  return MountType{.fs_type = answer.Text(kStatmountFsType, answer.fixed.fs_type),
                   .device = makedev(answer.fixed.device_major, answer.fixed.device_minor)};
}

absl::StatusOr<std::optional<MountState>> StatMountState(uint64_t mount_id) {
  Answer answer;
  const auto answered =
      Ask(mount_id,
          kStatmountSuperblock | kStatmountMount | kStatmountFsType | kStatmountFsSubtype | kStatmountOptions,
          &answer);
  // More options than any file system that can be in trouble has.
  if (ErrnoOf(answered.status()) == EOVERFLOW) return std::nullopt;
  if (!answered.ok()) return answered.status();
  if (!*answered || !answer.Has(kStatmountSuperblock | kStatmountMount)) return std::nullopt;
  MountState state;
  state.fs_type = FsType(answer);
  state.device = makedev(answer.fixed.device_major, answer.fixed.device_minor);
  state.options = answer.Text(kStatmountOptions, answer.fixed.options);
  state.readonly = IsReadonly(answer);
  if (!answer.Has(kStatmountOptions) && !TellsOptions()) return std::nullopt;
  return state;
}

uint64_t UniqueMountId(uint64_t old_id) {
  constexpr size_t kAtOnce = 512;
  std::array<uint64_t, kAtOnce> ids{};
  MountRequest request{.size = kRequestWithoutNamespace, .mount_id = kListmountRoot};
  while (true) {
    const long count = Listmount(request, ids.data(), ids.size());
    if (count <= 0) return 0;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      Answer answer;
      const auto answered = Ask(ids[i], kStatmountMount, &answer);
      if (answered.ok() && *answered && answer.fixed.old_mount_id == old_id) return ids[i];
    }
    request.parameter = ids[static_cast<size_t>(count) - 1];
  }
}

absl::StatusOr<std::optional<uint64_t>> MountIdOf(int directory, const std::string& path) {
  // Of a handle only its mount's number is wanted; it is given also where there is no room for the rest.
  file_handle handle{};
  uint64_t id = 0;
  const long result = syscall(SYS_name_to_handle_at, directory, path.c_str(), &handle, &id,
                              kHandleUniqueMountId | kHandleNotToOpen);
  if (result == 0 || errno == EOVERFLOW) return id;
  // EINVAL: an older kernel. EOPNOTSUPP: this file system has no handles. EPERM: a filter of system calls.
  if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS || errno == EPERM) return std::nullopt;
  return ErrnoStatus(errno, fmt::format("name_to_handle_at {}", path));
}

uint64_t MountIdNow(const std::string& directory) {
  const UniqueFd copy(static_cast<int>(
      syscall(SYS_open_tree, AT_FDCWD, directory.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  struct statx info{};
  if (!copy.valid() || statx(copy.get(), "", AT_EMPTY_PATH, kStatxMountIdUnique, &info) != 0) return 0;
  return (info.stx_mask & kStatxMountIdUnique) != 0 ? info.stx_mnt_id : 0;
}

}  // namespace berth
