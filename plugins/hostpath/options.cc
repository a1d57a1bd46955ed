#include "plugins/hostpath/options.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/safe_path.h"

namespace berth::hostpath {
namespace {

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsLower(c) || (c >= 'A' && c <= 'Z') || IsDigit(c); }

// Whether `text` has 1 to 63 characters, begins and ends with an alphanumeric one, and has only those and
// `between` inside.
bool IsName(std::string_view text, std::string_view between) {
  if (text.empty() || text.size() > 63) return false;
  if (!IsAlnum(text.front()) || !IsAlnum(text.back())) return false;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return IsAlnum(c) || between.find(c) != std::string_view::npos; });
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

absl::StatusOr<std::map<std::string, std::string>> ParseTopology(const std::vector<std::string>& segments) {
  std::map<std::string, std::string> topology;
  std::string prefix_of_all;
  for (const std::string& segment : segments) {
    const size_t equals = segment.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format("--topology {}: it must be KEY=VALUE", segment));
    }
    const std::string key = segment.substr(0, equals);
    const std::string value = segment.substr(equals + 1);
    if (absl::Status status = CheckTopologySegment(key, value); !status.ok()) return status;
    for (const auto& [other, unused] : topology) {
      if (Lower(other) == Lower(key)) {
        return absl::InvalidArgumentError(fmt::format("--topology {}: the key is given twice", key));
      }
    }
    const size_t slash = key.find('/');
    if (slash != std::string::npos) {
      const std::string prefix = key.substr(0, slash);
      if (!prefix_of_all.empty() && prefix != prefix_of_all) {
        return absl::InvalidArgumentError(fmt::format(
            "--topology {}: CSI wants one prefix for all keys, not {} and {}", key, prefix_of_all, prefix));
      }
      prefix_of_all = prefix;
    }
    topology[key] = value;
  }
  return topology;
}

}  // namespace

absl::StatusOr<std::string> SocketPath(std::string_view endpoint) {
  std::string_view path = endpoint;
  if (path.starts_with("unix:")) {
    path.remove_prefix(5);
    if (path.starts_with("//")) path.remove_prefix(2);
  } else if (!path.starts_with("/")) {
    return absl::InvalidArgumentError(
        fmt::format("endpoint \"{}\": it must be unix:///path, unix:/path or an absolute path", endpoint));
  }
  if (!path.starts_with("/") || path.ends_with("/")) {
    return absl::InvalidArgumentError(
        fmt::format("endpoint \"{}\": the socket's path must be absolute and name a file", endpoint));
  }
  constexpr size_t kLongest = sizeof(sockaddr_un{}.sun_path) - 1;
  if (path.size() > kLongest) {
    return absl::InvalidArgumentError(
        fmt::format("endpoint \"{}\": a Unix socket's path holds at most {} bytes, this has {}", endpoint,
                    kLongest, path.size()));
  }
  return std::string(path);
}

absl::Status CheckDriverName(std::string_view name) {
  if (IsName(name, "-.")) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "driver name \"{}\": at most 63 letters, digits, dashes and dots, a letter or digit at both ends",
      name));
}

