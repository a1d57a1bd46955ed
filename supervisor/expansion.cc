#include "supervisor/expansion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

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

// The name in Kubernetes' way of writing a variable, "(NAME)", at the start of a text. Empty: that is
// something else, such as a command in a shell's words.
std::string_view KubernetesName(std::string_view text) {
  const size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) return {};
  const std::string_view name = text.substr(1, end - 1);
  const auto of_a_variable = [](unsigned char c) {
    return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
  };
  return std::ranges::all_of(name, of_a_variable) ? name : std::string_view();
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
    } else if (const std::string_view name = KubernetesName(text); !name.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "$({0}) is Kubernetes' way of writing it: Berth writes ${{{0}}}, and has {1} (a $ itself is "
          "written $$)",
          Printable(name, 64), Names(variables)));
    } else {
      result += '$';
    }
  }
  return result;
}

}  // namespace berth
