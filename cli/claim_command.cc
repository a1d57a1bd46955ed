// volume claim, volume release.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/cluster_claim_commands.h"
#include "cli/cluster_view.h"
#include "cli/failure.h"
#include "cli/follow.h"
#include "cli/mount_formats.h"
#include "cli/mount_places.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using std::chrono::steady_clock;

struct ReleaseOptions : ClaimName {
  bool wait = false;
};

struct ClaimOptions : ReleaseOptions {
  std::string node;
  bool readonly = false;
  CapabilityOptions capability;
  std::string runtime;
  std::vector<std::string> replaces;
  std::optional<int64_t> pid;
  std::string cgroup;
  std::string unit;
  std::string format;
  std::vector<std::string> at;
};

constexpr const char* kClaimFooter =
    R"(Prints the path at which the volume is, or with --format how the consumer's runtime mounts it. Repeat it
freely: the same claim joins. It takes the right to claim, and no other.
  data=$(berthctl volume claim prod/db --consumer job-7 --pid $$ --wait --timeout 10m) || exit
  mounts=$(berthctl volume claim prod/db --consumer job-7 --format podman) && eval "podman run $mounts IMAGE")";

// How berthd begins what it says of the scheduler, and what the scheduler itself says.
constexpr absl::string_view kOfScheduler = "the scheduler";
constexpr absl::string_view kSchedulersWord = "the scheduler: ";

// What claim and release have in common.
template <class Request>
absl::StatusOr<Request> MakeRequest(const ReleaseOptions& options) {
  Request request;
  BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(options.volume));
  request.set_namespace_(name.name_space);
  request.set_volume(name.id);
  request.set_consumer(options.consumer);
  request.set_name(options.name);
  request.set_wait(options.wait);
  return request;
}

absl::StatusOr<v1::ClaimVolumeRequest> MakeClaim(const ClaimOptions& options) {
  BERTH_ASSIGN_OR_RETURN(auto request, MakeRequest<v1::ClaimVolumeRequest>(options));
  request.set_readonly(options.readonly);
  BERTH_ASSIGN_OR_RETURN(const v1::Capability capability, MakeCapability(options.capability));
  if (capability.ByteSizeLong() > 0) *request.mutable_capability() = capability;
  request.set_runtime(options.runtime);
  *request.mutable_replaces() = {options.replaces.begin(), options.replaces.end()};
  if (options.pid.has_value()) request.mutable_life()->set_pid(*options.pid);
  if (!options.cgroup.empty()) request.mutable_life()->set_cgroup(options.cgroup);
  if (!options.unit.empty()) request.mutable_life()->set_unit(options.unit);
  return request;
}

// Whether berthd says it of the scheduler ("the scheduler is not connected"), so that berthd itself is there.
bool IsAboutScheduler(const absl::Status& failure) {
  return failure.message().substr(0, kOfScheduler.size()) == kOfScheduler;
}

// What a person does about an answer to a claim, where that is not what one does about any other answer.
std::string_view ClaimHintFor(const absl::Status& failure) {
  if (failure.message().substr(0, kSchedulersWord.size()) == kSchedulersWord) {
    return absl::IsUnavailable(failure) || absl::IsAborted(failure) || absl::IsResourceExhausted(failure)
               ? "This is the scheduler's answer: try again later, or ask its operator"
               : "This is the scheduler's answer, not this node's: ask its operator";
  }
  if (absl::IsDeadlineExceeded(failure)) {
    return "The claim was withdrawn; the same command makes it again; to wait longer: --timeout 10m";
  }
  if (absl::IsUnavailable(failure) && IsAboutScheduler(failure)) {
    return "How the link to it stands: berthctl scheduler; to wait for it: --wait";
  }
  if (absl::IsAborted(failure)) return "It may have gone meanwhile: the same command claims it again";
  if (absl::IsFailedPrecondition(failure)) return "How the link to a scheduler stands: berthctl scheduler";
  if (absl::IsResourceExhausted(failure)) return "How the link to the scheduler stands: berthctl scheduler";
  return {};
}

absl::Status WithClaimHint(absl::Status failure) {
  const std::string_view hint = IsAnswer(failure) ? ClaimHintFor(failure) : std::string_view();
  return hint.empty() ? failure : WithHint(std::move(failure), hint);
}

