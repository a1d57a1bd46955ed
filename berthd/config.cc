#include "berthd/config.h"

#include <absl/strings/cord.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/duration_text.h"
#include "base/log.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "base/value_reader.h"
#include "rpc/convert.h"
#include "spec/permission_text.h"

namespace berth {
namespace {

constexpr size_t kNodeIdLimit = 192;       // CSI 1.12, NodeGetInfo: a node id holds 256 bytes
constexpr size_t kRuntimeNameLimit = 256;  // as berth.v1.RuntimeAbility
constexpr size_t kMostTraversers = 1000;   // an ACL of the kernel holds about 8,000 entries
constexpr size_t kSocketPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;

void Take(std::optional<std::string> given, std::string* setting) {
  if (given.has_value()) *setting = *std::move(given);
}

// The user or group of "user:NAME", "group:GID".
absl::StatusOr<AclEntry> ReadTraverser(const std::string& text) {
  constexpr std::string_view kUser = "user:";
  constexpr std::string_view kGroup = "group:";
  if (text.starts_with(kUser)) {
    BERTH_ASSIGN_OR_RETURN(const uint32_t id, UserId(text.substr(kUser.size())));
    return AclEntry{.kind = AclEntry::Kind::kUser, .id = id};
  }
  if (text.starts_with(kGroup)) {
    BERTH_ASSIGN_OR_RETURN(const uint32_t id, GroupId(text.substr(kGroup.size())));
    return AclEntry{.kind = AclEntry::Kind::kGroup, .id = id};
  }
  return absl::InvalidArgumentError("must be user:NAME, user:UID, group:NAME or group:GID");
}

void ReadTraverse(const toml::table& table, ValueReader& reader, std::set<AclEntry>* traverse) {
  const auto texts = reader.Strings(table, "volumes.", "traverse");
  if (!texts.has_value()) return;
  const toml::array& array = *table.get_as<toml::array>("traverse");
  if (texts->size() > kMostTraversers) {
    reader.Mistake(array, "volumes.traverse", fmt::format("has more than {} entries", kMostTraversers));
    return;
  }
  for (size_t i = 0; i < texts->size(); ++i) {
    const auto entry = ReadTraverser(texts->at(i));
    if (entry.ok()) {
      traverse->insert(*entry);
    } else {
      reader.Mistake(array[i], "volumes.traverse",
                     fmt::format("\"{}\": {}", Printable(texts->at(i), 64), MessageOf(entry.status())));
    }
  }
}

// A name, or a gid as a number or as a string of digits.
std::optional<GroupSetting> ReadGroup(const toml::table& table, ValueReader& reader, Right right) {
  const std::string_view key = GroupKey(right);
  const toml::node* node = table.get(key);
  if (node == nullptr) return std::nullopt;
  const std::string full = std::string("access.").append(key);
  GroupSetting setting{.group = "",
                       .where = fmt::format("{}:{}: {}", reader.path(), node->source().begin.line, full)};
  if (const auto number = node->value_exact<int64_t>()) {
    if (*number < 0 || *number >= UINT32_MAX) reader.Mistake(*node, full, "is not a gid");
    setting.group = std::to_string(*number);
  } else if (const auto name = reader.Text(*node, full)) {
    setting.group = *name;
  }
  return setting;
}

void ReadAccess(const toml::table& table, ValueReader& reader, AccessConfig* access) {
  constexpr std::string_view kPrefix = "access.";
  reader.CheckKeys(table, kPrefix, {"change_group", "read_group", "claim_group"});
  access->change = ReadGroup(table, reader, Right::kChange);
  access->read = ReadGroup(table, reader, Right::kRead);
  access->claim = ReadGroup(table, reader, Right::kClaim);
}

void ReadVolumes(const toml::table& table, ValueReader& reader, VolumeSettings* volumes) {
  constexpr std::string_view kPrefix = "volumes.";
  constexpr uint64_t kMostCalls = 1024;
  constexpr auto kShortest = std::chrono::seconds(1);
  reader.CheckKeys(table, kPrefix,
                   {"health_interval", "rpc_timeout", "calls_per_plugin", "shutdown_timeout", "traverse"});
  ReadTraverse(table, reader, &volumes->traverse);
  reader.ReadDuration(table, kPrefix, "health_interval", &volumes->health_interval,
                      ValueReader::Zero::kAllowed);
  reader.ReadDuration(table, kPrefix, "rpc_timeout", &volumes->rpc_timeout);
  reader.ReadDuration(table, kPrefix, "shutdown_timeout", &volumes->shutdown_timeout);
  reader.ReadWhole(table, kPrefix, "calls_per_plugin", &volumes->calls_per_plugin, 1, kMostCalls);
  const auto check = [&](std::string_view key, Duration value, std::string_view rule) {
    if (value >= kShortest) return;
    reader.Mistake(*table.get(key), std::string(kPrefix).append(key), rule);
  };
  if (volumes->health_interval > Duration::zero()) {
    check("health_interval", volumes->health_interval, "must be at least 1s, or 0s for never");
  }
  check("rpc_timeout", volumes->rpc_timeout, "must be at least 1s");
  check("shutdown_timeout", volumes->shutdown_timeout, "must be at least 1s");
}

// Each text of the array `key`; a mistake where there are more than `limit`.
template <class Take>
void ReadTexts(const toml::table& table, ValueReader& reader, std::string_view key, size_t limit, Take take) {
  constexpr std::string_view kPrefix = "scheduler.";
  const auto texts = reader.Strings(table, kPrefix, key);
  if (!texts.has_value()) return;
  const toml::array& array = *table.get_as<toml::array>(key);
  const std::string full = std::string(kPrefix).append(key);
  if (texts->size() > limit) reader.Mistake(array, full, fmt::format("has more than {} entries", limit));
  for (size_t i = 0; i < texts->size(); ++i) {
    const std::string mistake = take(texts->at(i));
    if (!mistake.empty()) reader.Mistake(array[i], full, mistake);
  }
}

// What is wrong with a name that a certificate is to hold; empty: nothing.
std::string MistakeInIdentity(const std::string& identity) {
  constexpr size_t kLimit = 2048;  // what a SPIFFE id may have at most
  if (identity.empty() || identity.size() > kLimit) return fmt::format("must have 1 to {} bytes", kLimit);
  const auto plain = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  if (!std::ranges::all_of(identity, plain)) {
    return fmt::format("\"{}\" must be plain ASCII without spaces", Printable(identity, 256));
  }
  if (identity.find('*') != std::string::npos) {
    return fmt::format("\"{}\" must be one name: there are no wildcards", identity);
  }
  return "";
}

void ReadTlsFiles(const toml::table& table, ValueReader& reader, TlsFiles* files) {
  const auto read = [&](std::string_view key, std::string* file) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const std::string full = std::string("scheduler.").append(key);
    const auto path = reader.Text(*node, full);
    if (!path.has_value()) return;
    if (!path->starts_with('/')) reader.Mistake(*node, full, "must be an absolute path");
    *file = *path;
  };
  read("ca", &files->ca);
  read("certificate", &files->certificate);
  read("key", &files->key);
  read("crl", &files->crl);
}

// What TLS needs must be there where TLS is spoken, and nowhere else.
void CheckScheduler(const toml::table& table, ValueReader& reader, const UplinkConfig& scheduler) {
  const auto is_unix = [](const UplinkAddress& address) { return address.is_unix(); };
  const toml::array* addresses = table.get_as<toml::array>("addresses");
  const bool none = !table.contains("addresses") || (addresses != nullptr && addresses->empty());
  // What is wrong with one of them has been said.
  if (!none && (addresses == nullptr || addresses->size() != scheduler.addresses.size())) return;
  if (none) {
    reader.Mistake(table, "scheduler.addresses", "must name at least one address of the scheduler");
    return;
  }
  const bool tls = !std::ranges::all_of(scheduler.addresses, is_unix);
  for (const std::string_view key : {"identities", "ca", "certificate", "key"}) {
    if (tls && !table.contains(key)) {
      reader.Mistake(table, std::string("scheduler.").append(key),
                     "is missing, and an address that is not a Unix socket needs it");
    }
  }
  if (table.contains("identities") && scheduler.identities.empty()) {
    reader.Mistake(*table.get("identities"), "scheduler.identities", "must name at least one");
  }
}

constexpr std::array<std::pair<std::string_view, v1::NodeState::Right>, 3> kSchedulerRights = {
    {{"volumes", v1::NodeState::VOLUMES},
     {"plugins", v1::NodeState::PLUGINS},
     {"node", v1::NodeState::NODE}}};

void ReadScheduler(const toml::table& table, ValueReader& reader, UplinkConfig* scheduler) {
  constexpr std::string_view kPrefix = "scheduler.";
  reader.CheckKeys(table, kPrefix,
                   {"addresses", "identities", "ca", "certificate", "key", "crl", "on_lease_expiry", "may"});
  ReadTexts(table, reader, "addresses", kUplinkAddresses, [&](const std::string& text) -> std::string {
    auto address = ParseUplinkAddress(text);
    if (!address.ok()) return std::string(MessageOf(address.status()));
    scheduler->addresses.push_back(*std::move(address));
    return "";
  });
  ReadTexts(table, reader, "identities", kUplinkIdentities, [&](const std::string& identity) {
    scheduler->identities.push_back(identity);
    return MistakeInIdentity(identity);
  });
  ReadTlsFiles(table, reader, &scheduler->files);
  reader.ReadChoice<v1::LeasePolicy>(table, kPrefix, "on_lease_expiry",
                                     {{"keep", v1::KEEP}, {"release", v1::RELEASE}},
                                     &scheduler->on_lease_expiry);
  if (table.contains("may")) scheduler->may.clear();
  ReadTexts(table, reader, "may", kSchedulerRights.size(), [&](const std::string& name) -> std::string {
    for (const auto& [known, right] : kSchedulerRights) {
      if (name != known) continue;
      scheduler->may.insert(right);
      return "";
    }
    return fmt::format("\"{}\" is not possible; there are \"volumes\", \"plugins\" and \"node\"",
                       Printable(name, 64));
  });
  CheckScheduler(table, reader, *scheduler);
}

RuntimeAbility ReadRuntime(const toml::table& table, ValueReader& reader) {
  constexpr std::string_view kPrefix = "runtime.";
  RuntimeAbility runtime;
  reader.CheckKeys(table, kPrefix, {"name", "mount", "block", "fs_types", "readonly"});
  if (const toml::node* name = table.get("name")) {
    const std::string text = reader.Text(*name, "runtime.name").value_or("");
    runtime.set_name(text);
    if (text.empty() || text.size() > kRuntimeNameLimit || Printable(text) != text) {
      reader.Mistake(*name, "runtime.name",
                     fmt::format("must be 1 to {} bytes of printable text", kRuntimeNameLimit));
    }
  } else {
    reader.Mistake(table, "runtime.name", "is missing: by it the runtime is asked for");
  }
  const auto ability = [&](const char* key) {
    bool able = true;
    reader.ReadBool(table, kPrefix, key, &able);
    return able;
  };
  runtime.set_mount(ability("mount"));
  runtime.set_block(ability("block"));
  runtime.set_readonly(ability("readonly"));
  const auto types = reader.Strings(table, kPrefix, "fs_types").value_or(std::vector<std::string>{});
  *runtime.mutable_fs_types() = {types.begin(), types.end()};
  for (const std::string& type : types) {
    const bool plain =
        std::all_of(type.begin(), type.end(), [](char c) { return c > ' ' && c < 0x7F && c != ','; });
    if (!type.empty() && plain) continue;
    reader.Mistake(*table.get("fs_types"), "runtime.fs_types",
                   fmt::format("\"{}\" is no type of a file system", Printable(type, 64)));
  }
  if (!runtime.mount() && !runtime.block()) {
    reader.Mistake(table, "runtime", "can use neither mount nor block, and so no volume at all");
  }
  return runtime;
}

void ReadRuntimes(const toml::node& node, ValueReader& reader, std::vector<RuntimeAbility>* runtimes) {
  const toml::array* tables = node.as_array();
  if (tables == nullptr || !tables->is_array_of_tables()) {
    reader.WrongType(node, "runtime", "a table for each runtime: [[runtime]]");
    return;
  }
  for (const toml::node& each : *tables) {
    RuntimeAbility runtime = ReadRuntime(*each.as_table(), reader);
    const bool again = std::ranges::count(*runtimes, runtime.name(), &RuntimeAbility::name) > 0;
    if (again && !runtime.name().empty()) {
      reader.Mistake(each, "runtime.name",
                     fmt::format("\"{}\" is the name of another one already", Printable(runtime.name(), 64)));
    }
    runtimes->push_back(std::move(runtime));
  }
}

absl::StatusOr<std::string> HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return ErrnoStatus(errno, "gethostname");
  return std::string(name);
}

