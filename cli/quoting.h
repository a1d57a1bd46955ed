// Text from outside in the grammars of other programs: a wrong quote mounts the wrong thing.
//
// Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/shell_quoted.h"

namespace berth::cli {

// One field of a line of comma-separated values (RFC 4180): in double quotes where it has to be.
[[nodiscard]] std::string CsvField(std::string_view text);

// With a backslash before every character of `special`, and before backslashes.
[[nodiscard]] std::string BackslashEscaped(std::string_view text, std::string_view special);

// Line ends, tabs, NUL and the like.
[[nodiscard]] bool HasControlCharacter(std::string_view text);

}  // namespace berth::cli
