// berthctl: the command line of a Berth node, and of any CSI plugin. This file wires CLI11 to the commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/program_start.h"
#include "base/status.h"
#include "cli/failure.h"
#include "cli/session.h"
#include "cli/values.h"
#include "cli/version.h"

namespace berth::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  berthctl status
  id=$(berthctl volume create --plugin hostpath --size 64MiB --fs ext4 scratch)
  berthctl volume publish --plugin hostpath --volume "$id" --consumer job-7 --fs ext4
  berthctl volume mounts job-7 --format podman
  berthctl volume explain "$id"
  berthctl plugin logs -f hostpath
  berthctl drain --reason "a new disk" --wait
  berthctl events -f -o json | jq -r '.event.message'
  berthctl csi --endpoint unix:///run/plugin/csi.sock node get-info

Exit codes: 0 done; 1 it failed; 2 wrong usage, nothing was asked; 3 the node, or the plugin, is not reachable;
4 status or doctor found something wrong. health: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
Errors go to standard error, with -o json as {"error":{"code":"NOT_FOUND","message":"…","hint":"…"}}.)";

struct Globals {
  std::string socket;
  std::string cluster;
  std::string directory = "/run/berth";
  std::string format = "table";
  std::string timeout = "2m";
  bool timeout_given = false;
};

// Of `health`, as monitoring programs understand it: it could not be asked.
constexpr int kHealthUnknown = 3;

void Declare(CLI::App& app, Globals& globals, Command& chosen) {
  const char* socket = std::getenv("BERTH_SOCKET");
  globals.socket = socket == nullptr ? "" : socket;
  const char* directory = std::getenv("BERTH_RUNTIME_DIR");
  if (directory != nullptr && *directory != '\0') globals.directory = directory;
  app.name("berthctl");
  app.footer(kFooter);
  app.require_subcommand(1);
  // Global options may stand behind the command too; its subcommands inherit this.
  app.fallthrough();
  app.set_version_flag("--version", fmt::format("berthctl {}", kVersion));
  app.add_option("--socket", globals.socket,
                 "berthd's socket; default: $BERTH_SOCKET, else in $BERTH_RUNTIME_DIR (/run/berth) the one "
                 "that the user may use: "
                 "berthd.sock, berthd-ro.sock to read, claim.sock to claim")
      ->option_text("PATH");
  app.add_option(
         "--cluster", globals.cluster,
         "Ask a cluster's scheduler, not this node: unix:/path or HOST:PORT; default: $BERTH_CLUSTER. "
         "For node list|show and plugin list|show")
      ->option_text("ADDRESS")
      ->excludes("--socket");
  app.add_option("-o,--output", globals.format, "table for people (the default), json for programs")
      ->check(CLI::IsMember({"table", "json"}))
      ->option_text("FORMAT");
  app.add_option("--timeout", globals.timeout, "How long to wait for an answer; default: 2m")
      ->option_text("TIME")
      ->each([&globals](const std::string&) { globals.timeout_given = true; });
  AddNodeCommands(app, chosen);
  AddClusterCommands(app, chosen);
  AddClusterLists(app, chosen);
  AddClusterClaims(app, chosen);
  AddMonitor(app, chosen);
  AddPluginCommands(app, chosen);
  AddVolumeCommands(app, chosen);
  AddConsumerCommands(app, chosen);
  AddDoctor(app, chosen);
  AddHealth(app, chosen);
  AddCsiCommand(app, chosen);
}

// Whether JSON is asked for, also by a command line that cannot be parsed.
bool WantsJson(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-ojson" || argument == "-o=json" || argument == "--output=json") return true;
    if ((argument == "-o" || argument == "--output") && i + 1 < arguments.size() &&
        arguments[i + 1] == "json") {
      return true;
    }
  }
  return false;
}

// CLI11's complaint, with what may have been meant.
absl::Status Explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = "berthctl";
  for (auto parsed = command->get_subcommands(); !parsed.empty(); parsed = command->get_subcommands()) {
    command = parsed.front();
    path += ' ';
    path += command->get_name();
  }
  const std::string hint = fmt::format("See {} --help", path);
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty()) return UsageError(error.what(), hint);

  const std::string& wrong = left.front();
  std::vector<std::string> known;
  if (wrong.starts_with('-')) {
    for (const CLI::App* each = command; each != nullptr; each = each->get_parent()) {
      for (const CLI::Option* option : each->get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      }
    }
    return UsageError(fmt::format("there is no option {}{}", wrong, DidYouMean(wrong, known)), hint);
  }
  for (const CLI::App* each : command->get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(each->get_name());
  }
  if (known.empty()) return UsageError(fmt::format("'{}' is one argument too many", wrong), hint);
  return UsageError(fmt::format("there is no command '{}'{}", wrong, DidYouMean(wrong, known)), hint);
}

// Ends the run: says what failed, without the secrets that were sent, and gives the exit code.
int End(const Session& session, const absl::Status& status) {
  const absl::Status written = session.output.Finish();
  // Who reads half an answer must not take its findings for all of them.
  const bool answered = status.ok() || ExitCodeOf(status) == ExitCode::kFindings;
  const absl::Status finished = answered && !written.ok() ? written : status;
  if (finished.ok()) return static_cast<int>(ExitCode::kDone);
  if (IsQuiet(finished)) return written.ok() ? static_cast<int>(ExitCodeOf(finished)) : kHealthUnknown;
  const Secrets& secrets = session.secrets();
  absl::Status shown(finished.code(), HideSecrets(std::string(finished.message()), secrets));
  finished.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { shown.SetPayload(url, value); });
  session.output.Error(WithHint(std::move(shown), HideSecrets(HintOf(finished), secrets)));
  return static_cast<int>(ExitCodeOf(finished));
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  Session session;
  Globals globals;
  Command chosen;
  CLI::App app("Runs CSI storage plugins on this node: asks berthd, and gives it commands.");
  Declare(app, globals, chosen);
  if (WantsJson(arguments)) session.output.set_format(Format::kJson);
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);  // --help, --version
  } catch (const CLI::ParseError& error) {
    const int code = End(session, Explain(app, error));
    return app.got_subcommand("health") ? kHealthUnknown : code;
  }
  const auto timeout = ParseDuration(globals.timeout);
  if (!timeout.ok()) {
    const int code = End(session, timeout.status());
    return app.got_subcommand("health") ? kHealthUnknown : code;
  }
  session.socket = globals.socket;
  session.cluster = globals.cluster;
  session.cluster_given = app.count("--cluster") > 0;
  // A node's socket on the command line means the node.
  const char* const cluster = std::getenv("BERTH_CLUSTER");
  if (!session.cluster_given && app.count("--socket") == 0 && cluster != nullptr) session.cluster = cluster;
  session.directory = globals.directory;
  session.timeout = *timeout;
  session.timeout_given = globals.timeout_given;
  return End(session, chosen(session));
}

}  // namespace
}  // namespace berth::cli

int main(int argc, char** argv) {
  // It reads files of secrets.
  berth::LeaveNoCore();
  return berth::cli::Main(argc, argv);
}
