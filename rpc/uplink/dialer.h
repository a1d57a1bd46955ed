// Makes a connection to a scheduler: resolves, connects, speaks TLS, and knows whom it has reached.
//
// Loop thread only; nothing here blocks it. What is dialled next, and when, is dial_schedule.h's.
#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "base/clock.h"
#include "base/task_scope.h"
#include "rpc/uplink/link_connection.h"
#include "rpc/uplink/tls_identity.h"
#include "rpc/uplink/uplink_config.h"

namespace berth {

// Dials `address`, each of the addresses that its host resolves to in turn, each for its share of the time.
// `identity` may be null for a Unix socket, where the kernel says who serves: root, or the user of berthd.
//
// Errors, which name the address: UNAVAILABLE (not resolved, not reached, or no TLS 1.3 with HTTP/2 there),
// UNAUTHENTICATED (the peer is not believed: why is for this node's operator, and is not told the peer),
// DEADLINE_EXCEEDED, FAILED_PRECONDITION (TLS without an identity). Throws operation_aborted when cancelled.
// Its result is to be closed: it is not raced against something else (`||`), which could drop it, but
// cancelled. A peer that does not take this node's certificate says so only later: LinkConnection::Closed.
[[nodiscard]] Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> Dial(
    UplinkAddress address, std::shared_ptr<const TlsIdentity> identity, TimePoint deadline);

}  // namespace berth
