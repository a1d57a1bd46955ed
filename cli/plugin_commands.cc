// plugins, plugin show|start|stop|restart.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

// A state that this program is too old to know counts as unknown, as the API has it.
std::string StateName(v1::PluginState state) {
  return v1::PluginState_IsValid(state) ? v1::PluginState_Name(state) : "PLUGIN_STATE_UNKNOWN";
}

Cell StateCell(v1::PluginState state) {
  const std::string name = StateName(state);
  if (state == v1::READY) return {name, Tone::kGood};
  if (state == v1::FAILED || state == v1::UNHEALTHY) return {name, Tone::kBad};
  if (state == v1::STOPPED) return {name, Tone::kFaint};
  return {name, Tone::kCareful};
}

struct NoOptions {};

absl::Status Plugins(Session& session, const NoOptions& /*options*/) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListPluginsResponse answer,
      node.Call(&NodeClient::Stub::ListPlugins, v1::ListPluginsRequest(), "list the plugins"));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  const auto now = std::chrono::system_clock::now();
  Table table({"ID", "KIND", "STATE", "DRIVER", "VERSION", "VOLUMES", "RESTARTS", "STARTED", "REASON"});
  for (const v1::Plugin& plugin : answer.plugins()) {
    const v1::Fingerprint& facts = plugin.fingerprint();
    table.Add({plugin.id(), plugin.kind(), StateCell(plugin.state()), facts.driver_name(),
               facts.vendor_version(), fmt::to_string(plugin.volumes()), fmt::to_string(plugin.restarts()),
               plugin.alive() && plugin.has_started_at() ? FormatRelative(plugin.started_at(), now) : "",
               plugin.reason()});
  }
  if (table.empty()) session.output.Note("no plugins: put a file into plugins.d of berthd's configuration");
  if (!table.empty()) session.output.Show(table);
  return absl::OkStatus();
}

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

void AddHealth(Table& table, const v1::Health& health, std::chrono::system_clock::time_point now) {
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

void AddFingerprint(Table& table, const v1::Fingerprint& facts, std::chrono::system_clock::time_point now) {
  table.Add({"driver", fmt::format("{} {}", facts.driver_name(), facts.vendor_version())});
  if (!facts.manifest().empty()) table.Add({"manifest", JoinPairs(facts.manifest())});
  table.Add({"plugin can", fmt::format("{}", fmt::join(facts.plugin_capabilities(), ", "))});
  table.Add({"controller can", fmt::format("{}", fmt::join(facts.controller_capabilities(), ", "))});
  table.Add({"node can", fmt::format("{}", fmt::join(facts.node_capabilities(), ", "))});
  table.Add({"node id", facts.node_id()});
  table.Add({"volume limit", facts.max_volumes() == 0 ? "none" : fmt::to_string(facts.max_volumes())});
  table.Add({"topology", JoinPairs(facts.topology())});
  table.Add(
      {"needs attach", facts.needs_attach() ? "yes: publish with --publish-context or --attached" : "no"});
  table.Add({"class", facts.computed_class()});
  if (facts.has_read_at()) table.Add({"read", FormatRelative(facts.read_at(), now)});
}

void ShowPlugin(const Output& output, const v1::Plugin& plugin) {
  const auto now = std::chrono::system_clock::now();
  Table table;
  table.Add({"id", plugin.id()});
  table.Add({"kind", plugin.kind()});
  table.Add({"state", StateCell(plugin.state())});
  if (!plugin.reason().empty()) table.Add({"reason", plugin.reason()});
  table.Add({"facts", Facts(plugin)});
  table.Add({"file", plugin.config_file()});
  table.Add({"socket", plugin.socket_path()});
  if (plugin.pid() != 0) {
    table.Add(
        {"process", fmt::format("pid {}{}", plugin.pid(),
                                plugin.has_started_at()
                                    ? fmt::format(", started {}", FormatRelative(plugin.started_at(), now))
                                    : "")});
  }
  table.Add({"restarts", fmt::to_string(plugin.restarts())});
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
  table.Add({"volumes", fmt::to_string(plugin.volumes())});
  AddHealth(table, plugin.health(), now);
  if (plugin.has_fingerprint()) AddFingerprint(table, plugin.fingerprint(), now);
  output.Show(table);
}

struct PluginOptions {
  std::string id;
  bool force = false;
};

absl::Status Show(Session& session, const PluginOptions& options) {
  v1::GetPluginRequest request;
  request.set_id(options.id);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::Plugin plugin, node.Call(&NodeClient::Stub::GetPlugin, request,
                                                            fmt::format("show plugin {}", options.id)));
  if (session.output.json()) {
    session.output.Json(plugin);
  } else {
    ShowPlugin(session.output, plugin);
  }
  return absl::OkStatus();
}

// What start, stop and restart have in common.
template <class Request>
absl::Status Change(Session& session, const PluginOptions& options, std::string_view verb, Request request,
                    grpc::Status (NodeClient::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             v1::Plugin*)) {
  request.set_id(options.id);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const std::string doing = fmt::format("{} plugin {}", verb, Printable(options.id, 100));
  const absl::StatusOr<v1::Plugin> plugin = [&] {
    const Progress progress(session.output, doing);
    return node.Call(method, request, doing);
  }();
  if (!plugin.ok()) return plugin.status();
  if (session.output.json()) {
    session.output.Json(*plugin);
    return absl::OkStatus();
  }
  std::string line = fmt::format("{}: {}", Printable(plugin->id()), StateName(plugin->state()));
  if (plugin->pid() != 0) line += fmt::format(", pid {}", plugin->pid());
  session.output.Text(line + "\n");
  return absl::OkStatus();
}

absl::Status Start(Session& session, const PluginOptions& options) {
  return Change(session, options, "start", v1::StartPluginRequest(), &NodeClient::Stub::StartPlugin);
}

absl::Status Stop(Session& session, const PluginOptions& options) {
  v1::StopPluginRequest request;
  request.set_force(options.force);
  return Change(session, options, "stop", request, &NodeClient::Stub::StopPlugin);
}

absl::Status Restart(Session& session, const PluginOptions& options) {
  v1::RestartPluginRequest request;
  request.set_force(options.force);
  return Change(session, options, "restart", request, &NodeClient::Stub::RestartPlugin);
}

void DeclareId(CLI::App& command, PluginOptions& options) {
  command.add_option("id", options.id, "The plugin's id: that of its file")->required()->option_text("ID");
}

}  // namespace

void AddPluginCommands(CLI::App& app, Command& chosen) {
  AddCommand<NoOptions>(
      app, "plugins", "Every plugin and its state", chosen, [](CLI::App&, NoOptions&) {}, Plugins);
  CLI::App* group = AddGroup(app, "plugin", "One plugin: show, start, stop, restart");
  AddCommand<PluginOptions>(*group, "show", "What a plugin is and how it is", chosen, DeclareId, Show);
  AddCommand<PluginOptions>(*group, "start", "Start a plugin that was stopped or has failed", chosen,
                            DeclareId, Start);
  AddCommand<PluginOptions>(
      *group, "stop", "Stop a plugin", chosen,
      [](CLI::App& command, PluginOptions& options) {
        DeclareId(command, options);
        command.add_flag("--force", options.force, "Although volumes are held through it");
      },
      Stop);
  AddCommand<PluginOptions>(
      *group, "restart", "Stop a plugin and start it again; volumes stay mounted", chosen,
      [](CLI::App& command, PluginOptions& options) {
        DeclareId(command, options);
        command.add_flag("--force", options.force, "Although an operation runs through it");
      },
      Restart);
}

}  // namespace berth::cli
