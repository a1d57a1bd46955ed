#include "mounter/mount_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <libmount.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace berth {
namespace {

// Of Linux 6.8 and later; Debian 12's headers do not have them.
constexpr long kSysStatmount = 457;
constexpr unsigned kStatxMountIdUnique = 0x4000;
constexpr uint64_t kStatmountSuperblock = 0x1;
constexpr uint64_t kStatmountMount = 0x2;
constexpr uint64_t kMountAttrReadonly = 0x1;

struct MountIdRequest {
  uint32_t size;
  uint32_t spare;
  uint64_t mount_id;
  uint64_t mask;
};

// The part of struct statmount that is read here; the kernel fills 512 bytes and strings behind them.
struct StatmountAnswer {
  uint32_t size;
  uint32_t options;
  uint64_t mask;
  uint32_t superblock_device_major;
  uint32_t superblock_device_minor;
  uint64_t superblock_magic;
  uint32_t superblock_flags;
  uint32_t fs_type;
  uint64_t mount_id;
  uint64_t parent_id;
  uint32_t old_mount_id;
  uint32_t old_parent_id;
  uint64_t mount_attributes;
  unsigned char rest[440];
};
static_assert(sizeof(StatmountAnswer) == 512);

bool IsAtOrBeneath(std::string_view path, std::string_view directory) {
  if (!path.starts_with(directory)) return false;
  return path.size() == directory.size() || directory.ends_with('/') || path[directory.size()] == '/';
}

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
                      .readonly = mnt_fs_match_options(fs, "ro") == 1});
  }
  return mounts;
}

absl::StatusOr<std::optional<bool>> MountIsReadonly(const std::string& path) {
  struct statx info{};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (statx(AT_FDCWD, path.c_str(), kFlags, STATX_TYPE | kStatxMountIdUnique, &info) != 0) {
    return ErrnoStatus(errno, fmt::format("statx {}", path));
  }
  if ((info.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) {
    return absl::NotFoundError(fmt::format("{}: no mount lies there", path));
  }
  if ((info.stx_mask & kStatxMountIdUnique) == 0) return std::nullopt;

  const MountIdRequest request{.size = sizeof request,
                               .spare = 0,
                               .mount_id = info.stx_mnt_id,
                               .mask = kStatmountSuperblock | kStatmountMount};
  StatmountAnswer answer{};
  if (syscall(kSysStatmount, &request, &answer, sizeof answer, 0) != 0) {
    // ENOSYS: not on this kernel. EPERM: a filter of system calls that does not know it.
    if (errno == ENOSYS || errno == EPERM) return std::nullopt;
    return ErrnoStatus(errno, fmt::format("statmount {}", path));
  }
  if ((answer.mask & request.mask) != request.mask) return std::nullopt;
  return (answer.mount_attributes & kMountAttrReadonly) != 0 || (answer.superblock_flags & MS_RDONLY) != 0;
}

}  // namespace berth
