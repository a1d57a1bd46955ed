// Text from outside as a word of a command that a person may run. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace berth {

// One word of a POSIX shell: as it is where nothing in it means something to a shell, else in single quotes.
[[nodiscard]] std::string ShellQuoted(std::string_view text);

}  // namespace berth
