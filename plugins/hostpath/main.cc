// berth-hostpath: a CSI plugin for local disk. Constructs, connects, and waits for the signal to stop.

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/status.h"
#include "plugins/hostpath/context.h"
#include "plugins/hostpath/controller_service.h"
#include "plugins/hostpath/identity_service.h"
#include "plugins/hostpath/loop_device.h"
#include "plugins/hostpath/node_service.h"
#include "plugins/hostpath/options.h"
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

  std::unique_ptr<Storage> storage;
  BERTH_ASSIGN_OR_RETURN(storage, Storage::Open(options.state_dir));
  std::unique_ptr<Store> store;
  BERTH_ASSIGN_OR_RETURN(store, Store::Open(storage->DatabasePath()));
  OperationLocks locks;
  ActiveCalls calls;
  Machine machine;
  machine.loop_devices = LoopDevicesWork();
  machine.default_kind =
      options.default_kind.value_or(machine.loop_devices ? Kind::kImage : Kind::kDirectory);
  if (!machine.loop_devices) {
    SPDLOG_WARN(
        "loop devices cannot be used here: volumes can be directories only, without a capacity of their own");
  }
  Context context{.options = options,
                  .machine = machine,
                  .store = *store,
                  .storage = *storage,
                  .locks = locks,
                  .calls = calls};
  BERTH_RETURN_IF_ERROR(Recover(context));

  IdentityService identity(context);
  ControllerService controller(context);
  NodeService node(context);
  std::unique_ptr<Server> server;
  BERTH_ASSIGN_OR_RETURN(server, Server::Start(options.socket_path, {&identity, &controller, &node}));
  SPDLOG_INFO("{} serves CSI on {} as node {}, state in {}", options.driver_name, options.socket_path,
              Printable(options.node_id, 256), options.state_dir);
  // What an earlier run could not finish to delete; it may be much, and nobody waits for it.
  std::thread cleaner([&] { storage->EmptyTrash(); });

  int signal = 0;
  sigwait(&signals, &signal);
  SPDLOG_INFO("signal {}: stopping", signal);
  storage->StopEmptyingTrash();
  server->Hide();
  if (!calls.WaitUntilIdle(kStopPatience)) {
    SPDLOG_WARN("calls are still under way; leaving, the next start repairs what they leave");
    _exit(1);
  }
  server->Stop();
  cleaner.join();
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