// "claim prod/db for job-7".
template <class Request>
std::string Doing(std::string_view verb, const Request& request) {
  return fmt::format("{} {}/{} for {}", verb, PrintableName(request.namespace_()),
                     PrintableName(request.volume()), Use(request.consumer(), request.name()));
}

// `call(node, timeout)` asks the scheduler through berthd. With `wait` it is called again after a restart of
// berthd.
template <class Response, class Call>
absl::StatusOr<Response> Ask(Session& session, bool wait, const Call& call) {
  const auto give_up = steady_clock::now() + session.timeout;
  absl::StatusOr<Response> answer;
  const auto ask = [&](NodeClient& node, const std::function<void()>& /*heard*/) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - steady_clock::now());
    answer = call(node, std::max(left, std::chrono::milliseconds(1)));
    // What the scheduler answers, whatever that is, ends the wait for berthd.
    return IsAboutScheduler(answer.status()) ? absl::OkStatus() : answer.status();
  };
  if (wait) {
    const FollowedStream stream{.read = ask,
                                .gone = "berthd has gone; waiting for it to come back",
                                .back = [] { return std::string("berthd is there"); },
                                .until = give_up};
    if (absl::Status followed = Follow(session, stream); !followed.ok()) return WithClaimHint(followed);
  } else {
    BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
    if (absl::Status asked = ask(node, [] {}); !asked.ok()) return WithClaimHint(asked);
  }
  if (!answer.ok()) return WithClaimHint(answer.status());
  return answer;
}

absl::StatusOr<v1::ClaimClusterVolumeRequest> MakeClusterClaim(const ClaimOptions& options) {
  if (options.node.empty())
    return UsageError("--node is missing: where the consumer runs; berthctl node list");
  if (!options.replaces.empty())
    return UsageError("--replace is for a claim through a node, without --cluster");
  // What both kinds of claims have has one meaning.
  BERTH_ASSIGN_OR_RETURN(const v1::ClaimVolumeRequest claim, MakeClaim(options));
  v1::ClaimClusterVolumeRequest request;
  request.set_namespace_(claim.namespace_());
  request.set_volume(claim.volume());
  request.set_consumer(claim.consumer());
  request.set_name(claim.name());
  request.set_node(options.node);
  request.set_access_mode(claim.capability().access_mode());
  request.set_readonly(claim.readonly());
  if (options.capability.block)
    return UsageError("whether it is a block device was said when it was registered");
  if (!claim.capability().fs_type().empty())
    request.mutable_mount_options()->set_fs_type(claim.capability().fs_type());
  if (!claim.capability().mount_flags().empty())
    *request.mutable_mount_options()->mutable_mount_flags()->mutable_values() =
        claim.capability().mount_flags();
  if (claim.has_life()) *request.mutable_life() = claim.life();
  if (!claim.runtime().empty()) request.mutable_runtime()->set_name(claim.runtime());
  return request;
}

