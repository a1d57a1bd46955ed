#include "supervisor/logs/log_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace berth {
namespace {

constexpr uint64_t kMagic = 0x31474f4c48545242;  // "BRTHLOG1"
constexpr off_t kMarksAt = 4096;
// One slot more than there are marks: a mark that is being added never overwrites one that counts.
constexpr uint64_t kSlots = LogIndex::kMarks + 1;

struct StateRecord {
  uint64_t magic;
  LogState state;
  uint64_t check;
};
static_assert(sizeof(StateRecord) == 72);

struct MarkRecord {
  uint64_t position;
  uint64_t line;
  int64_t time;
  uint32_t region;
  uint32_t check;
};
static_assert(sizeof(MarkRecord) == 32);

constexpr off_t kFileSize = kMarksAt + static_cast<off_t>(kSlots * sizeof(MarkRecord));

// FNV-1a: against damage, not against malice.
uint64_t Checksum(const void* data, size_t size) {
  uint64_t hash = 14695981039346656037U;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  return hash;
}

MarkRecord Encode(const LogMark& mark) {
  MarkRecord record{.position = mark.position,
                    .line = mark.line,
                    .time = mark.time,
                    .region = static_cast<uint32_t>(mark.region),
                    .check = 0};
  record.check = static_cast<uint32_t>(Checksum(&record, offsetof(MarkRecord, check)));
  return record;
}

bool Decode(const MarkRecord& record, LogMark* mark) {
  if (record.check != static_cast<uint32_t>(Checksum(&record, offsetof(MarkRecord, check)))) return false;
  if (record.region < 1 || record.region > 3) return false;
  *mark = LogMark{.position = record.position,
                  .line = record.line,
                  .time = record.time,
                  .region = static_cast<LogRegion>(record.region)};
  return true;
}

off_t SlotOffset(uint64_t number) {
  return kMarksAt + static_cast<off_t>((number % kSlots) * sizeof(MarkRecord));
}

}  // namespace

// A file without a name, so that both are read and written in one way.
LogIndex::LogIndex() : fd_(memfd_create("berth-log-index", MFD_CLOEXEC)) {}

absl::Status LogIndex::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(fmt::format("open {}: not a file", path));
  // All its room is taken now: later a full disk must not make it lie.
  if (const int error = posix_fallocate(fd.get(), 0, kFileSize); error != 0) {
    return ErrnoStatus(error, fmt::format("allocate {}", path));
  }
  fd_ = std::move(fd);
  StateRecord record{};
  if (pread(fd_.get(), &record, sizeof record, 0) != static_cast<ssize_t>(sizeof record) ||
      record.magic != kMagic || record.check != Checksum(&record, offsetof(StateRecord, check))) {
    return absl::OkStatus();
  }
  state_ = record.state;
  found_ = true;
  bool marks_hold = state_.first_mark <= state_.next_mark && state_.next_mark - state_.first_mark <= kMarks;
  LogMark before;
  for (uint64_t number = state_.first_mark; marks_hold && number < state_.next_mark; ++number) {
    LogMark mark;
    marks_hold = ReadMark(number, &mark) && mark.position >= before.position && mark.line >= before.line &&
                 mark.position <= state_.position;
    before = mark;
  }
  if (!marks_hold) state_.first_mark = state_.next_mark;
  LoadFirst();
  return absl::OkStatus();
}

void LogIndex::Store() {
  if (state_.first_mark == state_.next_mark) LoadFirst();
  StateRecord record{.magic = kMagic, .state = state_, .check = 0};
  record.check = Checksum(&record, offsetof(StateRecord, check));
  // Its room is there; what still fails (a dying disk) fails for the log too, and is seen there.
  (void)!pwrite(fd_.get(), &record, sizeof record, 0);
}

void LogIndex::Add(const LogMark& mark) {
  const MarkRecord record = Encode(mark);
  (void)!pwrite(fd_.get(), &record, sizeof record, SlotOffset(state_.next_mark));
  ++state_.next_mark;
  const bool only = state_.next_mark - state_.first_mark == 1;
  if (state_.next_mark - state_.first_mark > kMarks) {
    ++state_.first_mark;
    LoadFirst();
  } else if (only) {
    first_ = mark;
  }
  Store();
}

std::vector<LogMark> LogIndex::Marks() const {
  std::vector<LogMark> marks;
  const uint64_t count = state_.next_mark - state_.first_mark;
  marks.reserve(count);
  std::array<MarkRecord, 256> block{};
  uint64_t number = state_.first_mark;
  while (number < state_.next_mark) {
    // Up to the end of the ring, in blocks.
    const uint64_t batch =
        std::min({state_.next_mark - number, kSlots - number % kSlots, uint64_t{block.size()}});
    const auto size = static_cast<ssize_t>(batch * sizeof(MarkRecord));
    if (pread(fd_.get(), block.data(), static_cast<size_t>(size), SlotOffset(number)) != size) break;
    for (uint64_t i = 0; i < batch; ++i) {
      LogMark mark;
      if (Decode(block.at(i), &mark)) marks.push_back(mark);
    }
    number += batch;
  }
  return marks;
}

void LogIndex::ForgetBefore(uint64_t number) {
  state_.first_mark = number;
  LoadFirst();
  Store();
}

bool LogIndex::ReadMark(uint64_t number, LogMark* mark) const {
  MarkRecord record{};
  if (pread(fd_.get(), &record, sizeof record, SlotOffset(number)) != static_cast<ssize_t>(sizeof record)) {
    return false;
  }
  return Decode(record, mark);
}

void LogIndex::LoadFirst() {
  if (state_.first_mark < state_.next_mark && ReadMark(state_.first_mark, &first_)) return;
  first_ = LogMark{.position = state_.position, .line = state_.line, .time = state_.time};
}

}  // namespace berth
