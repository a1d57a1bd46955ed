#include "supervisor/plugin_file_sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "base/duration_text.h"
#include "base/number_text.h"
#include "base/status.h"
#include "supervisor/kernel_names.h"

namespace berth {
namespace {

constexpr uint64_t kKibi = 1024;
constexpr uint64_t kLeastLine = 256;
constexpr uint64_t kLeastKept = 4 * kKibi;
constexpr uint64_t kLeastUnread = kKibi * kKibi;
constexpr uint64_t kMostLines = 1'000'000'000;
constexpr uint64_t kMostPids = uint64_t{1} << 22U;  // the kernel's own PID_MAX_LIMIT
constexpr double kLeastCpus = 0.01;
constexpr double kMostCpus = 8192;
constexpr size_t kMostTokenText = 1024;
constexpr unsigned kMostUmask = 0777;
constexpr uint64_t kSysAdmin = uint64_t{1} << static_cast<unsigned>(CAP_SYS_ADMIN);

constexpr std::initializer_list<std::string_view> kRlimitKeys = {
    "as",   "core",   "cpu",   "data", "fsize",  "locks",  "memlock",    "msgqueue",
    "nice", "nofile", "nproc", "rss",  "rtprio", "rttime", "sigpending", "stack"};

// A limit's number: a count, a size where the resource has bytes, or "unlimited".
std::optional<uint64_t> ReadLimit(ValueReader& reader, const toml::node& node, std::string_view key,
                                  const ResourceName& resource) {
  const bool bytes = resource.unit == LimitUnit::kBytes;
  const std::string right = bytes ? fmt::format("{}, or \"unlimited\"", ValueReader::kSizeForm)
                                  : "a whole number, or \"unlimited\"";
  if (const toml::value<std::string>* text = node.as_string(); text != nullptr && **text == "unlimited") {
    return RLIM_INFINITY;
  }
  if (!node.is_integer() && !node.is_string()) {
    reader.WrongType(node, key, fmt::format("{}, or {{ soft = …, hard = … }} of them", right));
    return std::nullopt;
  }
  const std::optional<uint64_t> value =
      node.is_integer() || bytes ? ValueReader::SizeOf(node) : std::optional<uint64_t>();
  if (!value.has_value()) reader.Mistake(node, key, fmt::format("must be {}", right));
  return value;
}

std::optional<ResourceLimit> ReadRlimit(ValueReader& reader, const toml::node& node, const std::string& key,
                                        const ResourceName& resource) {
  const toml::table* both = node.as_table();
  if (both == nullptr) {
    const std::optional<uint64_t> value = ReadLimit(reader, node, key, resource);
    if (!value.has_value()) return std::nullopt;
    return ResourceLimit{.resource = resource.resource, .soft = *value, .hard = *value};
  }
  reader.CheckKeys(*both, key + ".", {"soft", "hard"});
  const toml::node* soft = both->get("soft");
  const toml::node* hard = both->get("hard");
  if (soft == nullptr || hard == nullptr) {
    reader.Mistake(node, key, "must have both soft and hard");
    return std::nullopt;
  }
  const std::optional<uint64_t> soft_value = ReadLimit(reader, *soft, key + ".soft", resource);
  const std::optional<uint64_t> hard_value = ReadLimit(reader, *hard, key + ".hard", resource);
  if (!soft_value.has_value() || !hard_value.has_value()) return std::nullopt;
  if (*soft_value > *hard_value) {
    reader.Mistake(*soft, key + ".soft", "is above the hard limit");
    return std::nullopt;
  }
  return ResourceLimit{.resource = resource.resource, .soft = *soft_value, .hard = *hard_value};
}

// A user's or group's name, or its number.
std::optional<std::string> ReadName(ValueReader& reader, const toml::node& node, std::string_view key) {
  if (const toml::value<int64_t>* number = node.as_integer()) {
    // The greatest number stands for "no change" in the kernel's calls.
    if (**number >= 0 && **number < std::numeric_limits<uint32_t>::max()) return std::to_string(**number);
    reader.Mistake(node, key, fmt::format("{} is no user's or group's number", **number));
    return std::nullopt;
  }
  std::optional<std::string> name = reader.Text(node, key);
  if (name.has_value() && name->empty()) {
    reader.Mistake(node, key, "must not be empty");
    return std::nullopt;
  }
  return name;
}

std::optional<uint64_t> ReadCapabilities(ValueReader& reader, const toml::table& file, std::string_view key) {
  const std::optional<std::vector<std::string>> names = reader.Strings(file, "", key);
  if (!names.has_value()) return std::nullopt;
  const toml::node& node = *file.get(key);
  uint64_t mask = 0;
  for (const std::string& name : *names) {
    const std::optional<int> number = CapabilityNumber(name);
    if (!number.has_value()) {
      reader.Mistake(node, key,
                     fmt::format("\"{}\" is no capability; they are called like \"CAP_SYS_ADMIN\" or "
                                 "\"cap_sys_admin\" (capabilities(7))",
                                 Printable(name, 64)));
    } else if (*number > LastCapability()) {
      reader.Mistake(node, key,
                     fmt::format("the running kernel has no {}; its last is {}", CapabilityName(*number),
                                 CapabilityName(LastCapability())));
    } else {
      mask |= uint64_t{1} << static_cast<unsigned>(*number);
    }
  }
  return mask;
}

std::string CapabilityNames(uint64_t mask) {
  std::vector<std::string> names;
  for (int number = 0; number <= LastCapability(); ++number) {
    if ((mask >> static_cast<unsigned>(number) & 1U) != 0) names.push_back(CapabilityName(number));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void ReadUmask(ValueReader& reader, const toml::node& node, unsigned* umask) {
  constexpr std::string_view kRight = "an octal number in quotes, from \"0000\" to \"0777\": \"0022\"";
  if (!node.is_string()) return reader.WrongType(node, "umask", kRight);
  const std::string& text = **node.as_string();
  unsigned value = 0;
  if (!ParseNumber(text, &value, 8) || value > kMostUmask) {
    return reader.Mistake(node, "umask", fmt::format("must be {}", kRight));
  }
  *umask = value;
}

// The specification requires CAP_SYS_ADMIN for a node plugin.
void CheckCanMount(ValueReader& reader, const toml::table& file, PluginKind kind,
                   const PluginUserConfig& user) {
  const uint64_t bounding = user.capability_bounding_set.value_or(~uint64_t{0});
  if (const uint64_t beyond = user.ambient_capabilities & ~bounding; beyond != 0) {
    reader.Mistake(*file.get("ambient_capabilities"), "ambient_capabilities",
                   fmt::format("{} must be in capability_bounding_set too", CapabilityNames(beyond)));
  }
  if (kind == PluginKind::kController) return;
  const std::string why =
      fmt::format("a plugin of kind \"{}\" mounts volumes and needs CAP_SYS_ADMIN", PluginKindName(kind));
  if ((bounding & kSysAdmin) == 0) {
    reader.Mistake(*file.get("capability_bounding_set"), "capability_bounding_set",
                   fmt::format("{}, which this set takes away: add it", why));
  }
  const bool root = user.user.empty() || user.user == "root" || user.user == "0";
  if (!root && (user.ambient_capabilities & kSysAdmin) == 0) {
    reader.Mistake(*file.get("user"), "user",
                   fmt::format("{}, which user {} does not have: add ambient_capabilities = "
                               "[\"CAP_SYS_ADMIN\"]",
                               why, Printable(user.user, 64)));
  }
}

// A text that must be there; empty where it is not, or is a mistake.
std::string ReadTokenText(ValueReader& reader, const toml::table& table, std::string_view key,
                          std::string_view meaning) {
  const std::string full = fmt::format("token.{}", key);
  const toml::node* node = table.get(key);
  if (node == nullptr) {
    reader.Mistake(table, full, fmt::format("is missing: {}", meaning));
    return {};
  }
  std::string text = reader.Text(*node, full).value_or("");
  if (node->is_string() && (text.empty() || text.size() > kMostTokenText || Printable(text) != text)) {
    reader.Mistake(*node, full, fmt::format("must be 1 to {} bytes of printable text", kMostTokenText));
    return {};
  }
  return text;
}

WantedToken ReadToken(ValueReader& reader, const toml::table& table) {
  WantedToken token;
  reader.CheckKeys(table, "token.", {"audience", "name", "form", "in", "republish"});
  token.audience = ReadTokenText(reader, table, "audience", "the audience of the token");
  reader.ReadChoice<bool>(table, "token.", "form", {{"plain", false}, {"kubernetes", true}},
                          &token.kubernetes);
  if (token.kubernetes) {
    token.name = kKubernetesTokens;
    if (const toml::node* name = table.get("name")) {
      reader.Mistake(*name, "token.name", "not with form = \"kubernetes\", which has a name of its own");
    }
  } else {
    token.name = ReadTokenText(reader, table, "name", "the key under which the plugin gets it");
  }
  reader.ReadChoice<WantedToken::Place>(
      table, "token.", "in",
      {{"secrets", WantedToken::Place::kSecrets}, {"volume_context", WantedToken::Place::kVolumeContext}},
      &token.place);
  reader.ReadBool(table, "token.", "republish", &token.republish);
  return token;
}

}  // namespace

void ReadHealth(ValueReader& reader, const toml::table& health, bool external, HealthConfig* config) {
  constexpr std::string_view kPrefix = "health.";
  reader.CheckKeys(health, kPrefix,
                   {"interval", "timeout", "failures", "fingerprint_interval", "replace_after",
                    "replace_burst", "replace_window", "restart_after_hung_call"});
  reader.ReadDuration(health, kPrefix, "interval", &config->interval);
  reader.ReadDuration(health, kPrefix, "timeout", &config->timeout);
  reader.ReadCount(health, kPrefix, "failures", &config->failures);
  reader.ReadDuration(health, kPrefix, "fingerprint_interval", &config->fingerprint_interval);
  if (external) {
    for (const std::string_view key :
         {"replace_after", "replace_burst", "replace_window", "restart_after_hung_call"}) {
      const toml::node* node = health.get(key);
      if (node == nullptr) continue;
      reader.Mistake(*node, fmt::format("{}{}", kPrefix, key),
                     "not with socket: berthd does not replace a plugin that it does not run");
    }
    return;
  }
  reader.ReadDuration(health, kPrefix, "replace_after", &config->replace_after, ValueReader::Zero::kAllowed);
  reader.ReadCount(health, kPrefix, "replace_burst", &config->replace_burst);
  reader.ReadDuration(health, kPrefix, "replace_window", &config->replace_window);
  reader.ReadDuration(health, kPrefix, "restart_after_hung_call", &config->restart_after_hung_call,
                      ValueReader::Zero::kAllowed);
}

void ReadRestart(ValueReader& reader, const toml::table& restart, RestartLimits* limits) {
  constexpr std::string_view kPrefix = "restart.";
  reader.CheckKeys(restart, kPrefix,
                   {"policy", "initial_backoff", "max_backoff", "burst", "window", "stable_after"});
  reader.ReadChoice<RestartMode>(restart, kPrefix, "policy",
                                 {{"always", RestartMode::kAlways},
                                  {"on-failure", RestartMode::kOnFailure},
                                  {"never", RestartMode::kNever}},
                                 &limits->mode);
  reader.ReadDuration(restart, kPrefix, "initial_backoff", &limits->initial_backoff);
  reader.ReadDuration(restart, kPrefix, "max_backoff", &limits->max_backoff);
  reader.ReadCount(restart, kPrefix, "burst", &limits->burst);
  reader.ReadDuration(restart, kPrefix, "window", &limits->window);
  reader.ReadDuration(restart, kPrefix, "stable_after", &limits->stable_after);
  if (limits->initial_backoff <= limits->max_backoff) return;
  const toml::node* node = restart.get("initial_backoff");
  reader.Mistake(node == nullptr ? restart : *node, "restart.initial_backoff",
                 fmt::format("{} is above restart.max_backoff, {}", FormatDuration(limits->initial_backoff),
                             FormatDuration(limits->max_backoff)));
}

void ReadLimits(ValueReader& reader, const toml::table& table, CgroupLimits* limits) {
  constexpr std::string_view kPrefix = "limits.";
  reader.CheckKeys(table, kPrefix, {"memory", "pids", "cpus"});
  uint64_t memory = 0;
  reader.ReadSize(table, kPrefix, "memory", &memory, kKibi * kKibi);
  if (memory != 0) limits->memory_max = memory;
  uint64_t pids = 0;
  reader.ReadWhole(table, kPrefix, "pids", &pids, 1, kMostPids);
  if (pids != 0) limits->pids_max = pids;
  const toml::node* cpus = table.get("cpus");
  if (cpus == nullptr) return;
  const std::optional<double> number = cpus->value<double>();
  if (!cpus->is_number() || !number.has_value()) {
    return reader.WrongType(*cpus, "limits.cpus", "a number of processors: 1.5");
  }
  if (!(*number >= kLeastCpus && *number <= kMostCpus)) {
    return reader.Mistake(*cpus, "limits.cpus",
                          fmt::format("must be from {} to {} processors", kLeastCpus, kMostCpus));
  }
  limits->cpus = *number;
}

void ReadRlimits(ValueReader& reader, const toml::table& table, std::vector<ResourceLimit>* rlimits) {
  reader.CheckKeys(table, "rlimits.", kRlimitKeys);
  for (const ResourceName& resource : ResourceNames()) {
    const toml::node* node = table.get(resource.name);
    if (node == nullptr) continue;
    const std::optional<ResourceLimit> limit =
        ReadRlimit(reader, *node, fmt::format("rlimits.{}", resource.name), resource);
    if (limit.has_value()) rlimits->push_back(*limit);
  }
}

void ReadLog(ValueReader& reader, const toml::table& log, LogLimits* limits) {
  constexpr std::string_view kPrefix = "log.";
  reader.CheckKeys(log, kPrefix, {"max_line", "rate", "burst", "keep", "max_unread", "journal"});
  reader.ReadSize(log, kPrefix, "max_line", &limits->max_line, kLeastLine, kLogMaxLine);
  reader.ReadWhole(log, kPrefix, "rate", &limits->rate, 0, kMostLines);
  reader.ReadWhole(log, kPrefix, "burst", &limits->burst, 1, kMostLines);
  reader.ReadSize(log, kPrefix, "keep", &limits->keep, kLeastKept);
  reader.ReadSize(log, kPrefix, "max_unread", &limits->max_unread, kLeastUnread);
  reader.ReadBool(log, kPrefix, "journal", &limits->journal);
}

void ReadTokens(ValueReader& reader, const toml::node& tokens, PluginKind kind,
                std::vector<WantedToken>* config) {
  const toml::array* tables = tokens.as_array();
  if (tables == nullptr || !tables->is_array_of_tables()) {
    return reader.WrongType(tokens, "token", "a table for each token: [[token]]");
  }
  if (kind == PluginKind::kController) {
    return reader.Mistake(tokens, "token",
                          "is only for plugins that publish volumes: kind = \"node\" or \"monolith\"");
  }
  for (const toml::node& each : *tables) {
    WantedToken token = ReadToken(reader, *each.as_table());
    for (const WantedToken& other : *config) {
      if (!token.audience.empty() && other.audience == token.audience) {
        reader.Mistake(each, "token.audience", "is the same as in another token");
      }
      const bool one_map = token.kubernetes && other.kubernetes;
      if (!token.name.empty() && other.name == token.name && other.place == token.place && !one_map) {
        reader.Mistake(each, "token.name", "is the same as in another token for the same map");
      }
    }
    config->push_back(std::move(token));
  }
}

void ReadUser(ValueReader& reader, const toml::table& file, PluginKind kind, PluginUserConfig* user) {
  if (const toml::node* node = file.get("user")) user->user = ReadName(reader, *node, "user").value_or("");
  if (const toml::node* node = file.get("group")) user->group = ReadName(reader, *node, "group").value_or("");
  if (const toml::node* node = file.get("supplementary_groups")) {
    const toml::array* groups = node->as_array();
    if (groups == nullptr) {
      reader.WrongType(*node, "supplementary_groups", "an array of groups: [\"disk\", \"fuse\"]");
    }
    for (size_t i = 0; groups != nullptr && i < groups->size(); ++i) {
      std::optional<std::string> name =
          ReadName(reader, *groups->get(i), fmt::format("supplementary_groups[{}]", i));
      if (name.has_value()) user->supplementary_groups.push_back(*std::move(name));
    }
  }
  user->capability_bounding_set = ReadCapabilities(reader, file, "capability_bounding_set");
  user->ambient_capabilities = ReadCapabilities(reader, file, "ambient_capabilities").value_or(0);
  reader.ReadBool(file, "", "no_new_privileges", &user->no_new_privileges);
  if (const toml::node* node = file.get("umask")) ReadUmask(reader, *node, &user->umask);
  CheckCanMount(reader, file, kind, *user);
}

}  // namespace berth
