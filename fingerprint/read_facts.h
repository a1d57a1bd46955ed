// Asks a plugin what it is: GetPluginInfo, GetPluginCapabilities, and what its services say of themselves.
//
// Loop thread only. Holds the client until it is done; cancelling it cancels the call in flight.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "fingerprint/facts.h"

namespace berth {

struct FactsReading {
  // Not OK: an RPC did not get through ("NodeGetInfo: …"). Worth asking again soon, and no more is known.
  absl::Status answered;
  // Where it was answered: the facts, or why the plugin is refused (see CheckAnswers; also an RPC's own
  // final error).
  absl::StatusOr<CheckedFacts> facts;
};

// Each RPC has `timeout`. Node is asked only if the plugin's file says that it serves it. Controller is asked
// if the plugin itself promises one; if its controller is expected elsewhere a refusal is no fault, but an
// answer is good to know: whether volumes must be attached.
[[nodiscard]] Awaitable<FactsReading> ReadFacts(std::shared_ptr<CsiClient> client, ExpectedServices expected,
                                                Duration timeout);

}  // namespace berth
