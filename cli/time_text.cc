#include "cli/time_text.h"

#include <fmt/format.h>

#include <charconv>
#include <ctime>
#include <optional>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

// Reads a text from its front.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  // Exactly `digits` digits.
  bool Number(size_t digits, int& value) {
    if (rest_.size() < digits) return false;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + digits, value);
    if (error != std::errc() || end != rest_.data() + digits || rest_[0] == '-') return false;
    rest_.remove_prefix(digits);
    return true;
  }
  // One of `characters`; 0: none of them.
  char Take(std::string_view characters) {
    if (rest_.empty() || characters.find(rest_[0]) == std::string_view::npos) return 0;
    const char taken = rest_[0];
    rest_.remove_prefix(1);
    return taken;
  }
  // Digits behind a point, as nanoseconds; what is finer is left out.
  std::optional<std::chrono::nanoseconds> Fraction() {
    int64_t nanos = 0;
    int64_t unit = 100'000'000;
    size_t count = 0;
    for (; count < rest_.size() && rest_[count] >= '0' && rest_[count] <= '9'; ++count, unit /= 10) {
      nanos += unit * (rest_[count] - '0');
    }
    if (count == 0) return std::nullopt;
    rest_.remove_prefix(count);
    return std::chrono::nanoseconds(nanos);
  }
  [[nodiscard]] bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

struct Written {
  std::tm fields{};
  std::chrono::nanoseconds fraction{0};
  std::optional<std::chrono::minutes> zone;  // east of UTC
};

std::tm LocalDay(system_clock::time_point now) {
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  local.tm_hour = local.tm_min = local.tm_sec = 0;
  local.tm_isdst = -1;
  return local;
}

bool ReadDate(Reader& reader, std::tm& to) {
  int year = 0;
  int month = 0;
  if (!reader.Number(4, year) || reader.Take("-") == 0 || !reader.Number(2, month) || reader.Take("-") == 0 ||
      !reader.Number(2, to.tm_mday)) {
    return false;
  }
  to.tm_year = year - 1900;
  to.tm_mon = month - 1;
  const std::chrono::year_month_day date(std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(to.tm_mday)));
  return date.ok() && year >= 1970 && year <= 2261;
}

bool ReadClock(Reader& reader, Written& to) {
  std::tm& fields = to.fields;
  if (!reader.Number(2, fields.tm_hour) || reader.Take(":") == 0 || !reader.Number(2, fields.tm_min)) {
    return false;
  }
  if (reader.Take(":") != 0) {
    if (!reader.Number(2, fields.tm_sec)) return false;
    if (reader.Take(".,") != 0) {
      const auto fraction = reader.Fraction();
      if (!fraction) return false;
      to.fraction = *fraction;
    }
  }
  return fields.tm_hour < 24 && fields.tm_min < 60 && fields.tm_sec <= 60;
}

bool ReadZone(Reader& reader, Written& to) {
  if (reader.AtEnd()) return true;
  if (reader.Take("Zz") != 0) {
    to.zone = std::chrono::minutes(0);
    return reader.AtEnd();
  }
  const char sign = reader.Take("+-");
  int hours = 0;
  int minutes = 0;
  if (sign == 0 || !reader.Number(2, hours)) return false;
  reader.Take(":");
  if (!reader.Number(2, minutes) || hours > 23 || minutes > 59 || !reader.AtEnd()) return false;
  const std::chrono::minutes offset = std::chrono::hours(hours) + std::chrono::minutes(minutes);
  to.zone = sign == '-' ? -offset : offset;
  return true;
}

// A date, a clock, or both, and then perhaps a zone.
std::optional<Written> ReadCalendar(std::string_view text, system_clock::time_point now) {
  Written written;
  written.fields.tm_isdst = -1;
  Reader dated(text);
  if (ReadDate(dated, written.fields)) {
    if (dated.AtEnd()) return written;
    if (dated.Take("Tt ") == 0 || !ReadClock(dated, written) || !ReadZone(dated, written)) {
      return std::nullopt;
    }
    return written;
  }
  Reader timed(text);
  written.fields = LocalDay(now);
  if (!ReadClock(timed, written) || !timed.AtEnd()) return std::nullopt;
  return written;
}

system_clock::time_point ToTime(Written written) {
  const std::time_t seconds = written.zone ? timegm(&written.fields) : mktime(&written.fields);
  const auto whole = system_clock::from_time_t(seconds) - written.zone.value_or(std::chrono::minutes(0));
  return whole + std::chrono::duration_cast<system_clock::duration>(written.fraction);
}

}  // namespace

absl::StatusOr<system_clock::time_point> ParseTime(std::string_view text, system_clock::time_point now) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(fmt::format("'{}' {}", Printable(text, 80), why),
                      fmt::format("A time is {}", kTimeHelp));
  };
  std::optional<system_clock::time_point> time;
  if (text == "today" || text == "yesterday") {
    std::tm day = LocalDay(now);
    if (text == "yesterday") --day.tm_mday;
    time = system_clock::from_time_t(mktime(&day));
  } else if (text.starts_with('@')) {
    int64_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size() || seconds < 0 || seconds > 9'000'000'000) {
      return wrong("is not a number of seconds since 1970");
    }
    time = system_clock::time_point(std::chrono::seconds(seconds));
  } else if (const auto written = ReadCalendar(text, now)) {
    time = ToTime(*written);
  } else if (const auto ago = ParseDuration(text.ends_with(" ago") ? text.substr(0, text.size() - 4) : text);
             ago.ok() && text.find_first_not_of("0123456789") != std::string_view::npos) {
    time = now - *ago;
  }
  if (!time) return wrong("is not a time");
  if (*time < system_clock::time_point()) return wrong("lies before 1970");
  if (*time > now) return wrong("lies in the future");
  return *time;
}

}  // namespace berth::cli
