#include "scheduler/config.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <set>

#include "base/duration_text.h"
#include "base/log.h"
#include "base/number_text.h"
#include "base/status.h"
#include "base/value_reader.h"

namespace berth::scheduler {
namespace {

constexpr size_t kClusterIdLimit = 128;
constexpr size_t kMostAddresses = 16;
constexpr size_t kSocketPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;
constexpr Duration kShortestHeartbeat = std::chrono::milliseconds(100);
constexpr Duration kLongestHeartbeat = std::chrono::seconds(60);
constexpr Duration kShortestLease = std::chrono::seconds(1);
constexpr Duration kLongestLease = std::chrono::hours(24);
// One heartbeat may be lost without an effect.
constexpr int kHeartbeatsPerLease = 2;

// Whether only this machine's own programs reach it.
bool IsLoopback(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24U == 127;
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

bool IsPlainText(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c != 0x7F; });
}

void ReadListen(const toml::table& table, ValueReader& reader, std::vector<std::string>* listen) {
  const auto texts = reader.Strings(table, "", "listen");
  if (!texts.has_value()) return;
  const toml::array& array = *table.get_as<toml::array>("listen");
  if (texts->empty()) reader.Mistake(array, "listen", "is empty: name at least one address");
  if (texts->size() > kMostAddresses)
    reader.Mistake(array, "listen", fmt::format("has more than {} addresses", kMostAddresses));
  std::set<std::string> seen;
  for (size_t i = 0; i < texts->size(); ++i) {
    const std::string& text = texts->at(i);
    if (const std::string mistake = MistakeInAddress(text); !mistake.empty())
      reader.Mistake(array[i], "listen", fmt::format("\"{}\": {}", Printable(text, 256), mistake));
    if (!seen.insert(text).second)
      reader.Mistake(array[i], "listen", fmt::format("\"{}\" is there twice", Printable(text, 256)));
  }
  *listen = *texts;
}

void ReadLease(const toml::table& table, ValueReader& reader, LeaseSettings* lease) {
  constexpr std::string_view kPrefix = "lease.";
  reader.CheckKeys(table, kPrefix, {"heartbeat_interval", "duration"});
  reader.ReadDuration(table, kPrefix, "heartbeat_interval", &lease->heartbeat_interval);
  reader.ReadDuration(table, kPrefix, "duration", &lease->duration);
  const auto check = [&](std::string_view key, Duration value, Duration least, Duration most) {
    if (value >= least && value <= most) return;
    reader.Mistake(*table.get(key), std::string(kPrefix).append(key),
                   fmt::format("must be {} to {}", FormatDuration(least), FormatDuration(most)));
  };
  check("heartbeat_interval", lease->heartbeat_interval, kShortestHeartbeat, kLongestHeartbeat);
  check("duration", lease->duration, kShortestLease, kLongestLease);
  if (lease->duration < kHeartbeatsPerLease * lease->heartbeat_interval) {
    reader.Mistake(
        table, "lease.duration",
        fmt::format("{} must be at least {} times heartbeat_interval, {}", FormatDuration(lease->duration),
                    kHeartbeatsPerLease, FormatDuration(lease->heartbeat_interval)));
  }
}

}  // namespace

std::string MistakeInAddress(std::string_view address) {
  constexpr std::string_view kUnix = "unix:";
  if (address.starts_with(kUnix)) {
    const std::string_view path = address.substr(kUnix.size());
    if (!path.starts_with('/')) return "the path after \"unix:\" must be absolute";
    if (path.size() > kSocketPathLimit)
      return fmt::format("a socket's path has at most {} bytes", kSocketPathLimit);
    return {};
  }
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  if (colon == std::string_view::npos || !ParseNumber(address.substr(colon + 1), &port) || port == 0)
    return "must be \"unix:/path\", or \"127.0.0.1:PORT\" or \"[::1]:PORT\" with a port of 1 to 65535";
  std::string host(address.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (IsLoopback(host)) return {};
  return "must be an address of this machine alone (127.0.0.1 or [::1]) or a Unix socket: there is no access "
         "control yet, and every client may take volumes, and end anybody's use of one";
}

absl::StatusOr<Config> ParseConfig(const std::string& path, std::string_view content) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  ValueReader reader(path);
  Config config;
  const auto take = [&](std::string_view key, std::string* value) {
    if (auto text = reader.String(table, key)) *value = *std::move(text);
  };
  reader.CheckKeys(table, "", {"cluster_id", "state_dir", "listen", "log_level", "lease"});
  take("cluster_id", &config.cluster_id);
  take("state_dir", &config.state_dir);
  take("log_level", &config.log_level);
  ReadListen(table, reader, &config.listen);
  if (const toml::table* lease = reader.Table(table, "lease")) ReadLease(*lease, reader, &config.lease);
  if (!table.contains("cluster_id")) {
    reader.Mistake(
        table, "cluster_id",
        "is missing: name the cluster, and never change that: nodes stay with the one that they met "
        "first");
  } else if (config.cluster_id.empty() || config.cluster_id.size() > kClusterIdLimit ||
             !IsPlainText(config.cluster_id)) {
    reader.Mistake(*table.get("cluster_id"), "cluster_id",
                   fmt::format("must be 1 to {} bytes, without blanks", kClusterIdLimit));
  }
  BERTH_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<Config> LoadConfig(const Options& options) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTrustedTomlFile(options.config_file));
  BERTH_ASSIGN_OR_RETURN(Config config, ParseConfig(options.config_file, content));
  if (options.state_dir.has_value()) config.state_dir = *options.state_dir;
  if (options.log_level.has_value()) config.log_level = *options.log_level;
  const auto mistake = [&options](std::string_view key, std::string_view text) {
    return absl::InvalidArgumentError(fmt::format("{}: {}: {}", options.config_file, key, text));
  };
  if (!config.state_dir.starts_with('/')) {
    return mistake("state_dir", fmt::format("\"{}\" is not an absolute path", Printable(config.state_dir)));
  }
  if (const absl::Status level = CheckLogLevel(config.log_level); !level.ok())
    return mistake("log_level", MessageOf(level));
  return config;
}

Exit ExitOf(const absl::Status& loaded) {
  if (loaded.ok()) return Exit::kDone;
  const bool for_good =
      absl::IsInvalidArgument(loaded) || absl::IsPermissionDenied(loaded) || absl::IsNotFound(loaded);
  return for_good ? Exit::kConfiguration : Exit::kFailed;
}

}  // namespace berth::scheduler
