// plugins, plugin show|start|stop|restart|drain|swap, reload.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/plugin_view.h"
#include "cli/progress.h"
#include "cli/session.h"

namespace berth::cli {
namespace {

absl::Status Plugins(Session& session, const NoOptions& /*options*/) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListPluginsResponse answer,
      node.Call(&NodeClient::Stub::ListPlugins, v1::ListPluginsRequest(), "list the plugins"));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  const Table table = PluginTable(answer);
  if (table.empty()) session.output.Note("no plugins: put a file into plugins.d of berthd's configuration");
  if (!table.empty()) session.output.Show(table);
  return absl::OkStatus();
}

absl::Status List(Session& session, const NoOptions& options) {
  return session.cluster.empty() ? Plugins(session, options) : ListClusterPlugins(session);
}

struct PluginOptions {
  std::string id;
  bool force = false;
};

absl::Status Show(Session& session, const PluginOptions& options) {
  if (!session.cluster.empty()) return ShowClusterPlugin(session, options.id);
  v1::GetPluginRequest request;
  request.set_id(options.id);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::Plugin plugin, node.Call(&NodeClient::Stub::GetPlugin, request,
                                                            fmt::format("show plugin {}", options.id)));
  if (session.output.json()) {
    session.output.Json(plugin);
  } else {
    session.output.Show(PluginDetails(plugin));
  }
  return absl::OkStatus();
}

absl::Status ShowOutcome(const Output& output, const v1::Plugin& plugin) {
  if (output.json()) {
    output.Json(plugin);
    return absl::OkStatus();
  }
  std::string line = fmt::format("{}: {}", Printable(plugin.id()), PluginStateName(plugin.state()));
  if (plugin.pid() != 0) line += fmt::format(", pid {}", plugin.pid());
  output.Text(line + "\n");
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
  return ShowOutcome(session.output, *plugin);
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

// The node lets no call take as long as a drain may: it is joined again until it is done or our time is over.
absl::Status Drain(Session& session, const PluginOptions& options) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const std::string doing = fmt::format("drain plugin {}", Printable(options.id, 100));
  const auto waits_for = [&node, id = options.id]() -> std::string {
    const std::optional<v1::Plugin> plugin = node.PeekPlugin(id);
    return plugin ? DrainingFor(*plugin) : std::string();
  };
  v1::DrainPluginRequest request;
  request.set_id(options.id);
  const auto give_up = std::chrono::steady_clock::now() + session.timeout;
  while (true) {
    const absl::StatusOr<v1::Plugin> plugin = [&] {
      const Progress progress(session.output, doing, [&] {
        const std::string holders = waits_for();
        return holders.empty() ? holders : fmt::format("{}: waits for {}", doing, holders);
      });
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now());
      return node.Call(&NodeClient::Stub::DrainPlugin, request, doing, left);
    }();
    if (plugin.ok()) return ShowOutcome(session.output, *plugin);
    if (!absl::IsDeadlineExceeded(plugin.status())) return plugin.status();
    if (std::chrono::steady_clock::now() < give_up) continue;
    const std::string holders = waits_for();
    if (holders.empty()) return plugin.status();
    return WithHint(Annotate(plugin.status(), fmt::format("it still waits for {}", holders)),
                    HintOf(plugin.status()));
  }
}

struct SwapOptions {
  std::string id;
  std::string command;
  std::vector<std::string> arguments;
  bool accept_changes = false;
};

absl::Status Swap(Session& session, const SwapOptions& options) {
  if (options.command.empty() && !options.arguments.empty()) {
    return UsageError("arguments without --command: they belong to a program",
                      "berthctl plugin swap ID --command /path/to/program -- ARGUMENT ...");
  }
  if (!options.command.empty() && !options.command.starts_with('/')) {
    return UsageError(fmt::format("--command '{}': it must be an absolute path, as berthd runs it",
                                  Printable(options.command, 200)));
  }
  v1::SwapPluginRequest request;
  request.set_id(options.id);
  request.set_command(options.command);
  request.set_accept_changes(options.accept_changes);
  for (const std::string& argument : options.arguments) request.add_arguments(argument);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const std::string doing = fmt::format("swap plugin {}", Printable(options.id, 100));
  const absl::StatusOr<v1::Plugin> plugin = [&] {
    const Progress progress(session.output, doing, [&node, &doing, id = options.id]() -> std::string {
      const std::optional<v1::Plugin> now = node.PeekPlugin(id);
      if (!now || now->swap().empty()) return {};
      return fmt::format("{}: {}", doing, Printable(now->swap(), 300));
    });
    return node.Call(&NodeClient::Stub::SwapPlugin, request, doing);
  }();
  if (!plugin.ok()) return plugin.status();
  if (!session.output.json() && !plugin->swap().empty()) session.output.Note(plugin->swap());
  return ShowOutcome(session.output, *plugin);
}

