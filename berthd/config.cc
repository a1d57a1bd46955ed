#include "berthd/config.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"
#include "supervisor/duration_text.h"
#include "supervisor/value_reader.h"

namespace berth {
namespace {

constexpr size_t kNodeIdLimit = 192;  // CSI 1.12, NodeGetInfo: a node id holds 256 bytes
constexpr size_t kSocketPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;

void Take(std::optional<std::string> given, std::string* setting) {
  if (given.has_value()) *setting = *std::move(given);
}

void ReadVolumes(const toml::table& table, ValueReader& reader, VolumeSettings* volumes) {
  constexpr std::string_view kPrefix = "volumes.";
  constexpr uint64_t kMostCalls = 1024;
  constexpr auto kShortest = std::chrono::seconds(1);
  reader.CheckKeys(table, kPrefix, {"health_interval", "rpc_timeout", "calls_per_plugin"});
  reader.ReadDuration(table, kPrefix, "health_interval", &volumes->health_interval,
                      ValueReader::Zero::kAllowed);
  reader.ReadDuration(table, kPrefix, "rpc_timeout", &volumes->rpc_timeout);
  reader.ReadWhole(table, kPrefix, "calls_per_plugin", &volumes->calls_per_plugin, 1, kMostCalls);
  const auto check = [&](std::string_view key, Duration value, std::string_view rule) {
    if (value >= kShortest) return;
    reader.Mistake(*table.get(key), std::string(kPrefix).append(key), rule);
  };
  if (volumes->health_interval > Duration::zero()) {
    check("health_interval", volumes->health_interval, "must be at least 1s, or 0s for never");
  }
  check("rpc_timeout", volumes->rpc_timeout, "must be at least 1s");
}

absl::Status CheckDirectory(std::string_view name, const std::string& path) {
  if (path.starts_with('/')) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: \"{}\" must be an absolute path", name, Printable(path, 256)));
}

absl::StatusOr<std::string> HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return ErrnoStatus(errno, "gethostname");
  return std::string(name);
}

absl::Status Check(const BerthdConfig& config) {
  BERTH_RETURN_IF_ERROR(CheckDirectory("config", config.config_dir));
  BERTH_RETURN_IF_ERROR(CheckDirectory("state_dir", config.state_dir));
  BERTH_RETURN_IF_ERROR(CheckDirectory("runtime_dir", config.runtime_dir));
  if (config.node_id.empty() || config.node_id.size() > kNodeIdLimit ||
      Printable(config.node_id) != config.node_id) {
    return absl::InvalidArgumentError(fmt::format("node_id: \"{}\" must be 1 to {} bytes of printable text",
                                                  Printable(config.node_id, 256), kNodeIdLimit));
  }
  const std::string socket = config.runtime_dir + "/berthd.sock";
  if (socket.size() > kSocketPathLimit) {
    return absl::InvalidArgumentError(fmt::format(
        "runtime_dir: berthd's socket {} would have a path of {} bytes, and a Unix socket's holds {}", socket,
        socket.size(), kSocketPathLimit));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BerthdConfig> ParseBerthdConfig(const std::string& path, std::string_view content) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  ValueReader reader(path);
  BerthdConfig config;
  reader.CheckKeys(table, "", {"node_id", "state_dir", "runtime_dir", "log_level", "access", "volumes"});
  Take(reader.String(table, "node_id"), &config.node_id);
  Take(reader.String(table, "state_dir"), &config.state_dir);
  Take(reader.String(table, "runtime_dir"), &config.runtime_dir);
  Take(reader.String(table, "log_level"), &config.log_level);
  if (const toml::table* access = reader.Table(table, "access")) {
    reader.CheckKeys(*access, "access.", {"readers", "changers"});
    config.access.readers = reader.Strings(*access, "access.", "readers");
    config.access.changers = reader.Strings(*access, "access.", "changers");
  }
  if (const toml::table* volumes = reader.Table(table, "volumes")) {
    ReadVolumes(*volumes, reader, &config.volumes);
  }
  BERTH_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<BerthdConfig> LoadBerthdConfig(const BerthdOptions& options) {
  const std::string path = options.config_dir + "/berthd.toml";
  BerthdConfig config;
  const absl::StatusOr<std::string> content = ReadTomlFile(path);
  if (content.ok()) {
    BERTH_ASSIGN_OR_RETURN(config, ParseBerthdConfig(path, *content));
  } else if (!absl::IsNotFound(content.status())) {
    return content.status();
  }
  config.config_dir = options.config_dir;
  Take(options.state_dir, &config.state_dir);
  Take(options.runtime_dir, &config.runtime_dir);
  Take(options.node_id, &config.node_id);
  Take(options.log_level, &config.log_level);
  config.allow_private_mounts = options.allow_private_mounts;
  if (config.node_id.empty()) {
    BERTH_ASSIGN_OR_RETURN(config.node_id, HostName());
  }
  BERTH_RETURN_IF_ERROR(Check(config));
  return config;
}

std::vector<std::string> NeedsRestart(const BerthdConfig& now, const BerthdConfig& wanted) {
  std::vector<std::string> lines;
  const auto compare = [&](std::string_view key, const std::string& is, const std::string& asked) {
    if (is == asked) return;
    lines.push_back(fmt::format("{}/berthd.toml: {}: \"{}\" takes a restart of berthd; it runs with \"{}\"",
                                now.config_dir, key, Printable(asked, 256), Printable(is, 256)));
  };
  compare("node_id", now.node_id, wanted.node_id);
  compare("state_dir", now.state_dir, wanted.state_dir);
  compare("runtime_dir", now.runtime_dir, wanted.runtime_dir);
  compare("volumes.health_interval", FormatDuration(now.volumes.health_interval),
          FormatDuration(wanted.volumes.health_interval));
  compare("volumes.rpc_timeout", FormatDuration(now.volumes.rpc_timeout),
          FormatDuration(wanted.volumes.rpc_timeout));
  compare("volumes.calls_per_plugin", std::to_string(now.volumes.calls_per_plugin),
          std::to_string(wanted.volumes.calls_per_plugin));
  return lines;
}

}  // namespace berth
