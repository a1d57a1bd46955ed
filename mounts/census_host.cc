#include "mounts/census_host.h"

#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/directory_stream.h"
#include "base/mount_calls.h"

namespace berth {
namespace {

constexpr size_t kTextLimit = size_t{256} << 20;
constexpr int kHandleUniqueMountId = 0x1;  // Linux 6.12
constexpr int kHandleNotToOpen = 0x200;    // Linux 6.5

}  // namespace

void CensusHost::NoteError(const std::string& what) {
  const int error = errno;
  switch (error) {
    // It has gone, or never was.
    case ENOENT:
    case ESRCH:
    case ENOTDIR:
    case EINVAL:
    case ENXIO:
    case ENODEV:
    // A name that the kernel does not give: who asks for one has to do without.
    case ENAMETOOLONG:
    // Some processes are hidden from root, too: by its container's limits, by a security module.
    case EACCES:
    case EPERM:
    // A file system's own answer, not the kernel's: what it is about is known by its mount.
    case EIO:
    case ESTALE:
    case ENOTCONN:
    case ECONNABORTED:
    case EREMOTEIO:
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ESHUTDOWN:
      return;
    default:
      break;
  }
  Miss(what + ": " + std::strerror(error));
}

UniqueFd CensusHost::Open(const std::string& path, int flags) {
  UniqueFd fd(openat(root_.get(), path.c_str(), flags | O_CLOEXEC));
  if (!fd.valid()) NoteError(path);
  return fd;
}

bool CensusHost::Exists(const std::string& path) {
  const bool exists = faccessat(root_.get(), path.c_str(), F_OK, 0) == 0;
  if (!exists) NoteError(path);
  return exists;
}

std::string CensusHost::Link(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t length = readlinkat(root_.get(), path.c_str(), target.data(), target.size());
  if (length < 0) NoteError(path);
  return length <= 0 ? std::string() : std::string(target.data(), static_cast<size_t>(length));
}

std::string CensusHost::Name(const std::string& path) {
  std::string name = Link(path);
  if (name.empty() && errno == ENAMETOOLONG) name = kNameTooLong;
  return name;
}

std::string CensusHost::Text(const std::string& path, std::string* failed) {
  const UniqueFd fd = Open(path);
  std::string text;
  std::array<char, size_t{64} * 1024> piece{};
  ssize_t size = -1;
  while (fd.valid() && text.size() < kTextLimit && (size = read(fd.get(), piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<size_t>(size));
  }
  if (size < 0) NoteError(path);
  if (size > 0) Miss(path + " is too long");
  if (failed != nullptr && size != 0)
    *failed = size < 0 ? "read " + path + ": " + std::strerror(errno) : path + " is too long";
  return text;
}

std::string CensusHost::Start(const std::string& path) {
  const UniqueFd fd = Open(path);
  std::array<char, 4096> text{};
  const ssize_t size = fd.valid() ? read(fd.get(), text.data(), text.size()) : 0;
  if (size < 0) NoteError(path);
  return size <= 0 ? std::string() : std::string(text.data(), static_cast<size_t>(size));
}

std::optional<struct statx> CensusHost::Cached(const std::string& link, bool unique_id) {
  struct statx info{};
  const unsigned mask = STATX_TYPE | STATX_INO | STATX_MNT_ID | (unique_id ? kStatxMountIdUnique : 0);
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (statx(root_.get(), link.c_str(), flags, mask, &info) == 0) return info;
  NoteError(link);
  return std::nullopt;
}

std::optional<uint64_t> CensusHost::MountId(const std::string& link, bool unique_id) {
  file_handle handle{};
  uint64_t id = 0;
  const long result = !unique_id ? -1
                                 : syscall(SYS_name_to_handle_at, root_.get(), link.c_str(), &handle, &id,
                                           kHandleUniqueMountId | kHandleNotToOpen | AT_SYMLINK_FOLLOW);
  if (result == 0 || (unique_id && errno == EOVERFLOW)) return id;
  if (unique_id && (errno == ENOENT || errno == ESRCH || errno == EACCES)) return std::nullopt;
  const auto info = Cached(link, unique_id);
  return info.has_value() ? std::optional(uint64_t{info->stx_mnt_id}) : std::nullopt;
}

dev_t CensusHost::DeviceIn(const std::string& path) {
  std::array<unsigned, 2> numbers{};
  const bool read = std::sscanf(Start(path).c_str(), "%u:%u", &numbers[0], &numbers[1]) == 2;
  return read ? makedev(numbers[0], numbers[1]) : 0;
}

std::vector<dev_t> CensusHost::PartsOf(dev_t device) {
  std::vector<dev_t> parts{device};
  const std::string directory =
      "sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  UniqueFd opened = Open(directory, O_RDONLY | O_DIRECTORY);
  if (!opened.valid()) return parts;
  const DirectoryStream names(fdopendir(opened.Release()));
  if (names == nullptr) NoteError(directory);
  while (const dirent* const entry = names == nullptr ? nullptr : readdir(names.get())) {
    const std::string part = directory + "/" + entry->d_name;
    if (entry->d_name[0] == '.' || !Exists(part + "/partition")) continue;
    if (const dev_t number = DeviceIn(part + "/dev"); number != 0) parts.push_back(number);
  }
  return parts;
}

}  // namespace berth