// Every mistake of the whole, "key: text" each.
std::vector<std::string> Check(const BerthdConfig& config) {
  std::vector<std::string> mistakes;
  const auto check_directory = [&mistakes](std::string_view name, const std::string& path) {
    // Plugins get paths in protobuf, as text.
    if (!IsUtf8(path))
      mistakes.push_back(fmt::format("{}: \"{}\" is not valid UTF-8", name, Printable(path, 256)));
    if (path.starts_with('/')) return;
    mistakes.push_back(fmt::format("{}: \"{}\" must be an absolute path", name, Printable(path, 256)));
  };
  check_directory("config", config.config_dir);
  check_directory("state_dir", config.state_dir);
  check_directory("runtime_dir", config.runtime_dir);
  if (!IsUtf8(config.node_id)) {
    mistakes.push_back(fmt::format("node_id: \"{}\" is not valid UTF-8", Printable(config.node_id, 256)));
  } else if (config.node_id.empty() || config.node_id.size() > kNodeIdLimit ||
             Printable(config.node_id) != config.node_id) {
    mistakes.push_back(fmt::format("node_id: \"{}\" must be 1 to {} bytes of printable text",
                                   Printable(config.node_id, 256), kNodeIdLimit));
  }
  // The longest name of one.
  const std::string socket = config.runtime_dir + "/berthd-ro.sock";
  if (socket.size() > kSocketPathLimit) {
    mistakes.push_back(fmt::format(
        "runtime_dir: berthd's socket {} would have a path of {} bytes, and a Unix socket's holds {}", socket,
        socket.size(), kSocketPathLimit));
  }
  if (const absl::Status level = CheckLogLevel(config.log_level); !level.ok()) {
    mistakes.push_back(fmt::format("log_level: {}", MessageOf(level)));
  }
  return mistakes;
}

