// What of a plugin's output is a line, how it is shown, and how many are let through.
//
// Pure; the worker thread of PluginLogs uses it, and tests do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace berth {

// A line longer than this counts as several of this length.
inline constexpr size_t kLogLongestLine = size_t{128} * 1024;
// Bytes beyond a place at which a long line is cut that must be there already, so that a secret which lies
// across the cut is recognised whole.
inline constexpr size_t kLogLookAhead = size_t{8} * 1024;
// A piece of a file of this size always holds a whole line.
inline constexpr size_t kLogChunk = size_t{256} * 1024;

// In the text that was split: [begin, begin + size) with its line feed, `length` bytes of it without.
struct LogSpan {
  size_t begin = 0;
  size_t length = 0;
  size_t size = 0;
};

// The whole lines of `text`, which begins with a line: at most `limit`. With `at_end` the text after the last
// line feed is a line too. Lines depend only on the bytes, not on the end of the text: a second split from
// the beginning of any line gives the same lines.
void SplitLines(std::string_view text, bool at_end, size_t limit, std::vector<LogSpan>* lines);

// `line` for people and the journal: its first `max_line` bytes, and how many were cut; printable.
[[nodiscard]] std::string ShownLine(std::string_view line, size_t max_line);

// sd-daemon(3): a line that begins with "<N>" has the priority N. Takes the prefix off; 6 (info) without.
[[nodiscard]] int TakePriority(std::string_view* line);

// Which lines pass: `burst` at once, `rate` a second after that. Once it has run out, none passes until there
// is room for half a second's lines: so dropped lines lie together, and one line can report them.
class LogRate {
 public:
  LogRate(uint64_t rate, uint64_t burst, TimePoint now);

  void Configure(uint64_t rate, uint64_t burst);
  // There was no reader for so long: what was written meanwhile does not count against the plugin.
  void Credit(Duration away);
  [[nodiscard]] bool Admit(TimePoint now);

 private:
  double rate_;
  double burst_;
  double tokens_;
  TimePoint filled_at_;
  bool dropping_ = false;
};

}  // namespace berth
