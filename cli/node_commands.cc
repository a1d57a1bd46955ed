// status, events, version.
#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/follow.h"
#include "cli/link_view.h"
#include "cli/session.h"
#include "cli/time_text.h"
#include "cli/values.h"
#include "cli/version.h"

namespace berth::cli {
namespace {

// What is wrong, each with what to do next; then what is in progress.
void AddFindings(Table& table, const v1::GetStatusResponse& status) {
  std::string above;  // a heading stands once
  const auto add = [&](const std::string& heading, const std::string& text, Tone tone) {
    table.Add({std::exchange(above, heading) == heading ? std::string(" ") : heading, Cell(text, tone)});
  };
  if (status.problems().empty()) add("problems", "none", Tone::kGood);
  // All findings of a volume have the same advice: it is shown once, below the last of them.
  for (int i = 0; i < status.findings_size(); ++i) {
    const v1::Finding& finding = status.findings(i);
    const bool wrong = finding.severity() == v1::WARNING || finding.severity() == v1::ERROR;
    const Tone tone = finding.severity() == v1::ERROR ? Tone::kBad : Tone::kCareful;
    add(wrong ? "problems" : "in progress", finding.text(), wrong ? tone : Tone::kPlain);
    const bool repeated =
        i + 1 < status.findings_size() && status.findings(i + 1).advice() == finding.advice();
    if (wrong && !repeated && !finding.advice().empty()) {
      add("problems", "  do: " + finding.advice(), Tone::kPlain);
    }
  }
}

absl::Status Outcome(const v1::GetStatusResponse& status) {
  if (status.problems().empty()) return absl::OkStatus();
  const int count = status.problems_size();
  return FindingsError(
      fmt::format("something is wrong with this node: {} problem{}", count, count == 1 ? "" : "s"),
      "More about them: berthctl doctor");
}

absl::Status Status(Session& session, const NoOptions& /*options*/) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse status,
      node.Call(&NodeClient::Stub::GetStatus, v1::GetStatusRequest(), "ask for the status"));
  if (session.output.json()) {
    session.output.Json(status);
    return Outcome(status);
  }
  const auto now = std::chrono::system_clock::now();
  Table table;
  table.Add({"node", status.node_id()});
  table.Add(
      {"berthd", fmt::format("{}, pid {}, started {}", status.version(), status.pid(),
                             status.has_started_at() ? FormatRelative(status.started_at(), now) : "-")});
  const bool all_ready = status.plugins_ready() == status.plugins();
  table.Add({"plugins", Cell(fmt::format("{} of {} ready", status.plugins_ready(), status.plugins()),
                             all_ready ? Tone::kPlain : Tone::kCareful)});
  if (!status.placement().empty()) table.Add({"plugins live in", status.placement()});
  table.Add({"volumes", fmt::format("{}, published {} time{}", status.volumes(), status.publications(),
                                    status.publications() == 1 ? "" : "s")});
  table.Add({"class", status.computed_class()});
  if (status.has_drain()) table.Add({"drain", Cell(DescribeDrain(status.drain(), now), Tone::kCareful)});
  if (status.has_scheduler()) AddLink(table, status.scheduler(), now);
  table.Add({"events", fmt::format("up to number {}", status.last_event_sequence())});
  table.Add({"boot id", status.boot_id()});
  table.Add({"configuration", status.config_dir()});
  table.Add({"state", status.state_dir()});
  table.Add({"runtime", status.runtime_dir()});
  AddFindings(table, status);
  session.output.Show(table);
  return Outcome(status);
}

struct EventsOptions {
  bool follow = false;
  std::string since;
  std::string plugin;
  std::string volume;
};

// Events come one by one, so their columns have fixed widths.
std::string EventLine(const v1::Event& event, bool colour) {
  std::string subject;
  for (const std::string& part : {event.plugin_id(), event.volume_id(), event.consumer()}) {
    if (part.empty()) continue;
    if (!subject.empty()) subject += '/';
    subject += Printable(part, 128);
  }
  const std::string head = fmt::format("{:>6}  {}", event.sequence(), FormatLocal(event.time()));
  return fmt::format("{}  {:<20}  {:<24}  {}\n", Toned(head, Tone::kFaint, colour),
                     Printable(event.type(), 64), subject, Printable(event.message()));
}