absl::Status CheckTopologySegment(std::string_view key, std::string_view value) {
  std::string_view name = key;
  if (const size_t slash = key.find('/'); slash != std::string_view::npos) {
    const std::string_view prefix = key.substr(0, slash);
    name = key.substr(slash + 1);
    if (!IsName(prefix, "-.") || prefix != Lower(prefix)) {
      return absl::InvalidArgumentError(fmt::format(
          "topology key \"{}\": its prefix must be a lower-case domain name of at most 63 characters", key));
    }
  }
  if (!IsName(name, "-_.")) {
    return absl::InvalidArgumentError(fmt::format(
        "topology key \"{}\": its name must have at most 63 letters, digits, dashes, underscores and dots",
        key));
  }
  if (!IsName(value, "-_.")) {
    return absl::InvalidArgumentError(fmt::format(
        "topology value \"{}\" of {}: at most 63 letters, digits, dashes, underscores and dots, a "
        "letter or digit at both ends",
        value, key));
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> DefaultTopology(std::string_view driver_name, std::string_view node_id) {
  std::string prefix = Lower(fmt::format("topology.{}", driver_name));
  if (prefix.size() > 63) prefix = Lower(driver_name);
  const std::string value = IsName(node_id, "-_.") ? std::string(node_id) : HashComponent({node_id});
  return {{prefix + "/node", value}};
}

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine result;
  Options& options = result.options;
  std::string endpoint;
  std::string kind;
  std::vector<std::string> topology;
  uint64_t capacity = 0;

  CLI::App app{
      "berth-hostpath: a CSI plugin (1.12 and 1.13) for local disk. Volumes are directories, ext4 or xfs "
      "images on loop "
      "devices, or raw block devices, kept under one state directory.",
      "berth-hostpath"};
  app.set_version_flag("--version", "berth-hostpath " BERTH_VERSION);
  app.add_option("--endpoint", endpoint, "Where to serve CSI: unix:///PATH or /PATH")
      ->envname("CSI_ENDPOINT")
      ->required();
  app.add_option("--node-id", options.node_id, "What NodeGetInfo calls this node")->required();
  app.add_option("--state-dir", options.state_dir, "Where volumes, snapshots and the state database are kept")
      ->required();
  app.add_option("--driver-name", options.driver_name, "The plugin's name in CSI")->capture_default_str();
  app.add_option("--max-volumes", options.max_volumes,
                 "How many volumes this node may use at once; 0: any number")
      ->capture_default_str();
  app.add_option("--topology", topology, "A topology segment KEY=VALUE of this node; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--attach", options.attach,
               "Advertise PUBLISH_UNPUBLISH_VOLUME and demand ControllerPublishVolume before staging");
  app.add_flag("--health", options.health,
               "Advertise GET_VOLUME_HEALTH and GET_STORAGE_HEALTH of CSI 1.13, for callers that know them");
  app.add_option(
         "--capacity", capacity,
         "The pool's size, which the volumes and snapshots together may not exceed, in bytes or as 10GiB; "
         "without it each volume is held against the free space of the file system")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--kind", kind, "What a mounted volume is unless the request says so: directory or image")
      ->check(CLI::IsMember({"directory", "image"}));
  app.add_option("--log-level", options.log_level, "trace, debug, info, warning, error, critical or off")
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    result.exit_code = app.exit(error) == 0 ? 0 : 2;
    return result;
  }

  const auto refuse = [&](const absl::Status& status) {
    const absl::string_view message = status.message();
    fmt::print(stderr, "berth-hostpath: {}\n", std::string_view(message.data(), message.size()));
    result.exit_code = 2;
    return result;
  };
  const absl::StatusOr<std::string> socket = SocketPath(endpoint);
  if (!socket.ok()) return refuse(socket.status());
  options.socket_path = *socket;
  if (options.node_id.empty() || options.node_id.size() > 256) {
    return refuse(absl::InvalidArgumentError("--node-id must have 1 to 256 bytes"));
  }
  if (!options.state_dir.starts_with("/")) {
    return refuse(absl::InvalidArgumentError("--state-dir must be an absolute path"));
  }
  options.state_dir = std::filesystem::path(options.state_dir).lexically_normal().string();
  if (options.state_dir.size() > 1 && options.state_dir.ends_with("/")) options.state_dir.pop_back();
  if (const absl::Status status = CheckDriverName(options.driver_name); !status.ok()) return refuse(status);
  if (options.max_volumes < 0)
    return refuse(absl::InvalidArgumentError("--max-volumes must not be negative"));
  if (capacity > static_cast<uint64_t>(INT64_MAX)) {
    return refuse(absl::InvalidArgumentError("--capacity is beyond what CSI can say"));
  }
  options.capacity = static_cast<int64_t>(capacity);
  options.default_kind = ParseKind(kind);
  auto segments = ParseTopology(topology);
  if (!segments.ok()) return refuse(segments.status());
  options.topology =
      segments->empty() ? DefaultTopology(options.driver_name, options.node_id) : *std::move(segments);
  return result;
}

}  // namespace berth::hostpath
