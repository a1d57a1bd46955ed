#include "supervisor/expansion.h"

#include <fmt/format.h>

#include "base/status.h"

namespace berth {
namespace {

std::string Names(const Variables& variables) {
  std::string names;
  for (const auto& [name, value] : variables) {
    names += fmt::format("{}${{{}}}", names.empty() ? "" : ", ", name);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> Expand(std::string_view text, const Variables& variables) {
  std::string result;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar + 1);
    if (text.starts_with('$')) {
      result += '$';
      text.remove_prefix(1);
    } else if (text.starts_with('{')) {
      const size_t end = text.find('}');
      if (end == std::string_view::npos) {
        return absl::InvalidArgumentError(
            fmt::format("\"${}\" has no closing brace (a $ itself is written $$)", Printable(text, 64)));
      }
      const std::string_view name = text.substr(1, end - 1);
      const auto variable = variables.find(name);
      if (variable == variables.end()) {
        return absl::InvalidArgumentError(
            fmt::format("unknown variable ${{{}}}; there are {} (a $ itself is written $$)",
                        Printable(name, 64), Names(variables)));
      }
      result += variable->second;
      text.remove_prefix(end + 1);
    } else {
      result += '$';
    }
  }
  return result;
}

}  // namespace berth
