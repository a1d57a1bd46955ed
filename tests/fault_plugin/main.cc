// berth-fault-plugin: berth-hostpath with a script of faults in front of it, for the tests of those who call
// CSI plugins. docs/fault-plugin.md describes scripts. Constructs, connects, and waits for the
// signal to stop.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "plugins/hostpath/options.h"
#include "plugins/hostpath/plugin.h"
#include "plugins/hostpath/server.h"
#include "tests/fault_plugin/player.h"
#include "tests/fault_plugin/services.h"

namespace berth::fault {
namespace {

constexpr auto kStopPatience = std::chrono::seconds(20);

struct CommandLine {
  std::string script;
  std::string history;
  hostpath::Options options;
  std::optional<int> exit_code;
};

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app{
      "berth-fault-plugin: a CSI plugin that does wrong what a script says. It is berth-hostpath with the "
      "script in front: every other option is berth-hostpath's (berth-hostpath --help).",
      "berth-fault-plugin"};
  app.add_option("--script", result.script, "The script: a TOML file, read again whenever it changes")
      ->required();
  app.add_option("--history", result.history, "Where to write down what happened, as lines of JSON");
  app.allow_extras();
  app.footer("docs/fault-plugin.md shows every key of a script.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    result.exit_code = app.exit(error) == 0 ? 0 : 2;
    return result;
  }
  const std::vector<std::string> rest = app.remaining();
  std::vector<const char*> words = {argv[0]};
  for (const std::string& word : rest) words.push_back(word.c_str());
  const auto inner = hostpath::ParseCommandLine(static_cast<int>(words.size()), words.data());
  result.options = inner.options;
  result.exit_code = inner.exit_code;
  return result;
}

absl::Status Serve(const CommandLine& command_line) {
  // Taken by the thread below; every other thread inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  std::unique_ptr<Player> opened;
  BERTH_ASSIGN_OR_RETURN(opened, Player::Open(command_line.script, command_line.history));
  // These two, and the thread, live until _exit ends the process.
  Player* const player = opened.release();
  auto* const asked_to_end = new std::promise<void>;
  std::thread([player, asked_to_end, signals] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      if (player->Stop(signal)) break;
    }
    asked_to_end->set_value();
  }).detach();

  if (!player->Start()) _exit(0);
  std::unique_ptr<hostpath::Plugin> plugin;
  BERTH_ASSIGN_OR_RETURN(plugin, hostpath::Plugin::Open(command_line.options));
  player->SetStore(&plugin->store());
  IdentityLayer identity(*player, plugin->identity());
  ControllerLayer controller(*player, plugin->controller());
  NodeLayer node(*player, plugin->node());
  std::unique_ptr<hostpath::Server> server;
  BERTH_ASSIGN_OR_RETURN(
      server, hostpath::Server::Start(command_line.options.socket_path, {&identity, &controller, &node}));
  SPDLOG_INFO("serves CSI on {}, with the script {}", command_line.options.socket_path, command_line.script);
  plugin->StartCleaning();

  asked_to_end->get_future().wait();
  server->Hide();
  if (!plugin->calls().WaitUntilIdle(kStopPatience)) _exit(1);
  server->Stop();
  // Whatever goes on in the background was to go on until the end.
  _exit(0);
}

}  // namespace
}  // namespace berth::fault

int main(int argc, char** argv) {
  const auto command_line = berth::fault::ParseCommandLine(argc, argv);
  if (command_line.exit_code.has_value()) return *command_line.exit_code;
  absl::Status status = berth::InitLog("berth-fault-plugin", command_line.options.log_level);
  if (status.ok()) status = berth::fault::Serve(command_line);
  SPDLOG_ERROR("{}", berth::MessageOf(status));
  _exit(1);  // Not by way of destructors: a thread may be waiting for signals.
}
