#include "rpc/page_token.h"

#include <absl/strings/escaping.h>

#include <optional>
#include <string_view>

#include "base/number_text.h"
#include "request/request_check.h"

namespace berth {
namespace {

// The version of this form of token, so that another form can be recognised.
constexpr std::string_view kForm = "v1.";
constexpr size_t kTokenLimit =
    kForm.size() + 1 + (2 * (RequestLimits::kPluginName + RequestLimits::kVolumeId));

// A text of hexadecimal digits as bytes; unset if it is not one.
std::optional<std::string> FromHex(std::string_view digits) {
  const bool valid =
      digits.size() % 2 == 0 && digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!valid) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    unsigned char byte = 0;
    if (!ParseNumber(digits.substr(i, 2), &byte, 16)) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace

std::string PageTokenAfter(const VolumeName& last) {
  return std::string(kForm) + absl::BytesToHexString(last.first) + "." + absl::BytesToHexString(last.second);
}

absl::StatusOr<VolumeName> ReadPageToken(const std::string& token) {
  std::string_view rest = token;
  const size_t dot = rest.find('.', kForm.size());
  if (token.size() <= kTokenLimit && rest.starts_with(kForm) && dot != std::string_view::npos) {
    const auto plugin = FromHex(rest.substr(kForm.size(), dot - kForm.size()));
    const auto volume = FromHex(rest.substr(dot + 1));
    if (plugin && volume) return VolumeName(*plugin, *volume);
  }
  return absl::InvalidArgumentError(
      "page_token: not one that this node gave; begin again without it for the first page");
}

}  // namespace berth
