// What a handler of a call knows besides the request.
#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"
#include "mounter/volume_types.h"
#include "rpc/access.h"

namespace berth {

struct CallInfo {
  std::string_view method;  // "PublishVolume"; lives for ever
  bool may_change = false;  // its caller: so he sees what may be secret, such as mount flags
  // A little before the caller's deadline, so that it still hears what came of it; at most the scope's
  // longest wait from now.
  TimePoint deadline;
  // The caller, from the kernel; unset if the connection has ended meanwhile.
  std::optional<PeerCredentials> peer = {};
  // The caller's origin, which may resume what it publishes.
  Origin origin = Origin::kCaller;
};

}  // namespace berth
