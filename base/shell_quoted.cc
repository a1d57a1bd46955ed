#include "base/shell_quoted.h"

#include <algorithm>

namespace berth {
namespace {

bool IsSafeInShell(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  // A '~' is expanded in some places, '%' and the others in none.
  return letter || std::string_view("@%+=:,./_-").find(c) != std::string_view::npos;
}

}  // namespace

std::string ShellQuoted(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsSafeInShell)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += R"('\'')";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace berth
