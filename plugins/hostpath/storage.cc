#include "plugins/hostpath/storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/lock_file.h"
#include "base/status.h"
#include "plugins/hostpath/copy.h"

namespace berth::hostpath {
namespace {

std::string_view AreaName(Area area) {
  switch (area) {
    case Area::kVolumes:
      return "volumes";
    case Area::kSnapshots:
      return "snapshots";
  }
  return "";
}

absl::Status SyncDirectory(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) != 0) return ErrnoStatus(errno, fmt::format("mkdir {}", path));
  // Whatever the umask.
  if (chmod(path.c_str(), mode) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", path));
  return absl::OkStatus();
}

absl::Status SetSize(int fd, const std::string& path, int64_t size, bool preallocate) {
  if (preallocate) {
    if (fallocate(fd, 0, 0, size) != 0)
      return ErrnoStatus(errno, fmt::format("allocate {} bytes for {}", size, path));
  } else if (ftruncate(fd, size) != 0) {
    return ErrnoStatus(errno, fmt::format("resize {} to {} bytes", path, size));
  }
  if (fsync(fd) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const std::string& state_dir) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(state_dir, 0700));
  absl::StatusOr<UniqueFd> lock = TakeLockFile(state_dir + "/lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        fmt::format("{} is in use by another berth-hostpath; each needs a state directory of its own ({})",
                    state_dir, MessageOf(lock.status())));
  }
  if (!lock.ok()) return lock.status();
  for (const std::string_view name : {"volumes", "snapshots", "trash"}) {
    BERTH_RETURN_IF_ERROR(MakeDirectories(fmt::format("{}/{}", state_dir, name), 0700));
  }
  BERTH_RETURN_IF_ERROR(SyncDirectory(state_dir));
  absl::StatusOr<Trash> trash = Trash::Open(state_dir + "/trash");
  if (!trash.ok()) return trash.status();
  return std::unique_ptr<Storage>(new Storage(state_dir, *std::move(lock), *std::move(trash)));
}

std::string Storage::Place(Area area, std::string_view id) const {
  return fmt::format("{}/{}/{}", state_dir_, AreaName(area), id);
}

std::string Storage::ContentPath(Area area, std::string_view id, Kind kind) const {
  return fmt::format("{}/{}", Place(area, id), kind == Kind::kDirectory ? "data" : "image");
}

std::string Storage::NewId(Area area) {
  uint64_t number[2] = {};
  size_t filled = 0;
  while (filled < sizeof number) {
    const ssize_t count = getrandom(reinterpret_cast<char*>(number) + filled, sizeof number - filled, 0);
    if (count > 0) filled += static_cast<size_t>(count);
  }
  return fmt::format("{}-{:016x}{:016x}", area == Area::kVolumes ? "vol" : "snap", number[0], number[1]);
}

absl::Status Storage::MakeEmpty(std::string_view id, Kind kind, int64_t size, bool preallocate) {
  const std::string place = Place(Area::kVolumes, id);
  const std::string content = ContentPath(Area::kVolumes, id, kind);
  BERTH_RETURN_IF_ERROR(MakeDirectory(place, 0700));
  if (kind == Kind::kDirectory) {
    BERTH_RETURN_IF_ERROR(MakeDirectory(content, 0755));
  } else {
    const UniqueFd fd(open(content.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, fmt::format("create {}", content));
    BERTH_RETURN_IF_ERROR(SetSize(fd.get(), content, size, preallocate));
  }
  BERTH_RETURN_IF_ERROR(SyncDirectory(place));
  return SyncDirectory(fmt::format("{}/{}", state_dir_, AreaName(Area::kVolumes)));
}

absl::Status Storage::MakeCopy(Area from_area, std::string_view from, Area to_area, std::string_view to,
                               Kind kind, int64_t size) {
  const std::string place = Place(to_area, to);
  const std::string source = ContentPath(from_area, from, kind);
  const std::string target = ContentPath(to_area, to, kind);
  BERTH_RETURN_IF_ERROR(MakeDirectory(place, 0700));
  if (kind == Kind::kDirectory) {
    BERTH_RETURN_IF_ERROR(CopyDirectory(source, target));
  } else {
    BERTH_RETURN_IF_ERROR(CopyImage(source, target, size));
  }
  BERTH_RETURN_IF_ERROR(SyncDirectory(place));
  return SyncDirectory(fmt::format("{}/{}", state_dir_, AreaName(to_area)));
}

absl::Status Storage::GrowImage(std::string_view id, Kind kind, int64_t size, bool preallocate) {
  const std::string image = ContentPath(Area::kVolumes, id, kind);
  const UniqueFd fd(open(image.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", image));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", image));
  if (info.st_size >= size && !preallocate) return absl::OkStatus();
  return SetSize(fd.get(), image, std::max<int64_t>(size, info.st_size), preallocate);
}

absl::Status Storage::Discard(Area area, std::string_view id) {
  const std::string from = Place(area, id);
  const std::string to = fmt::format("{}/{}", trash_.path(), id);
  if (rename(from.c_str(), to.c_str()) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("move {} to {}", from, to));
  }
  BERTH_RETURN_IF_ERROR(SyncDirectory(trash_.path()));
  return SyncDirectory(fmt::format("{}/{}", state_dir_, AreaName(area)));
}

void Storage::EmptyTrash() {
  if (const absl::Status status = trash_.Empty(stopping_); !status.ok()) {
    SPDLOG_WARN("the trash could not be emptied: {}", std::string(status.message()));
  }
}

absl::Status Storage::CheckContent(Area area, std::string_view id, Kind kind, int64_t size) const {
  const std::string path = ContentPath(area, id, kind);
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    // Not NOT_FOUND, which would say that there is no such volume.
    return absl::DataLossError(std::string(ErrnoStatus(errno, fmt::format("stat {}", path)).message()));
  }
  if (kind == Kind::kDirectory) {
    if (S_ISDIR(info.st_mode)) return absl::OkStatus();
    return absl::DataLossError(fmt::format("{} is not a directory", path));
  }
  if (!S_ISREG(info.st_mode)) return absl::DataLossError(fmt::format("{} is not a file", path));
  if (info.st_size >= size) return absl::OkStatus();
  return absl::DataLossError(fmt::format("{} has {} bytes, but the volume {}", path, info.st_size, size));
}

absl::StatusOr<Storage::Space> Storage::GetSpace() const {
  struct statvfs info{};
  if (statvfs(state_dir_.c_str(), &info) != 0)
    return ErrnoStatus(errno, fmt::format("statfs {}", state_dir_));
  return Space{.total = static_cast<int64_t>(info.f_blocks * info.f_frsize),
               .available = static_cast<int64_t>(info.f_bavail * info.f_frsize)};
}

absl::Status Storage::Check() const {
  struct statvfs info{};
  if (statvfs(state_dir_.c_str(), &info) != 0)
    return ErrnoStatus(errno, fmt::format("statfs {}", state_dir_));
  if ((info.f_flag & ST_RDONLY) != 0) {
    return absl::FailedPreconditionError(fmt::format("{} is on a read-only file system", state_dir_));
  }
  struct stat place{};
  if (stat(Place(Area::kVolumes, "").c_str(), &place) != 0)
    return ErrnoStatus(errno, "the volumes' directory");
  return absl::OkStatus();
}

}  // namespace berth::hostpath
