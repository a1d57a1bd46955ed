// The smallest scheduler that keeps to berth/v1/scheduler.proto: it welcomes nodes, grants leases, keeps each
// node's newest state, and asks for nothing.
//
//   SmallScheduler ── one KnownNode for each name, kept when its stream ends
//        ▲
//     NodeLink ── one for each stream: takes what the node says, gives what is to be answered
//
// No I/O and no clock: bench/link_server.h puts streams to it. Any thread, but a NodeLink is used by one at a
// time. The scheduler outlives its links.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "berth/v1/scheduler.pb.h"

namespace berth {

struct SchedulerTerms {
  uint64_t lease_epoch = 1;
  Duration lease = std::chrono::seconds(30);
  Duration heartbeat_interval = std::chrono::seconds(5);
};

class SmallScheduler {
 public:
  // Every plugin and volume of a node, parsed, by a key of their own, and the node itself.
  using Objects = std::map<std::string, berth::v1::Object>;

  explicit SmallScheduler(const SchedulerTerms& terms);
  ~SmallScheduler();

  // Of a node that has been here, as it last told; unset: none of that name.
  [[nodiscard]] std::optional<Objects> StateOf(const std::string& node_id) const;
  // Whether a lease may still count for the node. Once it does not, the node has found so before.
  [[nodiscard]] bool LeaseMayHold(const std::string& node_id, TimePoint now) const;

 private:
  friend class NodeLink;
  struct KnownNode;
  [[nodiscard]] std::shared_ptr<KnownNode> Find(const std::string& node_id) const;
  [[nodiscard]] std::shared_ptr<KnownNode> FindOrAdd(const std::string& node_id);

  const SchedulerTerms terms_;
  mutable std::mutex mutex_;  // of `nodes_`; each node has its own
  std::map<std::string, std::shared_ptr<KnownNode>> nodes_;
};

class NodeLink {
 public:
  explicit NodeLink(SmallScheduler& scheduler);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Takes the node's next message, whose State is moved out of it. True: `answer`, which is empty before, is
  // to be sent, at `now`. An error ends the stream: FAILED_PRECONDITION (no Hello first, no common version),
  // ALREADY_EXISTS (another node of this name is connected), INVALID_ARGUMENT (a second Hello), ABORTED (the
  // node has dialled anew).
  [[nodiscard]] absl::StatusOr<bool> Take(berth::v1::NodeMessage& message, TimePoint now,
                                          berth::v1::SchedulerMessage* answer);

 private:
  [[nodiscard]] absl::Status Greet(const berth::v1::Hello& hello, berth::v1::Welcome* welcome);
  void TakeState(berth::v1::State& state, berth::v1::SchedulerMessage* answer);
  void GrantLease(uint64_t heartbeat, TimePoint now, berth::v1::HeartbeatAnswer* answer);

  SmallScheduler& scheduler_;
  std::shared_ptr<SmallScheduler::KnownNode> node_;  // set by Hello
};

}  // namespace berth
