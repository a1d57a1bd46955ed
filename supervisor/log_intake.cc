#include "supervisor/log_intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

// Lines of one step.
constexpr size_t kStepLines = 4096;
// A new mark at the latest after so many bytes, or so long with some lines, or so long.
constexpr uint64_t kMarkBytes = uint64_t{64} * 1024;
constexpr uint64_t kMarkSomeBytes = 256;
constexpr int64_t kMarkSoon = 20'000'000;
constexpr int64_t kMarkLate = 1'000'000'000;
// While a plugin writes, giving back waits until so much has come together.
constexpr uint64_t kBusySlack = uint64_t{16} * 1024 * 1024;
constexpr uint64_t kIdleSlack = uint64_t{64} * 1024;

int64_t Nanoseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

LogIntake::LogIntake(std::string plugin_id, std::unique_ptr<LogFile> file, const LogLimits& limits)
    : id_(std::move(plugin_id)),
      file_(std::move(file)),
      limits_(limits),
      rate_(limits.rate, limits.burst, Clock::now()) {
  rate_.Credit(std::chrono::duration_cast<Duration>(
      std::chrono::nanoseconds(Nanoseconds(WallClock::now()) - file_->state().time)));
  end_ = file_->End(WallClock::now());
}

void LogIntake::Configure(const LogLimits& limits) {
  if (limits.rate != limits_.rate || limits.burst != limits_.burst)
    rate_.Configure(limits.rate, limits.burst);
  limits_ = limits;
}

LogIntake::Step LogIntake::Run(const RecentSecrets& secrets, LogJournal& journal, LogBuffer buffer) {
  const WallTime now = WallClock::now();
  end_ = file_->End(now);
  const uint64_t unread = end_ - file_->state().position;
  if (unread == 0) return Step::kCaughtUp;
  if (unread > limits_.max_unread) {
    const uint64_t before = file_->state().position;
    file_->SkipTo(end_ - limits_.max_unread, buffer, now);
    losses_.skipped_bytes += file_->state().position - before;
    ToJournal(
        fmt::format("({} bytes skipped: they were unread for too long)", file_->state().position - before), 4,
        before, journal);
  }
  const std::string_view text = file_->Read(file_->state().position, buffer);
  SplitLines(text, false, kStepLines, &spans_);
  if (spans_.empty()) return Step::kCaughtUp;
  const size_t whole = spans_.back().begin + spans_.back().size;
  // Asked only now: whatever the plugin was told before it wrote this is among them.
  const std::shared_ptr<const SecretSet> hidden = secrets.Of(id_);
  if (!hidden->empty()) HideSecrets(*hidden, text, whole, buffer);
  for (const LogSpan& span : spans_) Handle(text.substr(span.begin, span.length), span, now, journal);
  file_->Store(now);
  // While it writes, not for every little: each hole is a transaction of the file system's.
  file_->GiveBack(limits_.keep, std::max(kBusySlack, limits_.keep));
  return whole == text.size() && file_->state().position >= end_ ? Step::kCaughtUp : Step::kMore;
}

// Only within whole lines: what is found in an unfinished one is found again, maybe as part of more. No form
// of a secret holds a line feed; but a line that is cut for its length may be cut within one.
void LogIntake::HideSecrets(const SecretSet& secrets, std::string_view text, size_t whole, LogBuffer buffer) {
  const uint64_t position = file_->state().position;
  const std::string_view looked_at = text.substr(0, std::min(text.size(), whole + SecretSet::kMaxPattern));
  for (const auto& [begin, end] : secrets.Find(looked_at)) {
    if (begin >= whole) break;
    std::fill(buffer.begin() + static_cast<std::ptrdiff_t>(begin),
              buffer.begin() + static_cast<std::ptrdiff_t>(end), '*');
    file_->Blacken(position + begin, end - begin);
  }
}

void LogIntake::Handle(std::string_view line, const LogSpan& span, WallTime now, LogJournal& journal) {
  // Not `now`: a chunk of many lines may take its time with the journal.
  const bool admitted = rate_.Admit(Clock::now());
  const LogRegion region = admitted ? LogRegion::kShown : LogRegion::kDropped;
  const LogMark& last = file_->last_mark();
  const uint64_t bytes = file_->state().position - last.position;
  const int64_t age = Nanoseconds(now) - last.time;
  if (region != last.region) {
    TellDropped(journal);
    file_->Mark(region, now);
  } else if (bytes >= kMarkBytes || (bytes >= kMarkSomeBytes && age >= kMarkSoon) ||
             (bytes > 0 && age >= kMarkLate) || (bytes == 0 && age > 0)) {
    file_->Mark(region, now);
  }
  const uint64_t position = file_->state().position;
  if (!admitted) {
    ++dropped_untold_;
    ++losses_.dropped_lines;
  } else if (limits_.journal) {
    const int priority = TakePriority(&line);
    ToJournal(ShownLine(line, std::min(limits_.max_line, kLogMaxLine)), priority, position, journal);
  }
  file_->Advance(span.size, 1);
  if (admitted && limits_.journal && journal.present()) file_->Store(now);
}

void LogIntake::TellDropped(LogJournal& journal) {
  if (dropped_untold_ == 0) return;
  ToJournal(fmt::format("({} lines dropped: more than {} a second)", dropped_untold_, limits_.rate), 4,
            file_->state().position, journal);
  dropped_untold_ = 0;
}

void LogIntake::ToJournal(std::string_view message, int priority, uint64_t position, LogJournal& journal) {
  if (!limits_.journal) return;
  const JournalLine line{
      .message = message, .priority = priority, .plugin_id = id_, .position = position, .pid = pid_};
  if (journal.Send(line) == LogJournal::Outcome::kLost) ++losses_.not_in_journal;
}

void LogIntake::Settle(LogJournal& journal) {
  TellDropped(journal);
  file_->GiveBack(limits_.keep, kIdleSlack);
}

std::string LogIntake::TakeLosses() {
  const Losses losses = std::exchange(losses_, {});
  std::string text;
  const auto add = [&text](uint64_t count, const std::string& what) {
    if (count == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", count, what);
  };
  add(losses.dropped_lines, fmt::format("lines dropped: more than {} a second", limits_.rate));
  add(losses.skipped_bytes, "bytes skipped: they were unread for too long");
  add(losses.not_in_journal, "lines not taken by the journal");
  return text;
}

}  // namespace berth
