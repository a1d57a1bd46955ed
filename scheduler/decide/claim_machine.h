// What happens next with one claim of a volume that needs no attachment.
//
//            release, the consumer has ended, or the first publish is refused
//   HELD ───────────────────────────────────────────────────────────────────► LEAVING ──► gone
//    │ publish … until it is mounted; again after a reboot, and where the      │ unpublish … until it is
//    └ node has blocked it                                                     └ DONE, and nothing is left
//
// Only one thing ends a claim that was ever sent to its node: the result DONE of an unpublish that was stored
// in the claim while it was leaving, with nothing left of the volume there but what other claims hold.
// Nothing else does: no lost stream, no expired lease, no reboot, no volume that is missing in State, no
// time. They only cause such an unpublish.
//
// A step is decided here, written by the caller in one transaction, and only then sent. Pure: time and chance
// are arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "berth/v1/scheduler.pb.h"
#include "scheduler/records/records.pb.h"

namespace berth::scheduler {

// The node of a claim, as it is now.
struct ClaimNode {
  // The claim's machine is connected, and has said everything that it has: it takes an unpublish.
  bool synced = false;
  // And it has a lease: it takes a publish.
  bool ready = false;
  // Of the machine, as recorded; of its berthd, while it is connected.
  std::string boot_id;
  std::string run_id;
  // Its stream: another number for each, never 0.
  uint64_t stream = 0;
  // What it says of the claim's volume; null: nothing.
  const v1::Volume* volume = nullptr;
};

struct ClaimState {
  pb::ClaimRecord record;
  // The rest is in memory alone. No new operation before:
  TimePoint not_before{};
  // On which stream its mount was made or last seen.
  uint64_t stream = 0;
  // A result and the State of its volume come in any order: from when on its absence in State says something,
  // on that stream.
  TimePoint shown_by{};
};

struct ClaimStep {
  enum class Kind {
    kNone,       // `after` differs in memory at most
    kWrite,      // the record
    kPublish,    // write it, with a new id in `operation`; then send
    kUnpublish,  // the same
    kEnd,        // delete it: the node has nothing of it
  };
  Kind kind = Kind::kNone;
  ClaimState after;
};

// To be asked when the claim has changed, its node has said something, or `not_before` has come.
[[nodiscard]] ClaimStep Next(const ClaimState& claim, const ClaimNode& node, TimePoint now);

// The result of claim.record.operation. `others_there`: that node was sent other claims of the volume.
// `random`: at least 0, below 1.
[[nodiscard]] ClaimStep Apply(const ClaimState& claim, const v1::OperationResult& result,
                              const ClaimNode& node, bool others_there, TimePoint now, double random);

// It is not wanted any more. A publish that is open is retired. Not for a claim that is leaving.
[[nodiscard]] ClaimStep Leave(const ClaimState& claim, std::string cause);

// A node says that a consumer has ended, or that it has released a volume (EndedConsumer, ForcedRelease), and
// says it again on each stream until it is acknowledged: is that about this claim of that consumer or volume?
enum class EndOf {
  kThis,     // it is leaving, or has to: acknowledge it when the claim is gone
  kAnother,  // an earlier one of the same name
  kUnknown,  // State may not show it yet: ask again when the node says more, and at `shown_by`
};
// `consumer`: which one has ended; null: the volume was released. `at_synced`: this is asked because the node
// has just said everything.
[[nodiscard]] EndOf IsEndOf(const ClaimState& claim, const ClaimNode& node, const v1::EndedConsumer* consumer,
                            bool at_synced, TimePoint now);

// The present operation of a claim, for its node.
[[nodiscard]] v1::Operation OperationOf(const pb::ClaimRecord& claim);

}  // namespace berth::scheduler
