// What a user asks of a volume, and the record that it becomes. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "berth/v1/cluster.pb.h"
#include "scheduler/decide/admit.h"
#include "scheduler/records/records.pb.h"

namespace berth::scheduler {

// OK, or INVALID_ARGUMENT with every mistake, by field.
[[nodiscard]] absl::Status CheckClaim(const v1::ClaimClusterVolumeRequest& request);

// The claim of `request`, without machine and plugin. INVALID_ARGUMENT: the volume may not be claimed in this
// mode.
[[nodiscard]] absl::StatusOr<pb::ClaimRecord> ClaimOf(const v1::ClaimClusterVolumeRequest& request,
                                                      const v1::VolumeSpec& volume);

// The consumer of a use of the volume that was asked for by a scheduler, in the volume's namespace; otherwise
// unset.
[[nodiscard]] std::optional<std::string> OurConsumer(const v1::VolumeSpec& volume,
                                                     const v1::Publication& publication);
// The claim of a use that its node alone knows, without machine: it is leaving.
[[nodiscard]] pb::ClaimRecord FoundClaim(const v1::VolumeSpec& volume, const std::string& node,
                                         const v1::Volume& shown, const v1::Publication& publication);

// OK: `claim` is the same as the one that is there. ALREADY_EXISTS: it differs; the message names in what.
// ABORTED: the one that is there is leaving.
[[nodiscard]] absl::Status Joins(const pb::ClaimRecord& claim, const pb::ClaimRecord& there);

// As Admit needs it.
[[nodiscard]] ClaimFacts FactsOf(const pb::ClaimRecord& claim);

// "NAMESPACE/ID", for people.
[[nodiscard]] std::string ShownVolume(const std::string& name_space, const std::string& id);
// "CONSUMER" or "CONSUMER (NAME)", for people.
[[nodiscard]] std::string ShownConsumer(const pb::ClaimRecord& claim);

}  // namespace berth::scheduler
