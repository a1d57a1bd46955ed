// Quotes text from outside for a command that a person may run. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace berth {

// One argument of a POSIX shell: unquoted if it has no special character, else in single quotes.
[[nodiscard]] std::string ShellQuoted(std::string_view text);

}  // namespace berth