absl::Status MistakesIn(const std::string& file, const std::vector<std::string>& mistakes) {
  std::vector<std::string> lines;
  lines.reserve(mistakes.size());
  for (const std::string& mistake : mistakes) lines.push_back(WithLine(file, mistake));
  return absl::InvalidArgumentError(fmt::format("{}", fmt::join(lines, "\n")));
}

constexpr absl::string_view kConfigurationPayload = "berthd/configuration";

}  // namespace

absl::StatusOr<BerthdConfig> ParseBerthdConfig(const std::string& path, std::string_view content) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  ValueReader reader(path);
  BerthdConfig config;
  reader.CheckKeys(
      table, "",
      {"node_id", "state_dir", "runtime_dir", "log_level", "access", "volumes", "scheduler", "runtime"});
  Take(reader.String(table, "node_id"), &config.node_id);
  Take(reader.String(table, "state_dir"), &config.state_dir);
  Take(reader.String(table, "runtime_dir"), &config.runtime_dir);
  Take(reader.String(table, "log_level"), &config.log_level);
  if (const toml::table* access = reader.Table(table, "access")) {
    ReadAccess(*access, reader, &config.access);
  }
  if (const toml::table* volumes = reader.Table(table, "volumes")) {
    ReadVolumes(*volumes, reader, &config.volumes);
  }
  if (const toml::table* scheduler = reader.Table(table, "scheduler")) {
    ReadScheduler(*scheduler, reader, &config.scheduler);
  }
  if (const toml::node* runtimes = table.get("runtime")) {
    ReadRuntimes(*runtimes, reader, &config.runtimes);
  }
  BERTH_RETURN_IF_ERROR(reader.status());
  return config;
}

