// What of a mount option may be a password: some drivers take them so (password=…, secret=…), and quote their
// options where a mount fails.
//
// Pure; any thread.
#pragma once

#include <string_view>
#include <vector>

namespace berth {

// Shorter values are not taken for secrets: "none", "true" and "1000" would be blotted out of every message.
inline constexpr size_t kMinSecretFlag = 6;

// The values of options in `flag` ("a=1,b=2" is two) that may be secrets: views into `flag`, without quotes
// around them. Left out are values below kMinSecretFlag bytes, and numbers, modes, types, hosts or paths of
// well-known options, so that errors stay readable.
[[nodiscard]] std::vector<std::string_view> SecretsInFlag(std::string_view flag);

}  // namespace berth
