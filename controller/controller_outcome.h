// What the end of a controller call means for a scheduler: the one function that says it.
//
// Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include "berth/v1/scheduler.pb.h"
#include "csi/errors.h"

namespace berth {

// Of a call that the plugin got. As Classify (csi/errors.h), with two exceptions:
//   - ABORTED of a call that changes something is uncertain here. The same call runs in the plugin already,
//     perhaps for this very scheduler, which no longer waits for it: it may still have an effect.
//   - A delete of something unknown to the plugin has failed: CSI wants OK for what is gone.
// A detach of an unknown volume or node may be tried again, and is an operator's matter if it stays so.
[[nodiscard]] v1::Outcome OutcomeOf(CsiRpc rpc, absl::StatusCode code);

// Of one that never left: it waited too long or no controller is ready now (UNAVAILABLE, DEADLINE_EXCEEDED:
// again later), or it is refused.
[[nodiscard]] v1::Outcome OutcomeUnsent(absl::StatusCode code);

}  // namespace berth