namespace {

std::string FileOf(const BerthdOptions& options) { return options.config_dir + "/berthd.toml"; }

// The file with `options` over it; not checked as a whole.
absl::StatusOr<BerthdConfig> ReadConfig(const BerthdOptions& options) {
  BerthdConfig config;
  const absl::StatusOr<std::string> content = ReadTrustedTomlFile(FileOf(options));
  if (content.ok()) {
    BERTH_ASSIGN_OR_RETURN(config, ParseBerthdConfig(FileOf(options), *content));
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
  return config;
}

}  // namespace

absl::StatusOr<BerthdConfig> LoadBerthdConfig(const BerthdOptions& options) {
  const auto load = [&options]() -> absl::StatusOr<BerthdConfig> {
    BERTH_ASSIGN_OR_RETURN(BerthdConfig config, ReadConfig(options));
    std::vector<std::string> mistakes = Check(config);
    absl::StatusOr<std::vector<SocketAccess>> sockets = PlanSockets(config.access, getuid(), &SystemGroup);
    for (const std::string& mistake : LinesOf(MessageOf(sockets.status()))) mistakes.push_back(mistake);
    if (!mistakes.empty()) return MistakesIn(FileOf(options), mistakes);
    config.sockets = *std::move(sockets);
    return config;
  };
  absl::StatusOr<BerthdConfig> config = load();
  const absl::Status& status = config.status();
  const bool for_good = absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status);
  if (for_good) return AsConfigurationError(status);
  return config;
}