absl::Status SetBeginning(const std::string& since, v1::WatchEventsRequest& request) {
  if (since.empty()) return absl::OkStatus();
  if (since.find_first_not_of("0123456789") == std::string::npos) {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(since, &number)) {
      return UsageError(fmt::format("--since '{}': no event has such a number", Printable(since, 80)));
    }
    request.set_after_sequence(number);
    return absl::OkStatus();
  }
  const auto time = ParseTime(since, std::chrono::system_clock::now());
  if (!time.ok()) {
    return UsageError(
        fmt::format("--since {}", MessageOf(time.status())),
        fmt::format("It is the number of the last event that you have seen, or a time: {}", kTimeHelp));
  }
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(time->time_since_epoch());
  *request.mutable_since() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(nanos.count());
  return absl::OkStatus();
}

absl::Status Events(Session& session, const EventsOptions& options) {
  v1::WatchEventsRequest request;
  BERTH_RETURN_IF_ERROR(SetBeginning(options.since, request));
  request.set_follow(options.follow);
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  const Output& output = session.output;
  const auto show = [&output](const v1::WatchEventsResponse& response) {
    if (output.json()) {
      output.JsonLine(response);
      return;
    }
    if (response.missed() > 0)
      output.Note(fmt::format("{} events before this are no longer kept", response.missed()));
    if (response.has_event()) output.Text(EventLine(response.event(), output.colour()));
    std::fflush(stdout);
  };
  const auto read = [&](NodeClient& node, const std::function<void()>& heard) {
    return node.Read<v1::WatchEventsRequest, v1::WatchEventsResponse>(
        &NodeClient::Stub::WatchEvents, request, "watch events", options.follow,
        [&](const v1::WatchEventsResponse& response) {
          heard();
          show(response);
          if (!response.has_event()) return;
          // From here on the next call goes on, should there be one.
          request.clear_since();
          request.set_after_sequence(response.event().sequence());
        });
  };
  if (!options.follow) {
    BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
    return read(node, [] {});
  }
  return Follow(session,
                {.read = read, .gone = "berthd is away: waiting", .back = [] {
                   return std::string("berthd is back; going on after the last event that was shown");
                 }});
}

absl::Status Version(Session& session, const NoOptions& /*options*/) {
  if (!session.output.json()) {
    session.output.Text(fmt::format("berthctl {}\nCSI      {}\nnode API berth.v1\n", kVersion, kCsiVersion));
    return absl::OkStatus();
  }
  google::protobuf::Struct document;
  auto& fields = *document.mutable_fields();
  fields["version"].set_string_value(std::string(kVersion));
  fields["csi_version"].set_string_value(std::string(kCsiVersion));
  fields["node_api"].set_string_value("berth.v1");
  session.output.Json(document);
  return absl::OkStatus();
}

}  // namespace

void AddNodeCommands(CLI::App& app, Command& chosen) {
  AddCommand<NoOptions>(
      app, "status", "What this node is and how it is", chosen,
      [](CLI::App& command, NoOptions& /*options*/) {
        command.footer(
            "Exit codes: 0 nothing is wrong; 4 something is: the problems. For monitoring: berthctl health");
      },
      Status);
  AddCommand<EventsOptions>(
      app, "events", "What happened on this node, and what happens", chosen,
      [](CLI::App& command, EventsOptions& options) {
        command.add_flag("-f,--follow", options.follow, "Go on with the events to come, until Ctrl-C");
        command
            .add_option(
                "--since", options.since,
                fmt::format("Only those after this number, the last one that you have seen; or from this "
                            "time on: {}",
                            kTimeHelp))
            ->option_text("SEQ|TIME");
        command.add_option("--plugin", options.plugin, "Only of this plugin")->option_text("ID");
        command.add_option("--volume", options.volume, "Only of this volume")->option_text("ID");
        command.footer(
            "With -o json each event is one line, written at once:\n"
            "  berthctl events -f -o json | jq -r '.event.type'");
      },
      Events);
  AddCommand<NoOptions>(app, "version", "This program's version, and CSI's", chosen, DeclareNothing, Version);
}

}  // namespace berth::cli
