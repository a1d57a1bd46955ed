#include "berthd/event_history.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// More than can be given out between the last event that is on the disk and a power cut.
constexpr uint64_t kLeap = 1'000'000;
constexpr std::string_view kEnded = "ended\n";
constexpr size_t kHalf = size_t{1024} * 1024;
// One write may go beyond a half.
constexpr size_t kMostRead = 4 * kHalf;
constexpr size_t kBatch = 512;
constexpr auto kRetry = std::chrono::seconds(10);
// Local disk. Only the history waits for it.
constexpr auto kWrittenWithin = std::chrono::minutes(1);

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(fmt::format("open {}: not a file", path));
  return fd;
}

// Of fixed length, so that writing it again needs no space.
std::string NumberLine(uint64_t number) { return fmt::format("{} {:020}\n", BootId(), number); }

// The last number that was given out in this boot; 0: not known.
uint64_t ParseNumberLine(std::string_view line) {
  const std::string_view boot_id = BootId();
  uint64_t number = 0;
  if (boot_id.empty() || !line.starts_with(boot_id) || !line.ends_with('\n')) return 0;
  return absl::SimpleAtoi(ToAbsl(line.substr(boot_id.size())), &number) ? number : 0;
}

}  // namespace

std::string EventLine(const Event& event) {
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(event.time.time_since_epoch()).count();
  std::string line = fmt::format("{}\t{}", event.sequence, nanoseconds);
  for (const std::string* text :
       {&event.type, &event.plugin_id, &event.volume_id, &event.consumer, &event.message}) {
    line += '\t' + absl::Utf8SafeCEscape(*text);
  }
  return line + '\n';
}

std::optional<Event> ParseEventLine(std::string_view line) {
  if (!line.ends_with('\n')) return std::nullopt;
  line.remove_suffix(1);
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(line), '\t');
  Event event;
  int64_t nanoseconds = 0;
  if (parts.size() != 7 || !absl::SimpleAtoi(parts[0], &event.sequence) || event.sequence == 0 ||
      !absl::SimpleAtoi(parts[1], &nanoseconds)) {
    return std::nullopt;
  }
  event.time =
      WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(nanoseconds)));
  std::string* const texts[] = {&event.type, &event.plugin_id, &event.volume_id, &event.consumer,
                                &event.message};
  for (size_t i = 0; i < std::size(texts); ++i) {
    if (!absl::CUnescape(parts[i + 2], texts[i])) return std::nullopt;
  }
  return event;
}

// Any thread, one at a time: a call that was left behind is waited for.
class EventHistory::File {
 public:
  File(const std::string& state_dir, const std::string& runtime_dir)
      : path_(state_dir + "/events"),
        old_path_(path_ + ".old"),
        number_path_(runtime_dir + "/event-number") {}

  struct Contents {
    std::vector<Event> events;
    uint64_t last_number = 0;  // in this boot; 0: not known
    // Nothing was given out that is not kept: berthd ended in order, or there is no file.
    bool complete = true;
    std::vector<std::string> damage;

    [[nodiscard]] uint64_t kept() const { return events.empty() ? 0 : events.back().sequence; }
  };

  Contents Read() {
    const std::lock_guard lock(mutex_);
    Contents contents;
    ReadHalf(old_path_, contents);
    ReadHalf(path_, contents);
    if (ended_) RemoveEnd(contents);
    const absl::StatusOr<std::string> line = ReadFile(number_path_, NumberLine(0).size());
    if (line.ok()) contents.last_number = ParseNumberLine(*line);
    absl::StatusOr<UniqueFd> number = OpenRegular(number_path_, O_WRONLY);
    if (number.ok()) {
      number_ = *std::move(number);
    } else {
      contents.damage.emplace_back(MessageOf(number.status()));
    }
    return contents;
  }

  // Appends all of `text`, or nothing.
  absl::Status Append(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (size_ > 0 && size_ + text.size() > kHalf) {
      if (rename(path_.c_str(), old_path_.c_str()) != 0) return ErrnoStatus(errno, "rename " + path_);
      fd_.Reset();
    }
    if (!fd_.valid()) {
      BERTH_ASSIGN_OR_RETURN(fd_, OpenRegular(path_, O_WRONLY | O_APPEND));
      struct stat info{};
      if (fstat(fd_.get(), &info) != 0) return ErrnoStatus(errno, "stat " + path_);
      size_ = static_cast<size_t>(info.st_size);
      // A torn line.
      if (size_ > whole_ && ftruncate(fd_.get(), static_cast<off_t>(whole_)) == 0) size_ = whole_;
    }
    if (absl::Status status = WriteAll(fd_.get(), text, "write " + path_); !status.ok()) {
      whole_ = size_;
      fd_.Reset();
      if (truncate(path_.c_str(), static_cast<off_t>(size_)) != 0) {
        SPDLOG_WARN("{}", MessageOf(ErrnoStatus(errno, "truncate " + path_)));
      }
      return status;
    }
    size_ += text.size();
    whole_ = size_;
    return absl::OkStatus();
  }

  // After the last event.
  absl::Status End() {
    BERTH_RETURN_IF_ERROR(Append(""));
    if (fdatasync(fd_.get()) != 0) return ErrnoStatus(errno, "sync " + path_);
    return Append(std::string(kEnded));
  }

  // On the loop: in memory, on a tmpfs.
  void GiveOut(uint64_t number) {
    const std::string line = NumberLine(number);
    if (number_.valid() && pwrite(number_.get(), line.data(), line.size(), 0) < 0 && !said_number_) {
      said_number_ = true;
      SPDLOG_WARN("{}", MessageOf(ErrnoStatus(errno, "write " + number_path_)));
    }
  }

