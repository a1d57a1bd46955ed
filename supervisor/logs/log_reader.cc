#include "supervisor/logs/log_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "supervisor/logs/log_lines.h"

namespace berth {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kLastLineLength = 512;
constexpr size_t kLastBytes = size_t{64} * 1024;

WallTime Time(int64_t nanoseconds) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(nanoseconds)));
}

// Walks over marks and, where lines are shown, over lines.
class Walk {
 public:
  Walk(const LogFile& file, const LogQuery& query, const LogLimits& limits, const SecretSet& secrets,
       LogBuffer buffer)
      : file_(file),
        query_(query),
        limits_(limits),
        secrets_(secrets),
        buffer_(buffer),
        marks_(file.Marks()) {
    // Its end closes the last one.
    marks_.push_back(LogMark{.position = file.state().position, .line = file.state().line});
  }

  LogBatch Run() {
    Begin();
    while (at_ + 1 < marks_.size() && !Full()) {
      const LogMark& mark = marks_[at_];
      const LogMark& next = marks_[at_ + 1];
      if (position_ >= next.position) {
        Enter(at_ + 1);
      } else if (mark.region == LogRegion::kShown) {
        Lines(mark, next);
      } else {
        Gap(mark.region);
      }
    }
    batch_.next = LogCursor{.position = position_, .number = line_};
    batch_.at_end = position_ >= file_.state().position;
    return std::move(batch_);
  }

 private:
  [[nodiscard]] bool Full() const {
    return batch_.lines.size() >= std::max<size_t>(query_.max_lines, 1) || bytes_ >= query_.max_bytes;
  }

  void Enter(size_t mark) {
    at_ = mark;
    position_ = marks_[mark].position;
    line_ = marks_[mark].line;
  }

  void Begin() {
    Enter(0);
    if (query_.after) {
      const uint64_t oldest = position_;
      if (query_.after->position < oldest) {
        batch_.missed_bytes = oldest - query_.after->position;
        if (query_.after->number && *query_.after->number < line_) {
          batch_.missed_lines = line_ - *query_.after->number;
        }
      }
      GoTo(query_.after->position);
    } else if (query_.since) {
      const auto found = std::find_if(marks_.begin(), marks_.end() - 1, [this](const LogMark& mark) {
        return Time(mark.time) >= *query_.since;
      });
      Enter(static_cast<size_t>(found - marks_.begin()));
    } else if (query_.last) {
      GoBack(*query_.last);
    }
    if (position_ < query_.from_position) GoTo(query_.from_position);
  }

  // To the first line that begins at or after `position`. A client may name any: it is never shown a part of
  // a line, for that could be a part of a secret.
  void GoTo(uint64_t position) {
    const auto after = std::upper_bound(marks_.begin(), marks_.end(), position,
                                        [](uint64_t at, const LogMark& mark) { return at < mark.position; });
    if (after == marks_.begin()) return Enter(0);
    Enter(static_cast<size_t>(after - marks_.begin()) - 1);
    if (at_ + 1 == marks_.size()) return;
    if (marks_[at_].region == LogRegion::kShown) {
      Pass([this, position] { return position_ < position; });
    } else {
      position_ = std::max(position_, position);  // in the middle of a gap: the gap is reported from there
    }
  }

  // So many shown lines before the end.
  void GoBack(uint64_t count) {
    size_t mark = marks_.size() - 1;
    Enter(mark);
    uint64_t lines = 0;
    while (mark > 0 && lines < count) {
      --mark;
      if (marks_[mark].region == LogRegion::kShown) lines += marks_[mark + 1].line - marks_[mark].line;
    }
    Enter(mark);
    if (lines <= count) return;
    const uint64_t first = line_ + (lines - count);
    Pass([this, first] { return line_ < first; });
  }

  // Over lines of this region while `more()`.
  template <class F>
  void Pass(F&& more) {
    const uint64_t end = marks_[at_ + 1].position;
    while (position_ < end && more()) {
      Load(end);
      if (spans_.empty()) return;
      for (const LogSpan& span : spans_) {
        if (!more()) return;
        position_ += span.size;
        ++line_;
      }
    }
  }

