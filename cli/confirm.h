// Asking a person before something that cannot be taken back.
//
// Its command's thread only.
#pragma once

#include <absl/status/status.h>

#include <string_view>

namespace berth::cli {

// Shows `warning` and waits for a yes where both standard input and standard error are terminals; elsewhere a
// script has asked for it in so many words, and it is only shown. `yes` (the option --yes) asks nothing.
// CANCELLED where the answer is another one.
[[nodiscard]] absl::Status Confirm(std::string_view warning, bool yes);

}  // namespace berth::cli
