#include "cli/plugin_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/values.h"
#include "csi/health.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

// The state, with "paused" and "draining".
Cell PluginStateCell(const v1::Plugin& plugin) {
  const v1::PluginState state = plugin.state();
  std::string name = PluginStateName(state);
  if (plugin.draining() && state != v1::DRAINING) name += ", draining";
  if (plugin.paused()) name += ", paused";
  if (plugin.draining() || plugin.paused()) return {name, Tone::kCareful};
  if (state == v1::READY) return {name, Tone::kGood};
  if (state == v1::FAILED || state == v1::UNHEALTHY) return {name, Tone::kBad};
  if (state == v1::STOPPED) return {name, Tone::kFaint};
  return {name, Tone::kCareful};
}

std::string Kind(const v1::Plugin& plugin) {
  return plugin.external() ? plugin.kind() + ", external" : plugin.kind();
}

std::string YesNo(bool yes) { return yes ? "yes" : "no"; }

template <class Map>
std::string JoinPairs(const Map& map) {
  const std::map<std::string, std::string> sorted(map.begin(), map.end());
  std::vector<std::string> pairs;
  pairs.reserve(sorted.size());
  for (const auto& [key, value] : sorted)
    pairs.push_back(value.empty() ? key : fmt::format("{}={}", key, value));
  return fmt::format("{}", fmt::join(pairs, ", "));
}

std::string Facts(const v1::Plugin& plugin) {
  std::vector<std::string_view> facts;
  facts.push_back(plugin.alive() ? "alive" : "not alive");
  facts.push_back(plugin.ready() ? "ready" : "not ready");
  facts.push_back(plugin.registered() ? "registered" : "not registered");
  return fmt::format("{}", fmt::join(facts, ", "));
}

void AddHealth(Table& table, const v1::Health& health, system_clock::time_point now) {
  if (!health.has_last_probe_at()) return;
  std::string text =
      fmt::format("{} {}, in {}", health.ok() ? "answered" : "failed",
                  FormatRelative(health.last_probe_at(), now), FormatDuration(health.latency()));
  if (health.consecutive_failures() > 0)
    text += fmt::format(", {} failures in a row", health.consecutive_failures());
  if (health.has_since()) text += fmt::format(", so since {}", FormatRelative(health.since(), now));
  table.Add({"last probe", Cell(text, health.ok() ? Tone::kPlain : Tone::kBad)});
  if (!health.error().empty()) table.Add({"probe error", Cell(health.error(), Tone::kBad)});
}

// "STORAGE_DEGRADED (Slow): one path is left"; nothing where all is well.
std::string StorageHealth(const v1::Plugin& plugin) {
  std::vector<HealthStatus> statuses;
  for (const v1::HealthStatus& status : plugin.storage_health()) {
    statuses.push_back({status.type(), status.reason(), status.message(), status.capability()});
  }
  return Describe(statuses);
}

// Why a person should look at it: the first that there is.
std::string Trouble(const v1::Plugin& plugin) {
  if (!plugin.reason().empty()) return plugin.reason();
  if (!plugin.file_error().empty()) return plugin.file_error();
  return plugin.storage_health().empty() ? "" : "storage: " + StorageHealth(plugin);
}

void AddFingerprint(Table& table, const v1::Fingerprint& facts, system_clock::time_point now) {
  table.Add({"driver", fmt::format("{} {}", facts.driver_name(), facts.vendor_version())});
  if (!facts.manifest().empty()) table.Add({"manifest", JoinPairs(facts.manifest())});
  table.Add({"plugin can", fmt::format("{}", fmt::join(facts.plugin_capabilities(), ", "))});
  table.Add({"controller can", fmt::format("{}", fmt::join(facts.controller_capabilities(), ", "))});
  if (!facts.group_controller_capabilities().empty()) {
    table.Add(
        {"group controller can", fmt::format("{}", fmt::join(facts.group_controller_capabilities(), ", "))});
  }
  table.Add({"node can", fmt::format("{}", fmt::join(facts.node_capabilities(), ", "))});
  table.Add({"node id", facts.node_id()});
  table.Add({"volume limit", facts.max_volumes() == 0 ? "none" : fmt::to_string(facts.max_volumes())});
  table.Add({"topology", JoinPairs(facts.topology())});
  table.Add(
      {"needs attach", facts.needs_attach() ? "yes: publish with --publish-context or --attached" : "no"});
  table.Add({"class", facts.computed_class()});
  if (facts.has_read_at()) table.Add({"read", FormatRelative(facts.read_at(), now)});
}

}  // namespace

