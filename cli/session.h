// What every command is given: the global options, where to print, and the way to the node or the cluster.
//
// One per run, made by main; its thread only.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "cli/cluster_client.h"
#include "cli/failure.h"
#include "cli/node_client.h"
#include "cli/output.h"
#include "cli/secrets.h"

namespace berth::cli {

class Session {
 public:
  Output output;
  std::string socket;  // empty: the one in `directory` that suffices
  std::string directory = "/run/berth";
  std::string cluster;         // the scheduler's address; empty: the node is meant
  bool cluster_given = false;  // on the command line
  Need need = Need::kRead;
  std::chrono::milliseconds timeout{};
  bool timeout_given = false;  // on the command line

  // UsageError: a cluster was named on the command line, and this command is a node's.
  [[nodiscard]] absl::StatusOr<NodeClient> Connect() const {
    if (cluster_given) {
      return UsageError("this command asks one node, and --cluster names a scheduler",
                        "A cluster's commands: node list|show|forget, plugin list|show, volume "
                        "register|list|show|claim|release|deregister, claim list|show");
    }
    return NodeClient::Connect(socket, directory, need, timeout);
  }

  // UsageError: no cluster was named.
  [[nodiscard]] absl::StatusOr<ClusterClient> ConnectCluster() const {
    if (cluster.empty()) {
      return UsageError("this command asks a cluster's scheduler, and none was named",
                        "Name it: --cluster unix:/run/berth-scheduler/scheduler.sock, or set BERTH_CLUSTER");
    }
    return ClusterClient::Connect(cluster, timeout);
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
void AddClusterLists(CLI::App& app, Command& chosen);      // node …
void AddPluginCommands(CLI::App& app, Command& chosen);    // plugins, plugin …, reload
void AddPluginLogs(CLI::App& plugin, Command& chosen);     // plugin logs
void AddMonitor(CLI::App& app, Command& chosen);           // monitor
void AddVolumeCommands(CLI::App& app, Command& chosen);    // volumes, volume …, explain
void AddConsumerCommands(CLI::App& app, Command& chosen);  // consumer …
void AddClusterClaims(CLI::App& app, Command& chosen);     // claim …
void AddDoctor(CLI::App& app, Command& chosen);            // doctor
void AddHealth(CLI::App& app, Command& chosen);            // health
void AddCsiCommand(CLI::App& app, Command& chosen);        // csi

// plugin list and plugin show of a cluster.
[[nodiscard]] absl::Status ListClusterPlugins(Session& session);
[[nodiscard]] absl::Status ShowClusterPlugin(Session& session, const std::string& driver);
// volume list and volume show of a cluster.
[[nodiscard]] absl::Status ListClusterVolumes(Session& session, const std::string& name_space,
                                              const std::string& driver);
[[nodiscard]] absl::Status ShowClusterVolume(Session& session, const std::string& volume);

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
