// Reads a stream of the node through restarts of berthd: what it says is said again from where it stopped.
//
// Confined to its caller's thread.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "cli/session.h"

namespace berth::cli {

struct FollowedStream {
  // Reads the stream until it ends, from where the last call of this stopped. `heard` is to be called with
  // each message.
  std::function<absl::Status(NodeClient& node, const std::function<void()>& heard)> read;
  // What is said on standard error when berthd has gone, and when it is back.
  std::string gone;
  std::function<std::string()> back;
  // Set: when the whole of it ends, however often berthd goes; and berthd may be away from the beginning.
  // Unset: berthd is to be there at first, and may be away for the session's timeout each time.
  std::optional<std::chrono::steady_clock::time_point> until;
};

// Calls `stream.read` again after each restart of berthd. Errors: the first connection's; the last
// connection's, if berthd is away for too long; every other error of `stream.read` at once. UNAVAILABLE means
// that berthd is away.
[[nodiscard]] absl::Status Follow(Session& session, const FollowedStream& stream);

}  // namespace berth::cli
