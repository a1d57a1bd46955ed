// Claims of a cluster: volume claim and release with --cluster, claim list, claim show.
#include "cli/cluster_claim_commands.h"

#include <fmt/format.h>

#include "base/status.h"
#include "cli/cluster_view.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

// What goes on without this caller is said with the error.
absl::Status WithWaitHint(absl::Status status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return WithHint(std::move(status),
                  "It goes on, and the same command joins it; to wait longer: --timeout 10m");
}

struct ClaimListOptions {
  std::string name_space;
  std::string volume;
  std::string consumer;
  std::string node;
};

absl::StatusOr<v1::ListClusterClaimsResponse> AskForClaims(Session& session,
                                                           const ClaimListOptions& options) {
  v1::ListClusterClaimsRequest request;
  request.set_namespace_(options.name_space);
  if (!options.volume.empty()) {
    BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(options.volume));
    request.set_namespace_(name.name_space);
    request.set_volume(name.id);
  }
  request.set_consumer(options.consumer);
  request.set_node(options.node);
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  return cluster.CallForAllPages(&ClusterClient::Stub::ListClaims, request, "list the claims");
}

absl::Status List(Session& session, const ClaimListOptions& options) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListClusterClaimsResponse answer, AskForClaims(session, options));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  if (answer.claims().empty()) {
    session.output.Note("no claims");
  } else {
    session.output.Show(ClaimTable(answer.claims()));
  }
  return absl::OkStatus();
}

absl::Status Show(Session& session, const ClaimName& options) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListClusterClaimsResponse answer,
                         AskForClaims(session, {.volume = options.volume, .consumer = options.consumer}));
  for (const v1::ClusterClaim& claim : answer.claims()) {
    if (claim.name() != options.name) continue;
    if (session.output.json()) {
      session.output.Json(claim);
    } else {
      session.output.Text(ClusterLine(answer.cluster_id()));
      session.output.Show(ClaimDetails(claim));
    }
    return absl::OkStatus();
  }
  return WithHint(
      absl::NotFoundError(fmt::format("volume {} is not claimed for {}", PrintableName(options.volume),
                                      Use(options.consumer, options.name))),
      "What there is: berthctl claim list");
}

}  // namespace

void DeclareClaimName(CLI::App& command, ClaimName& options) {
  command.add_option("volume", options.volume, "The scheduler's name of the volume, in its namespace")
      ->required()
      ->option_text("NAMESPACE/VOLUME");
  command.add_option("--consumer", options.consumer, "Who uses it, within the namespace")
      ->required()
      ->option_text("NAME");
  command.add_option("--name", options.name, "Distinguishes several uses by one consumer")
      ->option_text("NAME");
}

absl::StatusOr<v1::ClaimClusterVolumeResponse> ClaimInCluster(Session& session,
                                                              const v1::ClaimClusterVolumeRequest& request) {
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  const std::string doing =
      fmt::format("claim {}/{} for {}", PrintableName(request.namespace_()), PrintableName(request.volume()),
                  Use(request.consumer(), request.name()));
  const Progress progress(session.output, doing);
  auto answer = cluster.Call(&ClusterClient::Stub::ClaimVolume, request, doing);
  if (!answer.ok()) return WithWaitHint(answer.status());
  return answer;
}

absl::Status ReleaseInCluster(Session& session, const ClaimName& options) {
  BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(options.volume));
  v1::ReleaseClusterClaimRequest request;
  request.set_namespace_(name.name_space);
  request.set_volume(name.id);
  request.set_consumer(options.consumer);
  request.set_name(options.name);
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  const std::string doing =
      fmt::format("release {} for {}", PrintableName(options.volume), Use(options.consumer, options.name));
  const absl::StatusOr<v1::ReleaseClusterClaimResponse> answer = [&] {
    const Progress progress(session.output, doing);
    return cluster.Call(&ClusterClient::Stub::ReleaseClaim, request, doing);
  }();
  if (!answer.ok()) return WithWaitHint(answer.status());
  if (session.output.json()) {
    session.output.Json(*answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer->cluster_id()));
  if (!answer->was_claimed()) session.output.Note("it was not claimed");
  return absl::OkStatus();
}

void AddClusterClaims(CLI::App& app, Command& chosen) {
  CLI::App* group = AddGroup(app, "claim", "Claims of a cluster (--cluster): list, show");
  AddCommand<ClaimListOptions>(
      *group, "list", "Every claim, its step, and what it waits for", chosen,
      [](CLI::App& command, ClaimListOptions& options) {
        CLI::Option* name_space =
            command.add_option("--namespace", options.name_space, "Only of this namespace")
                ->option_text("NAME");
        command.add_option("--volume", options.volume, "Only of this volume")
            ->option_text("NAMESPACE/VOLUME")
            ->excludes(name_space);
        command.add_option("--consumer", options.consumer, "Only of this consumer")->option_text("NAME");
        command.add_option("--node", options.node, "Only on this node")->option_text("NODE");
      },
      List);
  AddCommand<ClaimName>(*group, "show", "One claim: who, where, its step, tries, last error, next try",
                        chosen, DeclareClaimName, Show);
}

}  // namespace berth::cli
