// berth-bench: measures Berth's figures, each against its reference. `./dev bench` builds and runs it;
// bench/README.md says how to read its output.

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/status.h"
#include "bench/bind_plugin.h"
#include "bench/csi_probe.h"
#include "bench/figures.h"
#include "bench/log_writer.h"
#include "bench/many_mounts.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "tests/harness/node.h"

namespace berth {
namespace {

pid_t measuring = 0;

void EndMeasuring(int /*signal*/) { kill(measuring, SIGKILL); }

// Runs `work` in a child process. However that ends, what it launched ends with it: plugins outlive berthd.
// Not by a pid namespace, in which the kernel lists no mount namespaces.
int RunAlone(const std::function<int()>& work) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  measuring = fork();
  if (measuring < 0) return 1;
  if (measuring == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return work();
  }
  std::signal(SIGINT, EndMeasuring);
  std::signal(SIGTERM, EndMeasuring);
  int status = 0;
  while (waitpid(measuring, &status, 0) < 0 && errno == EINTR) {
  }
  do {
    std::ifstream children(fmt::format("/proc/self/task/{}/children", getpid()));
    for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
  } while (waitpid(-1, nullptr, 0) > 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ShowProgress(const std::string& id, int number, int of) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    fmt::print(stderr, "\r\033[K    {}: pair {} of {}", id, number, of);
    if (number == of) fmt::print(stderr, "\r\033[K");
  } else if (number == 1) {
    fmt::print(stderr, "    {}: {} pairs\n", id, of);
  }
  std::fflush(stderr);
}

// `wanted` empty: all.
int RunFigures(const BenchOptions& options, const std::vector<std::string>& wanted,
               const std::string& json_path) {
  std::vector<std::unique_ptr<Figure>> figures = AllFigures(options);
  std::vector<std::string> known;
  for (const auto& figure : figures) known.push_back(figure->Info().id);
  for (const std::string& id : wanted) {
    if (std::find(known.begin(), known.end(), id) != known.end()) continue;
    fmt::print(stderr, "berth-bench: no figure '{}'; there are {}\n", id, fmt::join(known, ", "));
    return 2;
  }
  EnterOwnNamespaces();

  std::vector<FigureResult> results;
  for (std::unique_ptr<Figure>& figure : figures) {
    const std::string id = figure->Info().id;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), id) != wanted.end()) {
      results.push_back(Measure(*figure, [&id](int number, int of) { ShowProgress(id, number, of); }));
    }
    figure.reset();  // its node ends here, before the next one begins
  }
  fmt::print("{}", RenderTable(results, isatty(STDOUT_FILENO) != 0));
  if (!json_path.empty()) {
    std::ofstream out(json_path);
    out << RenderJson(results);
    if (!out.flush()) {
      fmt::print(stderr, "berth-bench: write {}: {}\n", json_path, strerror(errno));
      return 1;
    }
  }
  const auto measured = [](const FigureResult& result) { return result.status.ok(); };
  return std::all_of(results.begin(), results.end(), measured) && !testing::Test::HasFailure() ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures Berth's figures, each with its reference in the same run. Run it with ./dev bench.",
               "berth-bench"};
  BenchOptions options{.disk = "/var/tmp", .self = std::filesystem::read_symlink("/proc/self/exe")};
  std::vector<std::string> wanted;
  std::string json_path;
  app.add_option("FIGURE", wanted, "Only these: F6, F7, …");
  app.add_option("--json", json_path, "Also write every measurement to this file");
  app.add_option("--disk", options.disk, "An existing directory for the state of the nodes that are measured")
      ->capture_default_str();

  // Programs that figures run as processes of their own; an empty group hides them from --help.
  std::vector<std::string> sockets;
  CLI::App* probe_client = app.add_subcommand("probe-client")->group("");
  probe_client->add_option("SOCKET", sockets);
  uint64_t bytes = 0;
  std::string result_path;
  CLI::App* write_log = app.add_subcommand("write-log")->group("");
  write_log->add_option("BYTES", bytes)->required();
  write_log->add_option("RESULT", result_path)->required();
  std::string endpoint;
  std::string backing;
  CLI::App* bind_plugin = app.add_subcommand("bind-plugin")->group("");
  bind_plugin->add_option("ENDPOINT", endpoint)->required();
  bind_plugin->add_option("BACKING", backing)->required();
  std::string directory;
  int count = 0;
  std::vector<std::string> command;
  CLI::App* with_mounts = app.add_subcommand("with-mounts")->group("");
  with_mounts->add_option("DIRECTORY", directory)->required();
  with_mounts->add_option("COUNT", count)->required();
  with_mounts->add_option("COMMAND", command)->required();
  CLI11_PARSE(app, argc, argv);

  if (probe_client->parsed()) return ProbeClientMain(sockets);
  if (write_log->parsed()) return LogWriterMain(bytes, result_path);
  if (bind_plugin->parsed()) return BindPluginMain(endpoint, backing);
  if (with_mounts->parsed()) return WithMountsMain(directory, count, std::move(command));
  return RunAlone([&] { return RunFigures(options, wanted, json_path); });
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::Main(argc, argv); }
