#include "cli/time_text.h"

#include <absl/time/time.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <optional>

#include "base/number_text.h"
#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

// absl::ParseTime's.
constexpr const char* kLocalFormats[] = {"%Y-%m-%d", "%Y-%m-%d%ET%H:%M", "%Y-%m-%d%ET%H:%M:%E*S"};
constexpr const char* kZonedFormats[] = {"%Y-%m-%d%ET%H:%M%Ez", "%Y-%m-%d%ET%H:%M:%E*S%Ez"};

// By libc's time zone, as everything that is shown: Abseil does not know all forms of TZ.
absl::Time LocalTime(absl::Time as_utc) {
  std::tm fields = absl::ToTM(as_utc, absl::UTCTimeZone());
  fields.tm_isdst = -1;
  const absl::Duration fraction = as_utc - absl::FromTimeT(absl::ToTimeT(as_utc));
  return absl::FromTimeT(mktime(&fields)) + fraction;
}

std::string LocalDay(system_clock::time_point now) {
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d}", local);
}

// A date, a clock of today, or both, and then perhaps a zone.
std::optional<absl::Time> ReadCalendar(std::string_view written, system_clock::time_point now) {
  std::string text(written);
  absl::Time time;
  if (text.size() > 10 && text[10] == ' ') text[10] = 'T';
  for (const char* format : kZonedFormats) {
    if (absl::ParseTime(format, text, &time, nullptr)) return time;
  }
  for (const std::string& each : {text, fmt::format("{}T{}", LocalDay(now), written)}) {
    for (const char* format : kLocalFormats) {
      if (absl::ParseTime(format, each, &time, nullptr)) return LocalTime(time);
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<system_clock::time_point> ParseTime(std::string_view text, system_clock::time_point now) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(fmt::format("'{}' {}", Printable(text, 80), why),
                      fmt::format("A time is {}", kTimeHelp));
  };
  std::optional<system_clock::time_point> time;
  if (text == "today") return ParseTime(LocalDay(now), now);
  if (text == "yesterday") {
    // Half a day before midnight: days have 23 to 25 hours.
    const absl::StatusOr<system_clock::time_point> today = ParseTime(LocalDay(now), now);
    return today.ok() ? ParseTime(LocalDay(*today - std::chrono::hours(12)), now) : today;
  }
  if (text.starts_with('@')) {
    int64_t seconds = 0;
    if (!ParseNumber(text.substr(1), &seconds) || seconds < 0 || seconds > 9'000'000'000) {
      return wrong("is not a number of seconds since 1970");
    }
    time = system_clock::time_point(std::chrono::seconds(seconds));
  } else if (const auto written = ReadCalendar(text, now)) {
    time = absl::ToChronoTime(*written);
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
