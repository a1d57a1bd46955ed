// volume wait.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/follow.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct WaitOptions {
  std::vector<std::string> names;
};

constexpr const char* kWaitFooter =
    R"(A NAME is the name of a file in volumes.d without ".toml", or the id of a volume that one declares.
It does not matter whether berthd is up yet, or is restarted meanwhile. Exit status: 0 all are published, 5 not in
time, 6 no file declares it, 7 its file is wrong. Units need not call it: they require berth-volume@NAME.service.
  berthctl volume wait db --timeout 5m && exec postgres -D /srv/db)";

// One call of the node lasts no longer.
constexpr milliseconds kOneCall(30'000);
// berthd answers so long before the call's deadline.
constexpr milliseconds kForTheAnswer(1000);

constexpr milliseconds kPause(200);

// Whether the call may have ended because berthd does: it answers in time while it is there, and gRPC ends a
// call on a connection that is being closed with any of these codes.
bool IsCutOff(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) || absl::IsUnknown(status) ||
         absl::IsInternal(status);
}

// What systemd makes of a '-' in the name of an instance that was not escaped.
std::string WithDashes(std::string name) {
  std::ranges::replace(name, '/', '-');
  return name;
}

std::string Describe(const v1::DeclaredVolume& volume) {
  std::string text = fmt::format("{}: {}", PrintableName(volume.name()), volume.status());
  if (!volume.last_error().empty()) text += ": " + volume.last_error();
  return text;
}

std::string DescribePending(const v1::ListDeclaredVolumesResponse& answer) {
  std::vector<std::string> pending;
  for (const v1::DeclaredVolume& volume : answer.volumes()) {
    if (volume.state() == v1::DECLARED_PENDING) pending.push_back(Describe(volume));
  }
  return fmt::format("{}", fmt::join(pending, "; "));
}

// What a wait that is over ends with; unset: it goes on.
std::optional<absl::Status> Verdict(const std::vector<std::string>& names,
                                    const v1::ListDeclaredVolumesResponse& answer) {
  for (const std::string& name : names) {
    const auto& unknown = answer.not_declared();
    const auto is_unknown = [&unknown](const std::string& each) {
      return std::ranges::find(unknown, each) != unknown.end();
    };
    if (!is_unknown(name) || !is_unknown(WithDashes(name))) continue;
    return NotDeclaredError(fmt::format("no file in volumes.d declares {}", PrintableName(name)),
                            "What is declared: berthctl volumes; after a new file: berthctl reload");
  }
  bool pending = false;
  for (const v1::DeclaredVolume& volume : answer.volumes()) {
    if (volume.state() == v1::DECLARED_BROKEN) {
      return BrokenFileError(Describe(volume), "Correct the file, then: berthctl reload");
    }
    pending = pending || volume.state() != v1::DECLARED_PUBLISHED;
  }
  return pending ? std::nullopt : std::optional(absl::OkStatus());
}

absl::Status Wait(Session& session, const WaitOptions& options) {
  const auto give_up = steady_clock::now() + session.timeout;
  v1::ListDeclaredVolumesRequest request;
  request.set_wait(true);
  for (const std::string& name : options.names) {
    request.add_names(name);
    if (WithDashes(name) != name) request.add_names(WithDashes(name));
  }
  const std::string doing = fmt::format("wait for {}", fmt::join(options.names, ", "));
  std::mutex mutex;
  std::string now;
  const auto ask_now = [&mutex, &now] {
    const std::lock_guard lock(mutex);
    return now;
  };
  const Progress progress(session.output, doing, ask_now);
  v1::ListDeclaredVolumesResponse last;
  const auto read = [&](NodeClient& node, const std::function<void()>& heard) -> absl::Status {
    while (true) {
      const auto left = std::chrono::duration_cast<milliseconds>(give_up - steady_clock::now());
      const milliseconds call = std::clamp(left, milliseconds(0), kOneCall) + kForTheAnswer;
      const auto began = steady_clock::now();
      auto answer = node.Call(&NodeClient::Stub::ListDeclaredVolumes, request, doing, call);
      if (answer.ok()) {
        heard();
        last = *std::move(answer);
        if (auto verdict = Verdict(options.names, last)) return *std::move(verdict);
        const std::lock_guard lock(mutex);
        now = DescribePending(last);
      } else if (IsCutOff(answer.status())) {
        return absl::UnavailableError(answer.status().message());
      } else {
        return answer.status();
      }
      if (steady_clock::now() >= give_up) {
        const std::string state = DescribePending(last);
        return NotInTimeError(fmt::format("not published in time{}{}", state.empty() ? "" : ": ", state),
                              "What keeps it: berthctl doctor; to wait longer: --timeout 10m");
      }
      // The node waits, but who knows which version it is: never in a spin.
      if (steady_clock::now() - began < kPause) poll(nullptr, 0, static_cast<int>(kPause.count()));
    }
  };
  const FollowedStream stream{.read = read,
                              .gone = "berthd has gone; waiting for it to come back",
                              .back = [] { return std::string("berthd is there"); },
                              .until = give_up};
  BERTH_RETURN_IF_ERROR(Follow(session, stream));
  if (session.output.json()) {
    session.output.Json(last);
    return absl::OkStatus();
  }
  for (const v1::DeclaredVolume& volume : last.volumes()) {
    session.output.Text(Printable(fmt::format("{} is published{}{}", volume.name(),
                                              volume.path().empty() ? "" : " at ", volume.path())) +
                        "\n");
  }
  return absl::OkStatus();
}

}  // namespace

void AddWait(CLI::App& volume, Command& chosen) {
  AddCommand<WaitOptions>(
      volume, "wait", "Wait until declared volumes are published", chosen,
      [](CLI::App& command, WaitOptions& options) {
        command.add_option("names", options.names, "Files of volumes.d without .toml, or volumes")
            ->required()
            ->option_text("NAME...");
        command.footer(kWaitFooter);
      },
      Wait);
}

}  // namespace berth::cli
