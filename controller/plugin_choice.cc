#include "controller/plugin_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

bool IsDriver(const PluginSnapshot& plugin, const std::string& driver) {
  return plugin.facts && plugin.facts->name == driver;
}

// "plugin a is backing off: exit code 1".
std::string DescribeState(const PluginSnapshot& plugin) {
  return fmt::format("plugin {} is {}{}{}", plugin.id, PluginStateName(plugin.state),
                     plugin.reason.empty() ? "" : ": ", Printable(plugin.reason, 512));
}

}  // namespace

absl::Status NoSuchPlugin(const PluginMap& plugins, const std::string& name) {
  std::vector<std::string_view> ids;
  ids.reserve(plugins.size());
  for (const auto& [id, plugin] : plugins) ids.push_back(id);
  return absl::NotFoundError(
      fmt::format("no plugin or driver is called {}; {}", Printable(name, 256),
                  ids.empty() ? "this node has none" : fmt::format("there are {}", fmt::join(ids, ", "))));
}

absl::StatusOr<std::string> ResolveNodePlugin(const PluginMap& plugins, const std::string& name) {
  if (plugins.contains(name)) return name;
  std::vector<std::string> fitting;
  for (const auto& [id, plugin] : plugins) {
    if (IsDriver(plugin, name) && plugin.facts->has_node_service) fitting.push_back(id);
  }
  if (fitting.empty()) return NoSuchPlugin(plugins, name);
  if (fitting.size() > 1) {
    return absl::InvalidArgumentError(fmt::format("plugin_id: {} is the driver of {}: name one of them",
                                                  Printable(name, 256), fmt::join(fitting, ", ")));
  }
  return fitting.front();
}

absl::StatusOr<std::string> ChooseController(const PluginMap& plugins, const std::string& name,
                                             ControllerWork work) {
  std::string driver = name;
  std::vector<const PluginSnapshot*> candidates;
  const auto named = plugins.find(name);
  if (named != plugins.end()) {
    if (!named->second.facts) return absl::UnavailableError(DescribeState(named->second));
    driver = named->second.facts->name;
    candidates.push_back(&named->second);
  }
  for (const auto& [id, plugin] : plugins) {
    if (id != name && IsDriver(plugin, driver)) candidates.push_back(&plugin);
  }
  if (candidates.empty()) return NoSuchPlugin(plugins, name);

  std::vector<std::string> not_now;
  std::vector<std::string> draining;
  const PluginSnapshot* held = nullptr;
  for (const PluginSnapshot* plugin : candidates) {
    if (!plugin->facts->HasController()) continue;
    if (plugin->draining && work == ControllerWork::kNewVolume) {
      draining.push_back(plugin->id);
    } else if (plugin->paused) {
      if (held == nullptr) held = plugin;
    } else if (plugin->registered && plugin->ready) {
      return plugin->id;
    } else {
      not_now.push_back(DescribeState(*plugin));
    }
  }
  if (held != nullptr) return held->id;
  if (!not_now.empty()) return absl::UnavailableError(fmt::format("{}", fmt::join(not_now, "; ")));
  if (!draining.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {} is being drained and makes no new volumes", fmt::join(draining, ", ")));
  }
  return absl::FailedPreconditionError(fmt::format(
      "no plugin of the driver {} on this node has a controller service", Printable(driver, 256)));
}

std::vector<std::string> SameDriver(const PluginMap& plugins, const std::string& name) {
  std::string driver = name;
  if (const auto named = plugins.find(name); named != plugins.end()) {
    driver = named->second.facts ? named->second.facts->name : std::string();
  }
  std::vector<std::string> ids{name};
  if (driver.empty()) return ids;
  for (const auto& [id, plugin] : plugins) {
    if (id != name && IsDriver(plugin, driver)) ids.push_back(id);
  }
  return ids;
}

}  // namespace berth
