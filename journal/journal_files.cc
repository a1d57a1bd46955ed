#include "journal/journal_files.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

std::string New(const std::string& path) { return path + ".new"; }
std::string Next(const std::string& path) { return path + ".next"; }

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("unlink {}", path));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("rename {} to {}", from, to));
}

bool Exists(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0;
}

off_t SizeOf(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 ? info.st_size : -1;
}

}  // namespace

absl::StatusOr<UniqueFd> LockJournal(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd file(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", name));
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(file.get(), F_SETLK, &whole) == 0) return file;
  if (errno == EACCES || errno == EAGAIN) return JournalInUse(path);
  return ErrnoStatus(errno, fmt::format("lock {}", name));
}

absl::Status JournalInUse(const std::string& path) {
  return absl::FailedPreconditionError(fmt::format(
      "journal {}: in use by another process: is another berthd running on this state directory?", path));
}

absl::StatusOr<std::string> SetJournalAside(const std::string& path) {
  const std::time_t now = std::time(nullptr);
  const std::string name = fmt::format("{}.corrupt-{:%Y%m%dT%H%M%SZ}", path, fmt::gmtime(now));
  std::string aside = name;
  for (int i = 2; Exists(aside) || Exists(aside + "-wal"); ++i) aside = fmt::format("{}-{}", name, i);
  // The log last: if this is interrupted, a log without its file shows it (JournalWasEmptied), while a file
  // without its log would look sound and complete.
  for (const char* suffix : {"", "-shm", "-wal"}) {
    if (!Exists(path + suffix)) continue;
    BERTH_RETURN_IF_ERROR(Rename(path + suffix, aside + suffix));
  }
  BERTH_RETURN_IF_ERROR(SyncParent(path));
  return aside;
}

absl::StatusOr<std::string> PrepareReplacement(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-journal"}) {
    BERTH_RETURN_IF_ERROR(Remove(New(path) + suffix));
  }
  return New(path);
}

absl::Status ReplaceJournal(const std::string& path, bool keep_old) {
  BERTH_RETURN_IF_ERROR(Rename(New(path), Next(path)));
  BERTH_RETURN_IF_ERROR(SyncParent(path));
  if (keep_old) {
    const auto aside = SetJournalAside(path);
    if (!aside.ok()) return aside.status();
  }
  return FinishReplacement(path);
}

absl::Status FinishReplacement(const std::string& path) {
  if (!Exists(Next(path))) return absl::OkStatus();
  // The old file's log would be taken for the new one's.
  for (const char* suffix : {"-wal", "-shm", "-journal"}) BERTH_RETURN_IF_ERROR(Remove(path + suffix));
  BERTH_RETURN_IF_ERROR(SyncParent(path));
  BERTH_RETURN_IF_ERROR(Rename(Next(path), path));
  return SyncParent(path);
}

bool JournalWasEmptied(const std::string& path) { return SizeOf(path) <= 0 && SizeOf(path + "-wal") > 0; }

uint64_t FreeBytes(const std::string& path) {
  struct statvfs info{};
  if (statvfs(std::filesystem::path(path).parent_path().c_str(), &info) != 0)
    return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace berth
