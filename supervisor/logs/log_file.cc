#include "supervisor/logs/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/logs/log_lines.h"

namespace berth {
namespace {

constexpr uint64_t kBlock = 4096;
// Without an index, this much of the tail is read to find its lines.
constexpr uint64_t kAdopted = uint64_t{1024} * 1024;
// Where holes cannot be punched, a larger file is cut off.
constexpr uint64_t kCutOffAbove = uint64_t{16} * 1024 * 1024;

absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, bool create, struct stat* info) {
  // Not O_APPEND: this descriptor also overwrites. O_NONBLOCK: a pipe with this name must not block.
  const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT : 0);
  UniqueFd fd(open(path.c_str(), flags, 0600));
  if (!fd.valid()) {
    if (errno == ELOOP) return absl::FailedPreconditionError(fmt::format("open {}: it is a symlink", path));
    if (errno == EISDIR)
      return absl::FailedPreconditionError(fmt::format("open {}: it is a directory", path));
    return ErrnoStatus(errno, fmt::format("open {}", path));
  }
  if (fstat(fd.get(), info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISREG(info->st_mode)) return absl::FailedPreconditionError(fmt::format("open {}: not a file", path));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogFile>> LogFile::Open(const std::string& path, bool create) {
  struct stat info{};
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, create, &info));
  auto file = std::unique_ptr<LogFile>(new LogFile(path, std::move(fd)));
  if (const absl::Status status = file->index_.Open(path + ".index"); !status.ok()) {
    SPDLOG_WARN("{}: after a restart of berthd the log's lines will have no times", MessageOf(status));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  const auto inode = static_cast<uint64_t>(info.st_ino);
  const LogState& state = file->index_.state();
  const WallTime modified(std::chrono::duration_cast<WallTime::duration>(
      std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec)));
  if (!file->index_.found() || state.position < state.base) {
    file->Adopt(size, inode, modified);
  } else if (state.inode != inode || state.base + size < state.position) {
    SPDLOG_WARN("{}: was replaced or truncated; its positions continue at {}", path, state.position);
    file->BeginAgain(inode, WallClock::now());
  }
  if (const std::vector<LogMark> marks = file->index_.Marks(); !marks.empty()) {
    file->last_mark_ = marks.back();
  } else {
    file->Mark(LogRegion::kShown, modified);
  }
  return file;
}

// No index: what is in the file was read, as far as anybody knows.
void LogFile::Adopt(uint64_t size, uint64_t inode, WallTime modified) {
  LogState& state = index_.mutable_state();
  state = LogState{.time = Nanoseconds(modified), .inode = inode};
  uint64_t begin = size > kAdopted ? size - kAdopted : 0;
  // What was given back reads as zeros.
  if (const off_t data = lseek(fd_.get(), static_cast<off_t>(begin), SEEK_DATA); data > 0) {
    begin = std::max(begin, static_cast<uint64_t>(data));
  }
  state.position = begin;
  std::vector<char> buffer(kLogChunk);
  std::vector<LogSpan> lines;
  bool aligned = begin == 0;
  while (state.position < size) {
    const std::string_view text = Read(state.position, buffer);
    if (!aligned) {
      const size_t feed = text.find('\n');
      aligned = true;
      // A tail that is one endless line is kept as it is.
      Advance(feed == std::string_view::npos ? 0 : feed + 1, 0);
      continue;
    }
    SplitLines(text, false, 1024, &lines);
    if (lines.empty()) break;
    Mark(LogRegion::kShown, modified);
    Advance(lines.back().begin + lines.back().size, lines.size());
  }
  index_.Store();
}

void LogFile::BeginAgain(uint64_t inode, WallTime now) {
  LogState& state = index_.mutable_state();
  state.base = state.position;
  state.inode = inode;
  state.first_mark = state.next_mark;
  given_back_ = 0;
  Mark(LogRegion::kShown, now);
}

