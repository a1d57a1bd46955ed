#include "supervisor/logs/log_intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

// Lines of one step.
constexpr size_t kStepLines = 4096;
// A new mark with each look at the file, and after so many bytes.
constexpr uint64_t kMarkBytes = uint64_t{64} * 1024;
// While a plugin writes, giving back waits until so much has come together.
constexpr uint64_t kBusySlack = uint64_t{32} * 1024 * 1024;
constexpr uint64_t kIdleSlack = uint64_t{64} * 1024;

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
  // Asked only now: secrets that the plugin got before it wrote this are included.
  const std::shared_ptr<const SecretSet> hidden = secrets.Of(id_);
  if (!hidden->empty()) HideSecrets(*hidden, text, whole, buffer);
  bool blocked = false;
  for (const LogSpan& span : spans_) {
    blocked = !Handle(text.substr(span.begin, span.length), span, now, journal);
    if (blocked) break;
  }
  file_->Store(now);
  if (blocked) return Step::kBlocked;
  // While it writes, not for every little: each hole is a transaction of the file system's.
  file_->PunchHole(limits_.keep, std::max(kBusySlack, limits_.keep));
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
    file_->Redact(position + begin, end - begin);
  }
}

bool LogIntake::Handle(std::string_view line, const LogSpan& span, WallTime now, LogJournal& journal) {
  // The journal did not take this line the last time. It has its mark already: one for each attempt would
  // push the marks of earlier lines out of the index, and readers would lose these lines.
  const bool again = admitted_.has_value();
  // Not `now`: a chunk of many lines may take its time with the journal.
  if (!again) admitted_ = rate_.Admit(Clock::now());
  const bool admitted = *admitted_;
  const LogRegion region = admitted ? LogRegion::kShown : LogRegion::kDropped;
  const LogMark& last = file_->last_mark();
  const uint64_t bytes = file_->state().position - last.position;
  if (region != last.region) {
    if (!ReportDropped(journal)) return false;
    file_->Mark(region, now);
  } else if (!again && (bytes >= kMarkBytes || Nanoseconds(now) > last.time)) {
    file_->Mark(region, now);
  }
  const uint64_t position = file_->state().position;
  if (!admitted) {
    ++dropped_untold_;
    ++losses_.dropped_lines;
  } else if (limits_.journal) {
    const int priority = TakePriority(&line);
    const std::string shown = ShownLine(line, std::min(limits_.max_line, kLogMaxLine));
    if (!ToJournal(shown, priority, position, journal)) return false;
  }
  admitted_.reset();
  file_->Advance(span.size, 1);
  if (admitted && limits_.journal && journal.present()) file_->Store(now);
  return true;
}

bool LogIntake::ReportDropped(LogJournal& journal) {
  if (dropped_untold_ == 0) return true;
  const std::string notice =
      fmt::format("({} lines dropped: more than {} a second)", dropped_untold_, limits_.rate);
  if (!ToJournal(notice, 4, file_->state().position, journal)) return false;
  dropped_untold_ = 0;
  return true;
}

bool LogIntake::ToJournal(std::string_view message, int priority, uint64_t position, LogJournal& journal) {
  if (!limits_.journal) return true;
  const JournalLine line{
      .message = message, .priority = priority, .plugin_id = id_, .position = position, .pid = pid_};
  const LogJournal::Outcome outcome = journal.Send(line);
  if (outcome == LogJournal::Outcome::kLost) ++losses_.not_in_journal;
  return outcome != LogJournal::Outcome::kBusy;
}

void LogIntake::Settle(LogJournal& journal) {
  ReportDropped(journal);
  file_->PunchHole(limits_.keep, kIdleSlack);
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