 private:
  void ReadHalf(const std::string& path, Contents& contents) {
    whole_ = 0;
    ended_ = false;
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0 && errno == ENOENT) return;
    contents.complete = false;
    const absl::StatusOr<std::string> text =
        S_ISREG(info.st_mode) ? ReadFile(path, kMostRead)
                              : absl::FailedPreconditionError(fmt::format("{} is not a file", path));
    if (!text.ok()) {
      contents.damage.emplace_back(MessageOf(text.status()));
      // Its end is not known: it is the older half from now on.
      size_ = whole_ = static_cast<size_t>(info.st_size);
      return;
    }
    size_t skipped = 0;
    std::string_view rest = *text;
    for (size_t feed = 0; (feed = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(feed + 1)) {
      const std::string_view line = rest.substr(0, feed + 1);
      ended_ = line == kEnded && line.size() == rest.size();
      if (line == kEnded) continue;
      std::optional<Event> event = ParseEventLine(line);
      if (!event) ++skipped;
      // Twice, where a write had succeeded and was not known to.
      if (event && event->sequence > contents.kept()) contents.events.push_back(*std::move(event));
    }
    whole_ = text->size() - rest.size();
    size_ = text->size();
    if (skipped > 0) contents.damage.push_back(fmt::format("{}: {} lines cannot be read", path, skipped));
  }

  // Durably, before a number is given out: else a power cut later would look like an orderly end.
  void RemoveEnd(Contents& contents) {
    const size_t end = whole_ - kEnded.size();
    absl::StatusOr<UniqueFd> fd = OpenRegular(path_, O_WRONLY);
    if (fd.ok() && (ftruncate(fd->get(), static_cast<off_t>(end)) != 0 || fdatasync(fd->get()) != 0)) {
      fd = ErrnoStatus(errno, "truncate " + path_);
    }
    if (!fd.ok()) {
      contents.damage.emplace_back(MessageOf(fd.status()));
      return;
    }
    size_ = whole_ = end;
    // A line that cannot be read may have been the last number.
    contents.complete = contents.damage.empty();
  }

  const std::string path_;
  const std::string old_path_;
  const std::string number_path_;
  std::mutex mutex_;
  UniqueFd fd_;
  size_t size_ = 0;     // of the newer half
  size_t whole_ = 0;    // up to the end of its last whole line
  bool ended_ = false;  // that line says so
  UniqueFd number_;
  bool said_number_ = false;
};

EventHistory::EventHistory(std::string state_dir, std::string runtime_dir, EventLog& events)
    : state_dir_(std::move(state_dir)),
      runtime_dir_(std::move(runtime_dir)),
      events_(events),
      file_(std::make_shared<File>(state_dir_, runtime_dir_)) {}

EventHistory::~EventHistory() = default;

Awaitable<void> EventHistory::Begin() {
  auto read_file = [file = file_] { return file->Read(); };
  auto read =
      co_await RunBlocking("read the history of events", std::move(read_file), Clock::now() + kWrittenWithin);
  File::Contents contents;
  if (read.ok()) {
    contents = *std::move(read);
  } else {
    contents.damage.emplace_back(MessageOf(read.status()));
    contents.complete = false;
  }
  const uint64_t kept = contents.kept();
  uint64_t first = std::max(contents.last_number, kept) + 1;
  if (contents.last_number == 0 && !contents.complete) {
    const auto since_1970 = WallClock::now().time_since_epoch();
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count();
    first = std::max(kept + kLeap, static_cast<uint64_t>(now));
  }
  begun_ = true;
  written_ = first - 1;
  events_.BeginAt(first, std::move(contents.events),
                  [file = file_](uint64_t number) { file->GiveOut(number); });
  for (const std::string& damage : contents.damage) {
    events_.Append({.type = "node.events_damaged", .message = damage});
  }
  if (kept > 0 && first > kept + 1) {
    const char* why = contents.last_number > 0 ? "berthd was killed before they were written"
                                               : "the machine was not shut down in an orderly way, so these "
                                                 "numbers may have been given out";
    events_.Append({.type = "node.events_lost",
                    .message = fmt::format("events {} to {} are not kept: {}", kept + 1, first - 1, why)});
  }
}

Awaitable<absl::Status> EventHistory::WriteNow(TimePoint deadline) {
  while (true) {
    const EventLog::Batch batch = events_.After(written_, kBatch);
    if (batch.events.empty()) co_return absl::OkStatus();
    std::string text;
    for (const Event& event : batch.events) text += EventLine(event);
    auto append = [file = file_, text = std::move(text)] { return file->Append(text); };
    BERTH_CO_RETURN_IF_ERROR(co_await RunBlocking("write events", std::move(append), deadline));
    written_ = batch.events.back().sequence;
  }
}

Awaitable<void> EventHistory::Write() {
  bool said = false;
  while (true) {
    if (!co_await events_.WaitAfter(written_, TimePoint::max())) continue;
    const absl::Status status = co_await WriteNow(Clock::now() + kWrittenWithin);
    if (!status.ok()) {
      if (!std::exchange(said, true)) {
        SPDLOG_WARN("events are kept in memory only until they can be written: {}", MessageOf(status));
      }
      co_await SleepUntil(Clock::now() + kRetry);
      continue;
    }
    said = false;
  }
}

Awaitable<void> EventHistory::End(TimePoint deadline) {
  if (!begun_) co_return;
  absl::Status status = co_await WriteNow(deadline);
  auto end = [file = file_] { return file->End(); };
  if (status.ok()) status = co_await RunBlocking("end the history of events", std::move(end), deadline);
  if (!status.ok()) SPDLOG_WARN("the last events were not written: {}", MessageOf(status));
}

}  // namespace berth
