#include "base/safe_path.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/stat.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/mount_calls.h"
#include "base/open_at2.h"
#include "base/statmount.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kFdInfoLimit = 4096;
constexpr uint64_t kResolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;

absl::StatusOr<PathFacts> Statx(int directory, const std::string& path, const std::string& shown) {
  struct statx info{};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  constexpr unsigned kWanted = STATX_TYPE | STATX_MODE | STATX_SIZE | STATX_MNT_ID | kStatxMountIdUnique;
  if (statx(directory, path.c_str(), kFlags, kWanted, &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathFacts{};
    return ErrnoStatus(errno, fmt::format("statx {}", shown));
  }
  PathFacts facts;
  facts.exists = true;
  facts.mount_root = (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  facts.mode = info.stx_mode;
  facts.device = makedev(info.stx_dev_major, info.stx_dev_minor);
  facts.inode = info.stx_ino;
  facts.special = makedev(info.stx_rdev_major, info.stx_rdev_minor);
  facts.size = info.stx_size;
  facts.mount_id = info.stx_mnt_id;
  return facts;
}

// File systems that answer statx with AT_STATX_DONT_SYNC without a server, lock or device. Others may wait:
// cifs, gfs2, ocfs2, 9p.
bool AnswersFromMemory(std::string_view fs_type) {
  constexpr std::string_view kTypes[] = {"tmpfs", "devtmpfs", "ext4",   "xfs",      "btrfs",    "fuse",
                                         "nfs4",  "nfs",      "ext3",   "ext2",     "ceph",     "overlay",
                                         "f2fs",  "ramfs",    "vfat",   "squashfs", "zfs",      "fuseblk",
                                         "erofs", "iso9660",  "devpts", "proc",     "sysfs",    "cgroup2",
                                         "exfat", "ntfs3",    "udf",    "bcachefs", "hugetlbfs"};
  return std::ranges::find(kTypes, fs_type) != std::end(kTypes);
}

// Mounts that are known to have such file systems, by their unique numbers modulo the size. A number is never
// reused, and a mount never changes its type, so nothing here is ever wrong; for a number that was pushed out
// the kernel is asked again.
class KnownMounts {
 public:
  [[nodiscard]] bool Contains(uint64_t id) const { return Slot(id).load(std::memory_order_relaxed) == id; }
  void Add(uint64_t id) const { Slot(id).store(id, std::memory_order_relaxed); }

 private:
  static std::atomic<uint64_t>& Slot(uint64_t id) {
    static std::array<std::atomic<uint64_t>, 256> slots{};
    return slots[id % slots.size()];
  }
};

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The mount on which the directory of `path` lies.
absl::StatusOr<std::optional<uint64_t>> MountOfParent(int directory, const std::string& path) {
  return MountIdOf(directory, ParentOf(path));
}

// The number of the mount at `path`, or on which it lies, as /proc has it; 0: not known. For kernels before
// 6.12.
uint64_t OldMountIdOf(int directory, const std::string& path) {
  const UniqueFd at(openat(directory, path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!at.valid()) return 0;
  const auto info = ReadFile(fmt::format("/proc/self/fdinfo/{}", at.get()), kFdInfoLimit);
  const size_t line = info.ok() ? info->find("mnt_id:") : std::string::npos;
  unsigned long long id = 0;
  if (line == std::string::npos || std::sscanf(info->c_str() + line, "mnt_id: %llu", &id) != 1) return 0;
  return id;
}

// What the kernel itself knows of the mount at `path`, if its file system has answered with `refused` (EIO,
// EUCLEAN, ESTALE and their kin). `refused` if no mount is there.
absl::StatusOr<PathFacts> FactsOfMount(int directory, const std::string& path, const absl::Status& refused) {
  const UniqueFd opened(openat(directory, path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  PathFacts facts{.exists = true,
                  .mount_root = true,
                  .mode = opened.valid() ? S_IFDIR : mode_t{S_IFREG},
                  .refused = ErrnoOf(refused).value_or(EIO)};
  const auto id = MountIdOf(directory, path);
  const auto parent = MountOfParent(directory, path);
  if (id.ok() && id->has_value() && parent.ok() && parent->has_value()) {
    if (*id == *parent) return refused;
    facts.mount_id = **id;
  } else {
    const uint64_t old_id = OldMountIdOf(directory, path);
    if (old_id == 0 || old_id == OldMountIdOf(directory, ParentOf(path))) return refused;
    const uint64_t unique_id = UniqueMountId(old_id);
    facts.mount_id = unique_id != 0 ? unique_id : old_id;
  }
  const auto type = StatMountType(facts.mount_id);
  if (type.ok() && type->has_value()) facts.device = (*type)->device;
  return facts;
}

// A mount's root of a file system that may wait is not asked for anything, where that can be helped
// (Linux 6.12): what the kernel itself knows of it is enough.
absl::StatusOr<PathFacts> AskFacts(int directory, const std::string& path, const std::string& shown) {
  const auto id = MountIdOf(directory, path);
  if (!id.ok()) {
    const auto error = ErrnoOf(id.status());
    if (error == ENOENT || error == ENOTDIR) return PathFacts{};
    return Annotate(id.status(), shown);
  }
  const KnownMounts known;
  if (!id->has_value() || known.Contains(**id)) return Statx(directory, path, shown);
  const auto type = StatMountType(**id);
  if (!type.ok() || !type->has_value()) return Statx(directory, path, shown);
  if (AnswersFromMemory((*type)->fs_type)) {
    known.Add(**id);
    return Statx(directory, path, shown);
  }
  const auto parent = MountOfParent(directory, path);
  const bool root = parent.ok() && parent->has_value() && *parent != *id;
  // Elsewhere in it there is nothing of ours. What is no directory is a device node, if it is a volume at
  // all: its file system is one of the kernel's own.
  const UniqueFd opened(openat(directory, path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!root || !opened.valid()) return Statx(directory, path, shown);
  return PathFacts{.exists = true,
                   .mount_root = true,
                   .mode = S_IFDIR,
                   .device = (*type)->device,
                   .special = 0,
                   .size = 0,
                   .mount_id = **id};
}

absl::StatusOr<PathFacts> FactsAt(int directory, const std::string& path, const std::string& shown) {
  absl::StatusOr<PathFacts> facts = AskFacts(directory, path, shown);
  return facts.ok() ? facts : FactsOfMount(directory, path, facts.status());
}

}  // namespace

std::string HashComponent(std::initializer_list<std::string_view> parts) {
  // Found once: to look an algorithm up takes longer than to hash a name. It lives as long as the process.
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  std::string input;
  for (const std::string_view part : parts) {
    absl::StrAppend(&input, part.size(), ":", absl::string_view(part.data(), part.size()));
  }
  constexpr size_t kBytes = 16;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_Digest(input.data(), input.size(), digest, &length, kSha256, nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), kBytes});
}

absl::StatusOr<SafeRoot> SafeRoot::Open(std::string path) {
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(fmt::format("{}: an absolute path is needed", path));
  }
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return SafeRoot(std::move(path), std::move(fd));
}

std::string SafeRoot::Absolute(std::string_view relative) const {
  return fmt::format("{}/{}", path_, relative);
}

absl::StatusOr<UniqueFd> SafeRoot::OpenBeneath(std::string_view relative, int flags) const {
  UniqueFd fd = OpenAt2(fd_.get(), relative.empty() ? "." : std::string(relative).c_str(), flags, kResolve);
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", Absolute(relative)));
  return fd;
}

absl::StatusOr<std::pair<UniqueFd, std::string>> SafeRoot::OpenParent(std::string_view relative) const {
  const std::filesystem::path path{std::string(relative)};
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == ".." || path.is_absolute()) {
    return absl::InvalidArgumentError(fmt::format("{}: not a path of one name beneath {}", relative, path_));
  }
  BERTH_ASSIGN_OR_RETURN(UniqueFd parent, OpenBeneath(path.parent_path().string(), O_RDONLY | O_DIRECTORY));
  return std::make_pair(std::move(parent), name);
}

absl::Status SafeRoot::MakeDirectories(std::string_view relative, mode_t mode) const {
  BERTH_ASSIGN_OR_RETURN(UniqueFd parent, OpenBeneath("", O_RDONLY | O_DIRECTORY));
  std::filesystem::path prefix;
  for (const auto& part : std::filesystem::path(std::string(relative))) {
    prefix /= part;
    const std::string name = part.string();
    const std::string shown = Absolute(prefix.string());
    if (name.empty() || name == "." || name == ".." || name == "/") {
      return absl::InvalidArgumentError(fmt::format("{}: not a path of names beneath {}", relative, path_));
    }
    const bool made = mkdirat(parent.get(), name.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) return ErrnoStatus(errno, fmt::format("mkdir {}", shown));
    if (!made) {
      // For instance, a symlink that was put there would lead the user of this path elsewhere.
      BERTH_ASSIGN_OR_RETURN(const PathFacts there, FactsAt(parent.get(), name, shown));
      if (!S_ISDIR(there.mode)) {
        return absl::FailedPreconditionError(fmt::format("{}: not a directory; left as it is", shown));
      }
      // It may be a mount, which is not entered where nothing is to be made in it.
      if (prefix.string().size() == relative.size()) break;
    }
    // By descriptor: the umask does not apply, and the name cannot be swapped in between.
    UniqueFd directory = OpenAt2(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY, kResolve);
    if (!directory.valid()) return ErrnoStatus(errno, fmt::format("open {}", shown));
    if (made && fchmod(directory.get(), mode) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", shown));
    parent = std::move(directory);
  }
  return absl::OkStatus();
}

absl::Status SafeRoot::WriteFile(std::string_view relative, std::string_view content, mode_t mode) const {
  BERTH_ASSIGN_OR_RETURN(const auto parent, OpenParent(relative));
  const auto& [fd, name] = parent;
  // The parent is pinned by its descriptor; /proc names it to the ordinary write.
  const absl::Status status =
      WriteFileSoon(fmt::format("/proc/self/fd/{}/{}", fd.get(), name), content, mode);
  return status.ok() ? status : Annotate(status, Absolute(relative));
}

absl::Status SafeRoot::Sync(std::string_view relative) const {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenBeneath(relative, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", Absolute(relative)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SafeRoot::List(std::string_view relative, size_t limit) const {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenBeneath(relative, O_RDONLY | O_DIRECTORY));
  const DirectoryStream directory(fdopendir(fd.get()));
  if (directory == nullptr) return ErrnoStatus(errno, fmt::format("read {}", Absolute(relative)));
  [[maybe_unused]] const int taken = fd.Release();
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() >= limit) {
      return absl::ResourceExhaustedError(fmt::format("{}: more than {} entries", Absolute(relative), limit));
    }
    names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<std::string> SafeRoot::ReadFile(std::string_view relative, size_t limit) const {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenBeneath(relative, O_RDONLY | O_NONBLOCK));
  return berth::ReadFile(fmt::format("/proc/self/fd/{}", fd.get()), limit);
}

absl::StatusOr<bool> SafeRoot::AtItsPath() const {
  struct stat ours{};
  struct stat there{};
  if (fstat(fd_.get(), &ours) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path_));
  if (lstat(path_.c_str(), &there) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoStatus(errno, fmt::format("stat {}", path_));
  }
  // A file system that is open keeps its device number.
  return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

absl::Status SafeRoot::Reopen() {
  BERTH_ASSIGN_OR_RETURN(const SafeRoot now, Open(path_));
  if (dup3(now.fd(), fd_.get(), O_CLOEXEC) < 0) return ErrnoStatus(errno, fmt::format("reopen {}", path_));
  return absl::OkStatus();
}

absl::StatusOr<PathFacts> SafeRoot::Look(std::string_view relative) const {
  auto parent = OpenParent(relative);
  if (!parent.ok()) {
    const auto error = ErrnoOf(parent.status());
    if (error == ENOENT || error == ENOTDIR) return PathFacts{};
    return parent.status();
  }
  return FactsAt(parent->first.get(), parent->second, Absolute(relative));
}

absl::Status SafeRoot::RemoveEmptyDirectory(std::string_view relative) const {
  auto parent = OpenParent(relative);
  if (!parent.ok()) return ErrnoOf(parent.status()) == ENOENT ? absl::OkStatus() : parent.status();
  const auto& [fd, name] = *parent;
  if (unlinkat(fd.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("rmdir {}", Absolute(relative)));
}

absl::Status SafeRoot::RemoveLink(std::string_view relative) const {
  auto parent = OpenParent(relative);
  if (!parent.ok()) return ErrnoOf(parent.status()) == ENOENT ? absl::OkStatus() : parent.status();
  const auto& [fd, name] = *parent;
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, FactsAt(fd.get(), name, Absolute(relative)));
  if (!facts.exists) return absl::OkStatus();
  if (!S_ISLNK(facts.mode)) {
    return absl::FailedPreconditionError(fmt::format("unlink {}: not a symbolic link", Absolute(relative)));
  }
  if (unlinkat(fd.get(), name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("unlink {}", Absolute(relative)));
}

absl::Status SafeRoot::RemoveFile(std::string_view relative, bool must_be_empty) const {
  auto parent = OpenParent(relative);
  if (!parent.ok()) return ErrnoOf(parent.status()) == ENOENT ? absl::OkStatus() : parent.status();
  const auto& [fd, name] = *parent;
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, FactsAt(fd.get(), name, Absolute(relative)));
  if (!facts.exists) return absl::OkStatus();
  if (!S_ISREG(facts.mode) || facts.mount_root) {
    return absl::FailedPreconditionError(
        fmt::format("unlink {}: not a plain file of ours", Absolute(relative)));
  }
  if (must_be_empty && facts.size != 0) {
    return absl::FailedPreconditionError(
        fmt::format("unlink {}: holds {} bytes, expected none", Absolute(relative), facts.size));
  }
  if (unlinkat(fd.get(), name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("unlink {}", Absolute(relative)));
}

absl::StatusOr<PathFacts> LookAt(const std::string& path) { return FactsAt(AT_FDCWD, path, path); }

}  // namespace berth
