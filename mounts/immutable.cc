#include "mounts/immutable.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <string_view>

#include "base/directory_stream.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

absl::StatusOr<int> Flags(int directory) {
  int flags = 0;
  if (ioctl(directory, FS_IOC_GETFLAGS, &flags) == 0) return flags;
  return ErrnoStatus(errno, "read the flags of the directory");
}

absl::Status SetFlags(int directory, int flags) {
  if (ioctl(directory, FS_IOC_SETFLAGS, &flags) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "set the immutable flag of the directory");
}

}  // namespace

absl::StatusOr<std::string> FirstEntry(int directory) {
  // Opened once more: the caller's descriptor keeps its place.
  UniqueFd fd(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const DirectoryStream entries(fd.valid() ? fdopendir(fd.get()) : nullptr);
  if (entries == nullptr) return ErrnoStatus(errno, "read the directory");
  [[maybe_unused]] const int taken = fd.Release();
  while (const dirent* const entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return std::string(name);
  }
  return std::string();
}

absl::Status MakeImmutable(int directory) {
  BERTH_ASSIGN_OR_RETURN(const int before, Flags(directory));
  if ((before & FS_IMMUTABLE_FL) == 0) {
    BERTH_RETURN_IF_ERROR(SetFlags(directory, before | FS_IMMUTABLE_FL));
  }
  // Asked once nothing can be added any more.
  BERTH_ASSIGN_OR_RETURN(const std::string left, FirstEntry(directory));
  if (left.empty()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(SetFlags(directory, before & ~FS_IMMUTABLE_FL));
  return absl::FailedPreconditionError(fmt::format("{} is in it", Printable(left, 128)));
}

absl::Status MakeMutable(int directory) {
  BERTH_ASSIGN_OR_RETURN(const int before, Flags(directory));
  if ((before & FS_IMMUTABLE_FL) == 0) return absl::OkStatus();
  return SetFlags(directory, before & ~FS_IMMUTABLE_FL);
}

absl::StatusOr<bool> IsImmutable(int directory) {
  BERTH_ASSIGN_OR_RETURN(const int flags, Flags(directory));
  return (flags & FS_IMMUTABLE_FL) != 0;
}

}  // namespace berth
