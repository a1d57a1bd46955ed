#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/status.h"

namespace berth {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return ReadOpenFile(fd.get(), path, limit);
}

absl::StatusOr<std::string> ReadOpenFile(int fd, const std::string& path, size_t limit) {
  std::string content;
  while (content.size() <= limit) {
    char buffer[16384];
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
  return absl::OutOfRangeError(fmt::format("read {}: longer than {} bytes", path, limit));
}

absl::Status WriteAll(int fd, std::string_view data, std::string_view what) {
  while (!data.empty()) {
    const ssize_t count = write(fd, data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, what);
    data.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

namespace {

// Writes a temporary file next to `path` and renames it.
absl::Status Replace(const std::string& path, std::string_view content, mode_t mode, bool durably) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("create {}", temporary));

  absl::Status status = WriteAll(fd.get(), content, fmt::format("write {}", temporary));
  if (status.ok() && fchmod(fd.get(), mode) != 0) {
    status = ErrnoStatus(errno, fmt::format("chmod {}", temporary));
  }
  if (status.ok() && durably && fsync(fd.get()) != 0) {
    status = ErrnoStatus(errno, fmt::format("fsync {}", temporary));
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, fmt::format("rename {} to {}", temporary, path));
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace

absl::Status WriteFileSoon(const std::string& path, std::string_view content, mode_t mode) {
  return Replace(path, content, mode, /*durably=*/false);
}

absl::Status WriteFileAtomic(const std::string& path, std::string_view content, mode_t mode) {
  BERTH_RETURN_IF_ERROR(Replace(path, content, mode, /*durably=*/true));
  return SyncParent(path);
}

absl::Status SyncFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  return absl::OkStatus();
}

absl::Status SyncParent(const std::string& path) {
  return SyncFile(std::filesystem::path(path).parent_path().string());
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, fmt::format("remove {}", path));
  }
  return SyncParent(path);
}

absl::Status MakeDirectories(const std::string& path, mode_t mode) {
  std::string prefix;
  for (const auto& part : std::filesystem::path(path)) {
    prefix = prefix.empty() ? part.string() : (std::filesystem::path(prefix) / part).string();
    if (mkdir(prefix.c_str(), mode) == 0) {
      if (chmod(prefix.c_str(), mode) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", prefix));
      continue;
    }
    if (errno == EEXIST || errno == EISDIR) continue;
    // A read-only parent answers EROFS or EACCES for a directory that is there.
    const int error = errno;
    struct stat info{};
    if (stat(prefix.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
    return ErrnoStatus(error, fmt::format("mkdir {}", prefix));
  }
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISDIR(info.st_mode)) return ErrnoStatus(ENOTDIR, fmt::format("mkdir {}", path));
  return absl::OkStatus();
}

}  // namespace berth
