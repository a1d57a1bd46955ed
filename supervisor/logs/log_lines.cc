#include "supervisor/logs/log_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace berth {

void SplitLines(std::string_view text, bool at_end, size_t limit, std::vector<LogSpan>* lines) {
  lines->clear();
  size_t begin = 0;
  while (begin < text.size() && lines->size() < limit) {
    const std::string_view rest = text.substr(begin, kLogLongestLine);
    const void* const feed = std::memchr(rest.data(), '\n', rest.size());
    size_t length = rest.size();
    size_t size = rest.size();
    if (feed != nullptr) {
      length = static_cast<size_t>(static_cast<const char*>(feed) - rest.data());
      size = length + 1;
      if (length > 0 && rest[length - 1] == '\r') --length;
    } else if (!at_end && text.size() - begin < kLogLongestLine + kLogLookAhead &&
               text.find('\n', begin + rest.size()) == std::string_view::npos) {
      return;
    }
    lines->push_back(LogSpan{.begin = begin, .length = length, .size = size});
    begin += size;
  }
}

namespace {

// Printable, but for tabs, which many loggers write and which do no harm.
std::string PrintableWithTabs(std::string_view line) {
  const bool plain =
      std::all_of(line.begin(), line.end(), [](char c) { return (c >= 0x20 && c < 0x7F) || c == '\t'; });
  if (plain) return std::string(line);
  std::string out;
  while (true) {
    const size_t tab = line.find('\t');
    out += Printable(line.substr(0, tab), line.size());
    if (tab == std::string_view::npos) return out;
    out += '\t';
    line.remove_prefix(tab + 1);
  }
}

}  // namespace

std::string ShownLine(std::string_view line, size_t max_line) {
  if (line.size() <= max_line) return PrintableWithTabs(line);
  size_t end = max_line;
  // Not in the middle of a character.
  for (int i = 0; i < 3 && end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80; ++i) --end;
  return fmt::format("{}… ({} bytes cut)", PrintableWithTabs(line.substr(0, end)), line.size() - end);
}

int TakePriority(std::string_view* line) {
  constexpr int kInfo = 6;
  if (line->size() < 3 || (*line)[0] != '<' || (*line)[2] != '>') return kInfo;
  const char digit = (*line)[1];
  if (digit < '0' || digit > '7') return kInfo;
  line->remove_prefix(3);
  return digit - '0';
}

LogRate::LogRate(uint64_t rate, uint64_t burst, TimePoint now)
    : rate_(static_cast<double>(rate)),
      burst_(static_cast<double>(std::max<uint64_t>(burst, 1))),
      tokens_(burst_),
      filled_at_(now) {}

void LogRate::Configure(uint64_t rate, uint64_t burst) {
  const double grown = static_cast<double>(std::max<uint64_t>(burst, 1)) - burst_;
  rate_ = static_cast<double>(rate);
  burst_ += grown;
  tokens_ = std::max(0.0, tokens_ + grown);
}

void LogRate::Credit(Duration away) {
  const double seconds = std::chrono::duration<double>(away).count();
  if (seconds > 0) tokens_ += rate_ * seconds;
}

bool LogRate::Admit(TimePoint now) {
  if (rate_ <= 0) return true;
  const double seconds = std::chrono::duration<double>(now - filled_at_).count();
  filled_at_ = std::max(filled_at_, now);
  // A credit may stand above the burst; it is not taken away, and does not grow.
  if (seconds > 0 && tokens_ < burst_) tokens_ = std::min(burst_, tokens_ + rate_ * seconds);
  const double enough = dropping_ ? std::clamp(rate_ / 2, 1.0, burst_) : 1.0;
  dropping_ = tokens_ < enough;
  if (dropping_) return false;
  tokens_ -= 1.0;
  return true;
}

}  // namespace berth
