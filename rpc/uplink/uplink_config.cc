#include "rpc/uplink/uplink_config.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>

#include "base/number_text.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr size_t kUnixPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;
constexpr size_t kHostLimit = 253;  // RFC 1035, section 2.3.4

absl::Status Wrong(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("\"{}\" {}", Printable(text, 256), why));
}

bool IsPort(std::string_view text) {
  uint16_t port = 0;
  return ParseNumber(text, &port) && port != 0;
}

// Of a name or an address; whether there is such a one is the resolver's to find out.
bool IsHost(std::string_view text, bool in_brackets) {
  const auto fits = [&](unsigned char c) {
    return isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || (in_brackets && (c == ':' || c == '%'));
  };
  return !text.empty() && text.size() <= kHostLimit && std::ranges::all_of(text, fits);
}

absl::StatusOr<UplinkAddress> ParseUnix(std::string_view text) {
  const std::string_view path = text.substr(kUnixPrefix.size());
  if (!path.starts_with('/')) return Wrong(text, "must name its socket by an absolute path: unix:/path");
  if (path.size() > kUnixPathLimit) {
    return Wrong(text, fmt::format("has a path of {} bytes, and a Unix socket's holds {}", path.size(),
                                   kUnixPathLimit));
  }
  return UplinkAddress{.text = std::string(text), .unix_path = std::string(path)};
}

}  // namespace

absl::StatusOr<UplinkAddress> ParseUplinkAddress(std::string_view text) {
  if (text.starts_with(kUnixPrefix)) return ParseUnix(text);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Wrong(text, "has no port: host:port, [v6]:port or unix:/path");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool in_brackets = host.starts_with('[') && host.ends_with(']');
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (!in_brackets && host.find(':') != std::string_view::npos) {
    return Wrong(text, "must have its IPv6 address in brackets: [v6]:port");
  }
  if (!IsHost(host, in_brackets)) return Wrong(text, "has no valid host: host:port, [v6]:port or unix:/path");
  if (!IsPort(port)) return Wrong(text, "has no valid port, from 1 to 65535");
  return UplinkAddress{.text = std::string(text), .host = std::string(host), .port = std::string(port)};
}

}  // namespace berth
