// berth-scheduler: decides which node may use which volume, and keeps the record of it. This file reads the
// command line, runs the loop, and notifies systemd. scheduler.h creates the components.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/grpc_polling.h"
#include "base/log.h"
#include "base/program_start.h"
#include "base/service_notifier.h"
#include "base/status.h"
#include "scheduler/config.h"
#include "scheduler/scheduler.h"
#include "scheduler/version.h"

namespace berth::scheduler {
namespace {

void PrintMistakes(const absl::Status& status) {
  std::string_view rest(status.message().data(), status.message().size());
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    fmt::print(stderr, "berth-scheduler: {}\n", rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
}

// From start to the first SIGTERM or SIGINT.
Awaitable<Exit> Run(Config config) {
  const auto executor = co_await asio::this_coro::executor;
  asio::signal_set signals(executor, SIGTERM, SIGINT);
  const char* const notify_socket = std::getenv("NOTIFY_SOCKET");
  ServiceNotifier notifier(executor, notify_socket == nullptr ? "" : notify_socket);
  const std::string serving = fmt::format("Serving cluster {}", config.cluster_id);
  Scheduler scheduler(executor, std::move(config));
  const absl::Status started = co_await scheduler.Start();
  if (started.ok()) {
    SPDLOG_INFO("berth-scheduler {} is ready: {}", kBerthVersion, serving);
    notifier.Send(fmt::format("READY=1\nSTATUS={}", serving));
    const auto [error, signal] = co_await signals.async_wait(asio::as_tuple(asio::use_awaitable));
    SPDLOG_INFO("stopping: {}", error ? error.message() : strsignal(signal));
    notifier.Send("STOPPING=1\nSTATUS=Stopping");
  } else {
    SPDLOG_CRITICAL("cannot start: {}", MessageOf(started));
    notifier.Send(fmt::format("STATUS=Cannot start: {}", Printable(MessageOf(started), 512)));
  }
  co_await scheduler.Stop();
  co_await notifier.Join();
  co_return started.ok() ? Exit::kDone : Exit::kFailed;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Decides which node may use which volume, and keeps the record of it.\n"
      "Settings are in /etc/berth/scheduler.toml. Nodes connect to it where their berthd.toml says so.\n"
      "There is no access control yet: it serves Unix sockets and addresses of this machine alone.",
      "berth-scheduler"};
  Options options;
  app.add_option("--config", options.config_file, "The settings file")->capture_default_str();
  app.add_option("--state-dir", options.state_dir,
                 "The record of volumes and claims [/var/lib/berth-scheduler]");
  app.add_option("--log-level", options.log_level,
                 "trace, debug, info, warning, error, critical or off [info]");
  bool check = false;
  app.add_flag(
      "--check", check,
      "Read the settings, name every mistake, and end: nothing is started or written. Exit status 78: "
      "there are mistakes");
  app.set_version_flag("--version", fmt::format("berth-scheduler {}", kBerthVersion));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = app.exit(error) == 0;  // --help, --version
    return static_cast<int>(asked ? Exit::kDone : Exit::kUsage);
  }
  // Requests hold secrets.
  LeaveNoCore();
  // Every client may do everything, so only this user may open the sockets.
  umask(0077);

  absl::StatusOr<Config> config = LoadConfig(options);
  absl::Status status = config.status();
  if (status.ok() && check) {
    fmt::print("berth-scheduler: no mistakes in {}\n", options.config_file);
    return static_cast<int>(Exit::kDone);
  }
  if (status.ok()) status = InitLog("berth-scheduler", config->log_level);
  if (!status.ok()) {
    PrintMistakes(status);
    return static_cast<int>(ExitOf(status));
  }
  std::signal(SIGPIPE, SIG_IGN);
  if (!GrpcPollsWithoutPause())
    SPDLOG_WARN("gRPC's threads sleep now and then: calls may take 100 ms longer");

  Exit exit = Exit::kFailed;
  asio::io_context loop(1);
  asio::co_spawn(loop, Run(*std::move(config)), [&](const std::exception_ptr& error, Exit code) {
    if (error) std::rethrow_exception(error);
    exit = code;
  });
  loop.run();
  return static_cast<int>(exit);
}

}  // namespace
}  // namespace berth::scheduler

int main(int argc, char** argv) { return berth::scheduler::Main(argc, argv); }