struct ReloadOptions {
  bool no_wait = false;
};

// What a reload may be waiting for now: "waits for nfs (STARTING), data".
std::string ReloadWaitsFor(NodeClient& node) {
  constexpr std::chrono::milliseconds kGlance(1000);
  constexpr size_t kNames = 3;
  std::vector<std::string> names;
  const auto plugins =
      node.Call(&NodeClient::Stub::ListPlugins, v1::ListPluginsRequest(), "list the plugins", kGlance);
  if (plugins.ok()) {
    for (const v1::Plugin& plugin : plugins->plugins()) {
      const bool serves = plugin.state() == v1::READY && plugin.registered() && !plugin.paused();
      if (serves || plugin.state() == v1::STOPPED || plugin.state() == v1::FAILED) continue;
      names.push_back(fmt::format("{} ({})", plugin.id(), PluginStateName(plugin.state())));
    }
  }
  const auto volumes = node.Call(&NodeClient::Stub::ListDeclaredVolumes, v1::ListDeclaredVolumesRequest(),
                                 "list the declared volumes", kGlance);
  if (volumes.ok()) {
    for (const v1::DeclaredVolume& volume : volumes->volumes()) {
      if (volume.state() == v1::DECLARED_PENDING) names.push_back(volume.name());
    }
  }
  if (names.empty()) return {};
  const size_t more = names.size() - std::min(names.size(), kNames);
  names.resize(names.size() - more);
  return Printable(fmt::format("waits for {}{}", fmt::join(names, ", "),
                               more == 0 ? "" : fmt::format(" and {} more", more)));
}

void ShowReload(const Output& output, const v1::ReloadResponse& answer) {
  Table table({"NAME", "RELOADED"});
  const auto add = [&](const auto& ids, std::string_view what, Tone tone) {
    for (const std::string& id : ids) {
      const bool ready = std::ranges::count(answer.ready(), id) > 0;
      table.Add({id, Cell(fmt::format("{}{}", what, ready ? "; ready" : ""), tone)});
    }
  };
  add(answer.started(), "started", Tone::kGood);
  add(answer.stopped(), "stopped", Tone::kCareful);
  add(answer.swapped(), "swapped: it runs as its file says now", Tone::kGood);
  add(answer.updated(), "updated, without a new process", Tone::kGood);
  add(answer.unchanged(), "unchanged", Tone::kFaint);
  add(answer.volumes_declared(), "volume declared: it is published when its plugin is ready", Tone::kGood);
  add(answer.volumes_withdrawn(), "volume withdrawn: it is released", Tone::kCareful);
  add(answer.volumes_changed(), "volume changed: it is published as its file says now", Tone::kCareful);
  if (!table.empty()) output.Show(table);
  if (table.empty() && answer.broken().empty() && answer.pending().empty())
    output.Note("there are no plugins, and no declared volumes");
}

absl::Status OutcomeOf(const Output& output, const v1::ReloadResponse& answer, bool waited) {
  std::vector<std::string> wrong(answer.broken().begin(), answer.broken().end());
  wrong.insert(wrong.end(), answer.failed().begin(), answer.failed().end());
  const std::string pending = fmt::format("{}", fmt::join(answer.pending(), ", "));
  if (wrong.empty() && pending.empty()) return absl::OkStatus();
  if (wrong.empty() && !waited) {
    output.Note(fmt::format("not done yet, and going on: {}", pending));
    return absl::OkStatus();
  }
  if (wrong.empty()) {
    return NotInTimeError(fmt::format("not ready in time, and going on: {}", pending),
                          "How they are: berthctl status; to wait longer: --timeout 10m");
  }
  const std::string_view hint =
      answer.failed().empty() ? "What runs was left as it is; correct the file, then: berthctl reload"
                              : "How they are: berthctl status; a plugin's output: berthctl plugin logs ID";
  if (output.json() || wrong.size() == 1) {
    return WithHint(absl::FailedPreconditionError(fmt::format("{}", fmt::join(wrong, "; "))), hint);
  }
  // A person reads them line by line.
  for (const std::string& each : wrong) output.Note(each);
  const std::string files = fmt::format("{} mistakes in files", answer.broken_size());
  return WithHint(
      absl::FailedPreconditionError(answer.failed().empty() ? files
                                    : answer.broken().empty()
                                        ? fmt::format("{} are not ready", answer.failed_size())
                                        : fmt::format("{}, {} not ready", files, answer.failed_size())),
      hint);
}

