// health: one line and one exit code, in the way of monitoring plugins (Nagios, Icinga, Sensu, ...).
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/session.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

// Less than what monitoring programs wait for by default.
constexpr std::chrono::milliseconds kTimeout(8000);

enum class State { kOk = 0, kWarning = 1, kCritical = 2, kUnknown = 3 };

struct HealthLine {
  State state = State::kUnknown;
  std::string text;
  std::string figures;  // "plugins=3 plugins_ready=2"
  std::vector<std::string> problems;
};

std::string_view NameOf(State state) {
  switch (state) {
    case State::kOk:
      return "OK";
    case State::kWarning:
      return "WARNING";
    case State::kCritical:
      return "CRITICAL";
    case State::kUnknown:
      return "UNKNOWN";
  }
  return "UNKNOWN";
}

State StateOf(const v1::GetStatusResponse& status) {
  if (status.health() == v1::HEALTHY) return State::kOk;
  if (status.health() == v1::DEGRADED) return State::kWarning;
  if (status.health() == v1::FAILING) return State::kCritical;
  return State::kUnknown;
}

HealthLine LineOf(const v1::GetStatusResponse& status) {
  HealthLine verdict{.state = StateOf(status)};
  verdict.problems.assign(status.problems().begin(), status.problems().end());
  verdict.figures =
      fmt::format("plugins={} plugins_ready={} volumes={} publications={} problems={}", status.plugins(),
                  status.plugins_ready(), status.volumes(), status.publications(), status.problems_size());
  if (verdict.problems.empty()) {
    verdict.text =
        fmt::format("{}: {} of {} plugins ready, {} volumes{}", status.node_id(), status.plugins_ready(),
                    status.plugins(), status.volumes(), status.has_drain() ? ", being drained" : "");
    return verdict;
  }
  verdict.text = fmt::format("{}: {}", status.node_id(), verdict.problems.front());
  const size_t more = verdict.problems.size() - 1;
  if (more > 0) verdict.text += fmt::format(" (and {} more: berthctl status)", more);
  return verdict;
}

// Who was not answered knows nothing of the node, but that berthd does not serve.
HealthLine LineOf(const absl::Status& failure, const Session& session) {
  HealthLine verdict{.text = std::string(MessageOf(failure))};
  if (absl::IsUnavailable(failure)) {
    // Nothing serves the socket, or we may not connect to it.
    const bool forbidden = access(session.socket.c_str(), W_OK) != 0 && errno == EACCES;
    verdict.state = forbidden ? State::kUnknown : State::kCritical;
  } else if (absl::IsDeadlineExceeded(failure)) {
    verdict.state = State::kCritical;
    verdict.text = fmt::format("berthd at {} does not answer in time", Printable(session.socket));
  }
  return verdict;
}

void Print(const Output& output, const HealthLine& verdict) {
  if (output.json()) {
    google::protobuf::Struct document;
    auto& fields = *document.mutable_fields();
    fields["state"].set_string_value(std::string(NameOf(verdict.state)));
    fields["exit_code"].set_number_value(static_cast<int>(verdict.state));
    fields["message"].set_string_value(Printable(verdict.text));
    auto& problems = *fields["problems"].mutable_list_value();
    for (const std::string& problem : verdict.problems)
      problems.add_values()->set_string_value(Printable(problem));
    output.Json(document);
    return;
  }
  // What follows the bar is figures, for those who draw them.
  std::string text = Printable(verdict.text, 1024);
  std::ranges::replace(text, '|', '/');
  output.Text(fmt::format("BERTH {} - {}{}{}\n", NameOf(verdict.state), text,
                          verdict.figures.empty() ? "" : " | ", verdict.figures));
}

absl::Status Health(Session& session, const NoOptions& /*options*/) {
  if (!session.timeout_given) session.timeout = kTimeout;
  const absl::StatusOr<v1::GetStatusResponse> status = [&]() -> absl::StatusOr<v1::GetStatusResponse> {
    BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
    return node.Call(&NodeClient::Stub::GetStatus, v1::GetStatusRequest(), "ask for the status");
  }();
  const HealthLine verdict = status.ok() ? LineOf(*status) : LineOf(status.status(), session);
  Print(session.output, verdict);
  return QuietEnd(static_cast<int>(verdict.state));
}

}  // namespace

void AddHealth(CLI::App& app, Command& chosen) {
  AddCommand<NoOptions>(
      app, "health", "One line and one exit code, for monitoring", chosen,
      [](CLI::App& command, NoOptions& /*options*/) {
        command.footer(
            "Exit codes, as of monitoring plugins: 0 OK; 1 WARNING: something is not as it should be;\n"
            "2 CRITICAL: something does not work, or berthd does not answer; 3 UNKNOWN: it could not be "
            "asked.\n"
            "A plugin that starts and a node that is being drained are OK. It waits 8 seconds, or "
            "--timeout.");
      },
      Health);
}

}  // namespace berth::cli
