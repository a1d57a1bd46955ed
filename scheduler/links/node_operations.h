// The operations of one node that have not ended: which are to be sent, sent, or answered.
//
//   Open ──► (the record is written) Add ──► sent ──► answered ──► (what follows is written) Close
//                                     ▲         │                                               │
//                                     └─────────┴── a new stream; a refusal:                    ▼
//                                                   after the next heartbeat              acknowledged
//
// The record is the owner's: an id is durable before Add, and what follows from its result before Close. So
// each is sent until it has a result, under one id, on whatever stream; the node runs it once. A result of
// an operation that is closed, or of an earlier scheduler, is acknowledged and dropped.
//
// Operations are sent once the node has said everything it has, and its first heartbeat is answered. Those
// that undo something go first.
//
// Pure: each call returns what is to be sent now, in that order. It keeps no timer: the node ends an
// operation by its `timeout`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "berth/v1/scheduler.pb.h"

namespace berth::scheduler {

class NodeOperations {
 public:
  using Messages = std::vector<v1::SchedulerMessage>;
  // A result, or the refusals SETTLED and ID_REUSED: it is not known what became of the operation, and a new
  // id is needed. Called once, from Take; the owner calls Close later.
  using Answered = std::function<void(const v1::OperationResult&)>;

  struct Pending {
    v1::Operation operation;  // without lease_epoch
    // A publish that this operation undoes, and the run of berthd that it was sent to; 0: none. Its Cancel
    // goes before the operation on each stream of that run: otherwise the publish, delayed in the node, could
    // come after its unpublish.
    uint64_t cancel = 0;
    std::string cancel_run;
    Answered answered;
  };

  // Sent and without a result, of each kind; further ones wait.
  static constexpr size_t kMostSent = 128;

  // `epoch`: of this scheduler's leases.
  explicit NodeOperations(uint64_t epoch) : epoch_(epoch) {}

  // `id` will be added: from now on nothing says that it is settled.
  void Open(uint64_t id);
  [[nodiscard]] Messages Add(Pending pending);
  // It has ended for its owner: what follows is recorded, or it was never written, or it is never to be sent
  // again. Unknown ids: nothing.
  [[nodiscard]] Messages Close(uint64_t id);

  // The streams of the node, one at a time.
  void StreamBegins(std::string run_id);
  // Also if it is called twice.
  void StreamEnds();
  // `synced`: the node has said everything.
  [[nodiscard]] Messages HeartbeatAnswered(bool synced);
  [[nodiscard]] Messages Take(const v1::OperationResult& result);

  // Open, whether they are added or not.
  [[nodiscard]] size_t open() const { return open_.size(); }

 private:
  enum class Phase { kOpen, kToSend, kSent, kRefused, kAnswered, kSettled };
  struct Entry {
    Phase phase = Phase::kOpen;
    Pending pending;
  };

  [[nodiscard]] Messages SendMore();
  void SendMore(bool reverse, Messages& messages);
  [[nodiscard]] v1::SchedulerMessage Acknowledge(uint64_t id) const;

  uint64_t epoch_;
  bool may_send_ = false;
  std::string run_id_;
  uint64_t highest_ = 0;
  std::map<uint64_t, Entry> open_;
};

}  // namespace berth::scheduler
