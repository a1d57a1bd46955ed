// Secrets for plugins as people and programs keep them in files: the text, without where it comes from.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

namespace berth {

// How such a text looks, in a sentence for people whose own is wrong.
inline constexpr std::string_view kSecretsTextForms =
    R"(It holds a JSON object of strings, {"user": "…"}, or lines of KEY=VALUE)";

// `text` is a JSON object whose values are strings, or lines of KEY=VALUE, with blank lines and lines that
// begin with '#' left out. The value is all that follows the first '='. INVALID_ARGUMENT, which shows nothing
// of the text but line numbers and, of a JSON object, keys.
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> ParseSecretsText(std::string_view text);

}  // namespace berth