std::string PluginStateName(v1::PluginState state) {
  const bool known = v1::PluginState_IsValid(state) && state != v1::PLUGIN_STATE_UNKNOWN;
  return known ? v1::PluginState_Name(state) : "UNKNOWN";
}

Table PluginTable(const v1::ListPluginsResponse& plugins) {
  const auto now = system_clock::now();
  Table table({"ID", "KIND", "STATE", "ALIVE", "READY", "REGISTERED", "DRIVER", "VERSION", "VOLUMES",
               "RESTARTS", "STARTED", "REASON"});
  for (const v1::Plugin& plugin : plugins.plugins()) {
    const v1::Fingerprint& facts = plugin.fingerprint();
    table.Add({plugin.id(), Kind(plugin), PluginStateCell(plugin), YesNo(plugin.alive()),
               YesNo(plugin.ready()), YesNo(plugin.registered()), facts.driver_name(), facts.vendor_version(),
               fmt::to_string(plugin.volumes_in_use()), fmt::to_string(plugin.restarts()),
               plugin.alive() && plugin.has_started_at() ? FormatRelative(plugin.started_at(), now) : "",
               Trouble(plugin)});
  }
  return table;
}

Table PluginDetails(const v1::Plugin& plugin) {
  const auto now = system_clock::now();
  Table table;
  table.Add({"id", plugin.id()});
  table.Add({"kind", Kind(plugin)});
  table.Add({"state", PluginStateCell(plugin)});
  if (!plugin.reason().empty()) table.Add({"reason", plugin.reason()});
  table.Add({"facts", Facts(plugin)});
  if (plugin.draining() && plugin.waiting_for().empty()) table.Add({"waits for", "its process to end"});
  for (const std::string& holder : plugin.waiting_for()) {
    table.Add({&holder == &plugin.waiting_for(0) ? "waits for" : " ", Cell(holder, Tone::kCareful)});
  }
  table.Add({"file", plugin.config_file() + (plugin.placed() ? " (placed by the scheduler)" : "")});
  if (!plugin.storage_health().empty()) table.Add({"storage", Cell(StorageHealth(plugin), Tone::kBad)});
  if (!plugin.file_error().empty()) table.Add({"file differs", Cell(plugin.file_error(), Tone::kBad)});
  if (!plugin.command().empty()) table.Add({"command", plugin.command()});
  if (!plugin.swap().empty()) table.Add({"last swap", plugin.swap()});
  table.Add({"socket", plugin.socket_path()});
  if (plugin.pid() != 0) {
    table.Add(
        {"process", fmt::format("pid {}{}", plugin.pid(),
                                plugin.has_started_at()
                                    ? fmt::format(", started {}", FormatRelative(plugin.started_at(), now))
                                    : "")});
  }
  if (!plugin.external()) table.Add({"lives in", plugin.placement()});
  if (plugin.serves_mounts()) {
    table.Add({"mounts", Cell("served by itself: they end with its process", Tone::kCareful)});
  }
  if (!plugin.external()) table.Add({"restarts", fmt::to_string(plugin.restarts())});
  if (plugin.has_next_restart_at())
    table.Add({"next restart", FormatRelative(plugin.next_restart_at(), now)});
  if (!plugin.last_exit().empty()) {
    table.Add({"last exit",
               plugin.has_last_exit_at()
                   ? fmt::format("{}, {}", plugin.last_exit(), FormatRelative(plugin.last_exit_at(), now))
                   : plugin.last_exit()});
  }
  for (const std::string& line : plugin.last_output()) {
    table.Add({&line == &plugin.last_output(0) ? "last output" : " ", line});
  }
  table.Add({"volumes", fmt::to_string(plugin.volumes_in_use())});
  AddHealth(table, plugin.health(), now);
  if (plugin.has_fingerprint()) AddFingerprint(table, plugin.fingerprint(), now);
  return table;
}

std::string DrainingFor(const v1::Plugin& plugin) {
  constexpr int kNamed = 3;
  if (plugin.waiting_for().empty()) return {};
  std::vector<std::string> named;
  for (int i = 0; i < std::min(kNamed, plugin.waiting_for_size()); ++i) {
    named.push_back(Printable(plugin.waiting_for(i), 200));
  }
  if (plugin.waiting_for_size() > kNamed)
    named.push_back(fmt::format("{} more", plugin.waiting_for_size() - kNamed));
  return fmt::format("{}", fmt::join(named, ", "));
}

}  // namespace berth::cli
