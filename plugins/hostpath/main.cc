// berth-hostpath: a CSI plugin for local disk. Constructs, connects, and waits for the signal to stop.

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "plugins/hostpath/options.h"
#include "plugins/hostpath/plugin.h"
#include "plugins/hostpath/server.h"

namespace berth::hostpath {
namespace {

// How long calls that are under way may take to end after SIGTERM. What is cut off is repaired at the next
// start.
constexpr auto kStopPatience = std::chrono::seconds(20);

absl::Status Serve(const Options& options) {
  // Taken by the main thread below; every other thread inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  std::unique_ptr<Plugin> plugin;
  BERTH_ASSIGN_OR_RETURN(plugin, Plugin::Open(options));
  std::unique_ptr<Server> server;
  BERTH_ASSIGN_OR_RETURN(
      server,
      Server::Start(options.socket_path, {&plugin->identity(), &plugin->controller(), &plugin->node()}));
  SPDLOG_INFO("{} serves CSI on {} as node {}, state in {}", options.driver_name, options.socket_path,
              Printable(options.node_id, 256), options.state_dir);
  plugin->StartCleaning();

  int signal = 0;
  sigwait(&signals, &signal);
  SPDLOG_INFO("signal {}: stopping", signal);
  plugin->StopCleaning();
  server->Hide();
  if (!plugin->calls().WaitUntilIdle(kStopPatience)) {
    SPDLOG_WARN("calls are still under way; leaving, the next start repairs what they leave");
    _exit(1);
  }
  server->Stop();
  SPDLOG_INFO("stopped");
  return absl::OkStatus();
}

}  // namespace
}  // namespace berth::hostpath

int main(int argc, char** argv) {
  const auto command_line = berth::hostpath::ParseCommandLine(argc, argv);
  if (command_line.exit_code.has_value()) return *command_line.exit_code;
  absl::Status status = berth::InitLog("berth-hostpath", command_line.options.log_level);
  if (status.ok()) status = berth::hostpath::Serve(command_line.options);
  if (status.ok()) return 0;
  SPDLOG_ERROR("{}", std::string(status.message()));
  return 1;
}
