#include "mounter/files_in_the_way.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kNameShown = 64;

bool IsPlain(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return letter || (c >= '0' && c <= '9') || std::string_view("/._-+=:,@%").find(c) != std::string_view::npos;
}

}  // namespace

std::string ShellQuoted(std::string_view text) {
  if (!text.empty() && std::ranges::all_of(text, IsPlain)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

absl::Status FilesInTheWay(const std::string& directory, const std::string& destination,
                           const std::vector<std::string>& names, size_t more) {
  std::string list;
  for (const std::string& name : names) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", Printable(name, kNameShown));
  }
  if (more > 0) list += list.empty() ? fmt::format("{} or more", more) : fmt::format(" and {} more", more);
  return absl::FailedPreconditionError(fmt::format(
      "{} holds files that do not belong to the volume ({}), and the volume is not mounted over them. "
      "Move them away: mv -T {} {} ; the volume is then mounted by itself, within a minute or two",
      Printable(directory), list, ShellQuoted(directory), ShellQuoted(destination)));
}

}  // namespace berth
