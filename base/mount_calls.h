// statmount(2) and listmount(2) as the kernel has them: Debian 12's headers lack both. No library but libc,
// so that small programs can include this. Any thread; touches no file system, and no signal interrupts it.
#pragma once

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace berth {

// What StatmountAnswer::mask says is there, and what to ask for. Linux 6.8 where nothing else is said.
inline constexpr uint64_t kStatmountSuperblock = 0x1;
inline constexpr uint64_t kStatmountMount = 0x2;
inline constexpr uint64_t kStatmountRoot = 0x8;
inline constexpr uint64_t kStatmountMountPoint = 0x10;
inline constexpr uint64_t kStatmountFsType = 0x20;
inline constexpr uint64_t kStatmountOptions = 0x80;     // 6.11
inline constexpr uint64_t kStatmountFsSubtype = 0x100;  // 6.11
inline constexpr uint64_t kStatmountSource = 0x200;     // 6.13

// What to ask statx(2) for, so that it gives the id that no other mount gets until the next boot. Kernels
// before 6.8 give mountinfo's instead, which comes again; the answer's mask then lacks this.
inline constexpr unsigned kStatxMountIdUnique = 0x4000;

// The root of a mount namespace, as the mount that listmount(2) begins at.
inline constexpr uint64_t kListmountRoot = ~uint64_t{0};

struct MountRequest {
  uint32_t size = sizeof(MountRequest);
  uint32_t spare = 0;
  uint64_t mount_id = 0;
  uint64_t parameter = 0;     // statmount: what is asked for; listmount: the id after which it continues
  uint64_t namespace_id = 0;  // 0: the caller's own. Linux 6.11
};
inline constexpr uint32_t kRequestWithoutNamespace = 24;  // its size before Linux 6.11

// struct statmount as far as it is read here. Strings follow its 512 bytes, and are named by their offsets.
struct StatmountFixed {
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
static_assert(sizeof(StatmountFixed) == 512);

template <size_t kStrings>
struct StatmountAnswer {
  StatmountFixed fixed;
  char strings[kStrings];

  [[nodiscard]] bool Has(uint64_t kinds) const { return (fixed.mask & kinds) == kinds; }
  // Empty if the kernel did not give it.
  [[nodiscard]] std::string Text(uint64_t kind, uint32_t offset) const {
    if (!Has(kind) || offset >= kStrings) return {};
    return {strings + offset, strnlen(strings + offset, kStrings - offset)};
  }
};

// 0, or -1 with errno: ENOENT (no such mount in that namespace), EOVERFLOW (the strings are longer), ENOSYS,
// EPERM.
template <size_t kStrings>
long Statmount(const MountRequest& request, StatmountAnswer<kStrings>* answer) {
  constexpr long kSysStatmount = 457;
  memset(&answer->fixed, 0, sizeof answer->fixed);
  return syscall(kSysStatmount, &request, answer, sizeof *answer, 0);
}

// What the ioctls of a mount namespace's descriptor answer (<linux/nsfs.h> of Linux 6.12).
struct NamespaceInfo {
  uint32_t size = sizeof(NamespaceInfo);
  uint32_t mounts = 0;
  uint64_t id = 0;
};
inline constexpr unsigned long kNamespaceInfo = _IOR(0xb7, 10, NamespaceInfo);
// A descriptor of the namespace after or before it; ENOENT: that was the last, or the first.
inline constexpr unsigned long kNextNamespace = _IOR(0xb7, 11, NamespaceInfo);
inline constexpr unsigned long kPreviousNamespace = _IOR(0xb7, 12, NamespaceInfo);

// How many ids were written, at most `count`; -1 with errno.
inline long Listmount(const MountRequest& request, uint64_t* ids, size_t count) {
  constexpr long kSysListmount = 458;
  return syscall(kSysListmount, &request, ids, count, 0);
}

}  // namespace berth