std::string WithLine(const std::string& file, const std::string& mistake) {
  std::string_view text = mistake;
  if (text.starts_with(file + ": ")) text.remove_prefix(file.size() + 2);
  const std::string_view key = text.substr(0, text.find(": "));
  const bool plain =
      std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
  const absl::StatusOr<std::string> content = ReadTomlFile(file);
  if (!plain || !content.ok()) return mistake;
  const absl::StatusOr<toml::table> table = ParseToml(file, *content);
  if (!table.ok()) return mistake;
  const auto found = table->at_path(key);
  return found ? fmt::format("{}:{}: {}", file, found.node()->source().begin.line, text) : mistake;
}

absl::Status AsConfigurationError(absl::Status status) {
  status.SetPayload(kConfigurationPayload, absl::Cord());
  return status;
}

BerthdExit ExitOf(const absl::Status& failure) {
  if (failure.ok()) return BerthdExit::kDone;
  return failure.GetPayload(kConfigurationPayload).has_value() ? BerthdExit::kConfiguration
                                                               : BerthdExit::kFailed;
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
  if (now.scheduler != wanted.scheduler) {
    lines.push_back(fmt::format("{}/berthd.toml: scheduler: what has changed there takes a restart of berthd",
                                now.config_dir));
  }
  return lines;
}

}  // namespace berth
