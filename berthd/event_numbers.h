// Keeps the numbers of events growing across restarts: each run numbers its events from a block that the
// journal says nobody has used.
//
// Loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "mounter/mounter.h"

namespace berth {

// Reserves the first block, lets `events` begin there, and returns the block's end. Errors: the journal's.
[[nodiscard]] Awaitable<absl::StatusOr<uint64_t>> ReserveEventNumbers(Mounter& mounter, EventLog& events);

// Reserves the next block long before the one up to `end` is used up. Runs until it is cancelled.
[[nodiscard]] Awaitable<void> KeepEventNumbersReserved(Mounter& mounter, EventLog& events, uint64_t end);

}  // namespace berth
