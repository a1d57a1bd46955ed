#include "base/value_reader.h"

#include <fmt/format.h>

#include "base/duration_text.h"
#include "base/size_text.h"
#include "base/status.h"

namespace berth {

void ValueReader::ReadDuration(const toml::table& table, std::string_view prefix, std::string_view key,
                               Duration* value, Zero zero) {
  constexpr std::string_view kRight =
      "a duration: a string like \"500ms\", \"30s\", \"2m\" or \"1h\", or whole seconds";
  const toml::node* node = table.get(key);
  if (node == nullptr) return;
  const std::string full = fmt::format("{}{}", prefix, key);
  std::optional<Duration> duration;
  if (const toml::value<int64_t>* whole = node->as_integer()) {
    const int64_t most = std::chrono::duration_cast<std::chrono::seconds>(kLongestDuration).count();
    if (**whole >= 0 && **whole <= most) duration = std::chrono::seconds(**whole);
  } else if (node->is_string()) {
    duration = ParseDuration(**node->as_string());
  } else {
    return WrongType(*node, full, kRight);
  }
  const bool good = duration.has_value() && (*duration > Duration::zero() ||
                                             (zero == Zero::kAllowed && *duration == Duration::zero()));
  if (!good) {
    return Mistake(
        *node, full,
        fmt::format("must be {}, {}at most a year", kRight, zero == Zero::kAllowed ? "" : "above zero and "));
  }
  *value = *duration;
}

void ValueReader::ReadWhole(const toml::table& table, std::string_view prefix, std::string_view key,
                            uint64_t* value, uint64_t least, uint64_t most) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return;
  const std::string full = fmt::format("{}{}", prefix, key);
  const toml::value<int64_t>* number = node->as_integer();
  if (number == nullptr) return WrongType(*node, full, "an integer");
  if (**number < 0 || static_cast<uint64_t>(**number) < least || static_cast<uint64_t>(**number) > most) {
    return Mistake(*node, full, fmt::format("must be from {} to {}", least, most));
  }
  *value = static_cast<uint64_t>(**number);
}

void ValueReader::ReadCount(const toml::table& table, std::string_view prefix, std::string_view key,
                            int* value) {
  constexpr uint64_t kMost = 1'000'000;
  auto count = static_cast<uint64_t>(*value);
  ReadWhole(table, prefix, key, &count, 1, kMost);
  *value = static_cast<int>(count);
}

std::optional<uint64_t> ValueReader::SizeOf(const toml::node& node) {
  if (const toml::value<int64_t>* whole = node.as_integer()) {
    if (**whole < 0) return std::nullopt;
    return static_cast<uint64_t>(**whole);
  }
  return node.is_string() ? ParseSize(**node.as_string()) : std::nullopt;
}

void ValueReader::ReadSize(const toml::table& table, std::string_view prefix, std::string_view key,
                           uint64_t* value, uint64_t least, uint64_t most) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return;
  const std::string full = fmt::format("{}{}", prefix, key);
  if (!node->is_integer() && !node->is_string()) return WrongType(*node, full, kSizeForm);
  const std::optional<uint64_t> size = SizeOf(*node);
  if (!size.has_value() || *size < least || *size > most) {
    return Mistake(*node, full,
                   fmt::format("must be {}, and at least {}{}", kSizeForm, FormatSize(least),
                               most == INT64_MAX ? "" : fmt::format(" and at most {}", FormatSize(most))));
  }
  *value = *size;
}

void ValueReader::ReadBool(const toml::table& table, std::string_view prefix, std::string_view key,
                           bool* value) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return;
  if (!node->is_boolean()) return WrongType(*node, fmt::format("{}{}", prefix, key), "true or false");
  *value = **node->as_boolean();
}

void ValueReader::NoChoice(const toml::node& node, std::string_view key, std::string_view word,
                           const std::vector<std::string_view>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view separator = i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    list += fmt::format("{}\"{}\"", separator, words[i]);
  }
  Mistake(node, key, fmt::format("\"{}\" is not possible; it must be {}", Printable(word, 64), list));
}

}  // namespace berth