  // Fills buffer and spans with lines from position_ on, `end` being the end of a line.
  std::string_view Load(uint64_t end) {
    const uint64_t wanted = std::min<uint64_t>(end - position_, buffer_.size());
    const std::string_view text = file_.Read(position_, buffer_.first(wanted));
    SplitLines(text, position_ + text.size() >= end, 4096, &spans_);
    return text;
  }

  void Lines(const LogMark& mark, const LogMark& next) {
    const std::string_view text = Load(next.position);
    if (spans_.empty()) {  // The file was cut off under our hands.
      Enter(at_ + 1);
      return;
    }
    secrets_.Redact(buffer_.data(), text.size());
    for (const LogSpan& span : spans_) {
      if (Full()) return;
      std::string_view line = text.substr(span.begin, span.length);
      (void)TakePriority(&line);
      LogLine shown{.position = position_, .number = line_, .time = Time(mark.time)};
      shown.text = ShownLine(line, std::min(limits_.max_line, kLogMaxLine));
      bytes_ += shown.text.size() + 1;
      batch_.lines.push_back(std::move(shown));
      position_ += span.size;
      ++line_;
    }
  }

  // All of one kind that lies together, as one remark.
  void Gap(LogRegion region) {
    const uint64_t position = position_;
    const uint64_t line = std::max(line_, marks_[at_].line);
    const WallTime time = Time(marks_[at_].time);
    size_t end = at_ + 1;
    while (end + 1 < marks_.size() && marks_[end].region == region) ++end;
    LogLine notice{.position = position, .number = line, .time = time, .notice = true};
    if (region == LogRegion::kDropped) {
      notice.text =
          fmt::format("({} lines dropped: more than {} a second)", marks_[end].line - line, limits_.rate);
    } else {
      notice.text = fmt::format("({} bytes skipped: they were unread for too long, or truncated)",
                                marks_[end].position - position);
    }
    bytes_ += notice.text.size();
    batch_.lines.push_back(std::move(notice));
    Enter(end);
  }

  const LogFile& file_;
  const LogQuery& query_;
  const LogLimits& limits_;
  const SecretSet& secrets_;
  const LogBuffer buffer_;
  std::vector<LogMark> marks_;
  std::vector<LogSpan> spans_;
  LogBatch batch_;
  size_t bytes_ = 0;
  size_t at_ = 0;          // the mark of the region that position_ is in
  uint64_t position_ = 0;  // always where a line begins, but in a gap
  uint64_t line_ = 0;
};

}  // namespace

LogBatch ReadLog(const LogFile& file, const LogQuery& query, const LogLimits& limits,
                 const SecretSet& secrets, LogBuffer buffer) {
  return Walk(file, query, limits, secrets, buffer).Run();
}

std::vector<std::string> LastLogLines(const LogFile& file, uint64_t from, uint64_t end,
                                      const SecretSet& secrets, LogBuffer buffer) {
  // A run that began before the file was cut off begins with what there is.
  from = std::max(from, file.state().base);
  if (from >= end) return {};
  const uint64_t begin = end - from > kLastBytes ? end - kLastBytes : from;
  std::string_view text = file.Read(begin, buffer.first(std::min<uint64_t>(end - begin, buffer.size())));
  secrets.Redact(buffer.data(), text.size());
  // A line that began before what was read would mislead, unless it is all there is.
  if (begin > from) {
    const size_t feed = text.find('\n');
    if (feed != std::string_view::npos && feed + 1 < text.size()) text.remove_prefix(feed + 1);
  }
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < kLastLines) {
    const size_t feed = text.rfind('\n');
    std::string_view line = feed == std::string_view::npos ? text : text.substr(feed + 1);
    text = text.substr(0, feed == std::string_view::npos ? 0 : feed);
    (void)TakePriority(&line);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    lines.push_back(Printable(line, kLastLineLength));
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace berth
