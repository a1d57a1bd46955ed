// What every command is given: the global options, where to print, and the way to the node.
//
// One per run, made by main; its thread only.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "cli/node_client.h"
#include "cli/output.h"
#include "cli/secrets.h"

namespace berth::cli {

class Session {
 public:
  Output output;
  std::string socket;  // empty: the one in `directory` that suffices
  std::string directory = "/run/berth";
  Need need = Need::kRead;
  std::chrono::milliseconds timeout{};
  bool timeout_given = false;  // on the command line

  [[nodiscard]] absl::StatusOr<NodeClient> Connect() const {
    return NodeClient::Connect(socket, directory, need, timeout);
  }

  // Reads the secrets that go with this run's request; none where `path` is empty. Whatever fails later is
  // shown without them.
  [[nodiscard]] absl::StatusOr<Secrets> LoadSecrets(const std::string& path) {
    if (path.empty()) return Secrets();
    std::string warning;
    absl::StatusOr<Secrets> secrets = ReadSecrets(path, &warning);
    if (!warning.empty()) output.Note(warning);
    if (secrets.ok()) secrets_ = *secrets;
    return secrets;
  }
  [[nodiscard]] const Secrets& secrets() const { return secrets_; }

 private:
  Secrets secrets_;
};

// The command that the command line names, chosen while it is parsed and run afterwards.
using Command = std::function<absl::Status(Session&)>;

// Each adds a group of commands to `app`; the chosen one stores itself in `chosen`.
void AddNodeCommands(CLI::App& app, Command& chosen);      // status, events, version
void AddClusterCommands(CLI::App& app, Command& chosen);   // drain, undrain, scheduler
void AddPluginCommands(CLI::App& app, Command& chosen);    // plugins, plugin …, reload
void AddPluginLogs(CLI::App& plugin, Command& chosen);     // plugin logs
void AddMonitor(CLI::App& app, Command& chosen);           // monitor
void AddVolumeCommands(CLI::App& app, Command& chosen);    // volumes, volume …, explain
void AddConsumerCommands(CLI::App& app, Command& chosen);  // consumer …
void AddDoctor(CLI::App& app, Command& chosen);            // doctor
void AddHealth(CLI::App& app, Command& chosen);            // health
void AddCsiCommand(CLI::App& app, Command& chosen);        // csi

// Of a command that has none.
struct NoOptions {};
inline void DeclareNothing(CLI::App& /*app*/, NoOptions& /*options*/) {}

// Adds the command `name` to `parent`. `run` gets the options that `declare` bound to the command line:
//
//   AddCommand<ShowOptions>(*plugin, "show", "One plugin", chosen,
//                           [](CLI::App& app, ShowOptions& o) { app.add_option("id", o.id)->required(); },
//                           Show);
template <class Options, class Declare>
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     Command& chosen, Declare declare, absl::Status (*run)(Session&, const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(name, description);
  declare(*app, *options);
  app->callback([&chosen, options, run] {
    chosen = [options, run](Session& session) { return run(session, *options); };
  });
  return app;
}

// A group of commands: one of them must follow.
inline CLI::App* AddGroup(CLI::App& parent, const std::string& name, const std::string& description) {
  CLI::App* app = parent.add_subcommand(name, description);
  app->require_subcommand(1);
  return app;
}

}  // namespace berth::cli
