// Makes a connection to a scheduler: resolves, connects, speaks TLS, and checks the peer.
//
// Loop thread only; nothing here blocks it. dial_schedule.h decides what is dialled next, and when.
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
// `identity` may be null for a Unix socket, where the kernel names the server's user: it must be root, or
// berthd's user.
//
// Errors, which name the address: UNAVAILABLE (not resolved, not reached, or no TLS 1.3 with HTTP/2 there),
// UNAUTHENTICATED (the peer is not believed: the reason is for this node's operator, and is not sent to the
// peer), DEADLINE_EXCEEDED, FAILED_PRECONDITION (TLS without an identity). Throws operation_aborted when
// cancelled. Its result is to be closed: do not race it against something else (`||`), which could drop it;
// cancel it. A peer that does not accept this node's certificate says so only later: LinkConnection::Closed.
[[nodiscard]] Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> Dial(
    UplinkAddress address, std::shared_ptr<const TlsIdentity> identity, TimePoint deadline);

}  // namespace berth
