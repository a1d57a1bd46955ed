// Secrets for plugins as people and programs keep them in files: the text, without where it comes from.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

namespace berth {

// The form of such a text, in a sentence for people who got it wrong.
inline constexpr std::string_view kSecretsTextForms =
    R"(It holds a JSON object of strings, {"user": "…"}, or lines of KEY=VALUE)";

// `text` is a JSON object of strings, or lines of KEY=VALUE, without blank lines and lines that begin with
// '#'. The value is all that follows the first '='. INVALID_ARGUMENT, which shows nothing of the text but
// line numbers and, of a JSON object, keys.
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> ParseSecretsText(std::string_view text);

}  // namespace berth