// The path, or how the runtime mounts it.
absl::Status ShowMount(const Session& session, const ClaimOptions& options,
                       const std::optional<MountFormat>& format, const v1::ConsumerMount& mount,
                       const google::protobuf::Message& answer) {
  if (!format && session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  if (!format) {
    session.output.Value(mount.source_path());
    return absl::OkStatus();
  }
  v1::ListConsumerMountsResponse mounts;
  *mounts.add_mounts() = mount;
  BERTH_ASSIGN_OR_RETURN(const std::vector<PlacedMount> placed, PlaceMounts(mounts, options.at));
  return ShowMounts(session.output, *format, placed);
}

absl::Status Claim(Session& session, const ClaimOptions& options) {
  std::optional<MountFormat> format;
  if (!options.format.empty()) {
    BERTH_ASSIGN_OR_RETURN(format, ParseMountFormat(options.format));
  }
  if (!format && !options.at.empty()) return UsageError("--at goes with --format, which is not given");
  if (!session.cluster.empty()) {
    BERTH_ASSIGN_OR_RETURN(const v1::ClaimClusterVolumeRequest request, MakeClusterClaim(options));
    BERTH_ASSIGN_OR_RETURN(const v1::ClaimClusterVolumeResponse answer, ClaimInCluster(session, request));
    return ShowMount(session, options, format, answer.claim().mount(), answer);
  }
  if (!options.node.empty()) return UsageError("--node is for a claim in a cluster: --cluster ADDRESS");
  BERTH_ASSIGN_OR_RETURN(const v1::ClaimVolumeRequest request, MakeClaim(options));
  session.need = Need::kClaim;
  const std::string doing = Doing("claim", request);
  const Progress progress(session.output, doing);
  const auto call = [&](NodeClient& node,
                        std::chrono::milliseconds within) -> absl::StatusOr<v1::ClaimVolumeResponse> {
    v1::ClaimVolumeResponse last;
    const std::function<void(const v1::ClaimVolumeResponse&)> hear = [&](const auto& message) {
      last = message;
      if (message.has_progress()) session.output.Note(Printable(message.progress()));
    };
    BERTH_RETURN_IF_ERROR(node.ReadWithin(&NodeClient::Stub::ClaimVolume, request, doing, within, hear));
    if (!last.has_mount()) return absl::InternalError(doing + ": berthd ended the answer without a mount");
    return last;
  };
  BERTH_ASSIGN_OR_RETURN(const auto answer, Ask<v1::ClaimVolumeResponse>(session, request.wait(), call));
  return ShowMount(session, options, format, answer.mount(), answer);
}

absl::Status Release(Session& session, const ReleaseOptions& options) {
  if (!session.cluster.empty()) return ReleaseInCluster(session, options);
  BERTH_ASSIGN_OR_RETURN(const auto request, MakeRequest<v1::ReleaseClaimRequest>(options));
  session.need = Need::kClaim;
  const std::string doing = Doing("release", request);
  const Progress progress(session.output, doing);
  const auto call = [&](NodeClient& node, std::chrono::milliseconds within) {
    return node.Call(&NodeClient::Stub::ReleaseClaim, request, doing, within);
  };
  BERTH_ASSIGN_OR_RETURN(const auto answer, Ask<v1::ReleaseClaimResponse>(session, options.wait, call));
  if (session.output.json()) session.output.Json(answer);
  return absl::OkStatus();
}

void DeclareRelease(CLI::App& command, ReleaseOptions& options) {
  DeclareClaimName(command, options);
  command.add_flag("--wait", options.wait, "Wait also while the scheduler, or berthd, is away");
}

void DeclareClaim(CLI::App& command, ClaimOptions& options) {
  DeclareRelease(command, options);
  command.add_option("--node", options.node, "Where the consumer runs; with --cluster, and required there")
      ->option_text("NODE");
  command.add_flag("--readonly,--read-only", options.readonly, "Read only for this consumer");
  DeclareCapability(command, options.capability);
  command.add_option("--runtime", options.runtime, "The consumer's runtime: a [[runtime]] of berthd.toml")
      ->option_text("NAME");
  AddRepeated(command, "--replace", options.replaces, "CONSUMER",
              "A consumer in the namespace that this one replaces; the scheduler may end it first");
  CLI::Option* pid =
      command.add_option("--pid", options.pid, "Until this process has ended; one of your own")
          ->option_text("PID");
  CLI::Option* cgroup = command
                            .add_option("--cgroup", options.cgroup,
                                        "Until no process is left in this cgroup; takes the right to change")
                            ->option_text("DIRECTORY")
                            ->excludes(pid);
  command.add_option("--unit", options.unit, "Until this systemd unit has ended; takes the right to change")
      ->option_text("UNIT")
      ->excludes(pid)
      ->excludes(cgroup);
  command.add_option("--format", options.format, fmt::format("One of {}", kMountFormats))
      ->option_text("FORMAT");
  AddRepeated(command, "--at", options.at, "/PATH", "Where the consumer is to see it; with --format");
  command.footer(kClaimFooter);
}

}  // namespace

void AddClaim(CLI::App& volume, Command& chosen) {
  AddCommand<ClaimOptions>(volume, "claim",
                           "Ask the central scheduler for a volume, for a consumer here, or on --node",
                           chosen, DeclareClaim, Claim);
  AddCommand<ReleaseOptions>(volume, "release", "Give a claimed volume back to the central scheduler", chosen,
                             DeclareRelease, Release);
}

}  // namespace berth::cli
