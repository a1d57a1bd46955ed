#include "mounts/target_not_empty.h"

#include <fmt/format.h>

#include "base/shell_quoted.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kNameShown = 64;

}  // namespace

absl::Status TargetNotEmpty(const std::string& directory, const std::string& destination,
                            const std::vector<std::string>& names, size_t more) {
  std::string list;
  for (const std::string& name : names) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", Printable(name, kNameShown));
  }
  if (more > 0) list += list.empty() ? fmt::format("{} or more", more) : fmt::format(" and {} more", more);
  return absl::FailedPreconditionError(fmt::format(
      "{} holds files that do not belong to the volume ({}), and the volume is not mounted over them. "
      "Move them away: mv -T {} {} ; then publish it again (what is declared is mounted by itself, within a "
      "minute "
      "or two)",
      Printable(directory), list, ShellQuoted(directory), ShellQuoted(destination)));
}

}  // namespace berth
