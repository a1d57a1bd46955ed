// Secrets for plugins: read from a file or standard input, never from the command line, where every user of
// the machine could read them; and hidden from what is shown afterwards.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

namespace berth::cli {

using Secrets = std::map<std::string, std::string>;

// `text` is a JSON object of strings, or lines of KEY=VALUE. Blank lines and lines that begin with '#' are
// ignored. The value is everything after the first '='. UsageError: its message has line numbers and keys,
// never values. Pure.
[[nodiscard]] absl::StatusOr<Secrets> ParseSecrets(std::string_view text);

// Reads `path` ("-": standard input). Sets `warning` where every user may read the file; it is read all the
// same. UsageError where it cannot be read or understood.
[[nodiscard]] absl::StatusOr<Secrets> ReadSecrets(const std::string& path, std::string* warning);

// A whole file, "-" being standard input, up to 4 MiB. UsageError where it cannot be read. `option` names it
// in messages.
[[nodiscard]] absl::StatusOr<std::string> ReadInput(const std::string& path, std::string_view option);

// `text` with every value of `secrets` in it replaced: a plugin may repeat them in its errors. Pure.
[[nodiscard]] std::string HideSecrets(std::string text, const Secrets& secrets);

}  // namespace berth::cli
