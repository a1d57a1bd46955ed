#include "base/proc_stat.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace berth::process_internal {
namespace {

constexpr size_t kProcFileLimit = 64 * size_t{1024};

// `stat` is "pid (comm) state ppid …". The command may hold anything, blanks and parentheses too: fields
// are counted from the last parenthesis.
std::optional<ProcStat> ParseProcStat(std::string_view stat) {
  const size_t end_of_command = stat.rfind(')');
  if (end_of_command == std::string_view::npos) return std::nullopt;
  ProcStat result;
  if (const size_t command = stat.find('('); command < end_of_command) {
    result.name = stat.substr(command + 1, end_of_command - command - 1);
  }
  stat.remove_prefix(end_of_command + 1);
  for (int field = 3; field <= 52; ++field) {
    const size_t begin = stat.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    stat.remove_prefix(begin);
    const std::string_view word = stat.substr(0, stat.find_first_of(" \n"));
    stat.remove_prefix(word.size());
    if (field == 3) result.state = word.front();
    const auto parse = [word](auto& value) {
      return std::from_chars(std::to_address(word.begin()), std::to_address(word.end()), value).ec ==
             std::errc();
    };
    if (field == 4 && !parse(result.parent)) return std::nullopt;
    if (field == 6 && !parse(result.session)) return std::nullopt;
    if (field == 22 && !parse(result.start_time)) return std::nullopt;
    if (field == 52 && !parse(result.wait_status)) return std::nullopt;
  }
  return result;
}

}  // namespace

absl::StatusOr<ProcStat> ReadProcStat(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(fmt::format("/proc/{}/stat", pid), kProcFileLimit);
  if (!text.ok()) return text.status();
  const std::optional<ProcStat> stat = ParseProcStat(*text);
  if (!stat.has_value()) {
    return absl::InternalError(fmt::format("read /proc/{}/stat: not in the form that is known", pid));
  }
  return *stat;
}

}  // namespace berth::process_internal
