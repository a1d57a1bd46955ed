// A call to a node that changes nothing: it is not written down, and may be repeated.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "scheduler/links/node_links.h"

namespace berth::scheduler {

// Sends `operation`, without an id, to the node, waits for its result, and acknowledges it. An operation that
// failed has the status of its result. DEADLINE_EXCEEDED: the node has not answered by `deadline`, or is not
// connected. Loop thread; `links` outlives it.
[[nodiscard]] Awaitable<absl::StatusOr<v1::OperationResult>> CallNode(NodeLinks& links, std::string node,
                                                                      v1::Operation operation,
                                                                      TimePoint deadline);

}  // namespace berth::scheduler
