// volume unpublish, consumer ended.
#include <fmt/format.h>

#include <string>

#include "base/status.h"
#include "cli/confirm.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/quoting.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_options.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using Stub = NodeClient::Stub;

struct UnpublishOptions : VolumeOptions {
  std::string consumer;
  std::string name;
  bool all = false;
  bool wait = false;
  bool force = false;
  bool lazy = false;
  bool yes = false;
};

void DeclareUnpublish(CLI::App& command, UnpublishOptions& options) {
  DeclareVolumeOrLabel(command, options);
  command.add_option("--consumer", options.consumer, "The consumer that no longer uses it")
      ->required()
      ->option_text("NAME");
  CLI::Option* name =
      command.add_option("--name", options.name, "The use of that name; without, the one that has none")
          ->option_text("NAME");
  command.add_flag("--all", options.all, "Every use by this consumer")->excludes(name);
  command.add_flag(
      "--wait", options.wait,
      "First wait until the consumer's process, cgroup or unit has ended, as long as --timeout says");
  constexpr const char* kLevers = "Against a file system that does not answer";
  command
      .add_flag(
          "--force", options.force,
          "Abort it: what it has not written is LOST. Not in the place of ending those who use it. Also "
          "releases the volume without its plugin, where that is gone or refuses")
      ->group(kLevers);
  command
      .add_flag("--lazy", options.lazy,
                "Detach it while it is busy: it can STILL BE WRITTEN TO, and is not free")
      ->group(kLevers);
  command.add_flag("-y,--yes", options.yes, "Do not ask")->group(kLevers);
}

// The node ends a call before an end that is waited for may come: it is joined again until our time is over.
template <class Request, class Response>
absl::StatusOr<Response> CallJoined(const Session& session, NodeClient& node,
                                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                 Response*),
                                    const Request& request, const std::string& doing) {
  const auto give_up = std::chrono::steady_clock::now() + session.timeout;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now());
    absl::StatusOr<Response> answer = node.Call(method, request, doing, left);
    if (!absl::IsDeadlineExceeded(answer.status()) || std::chrono::steady_clock::now() >= give_up)
      return answer;
  }
}

absl::Status ConfirmLevers(const UnpublishOptions& options) {
  std::string warning;
  if (options.force) {
    warning = fmt::format(
        "--force aborts the file system of {}: what it has not written yet is lost, for every consumer of "
        "it. "
        "If its plugin is gone or refuses, it is released without the plugin, and must not be attached to "
        "another node before this one is fenced",
        PrintableName(options.volume));
  }
  if (options.lazy) {
    if (!warning.empty()) warning += "; ";
    warning += fmt::format(
        "--lazy detaches {} although it is used: it can still be written to, so the "
        "volume "
        "must not be used elsewhere until those who use it have ended",
        PrintableName(options.volume));
  }
  return warning.empty() ? absl::OkStatus() : Confirm(warning, options.yes);
}

absl::Status Unpublish(Session& session, const UnpublishOptions& given) {
  UnpublishOptions options = given;
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_RETURN_IF_ERROR(NameVolume(node, options));
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  request.set_consumer(options.consumer);
  request.set_name(options.name);
  request.set_all_names(options.all);
  request.set_wait(options.wait);
  request.set_force(options.force);
  request.set_lazy(options.lazy);
  BERTH_RETURN_IF_ERROR(ConfirmLevers(options));
  const std::string use = Use(options.consumer, options.name);
  const absl::StatusOr<v1::UnpublishVolumeResponse> answer =
      [&]() -> absl::StatusOr<v1::UnpublishVolumeResponse> {
    const Progress progress(session.output,
                            options.wait ? "waiting for the consumer's end" : "UnpublishVolume",
                            [&] { return node.RunningStep(options.plugin, options.volume); });
    const std::string doing = fmt::format("unpublish {} of {}", PrintableName(options.volume), use);
    if (options.wait) return CallJoined(session, node, &Stub::UnpublishVolume, request, doing);
    return node.Call(&Stub::UnpublishVolume, request, doing);
  }();
  if (!answer.ok()) return Advised(node, options, answer.status());
  if (answer->aborted()) session.output.Note("its file system was aborted: what it had not written is lost");
  if (answer->detached())
    session.output.Note("a mount of it was detached: it stays in use until its users end");
  if (answer->without_plugin()) {
    session.output.Note(
        fmt::format("{} was released without its plugin, which is asked to undo its part once it can: until "
                    "then, do not detach it without fencing this node",
                    PrintableName(options.volume)));
  }
  if (answer->still_in_use()) {
    session.output.Note(fmt::format(
        "{} is not free: {}. It is released by itself once that has ended (berthctl volume explain)",
        PrintableName(options.volume),
        answer->used_by().empty() ? "it may still be used and written to" : answer->used_by()));
  }
  if (answer->uses_left() > 0 && !answer->still_in_use()) {
    session.output.Note(fmt::format("{} use{} of {} {} left on this node: do not detach it",
                                    answer->uses_left(), answer->uses_left() == 1 ? "" : "s",
                                    PrintableName(options.volume), answer->uses_left() == 1 ? "is" : "are"));
  }
  if (session.output.json()) {
    session.output.Json(*answer);
  } else if (answer->was_published()) {
    session.output.Text(fmt::format("unpublished {} of {}\n", PrintableName(options.volume), use));
  } else {
    session.output.Text(fmt::format("{} was not published for {}\n", PrintableName(options.volume), use));
  }
  return absl::OkStatus();
}

struct ConsumerOptions {
  std::string consumer;
};

absl::Status Ended(Session& session, const ConsumerOptions& options) {
  v1::EndConsumerRequest request;
  request.set_consumer(options.consumer);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const std::string doing = fmt::format("release the volumes of {}", PrintableName(options.consumer));
  const absl::StatusOr<v1::EndConsumerResponse> answer = [&] {
    const Progress progress(session.output, doing);
    return CallJoined(session, node, &Stub::EndConsumer, request, doing);
  }();
  if (!answer.ok()) {
    return WithHint(answer.status(),
                    IsAnswer(answer.status())
                        ? fmt::format("What is left, and why: berthctl volumes --consumer {}",
                                      ShellQuoted(options.consumer))
                        : HintOf(answer.status()));
  }
  if (session.output.json()) {
    session.output.Json(*answer);
    return absl::OkStatus();
  }
  session.output.Text(answer->released() == 0
                          ? fmt::format("{} used nothing\n", PrintableName(options.consumer))
                          : fmt::format("ended {} {} by {}\n", answer->released(),
                                        answer->released() == 1 ? "use" : "uses",
                                        PrintableName(options.consumer)));
  return absl::OkStatus();
}

}  // namespace

void AddUnpublish(CLI::App& volume, Command& chosen) {
  AddCommand<UnpublishOptions>(volume, "unpublish", "End a consumer's use of a volume", chosen,
                               DeclareUnpublish, Unpublish);
}

void AddConsumerCommands(CLI::App& app, Command& chosen) {
  CLI::App* group = AddGroup(app, "consumer", "Those who use volumes: ended");
  AddCommand<ConsumerOptions>(
      *group, "ended", "Say that a consumer has ended: everything that it uses is unpublished", chosen,
      [](CLI::App& command, ConsumerOptions& options) {
        command
            .add_option("consumer,--consumer", options.consumer, "The consumer, as its publishes named it")
            ->required()
            ->option_text("NAME");
      },
      Ended);
}

}  // namespace berth::cli