absl::StatusOr<UniqueFd> LogFile::OpenToAppend() const {
  // The same file, whatever lies at the path by now; a description of its own, as the plugin inherits flags.
  const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
  UniqueFd fd(open(self.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {} again", path_));
  return fd;
}

absl::Status LogFile::EndUnfinishedLine() {
  struct stat info{};
  if (fstat(fd_.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path_));
  if (info.st_size == 0) return absl::OkStatus();
  char last = '\n';
  if (pread(fd_.get(), &last, 1, info.st_size - 1) != 1 || last == '\n') return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const UniqueFd append, OpenToAppend());
  return WriteAll(append.get(), "\n", fmt::format("write {}", path_));
}

uint64_t LogFile::End(WallTime now) {
  struct stat info{};
  if (fstat(fd_.get(), &info) != 0) return state().position;
  const uint64_t end = state().base + static_cast<uint64_t>(info.st_size);
  if (end >= state().position) return end;
  SPDLOG_WARN("{}: was truncated; its positions continue at {}", path_, state().position);
  BeginAgain(state().inode, now);
  return state().base + static_cast<uint64_t>(info.st_size);
}

std::string_view LogFile::Read(uint64_t position, LogBuffer buffer) const {
  if (position < state().base) return {};
  const ssize_t count =
      pread(fd_.get(), buffer.data(), buffer.size(), static_cast<off_t>(position - state().base));
  return {buffer.data(), count > 0 ? static_cast<size_t>(count) : 0};
}

void LogFile::Redact(uint64_t position, size_t size) {
  const std::string asterisks(size, '*');
  const auto offset = static_cast<off_t>(position - state().base);
  if (pwrite(fd_.get(), asterisks.data(), size, offset) != static_cast<ssize_t>(size)) {
    SPDLOG_WARN("{}: a secret in it could not be overwritten: {}", path_, std::strerror(errno));
  }
}

void LogFile::Mark(LogRegion region, WallTime now) {
  last_mark_ =
      LogMark{.position = state().position, .line = state().line, .time = Nanoseconds(now), .region = region};
  index_.Add(last_mark_);
}

void LogFile::Store(WallTime now) {
  index_.mutable_state().time = Nanoseconds(now);
  index_.Store();
}

void LogFile::SkipTo(uint64_t position, LogBuffer buffer, WallTime now) {
  const std::string_view text = Read(position, buffer);
  const size_t feed = text.find('\n');
  const uint64_t begin = state().position;
  Mark(LogRegion::kSkipped, now);
  index_.mutable_state().position = position + (feed == std::string_view::npos ? 0 : feed + 1);
  Mark(LogRegion::kShown, now);
  if (!cannot_punch_) Punch(begin - state().base, state().position - state().base);
}

void LogFile::PunchHole(uint64_t keep, uint64_t slack) {
  if (cannot_punch_) {
    if (state().position - state().base > kCutOffAbove) Truncate();
    return;
  }
  if (state().position - first_position() <= keep + slack) return;
  const uint64_t target = state().position - keep;
  const std::vector<LogMark> marks = index_.Marks();
  const auto after = std::upper_bound(marks.begin(), marks.end(), target,
                                      [](uint64_t at, const LogMark& mark) { return at < mark.position; });
  if (after - marks.begin() < 2) return;
  index_.ForgetBefore(state().first_mark + static_cast<uint64_t>(after - marks.begin()) - 1);
  const uint64_t until = first_position() - state().base;
  Punch(given_back_, until);
  given_back_ = until / kBlock * kBlock;
}

// The whole blocks in [begin, end) of the file.
void LogFile::Punch(uint64_t begin, uint64_t end) {
  begin = (begin + kBlock - 1) / kBlock * kBlock;
  end = end / kBlock * kBlock;
  if (end <= begin) return;
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                static_cast<off_t>(end - begin)) == 0) {
    return;
  }
  const int error = errno;
  cannot_punch_ = error == EOPNOTSUPP || error == ENOSYS;
  SPDLOG_WARN("{}: what was read cannot be given back: {}{}", path_, std::strerror(error),
              cannot_punch_ ? "; the file is cut off above 16 MiB instead" : "");
}

void LogFile::Truncate() {
  struct stat info{};
  if (fstat(fd_.get(), &info) != 0) return;
  if (state().base + static_cast<uint64_t>(info.st_size) != state().position) return;
  if (ftruncate(fd_.get(), 0) != 0) return;
  BeginAgain(state().inode, WallClock::now());
}

}  // namespace berth
