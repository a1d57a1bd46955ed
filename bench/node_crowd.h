// Many nodes, as a scheduler sees them: a connection and a stream for each, and heartbeats. They run in the
// bench's own process, on gRPC's threads; what they cost is not measured.
//
//   kScheduler: Hello ▸ Welcome, State, Heartbeat ▸ HeartbeatAnswer | Heartbeat ▸ HeartbeatAnswer, …
//   kEmpty:     nothing ▸ nothing, nothing ▸ nothing                | nothing ▸ nothing, …
//               └──────────────────── Connect ───────────────────┘   └──────── BeatAll ───────┘
//
// A connection each, as nodes are machines of their own: it takes two descriptors a node on this host, one in
// the bench and one in the server, and some 60 KiB of the bench's memory.
//
// The methods block, and are called on one thread. Every answer is checked: a lease that is not granted is an
// error.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/link_server.h"

namespace berth {

class NodeCrowd {
 public:
  // Returns once each of `size` nodes is connected, has told everything, and had its first heartbeat
  // answered; so the server has taken all of their states. UNAVAILABLE, INTERNAL (a wrong answer) or
  // DEADLINE_EXCEEDED with the first node's trouble.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeCrowd>> Connect(const std::string& address,
                                                                          LinkService service, int size);
  // Ends every stream, and waits for that.
  ~NodeCrowd();
  NodeCrowd(const NodeCrowd&) = delete;
  NodeCrowd& operator=(const NodeCrowd&) = delete;

  // Each node beats once, one every `gap`. Returns once all have been answered; errors as of Connect.
  [[nodiscard]] absl::Status BeatAll(Duration gap);

 private:
  class Node;
  struct Progress;
  NodeCrowd();
  std::unique_ptr<Progress> progress_;  // outlives the nodes
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace berth
