// A claim with its node as it is now: for decisions, and for people. Pure but for the links, and the clock to
// which the next try is relative. Loop thread.
#pragma once

#include <string>

#include "berth/v1/cluster.pb.h"
#include "scheduler/decide/claim_machine.h"
#include "scheduler/links/node_links.h"

namespace berth::scheduler {

// As Next and Apply need it. Valid until the loop goes on.
[[nodiscard]] ClaimNode NodeOf(const pb::ClaimRecord& claim, const NodeLinks& links);

// The last error: what its node says of the volume while it is asked, or what it has answered.
[[nodiscard]] std::string ErrorOf(const pb::ClaimRecord& record, const NodeLinks& links);

// What it waits for; empty: for nothing.
[[nodiscard]] std::string WaitsFor(const pb::ClaimRecord& record, const NodeLinks& links);

[[nodiscard]] v1::ClusterClaim ToProto(const ClaimState& claim, const NodeLinks& links);

}  // namespace berth::scheduler
