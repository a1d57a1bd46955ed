// Which machine may connect under which name: decided at each Hello, by what is recorded of the name.
//
//   nothing recorded ───────────────────────────────────────► welcome, recorded
//   the same instance, the same boot ───────────────────────► welcome; its older stream ends
//   the same instance, another boot ────────────────────────► welcome, recorded: the machine was restarted
//     … and it is the boot before that one ─────────────────► refused, with the other one: two machines
//   another instance, the same boot ────────────────────────► welcome, recorded: its state directory is new
//   another instance, the recorded one is connected ────────► refused
//   another instance, the recorded one is away ─────────────► a stranger: linked and shown, gets nothing
//
// An instance lies in a node's state directory, and so in an image of its disk: two machines that were made
// from one image have the same. A stranger says nothing about the volumes of the recorded machine.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>

#include "berth/v1/scheduler.pb.h"
#include "scheduler/records/node_records.h"

namespace berth::scheduler {

// OK, or why the Hello is refused whoever sends it: INVALID_ARGUMENT for a field, FAILED_PRECONDITION for
// another major version of the protocol.
[[nodiscard]] absl::Status CheckHello(const v1::Hello& hello);

struct HelloDecision {
  enum class Kind { kWelcome, kStranger, kRefuse };
  Kind kind = Kind::kWelcome;
  // What is to be recorded first; unset: nothing.
  std::optional<NodeRecord> record = std::nullopt;
  // kRefuse: why. ALREADY_EXISTS: another machine has the name.
  absl::Status why = absl::OkStatus();
  // For people: what has happened, where that is worth a line in the log.
  std::string note = {};
};

// `known`: the record of the Hello's name, if there is one; `connected`: that machine has a stream now.
[[nodiscard]] HelloDecision DecideHello(const std::optional<NodeRecord>& known, bool connected,
                                        const v1::Hello& hello);

}  // namespace berth::scheduler
