#include "cli/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <limits>

#include "base/status.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

using std::chrono::milliseconds;

constexpr size_t kShownText = 80;

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

std::string Quoted(std::string_view text) { return fmt::format("'{}'", Printable(text, kShownText)); }

// Insertions, deletions and replacements from one to the other.
size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[to.size()];
}

}  // namespace

absl::StatusOr<int64_t> ParseSize(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(fmt::format("{} is not a size: {}", Quoted(text), why),
                      fmt::format("A size is {}", kSizeHelp));
  };
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return wrong("it is too large");
  if (error != std::errc() || number < 0) return wrong("it does not begin with a whole number");
  const std::string unit = LowerCase(text.substr(static_cast<size_t>(end - text.data())));
  if (unit.empty() || unit == "b") return number;

  constexpr std::string_view kPrefixes = "kmgtp";
  const size_t power = kPrefixes.find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "i" && rest != "ib" && rest != "b")) {
    return wrong(fmt::format("there is no unit {}", Quoted(unit)));
  }
  const int64_t step = rest == "b" ? 1000 : 1024;
  for (size_t i = 0; i <= power; ++i) {
    if (number > std::numeric_limits<int64_t>::max() / step) return wrong("it is too large");
    number *= step;
  }
  return number;
}

absl::StatusOr<milliseconds> ParseDuration(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(fmt::format("{} is not a time: {}", Quoted(text), why),
                      "A time is a number with a unit: 500ms, 90s, 2m, 1m30s, 1h");
  };
  constexpr int64_t kLongest = int64_t{10} * 365 * 24 * 3600 * 1000;
  struct Unit {
    std::string_view name;
    int64_t milliseconds;
  };
  constexpr std::array<Unit, 6> kUnits = {Unit{"ms", 1},    {"s", 1000},       {"m", 60'000},
                                          {"h", 3'600'000}, {"d", 86'400'000}, {"", 1000}};

  std::string_view rest = text;
  int64_t total = 0;
  do {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error == std::errc::result_out_of_range) return wrong("it is too long");
    if (error != std::errc() || number < 0) return wrong("it does not begin with a whole number");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const std::string_view name = rest.substr(0, std::min(rest.find_first_of("0123456789"), rest.size()));
    rest.remove_prefix(name.size());
    const auto* unit =
        std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& each) { return each.name == name; });
    if (unit == kUnits.end()) return wrong(fmt::format("there is no unit {}", Quoted(name)));
    if (number > kLongest / unit->milliseconds) return wrong("it is too long");
    total += number * unit->milliseconds;
    if (total > kLongest) return wrong("it is too long");
  } while (!rest.empty());
  if (total == 0) return wrong("it must be above zero");
  return milliseconds(total);
}

absl::StatusOr<std::map<std::string, std::string>> ParsePairs(const std::vector<std::string>& pairs,
                                                              std::string_view option) {
  std::map<std::string, std::string> parsed;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return UsageError(fmt::format("{} {}: it must be KEY=VALUE", option, Quoted(pair)));
    }
    const std::string key = pair.substr(0, equals);
    if (!parsed.emplace(key, pair.substr(equals + 1)).second) {
      return UsageError(fmt::format("{}: the key {} is given twice", option, Quoted(key)));
    }
  }
  return parsed;
}

absl::StatusOr<int> ParseEnum(std::string_view text, const google::protobuf::EnumDescriptor* type,
                              std::string_view option) {
  const std::string folded = Fold(text);
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() == 0 && type->value_count() > 1 &&
        type->value(i)->name().find("UNKNOWN") != std::string::npos) {
      continue;
    }
    names.push_back(type->value(i)->name());
    if (Fold(names.back()) == folded) return type->value(i)->number();
  }
  return UsageError(fmt::format("{}: there is no {}{}", option, Quoted(text), DidYouMean(text, names)),
                    fmt::format("There are {}", fmt::join(names, ", ")));
}

std::string Fold(std::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c != '-' && c != '_') folded += Lower(c);
  }
  return folded;
}

std::vector<std::string> Nearest(std::string_view wrong, const std::vector<std::string>& known) {
  const std::string folded = Fold(wrong);
  if (folded.empty() || folded.size() > kShownText) return {};
  // Distances and places, so that equally near ones keep their order.
  std::vector<std::pair<size_t, size_t>> ranked;
  for (size_t i = 0; i < known.size(); ++i) {
    const std::string other = Fold(known[i]);
    const size_t distance = EditDistance(folded, other);
    // A part of a name ("publish") is a likely wish too, after the near misses.
    const bool part = folded.size() >= 3 && other.find(folded) != std::string::npos;
    if (distance <= std::max<size_t>(1, folded.size() / 3)) {
      ranked.emplace_back(distance, i);
    } else if (part) {
      ranked.emplace_back(kShownText + distance, i);
    }
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (const auto& [distance, i] : ranked) {
    // Where one is near, what is less near only confuses.
    const bool worse = ranked.front().first < kShownText && distance > ranked.front().first;
    if (!worse && nearest.size() < 3) nearest.push_back(known[i]);
  }
  return nearest;
}

std::string DidYouMean(std::string_view wrong, const std::vector<std::string>& known) {
  const std::vector<std::string> nearest = Nearest(wrong, known);
  if (nearest.empty()) return {};
  return fmt::format("; did you mean {}?", fmt::join(nearest, " or "));
}

std::string FormatSize(int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  value /= 1024;
  while ((value >= 1024 || value <= -1024) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.1f}", value);
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return fmt::format("{} {}", number, kUnits[unit]);
}

std::string FormatDuration(milliseconds duration) {
  const int64_t ms = std::max<int64_t>(duration.count(), 0);
  const int64_t seconds = ms / 1000;
  if (ms < 1) return "<1ms";
  if (seconds < 1) return fmt::format("{}ms", ms);
  if (seconds < 120) return fmt::format("{}s", seconds);
  if (seconds < 7200) return fmt::format("{}m", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / 86400);
}

std::string FormatDuration(const google::protobuf::Duration& duration) {
  return FormatDuration(std::chrono::seconds(duration.seconds()) +
                        milliseconds(duration.nanos() / 1'000'000));
}

std::string FormatRelative(const google::protobuf::Timestamp& time,
                           std::chrono::system_clock::time_point now) {
  const int64_t now_ms = std::chrono::duration_cast<milliseconds>(now.time_since_epoch()).count();
  const int64_t then_ms = time.seconds() * 1000 + time.nanos() / 1'000'000;
  const int64_t past = now_ms - then_ms;
  if (past > -1000 && past < 1000) return "now";
  return past > 0 ? fmt::format("{} ago", FormatDuration(milliseconds(past)))
                  : fmt::format("in {}", FormatDuration(milliseconds(-past)));
}

std::string FormatLocal(const google::protobuf::Timestamp& time) {
  const time_t seconds = time.seconds();
  tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return fmt::format("{}", seconds);
  std::array<char, 32> buffer{};
  const size_t length = strftime(buffer.data(), buffer.size(), "%Y-%m-%d %H:%M:%S", &local);
  return {buffer.data(), length};
}

}  // namespace berth::cli
