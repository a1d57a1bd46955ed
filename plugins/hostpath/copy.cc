#include "plugins/hostpath/copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "plugins/hostpath/command.h"

namespace berth::hostpath {
namespace {

constexpr auto kCopyPatience = std::chrono::hours(6);
constexpr size_t kChunk = size_t{64} << 20;

// Whether an error of copy_file_range means "not between these two", so that plain reading and writing may
// still do it.
bool CannotShare(int error) {
  return error == EXDEV || error == EOPNOTSUPP || error == EINVAL || error == ENOSYS || error == EBADF;
}

absl::Status CopyByHand(int from, int to, off_t begin, off_t end, const std::string& what) {
  std::vector<char> buffer(1 << 20);
  while (begin < end) {
    const auto wanted = static_cast<size_t>(std::min<off_t>(end - begin, static_cast<off_t>(buffer.size())));
    const ssize_t count = pread(from, buffer.data(), wanted, begin);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, what);
    if (count == 0) return absl::OkStatus();
    for (ssize_t done = 0; done < count;) {
      const ssize_t written =
          pwrite(to, buffer.data() + done, static_cast<size_t>(count - done), begin + done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus(errno, what);
      done += written;
    }
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status CopyExtent(int from, int to, off_t begin, off_t end, const std::string& what) {
  while (begin < end) {
    off_t in = begin;
    off_t out = begin;
    const ssize_t count =
        copy_file_range(from, &in, to, &out, std::min(kChunk, static_cast<size_t>(end - begin)), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && CannotShare(errno)) return CopyByHand(from, to, begin, end, what);
    if (count < 0) return ErrnoStatus(errno, what);
    if (count == 0) return absl::OkStatus();
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status CopyExtents(int from, int to, const std::string& what) {
  off_t position = 0;
  while (true) {
    const off_t data = lseek(from, position, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return absl::OkStatus();
    if (data < 0) return ErrnoStatus(errno, what);
    const off_t hole = lseek(from, data, SEEK_HOLE);
    if (hole < 0) return ErrnoStatus(errno, what);
    BERTH_RETURN_IF_ERROR(CopyExtent(from, to, data, hole, what));
    position = hole;
  }
}

}  // namespace

absl::Status CopyImage(const std::string& from, const std::string& to, int64_t size) {
  const std::string what = fmt::format("copy {} to {}", from, to);
  const UniqueFd source(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source.valid()) return ErrnoStatus(errno, fmt::format("open {}", from));
  const UniqueFd target(open(to.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!target.valid()) return ErrnoStatus(errno, fmt::format("create {}", to));
  struct stat info{};
  if (fstat(source.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", from));
  if (ioctl(target.get(), FICLONE, source.get()) != 0) {
    BERTH_RETURN_IF_ERROR(CopyExtents(source.get(), target.get(), what));
  }
  if (ftruncate(target.get(), std::max<off_t>(size, info.st_size)) != 0) {
    return ErrnoStatus(errno, fmt::format("resize {}", to));
  }
  if (fsync(target.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", to));
  return absl::OkStatus();
}

absl::Status CopyDirectory(const std::string& from, const std::string& to) {
  BERTH_RETURN_IF_ERROR(
      RunCommand("cp", {"-a", "-x", "--reflink=auto", "--sparse=auto", "-T", "--", from, to}, kCopyPatience));
  const UniqueFd directory(open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return ErrnoStatus(errno, fmt::format("open {}", to));
  if (syncfs(directory.get()) != 0) return ErrnoStatus(errno, fmt::format("sync {}", to));
  return absl::OkStatus();
}

}  // namespace berth::hostpath
