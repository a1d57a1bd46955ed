#include "base/size_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

namespace berth {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr uint64_t kKibi = 1024;
constexpr uint64_t kKilo = 1000;
constexpr std::array<Unit, 10> kUnits = {{
    {"TiB", kKibi* kKibi* kKibi* kKibi},
    {"GiB", kKibi* kKibi* kKibi},
    {"MiB", kKibi* kKibi},
    {"KiB", kKibi},
    {"B", 1},
    {"TB", kKilo* kKilo* kKilo* kKilo},
    {"GB", kKilo* kKilo* kKilo},
    {"MB", kKilo* kKilo},
    {"kB", kKilo},
    {"KB", kKilo},
}};
constexpr size_t kBinaryUnits = 5;

}  // namespace

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t count = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
  if (parsed.ec != std::errc()) return std::nullopt;
  const std::string_view name = text.substr(static_cast<size_t>(parsed.ptr - text.data()));
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    if (count > kMost / unit.bytes) return std::nullopt;
    return count * unit.bytes;
  }
  return std::nullopt;
}

std::string FormatSize(uint64_t bytes) {
  for (size_t i = 0; i < kBinaryUnits; ++i) {
    const Unit& unit = kUnits.at(i);
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
    }
  }
  return "0B";
}

}  // namespace berth