absl::Status Reload(Session& session, const ReloadOptions& options) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  v1::ReloadRequest request;
  request.set_wait(!options.no_wait);
  const absl::StatusOr<v1::ReloadResponse> answer = [&] {
    const Progress progress(session.output, "reload the files", [&node] { return ReloadWaitsFor(node); });
    return node.Call(&NodeClient::Stub::Reload, request, "reload the files");
  }();
  if (!answer.ok()) return answer.status();
  if (session.output.json()) {
    session.output.Json(*answer);
  } else {
    ShowReload(session.output, *answer);
  }
  return OutcomeOf(session.output, *answer, !options.no_wait);
}

void DeclareId(CLI::App& command, PluginOptions& options) {
  command.add_option("id", options.id, "The plugin's id, from its file")->required()->option_text("ID");
}

}  // namespace

void AddPluginCommands(CLI::App& app, Command& chosen) {
  AddCommand<NoOptions>(app, "plugins", "Every plugin and its state", chosen, DeclareNothing, Plugins);
  CLI::App* group = AddGroup(app, "plugin", "Plugins: list, show, logs, start, stop, restart, drain, swap");
  AddCommand<NoOptions>(*group, "list", "As plugins; of a cluster (--cluster): every driver", chosen,
                        DeclareNothing, List);
  AddCommand<PluginOptions>(*group, "show",
                            "What a plugin is and how it is; of a cluster: a driver, by its name", chosen,
                            DeclareId, Show);
  AddCommand<PluginOptions>(*group, "start", "Start a plugin that was stopped or has failed", chosen,
                            DeclareId, Start);
  AddCommand<PluginOptions>(
      *group, "stop", "Stop a plugin", chosen,
      [](CLI::App& command, PluginOptions& options) {
        DeclareId(command, options);
        command.add_flag("--force", options.force,
                         "Although volumes are in use through it; waits for no operation");
      },
      Stop);
  AddCommand<PluginOptions>(
      *group, "restart", "Stop a plugin and start it again; volumes stay mounted, calls wait", chosen,
      [](CLI::App& command, PluginOptions& options) {
        DeclareId(command, options);
        command.add_flag("--force", options.force,
                         "Although mounts that it serves itself would be lost; waits for no operation");
      },
      Restart);
  AddCommand<PluginOptions>(
      *group, "drain", "Give a plugin no new volume, wait until the last has left, and stop it", chosen,
      [](CLI::App& command, PluginOptions& options) {
        DeclareId(command, options);
        command.footer(
            "When --timeout is over the drain goes on; the same command joins it, and\n"
            "berthctl plugin start ID gives it up.");
      },
      Drain);
  AddCommand<SwapOptions>(
      *group, "swap", "Put another program, or what the file says now, in a plugin's place; no call fails",
      chosen,
      [](CLI::App& command, SwapOptions& options) {
        command.add_option("id", options.id, "The plugin's id, from its file")->required()->option_text("ID");
        command.add_option("--command", options.command, "The program; default: what the plugin's file says")
            ->option_text("PATH");
        command.add_option("arguments", options.arguments, "Its arguments, after --")
            ->option_text("ARGUMENT");
        command.add_flag("--accept-changes", options.accept_changes,
                         "Although the new one can do less, or says another topology");
        command.footer(
            "The file is not changed: a swap with --command holds until the next swap or change of the\n"
            "file.\n"
            "  berthctl plugin swap nfs --command /opt/nfs-2/nfsplugin -- --endpoint '${CSI_ENDPOINT}'");
      },
      Swap);
  AddPluginLogs(*group, chosen);
  AddCommand<ReloadOptions>(
      app, "reload",
      "Read the files of plugins and declared volumes again, touch only what changed, and wait until it is "
      "ready",
      chosen,
      [](CLI::App& command, ReloadOptions& options) {
        command.add_flag("--no-wait", options.no_wait, "Answer as soon as the changes have begun");
        command.footer(
            "Ctrl-C ends the waiting, not the reload. Exit codes: 0 what changed is ready, or published; 1 a "
            "file is\n"
            "wrong, or something that changed is not ready; 5 not in time (--timeout).");
      },
      Reload);
}

}  // namespace berth::cli
