// Which machine may connect under which name: decided at each Hello, by what is recorded of the name.
//
//   a lower connection number than the present stream of that instance ─► refused: it was delayed on its way
//   nothing recorded ───────────────────────────────────────► welcome, recorded
//   the same instance, the same boot ───────────────────────► welcome; its older stream ends
//   the same instance, another boot ────────────────────────► welcome, recorded: the machine was restarted
//     … and it is the boot before that one ─────────────────► refused, with the other one: two machines
//   another instance, the same boot ────────────────────────► welcome, recorded: its state directory is new
//   another instance, the recorded one is connected ────────► refused
//   another instance, the recorded one is away ─────────────► another machine: listed, without leases
//
// An instance lies in a node's state directory, and so in an image of its disk: two machines that were made
// from one image have the same. The volumes of the recorded machine stay on that machine, whatever another
// machine reports.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>

#include "berth/v1/scheduler.pb.h"
#include "scheduler/records/node_records.h"

namespace berth::scheduler {

// OK, or why every such Hello is refused: INVALID_ARGUMENT for a field, FAILED_PRECONDITION for
// another major version of the protocol.
[[nodiscard]] absl::Status CheckHello(const v1::Hello& hello);

struct HelloDecision {
  enum class Kind { kWelcome, kOtherMachine, kRefuse };
  Kind kind = Kind::kWelcome;
  // What is to be recorded first; unset: nothing.
  std::optional<NodeRecord> record = std::nullopt;
  // kRefuse: why. ALREADY_EXISTS: another machine has the name. UNAVAILABLE: the node has opened another
  // stream since.
  absl::Status why = absl::OkStatus();
  // For people: what has happened, where that is worth a line in the log.
  std::string note = {};
};

// `known`: the record of the Hello's name, if there is one; `current`: the Hello of that machine's stream,
// null if it has none now.
[[nodiscard]] HelloDecision DecideHello(const std::optional<NodeRecord>& known, const v1::Hello* current,
                                        const v1::Hello& hello);

}  // namespace berth::scheduler
