// berthd: runs the CSI plugins of one node and keeps its volumes. This file reads the command line, runs the
// loop, and notifies systemd; berthd.h makes the parts, ARCHITECTURE.md says what they are.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>

#include "base/grpc_polling.h"
#include "base/log.h"
#include "base/program_start.h"
#include "base/service_notifier.h"
#include "base/status.h"
#include "berthd/berthd.h"
#include "berthd/check.h"
#include "berthd/config.h"
#include "berthd/version.h"
#include "rpc/convert.h"
#include "supervisor/reload.h"

namespace berth {
namespace {

// Each plugin and each connection takes descriptors; the soft limit is for programs that use select(2).
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// SIGHUP: any number of them that come while one reload runs are one more.
struct Hangup {
  explicit Hangup(asio::any_io_executor executor) : bell(std::move(executor)) {}
  Condition bell;
  bool rung = false;
};

// "; volumes declared: a.toml; volumes broken: b.toml: …"; empty if there is nothing to report.
std::string DescribeVolumes(const DeclaredReload& report) {
  std::string text;
  const auto add = [&text](std::string_view what, const std::vector<std::string>& which) {
    if (!which.empty()) text += fmt::format("; volumes {}: {}", what, fmt::join(which, ", "));
  };
  add("declared", report.declared);
  add("withdrawn", report.withdrawn);
  add("changed", report.changed);
  add("broken", report.broken);
  return text;
}

Awaitable<void> ReloadWhenAsked(Berthd& berthd, Hangup& hangup, ServiceNotifier& notifier,
                                std::string serving) {
  while (true) {
    [[maybe_unused]] const bool rung =
        co_await hangup.bell.WaitUntil([&hangup] { return hangup.rung; }, TimePoint::max());
    hangup.rung = false;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    notifier.Send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=Reading its files again",
                              now.tv_sec * 1'000'000 + now.tv_nsec / 1000));
    const absl::StatusOr<NodeReload> report = co_await berthd.Reload(TimePoint::max());
    if (report.ok()) {
      SPDLOG_INFO("reloaded: {}{}", Describe(report->plugins), DescribeVolumes(report->volumes));
    } else {
      SPDLOG_ERROR("reload: {}", MessageOf(report.status()));
    }
    notifier.Send(fmt::format("READY=1\nSTATUS={}", serving));
  }
}

// From start to the first SIGTERM or SIGINT. The exit code.
Awaitable<int> Run(BerthdOptions options, BerthdConfig config, std::shared_ptr<LogFeed> log) {
  const auto executor = co_await asio::this_coro::executor;
  const std::string serving = fmt::format("Serving as node {}", config.node_id);
  const std::string node_id = config.node_id;
  asio::signal_set signals(executor, SIGTERM, SIGINT, SIGHUP);
  Berthd berthd(executor, std::move(options), std::move(config), std::move(log));
  Hangup hangup(executor);
  const char* const notify_socket = std::getenv("NOTIFY_SOCKET");
  ServiceNotifier notifier(executor, notify_socket == nullptr ? "" : notify_socket);
  TaskScope reloads(executor, "berthd");

  const absl::Status started = co_await berthd.Start();
  if (started.ok()) {
    SPDLOG_INFO("berthd {} is ready as node {}", kBerthVersion, node_id);
    notifier.Send(fmt::format("READY=1\nSTATUS={}", serving));
    reloads.Spawn("reload", ReloadWhenAsked(berthd, hangup, notifier, serving));
    while (true) {
      const auto [error, signal] = co_await signals.async_wait(asio::as_tuple(asio::use_awaitable));
      if (!error && signal == SIGHUP) {
        hangup.rung = true;
        hangup.bell.NotifyAll();
        continue;
      }
      SPDLOG_INFO("stopping: {}", error ? error.message() : strsignal(signal));
      break;
    }
    notifier.Send("STOPPING=1\nSTATUS=Stopping; plugins and volumes stay");
    co_await reloads.Join();
  } else {
    SPDLOG_CRITICAL("cannot start: {}", MessageOf(started));
    notifier.Send(fmt::format("STATUS=Cannot start: {}", Printable(MessageOf(started), 512)));
  }
  co_await berthd.Stop();
  co_await notifier.Join();
  co_return static_cast<int>(ExitOf(started));
}

BerthdExit Check(const BerthdOptions& options) {
  const CheckedFiles checked = CheckFiles(options);
  for (const std::string& mistake : checked.mistakes) fmt::print(stderr, "berthd: {}\n", mistake);
  for (const std::string& note : checked.notes) fmt::print(stderr, "berthd: note: {}\n", note);
  if (!checked.mistakes.empty()) {
    fmt::print(stderr, "berthd: {} mistake{} in {}\n", checked.mistakes.size(),
               checked.mistakes.size() == 1 ? "" : "s", options.config_dir);
    return BerthdExit::kConfiguration;
  }
  fmt::print("berthd: no mistakes in {}: {} plugin{}, {} declared volume{}\n", options.config_dir,
             checked.plugins, checked.plugins == 1 ? "" : "s", checked.volumes,
             checked.volumes == 1 ? "" : "s");
  return BerthdExit::kDone;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Runs the CSI plugins of this node and keeps its volumes.\n"
      "Plugins are files in CONFIG/plugins.d; settings are in CONFIG/berthd.toml. See berthd(8).",
      "berthd"};
  BerthdOptions options;
  app.add_option("--config", options.config_dir, "Directory of berthd.toml and plugins.d")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "Journal, volumes and plugins' state [/var/lib/berth]");
  app.add_option("--runtime-dir", options.runtime_dir, "Sockets, berthd.sock among them [/run/berth]");
  app.add_option("--node-id", options.node_id,
                 "This node's name for plugins and schedulers [the host's name]");
  app.add_option("--log-level", options.log_level,
                 "trace, debug, info, warning, error, critical or off [info]");
  app.add_flag("--allow-private-mounts", options.allow_private_mounts,
               "Start also where the host does not see what is mounted here (tests, containers)");
  bool allow_core = false;
  app.add_flag("--allow-core", allow_core,
               "Write a core file after a crash, which can contain secrets; by default none is written");
  bool check = false;
  app.add_flag(
      "--check", check,
      "Read all files, name every mistake, and end: nothing is started or written. Exit status 78: there "
      "are mistakes");
  app.set_version_flag("--version", fmt::format("berthd {}", kBerthVersion));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = app.exit(error) == 0;  // --help, --version
    return static_cast<int>(asked ? BerthdExit::kDone : BerthdExit::kUsage);
  }
  if (!allow_core) LeaveNoCore();
  if (check) return static_cast<int>(Check(options));

  absl::StatusOr<BerthdConfig> config = LoadBerthdConfig(options);
  const auto log = std::make_shared<LogFeed>();
  const absl::Status status = config.ok() ? InitLog("berthd", config->log_level, log) : config.status();
  if (!status.ok()) {
    for (const std::string& line : LinesOf(MessageOf(status))) fmt::print(stderr, "berthd: {}\n", line);
    return static_cast<int>(ExitOf(status));
  }
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  if (!GrpcPollsWithoutPause())
    SPDLOG_WARN("gRPC's threads sleep now and then: calls may take 100 ms longer");

  int exit_code = EXIT_FAILURE;
  asio::io_context loop(1);
  asio::co_spawn(loop, Run(std::move(options), *std::move(config), log),
                 [&](const std::exception_ptr& error, int code) {
                   if (error) std::rethrow_exception(error);
                   exit_code = code;
                 });
  loop.run();
  return exit_code;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::Main(argc, argv); }
