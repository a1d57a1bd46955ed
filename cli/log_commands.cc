// plugin logs, monitor.
#include <fmt/format.h>

#include <limits>
#include <string>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/follow.h"
#include "cli/session.h"
#include "cli/time_text.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

// What one sees first of a log that one follows, where nothing else is said: as much as tail(1) shows.
constexpr uint32_t kFollowedLines = 10;

std::string Stamp(const google::protobuf::Timestamp& time, bool colour) {
  return Toned(fmt::format("{}.{:03}", FormatLocal(time), time.nanos() / 1'000'000), Tone::kFaint, colour);
}

struct LogsOptions {
  std::string id;
  bool follow = false;
  std::string since;
  std::string last;
  std::string after;
};

absl::StatusOr<uint64_t> ParseCount(const std::string& text, std::string_view option, uint64_t limit) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || text.size() > 19 || std::stoull(text) > limit) {
    return UsageError(
        fmt::format("{} '{}': it must be a number, 0 to {}", option, Printable(text, 80), limit));
  }
  return std::stoull(text);
}

absl::StatusOr<v1::ReadPluginLogRequest> LogsRequest(const LogsOptions& options) {
  const bool given[] = {!options.since.empty(), !options.last.empty(), !options.after.empty()};
  if (int{given[0]} + int{given[1]} + int{given[2]} > 1) {
    return UsageError("--since, -n and --after each say where to begin: give one of them");
  }
  v1::ReadPluginLogRequest request;
  request.set_id(options.id);
  request.set_follow(options.follow);
  if (!options.since.empty()) {
    BERTH_ASSIGN_OR_RETURN(const auto since, ParseTime(options.since, std::chrono::system_clock::now()));
    const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(since.time_since_epoch()).count();
    request.mutable_since()->set_seconds(nanos / 1'000'000'000);
    request.mutable_since()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  } else if (options.last == "all") {
    return request;
  } else if (!options.last.empty()) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t last,
                           ParseCount(options.last, "-n", std::numeric_limits<uint32_t>::max()));
    request.set_last_lines(static_cast<uint32_t>(last));
  } else if (!options.after.empty()) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t after,
                           ParseCount(options.after, "--after", std::numeric_limits<int64_t>::max()));
    request.mutable_after()->set_position(after);
  } else if (options.follow) {
    request.set_last_lines(kFollowedLines);
  }
  return request;
}

void ShowLines(const Output& output, const v1::ReadPluginLogResponse& message) {
  if (message.missed_lines() > 0) {
    output.Note(fmt::format("… {} lines missed", message.missed_lines()));
  } else if (message.missed_bytes() > 0) {
    output.Note(fmt::format("… {} missed", FormatSize(static_cast<int64_t>(message.missed_bytes()))));
  }
  if (output.json()) {
    output.JsonLine(message);
    return;
  }
  for (const v1::PluginLogLine& line : message.lines()) {
    const std::string text = Printable(line.text(), line.text().size());
    output.Text(fmt::format("{}  {}\n", Stamp(line.time(), output.colour()),
                            line.notice() ? Toned(text, Tone::kCareful, output.colour()) : text));
  }
  std::fflush(stdout);
}

absl::Status Logs(Session& session, const LogsOptions& options) {
  BERTH_ASSIGN_OR_RETURN(v1::ReadPluginLogRequest request, LogsRequest(options));
  const Output& output = session.output;
  const std::string doing = fmt::format("read the log of plugin {}", Printable(options.id, 100));
  const auto read = [&](NodeClient& node, const std::function<void()>& heard) {
    return node.Read<v1::ReadPluginLogRequest, v1::ReadPluginLogResponse>(
        &NodeClient::Stub::ReadPluginLog, request, doing, options.follow,
        [&](const v1::ReadPluginLogResponse& message) {
          heard();
          ShowLines(output, message);
          // From here on the next call goes on, should there be one.
          request.clear_last_lines();
          request.clear_since();
          *request.mutable_after() = message.next();
        });
  };
  if (!options.follow) {
    BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
    return read(node, [] {});
  }
  return Follow(session, {.read = read,
                          .gone = "berthd is away; the plugin writes on, and nothing is lost: waiting",
                          .back = [] { return std::string("berthd is back; going on where it stopped"); }});
}

Tone LevelTone(const std::string& level) {
  if (level == "error" || level == "critical") return Tone::kBad;
  if (level == "warning") return Tone::kCareful;
  return level == "info" ? Tone::kPlain : Tone::kFaint;
}

struct MonitorOptions {
  std::string level = "info";
};

absl::Status Monitor(Session& session, const MonitorOptions& options) {
  const Output& output = session.output;
  v1::WatchLogRequest request;
  request.set_level(options.level);
  const auto show = [&output](const v1::WatchLogResponse& message) {
    if (message.missed() > 0) output.Note(fmt::format("… {} entries missed", message.missed()));
    if (output.json()) {
      output.JsonLine(message);
      return;
    }
    for (const v1::LogEntry& entry : message.entries()) {
      output.Text(fmt::format("{}  {}  {}\n", Stamp(entry.time(), output.colour()),
                              Toned(fmt::format("{:<8}", Printable(entry.level(), 16)),
                                    LevelTone(entry.level()), output.colour()),
                              Printable(entry.text())));
    }
    std::fflush(stdout);
  };
  const auto read = [&](NodeClient& node, const std::function<void()>& heard) {
    return node.Read<v1::WatchLogRequest, v1::WatchLogResponse>(&NodeClient::Stub::WatchLog, request,
                                                                "follow the log of berthd", true,
                                                                [&](const v1::WatchLogResponse& message) {
                                                                  heard();
                                                                  show(message);
                                                                });
  };
  return Follow(session, {.read = read, .gone = "berthd is away: waiting", .back = [] {
                            return std::string("berthd is back; what it logged meanwhile is not shown here");
                          }});
}

}  // namespace

void AddPluginLogs(CLI::App& plugin, Command& chosen) {
  AddCommand<LogsOptions>(
      plugin, "logs", "What a plugin wrote, and what it writes", chosen,
      [](CLI::App& command, LogsOptions& options) {
        command.add_option("id", options.id, "The plugin's id, from its file")->required()->option_text("ID");
        command.add_flag("-f,--follow", options.follow,
                         "Go on with the lines to come, also through restarts of the plugin and of berthd, "
                         "until Ctrl-C");
        command.add_option("--since", options.since, fmt::format("Only what came since then: {}", kTimeHelp))
            ->option_text("TIME");
        command
            .add_option(
                "-n,--lines", options.last,
                fmt::format("Only the newest N lines, or all; with -f {} are shown first", kFollowedLines))
            ->option_text("N");
        command
            .add_option("--after", options.after, "From this position on: .next.position of the last answer")
            ->option_text("POSITION");
        command.footer(
            "With -o json each answer is one line, written at once:\n"
            "  berthctl plugin logs -f nfs -o json | jq -r '.lines[].text'");
      },
      Logs);
}

void AddMonitor(CLI::App& app, Command& chosen) {
  AddCommand<MonitorOptions>(
      app, "monitor", "Follow berthd's own log, at any level, until Ctrl-C", chosen,
      [](CLI::App& command, MonitorOptions& options) {
        command
            .add_option("--level", options.level,
                        "Entries of this level and above; what berthd writes elsewhere stays as it is")
            ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical"}))
            ->option_text("LEVEL");
      },
      Monitor);
}

}  // namespace berth::cli
