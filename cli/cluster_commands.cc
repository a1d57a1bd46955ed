// drain, undrain, scheduler: the node as one of a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/follow.h"
#include "cli/link_view.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/values.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using std::chrono::steady_clock;

constexpr auto kLookWithin = std::chrono::seconds(5);
constexpr size_t kNamesShown = 3;

struct DrainOptions {
  std::string reason;
  bool wait = false;
};

void AddNames(const v1::ListVolumesResponse& volumes, std::vector<std::string>& names) {
  for (const v1::Volume& volume : volumes.volumes()) {
    for (const v1::Publication& use : volume.publications()) {
      if (use.origin() == v1::DECLARED) continue;
      names.push_back(
          fmt::format("{} for {}", PrintableName(volume.volume_id()), Use(use.consumer(), use.name())));
    }
  }
}

// "vol-1 for job-7, vol-2 for job-8 and more", of those that are waited for; empty where the node does not
// say within a second.
std::string WhoIsLeft(NodeClient& node) {
  const auto give_up = steady_clock::now() + std::chrono::seconds(1);
  v1::ListVolumesRequest request;
  request.set_page_size(100);
  std::vector<std::string> names;
  // A drain does not wait for declared volumes, and they can fill the first pages.
  do {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - steady_clock::now());
    const auto volumes = node.Call(&NodeClient::Stub::ListVolumes, request, "list the volumes",
                                   std::max(left, std::chrono::milliseconds(1)));
    if (!volumes.ok()) break;
    AddNames(*volumes, names);
    request.set_page_token(volumes->next_page_token());
  } while (names.size() <= kNamesShown && !request.page_token().empty());
  if (names.empty()) return {};
  const bool more = names.size() > kNamesShown || !request.page_token().empty();
  names.resize(std::min(names.size(), kNamesShown));
  return fmt::format("{}{}", fmt::join(names, ", "), more ? " and more" : "");
}

// How many publications hold up the drain; the reason too. Fails where the node does not say.
absl::StatusOr<v1::NodeDrain> LookAtDrain(Session& session) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse status,
      node.Call(&NodeClient::Stub::GetStatus, v1::GetStatusRequest(), "look at the drain", kLookWithin));
  return status.drain();
}

absl::Status StillLeft(Session& session) {
  std::string who;
  if (auto node = session.Connect(); node.ok()) who = WhoIsLeft(*node);
  const v1::NodeDrain drain = LookAtDrain(session).value_or(v1::NodeDrain());
  return WithHint(
      absl::DeadlineExceededError(fmt::format(
          "drain the node: {}{}{}", DescribeLeft(drain.publications_left()), who.empty() ? "" : ": ", who)),
      "It goes on; to wait longer: berthctl drain --wait --timeout 1h. To give it up: berthctl undrain");
}

// Waits until no publication is left, the drain was ended, or the time is over. Waits through restarts of
// berthd.
absl::StatusOr<v1::DrainNodeResponse> WaitUntilDrained(Session& session, v1::DrainNodeRequest request,
                                                       steady_clock::time_point give_up) {
  const Progress progress(session.output, "drain the node", [&session]() -> std::string {
    auto node = session.Connect();
    const std::string who = node.ok() ? WhoIsLeft(*node) : std::string();
    return who.empty() ? who : fmt::format("drain the node: waits for {}", who);
  });
  v1::DrainNodeResponse answer;
  request.set_wait(true);
  const auto wait = [&](NodeClient& node, const std::function<void()>& heard) -> absl::Status {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - steady_clock::now());
      auto drained = node.Call(&NodeClient::Stub::DrainNode, request, "drain the node",
                               std::max(left, std::chrono::milliseconds(1)));
      if (drained.ok()) {
        answer = *std::move(drained);
        return absl::OkStatus();
      }
      if (absl::IsAborted(drained.status())) {
        return WithHint(drained.status(), "The drain is over, and the node takes volumes again");
      }
      // The node does not wait for longer than its own limit.
      if (!absl::IsDeadlineExceeded(drained.status())) return drained.status();
      heard();
      if (steady_clock::now() >= give_up) return StillLeft(session);
    }
  };
  const FollowedStream stream{.read = wait,
                              .gone = "berthd has gone; waiting for it to come back",
                              .back = [] { return std::string("berthd is back"); },
                              .until = give_up};
  BERTH_RETURN_IF_ERROR(Follow(session, stream));
  return answer;
}

absl::Status Drain(Session& session, const DrainOptions& options) {
  const auto give_up = steady_clock::now() + session.timeout;
  v1::DrainNodeRequest request;
  request.set_reason(options.reason);
  if (options.reason.empty()) {
    // Who joins a drain has nothing against its reason.
    BERTH_ASSIGN_OR_RETURN(const v1::NodeDrain now, LookAtDrain(session));
    request.set_reason(now.reason());
  }
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(v1::DrainNodeResponse answer,
                         node.Call(&NodeClient::Stub::DrainNode, request, "drain the node"));
  if (options.wait) {
    BERTH_ASSIGN_OR_RETURN(answer, WaitUntilDrained(session, request, give_up));
  }
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  const int left = answer.drain().publications_left();
  session.output.Text(left == 0 ? "drained: nothing is published here but what files declare\n"
                                : fmt::format("draining: {}\n", DescribeLeft(left)));
  return absl::OkStatus();
}

absl::Status Undrain(Session& session, const NoOptions& /*options*/) {
  v1::DrainNodeRequest request;
  request.set_end(true);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::DrainNodeResponse answer,
                         node.Call(&NodeClient::Stub::DrainNode, request, "put the node back into use"));
  if (session.output.json()) {
    session.output.Json(answer);
  } else {
    session.output.Text("in use\n");
  }
  return absl::OkStatus();
}

absl::Status Scheduler(Session& session, const NoOptions& /*options*/) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse status,
      node.Call(&NodeClient::Stub::GetStatus, v1::GetStatusRequest(), "ask for the link to the scheduler"));
  if (!status.has_scheduler()) {
    return WithHint(absl::FailedPreconditionError("this node has no scheduler: berthd.toml names none"),
                    "How to name one: man berthd.toml");
  }
  if (session.output.json()) {
    session.output.Json(status.scheduler());
    return absl::OkStatus();
  }
  Table table;
  AddLink(table, status.scheduler(), std::chrono::system_clock::now());
  session.output.Show(table);
  return absl::OkStatus();
}

}  // namespace

void AddClusterCommands(CLI::App& app, Command& chosen) {
  AddCommand<DrainOptions>(
      app, "drain", "Take this node out of use: nothing new is published here, what is here may leave",
      chosen,
      [](CLI::App& command, DrainOptions& options) {
        command.add_option("--reason", options.reason, "The reason; refused publishes name it")
            ->option_text("TEXT");
        command.add_flag("--wait", options.wait, "Wait until nothing is published here any more");
        command.footer(
            "It outlives berthd and reboots, until berthctl undrain. Declared volumes stay. When --timeout "
            "is over\n"
            "the drain goes on, and the same command joins it.");
      },
      Drain);
  AddCommand<NoOptions>(app, "undrain", "Put this node back into use", chosen, DeclareNothing, Undrain);
  AddCommand<NoOptions>(app, "scheduler", "How the link to the central scheduler stands", chosen,
                        DeclareNothing, Scheduler);
}

}  // namespace berth::cli
