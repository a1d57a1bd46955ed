// Claims of a cluster, as the commands volume claim and volume release ask for them with --cluster.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <string>

#include "berth/v1/cluster.pb.h"
#include "cli/session.h"

namespace berth::cli {

// A use of a volume, in the scheduler's terms.
struct ClaimName {
  std::string volume;
  std::string consumer;
  std::string name;
};
void DeclareClaimName(CLI::App& command, ClaimName& options);

[[nodiscard]] absl::StatusOr<v1::ClaimClusterVolumeResponse> ClaimInCluster(
    Session& session, const v1::ClaimClusterVolumeRequest& request);
[[nodiscard]] absl::Status ReleaseInCluster(Session& session, const ClaimName& options);

}  // namespace berth::cli
