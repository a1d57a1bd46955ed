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

void CensusHost::NoteError() {
  if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != EAGAIN) return;
  Miss(std::string("not everything could be looked at: ") + std::strerror(errno));
}

UniqueFd CensusHost::Open(const std::string& path, int flags) {
  UniqueFd fd(openat(root_.get(), path.c_str(), flags | O_CLOEXEC));
  if (!fd.valid()) NoteError();
  return fd;
}

bool CensusHost::Exists(const std::string& path) {
  const bool exists = faccessat(root_.get(), path.c_str(), F_OK, 0) == 0;
  if (!exists) NoteError();
  return exists;
}

std::string CensusHost::Link(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t length = readlinkat(root_.get(), path.c_str(), target.data(), target.size());
  if (length < 0) NoteError();
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
  if (size < 0) NoteError();
  if (size > 0) missed_ = path + " is too long";
  if (failed != nullptr && size != 0)
    *failed = size < 0 ? "read " + path + ": " + std::strerror(errno) : missed_;
  return text;
}

std::string CensusHost::Start(const std::string& path) {
  const UniqueFd fd = Open(path);
  std::array<char, 4096> text{};
  const ssize_t size = fd.valid() ? read(fd.get(), text.data(), text.size()) : 0;
  if (size < 0) NoteError();
  return size <= 0 ? std::string() : std::string(text.data(), static_cast<size_t>(size));
}

std::optional<struct statx> CensusHost::Cached(const std::string& link, bool unique_id) {
  struct statx info{};
  const unsigned mask = STATX_TYPE | STATX_INO | STATX_MNT_ID | (unique_id ? kStatxMountIdUnique : 0);
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (statx(root_.get(), link.c_str(), flags, mask, &info) == 0) return info;
  NoteError();
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

std::vector<dev_t> CensusHost::PartsOf(dev_t device) {
  std::vector<dev_t> parts{device};
  const std::string directory =
      "sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  UniqueFd opened = Open(directory, O_RDONLY | O_DIRECTORY);
  if (!opened.valid()) return parts;
  const DirectoryStream names(fdopendir(opened.Release()));
  while (const dirent* const entry = names == nullptr ? nullptr : readdir(names.get())) {
    const std::string part = directory + "/" + entry->d_name;
    if (entry->d_name[0] == '.' || !Exists(part + "/partition")) continue;
    std::array<unsigned, 2> numbers{};
    if (std::sscanf(Start(part + "/dev").c_str(), "%u:%u", &numbers[0], &numbers[1]) == 2)
      parts.push_back(makedev(numbers[0], numbers[1]));
  }
  return parts;
}

}  // namespace berth
