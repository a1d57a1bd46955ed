#include "base/statmount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/status.h"

namespace berth {
namespace {

// Of Linux 6.8 and later; Debian 12's headers do not have them.
constexpr long kSysStatmount = 457;
constexpr uint64_t kSuperblock = 0x1;
constexpr uint64_t kMount = 0x2;
constexpr uint64_t kRoot = 0x8;
constexpr uint64_t kMountPoint = 0x10;
constexpr uint64_t kFsType = 0x20;
constexpr uint64_t kFsSubtype = 0x100;  // 6.11
constexpr uint64_t kSource = 0x200;     // 6.13
constexpr uint64_t kAttrReadonly = 0x1;
// Of name_to_handle_at(2), Linux 6.12 and 6.5.
constexpr int kHandleUniqueMountId = 0x1;
constexpr int kHandleNotToOpen = 0x200;

struct Request {
  uint32_t size;
  uint32_t spare;
  uint64_t mount_id;
  uint64_t mask;
};

// struct statmount as far as it is read here; strings follow its 512 bytes, and are named by their offsets.
struct Fixed {
  uint32_t size;
  uint32_t options;
  uint64_t mask;
  uint32_t device_major;
  uint32_t device_minor;
  uint64_t magic;
  uint32_t superblock_flags;
  uint32_t fs_type;
  uint64_t mount_id;
  uint64_t parent_id;
  uint32_t old_mount_id;
  uint32_t old_parent_id;
  uint64_t attributes;
  uint64_t propagation;
  uint64_t peer_group;
  uint64_t master;
  uint64_t propagate_from;
  uint32_t root;
  uint32_t mount_point;
  uint64_t namespace_id;
  uint32_t fs_subtype;
  uint32_t source;
  unsigned char rest[384];
};
static_assert(sizeof(Fixed) == 512);

constexpr size_t kStrings = size_t{8} * 1024;

struct Answer {
  Fixed fixed;
  std::array<char, kStrings> strings;
};

std::string StringAt(const Answer& answer, uint64_t kind, uint32_t offset) {
  if ((answer.fixed.mask & kind) == 0 || offset >= answer.strings.size()) return {};
  const char* const text = answer.strings.data() + offset;
  return {text, strnlen(text, answer.strings.size() - offset)};
}

// False: the kernel does not have the call.
absl::StatusOr<bool> Ask(uint64_t mount_id, uint64_t mask, Answer* answer) {
  const Request request{.size = sizeof request, .spare = 0, .mount_id = mount_id, .mask = mask};
  memset(&answer->fixed, 0, sizeof answer->fixed);
  if (syscall(kSysStatmount, &request, answer, sizeof *answer, 0) == 0) return true;
  // ENOSYS: not on this kernel. EPERM: a filter of system calls that does not know it.
  if (errno == ENOSYS || errno == EPERM) return false;
  return ErrnoStatus(errno, fmt::format("statmount {}", mount_id));
}

}  // namespace

absl::StatusOr<std::optional<MountFacts>> StatMount(uint64_t mount_id) {
  Answer answer;
  BERTH_ASSIGN_OR_RETURN(
      const bool answered,
      Ask(mount_id, kSuperblock | kMount | kRoot | kMountPoint | kFsType | kFsSubtype | kSource, &answer));
  if (!answered || (answer.fixed.mask & (kSuperblock | kMount)) != (kSuperblock | kMount))
    return std::nullopt;
  MountFacts facts;
  facts.target = StringAt(answer, kMountPoint, answer.fixed.mount_point);
  facts.fs_type = StringAt(answer, kFsType, answer.fixed.fs_type);
  const std::string subtype = StringAt(answer, kFsSubtype, answer.fixed.fs_subtype);
  if (!subtype.empty()) facts.fs_type += "." + subtype;
  facts.device = makedev(answer.fixed.device_major, answer.fixed.device_minor);
  facts.root = StringAt(answer, kRoot, answer.fixed.root);
  facts.source = StringAt(answer, kSource, answer.fixed.source);
  facts.old_id = answer.fixed.old_mount_id;
  facts.readonly =
      (answer.fixed.attributes & kAttrReadonly) != 0 || (answer.fixed.superblock_flags & MS_RDONLY) != 0;
  facts.shared = (answer.fixed.propagation & MS_SHARED) != 0;
  return facts;
}

absl::StatusOr<std::optional<MountType>> StatMountType(uint64_t mount_id) {
  Answer answer;
  BERTH_ASSIGN_OR_RETURN(const bool answered, Ask(mount_id, kSuperblock | kFsType, &answer));
  if (!answered || (answer.fixed.mask & kSuperblock) == 0) return std::nullopt;
  return MountType{.fs_type = StringAt(answer, kFsType, answer.fixed.fs_type),
                   .device = makedev(answer.fixed.device_major, answer.fixed.device_minor)};
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

}  // namespace berth
