// What a scheduler has a controller on this node do: csi.v1 requests, mediated.
//
// A call is checked whole, waits for its turn (rpc/call_turns.h), goes to the controller that its plugin_id
// means, is tried again while the plugin says ABORTED or UNAVAILABLE, and its answer is checked before it is
// believed. Once it has gone to one plugin it goes to no other.
//
// Owned by main; loop thread only. What it is given outlives it.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <random>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "mounter/mounter.h"
#include "rpc/controller_access.h"

namespace berth {

struct ControllerCallsOptions {
  // Between two tries: the first pause, doubling up to the longest, with jitter.
  Duration first_pause = std::chrono::milliseconds(250);
  Duration longest_pause = std::chrono::seconds(15);
};

class ControllerCalls {
 public:
  struct Result {
    // Without secrets.
    absl::Status status;
    v1::Outcome outcome = v1::OUTCOME_UNKNOWN;
    // With OUTCOME_DONE. Mount flags are "(hidden)".
    v1::ControllerAnswer answer;
  };

  ControllerCalls(ControllerAccess& access, Mounter& mounter, ControllerCallsOptions options = {})
      : access_(access), mounter_(mounter), options_(options) {}

  // Ends by `deadline`. Cancelling the coroutine cancels the plugin's call, of which then nothing is known.
  //
  // OUTCOME_REFUSED: INVALID_ARGUMENT (every mistake, by field), NOT_FOUND (no such plugin),
  // FAILED_PRECONDITION (it lacks a capability; it drains; a volume to be deleted is used here),
  // RESOURCE_EXHAUSTED (too many calls wait for the volume). Else rpc/controller_outcome.h says it of the
  // plugin's code, or INTERNAL where the answer was no good.
  [[nodiscard]] Awaitable<Result> Call(v1::ControllerCall call, TimePoint deadline);

 private:
  class Work;

  // What is noted here of a volume that was deleted, or has grown. An error takes the place of `result`:
  // what was asked for is done, and must be asked for again.
  [[nodiscard]] Awaitable<Result> AfterDelete(v1::ControllerCall call, std::string plugin_id, Result result);
  [[nodiscard]] Awaitable<Result> AfterExpand(v1::ControllerCall call, std::string plugin_id, Result result);

  ControllerAccess& access_;
  Mounter& mounter_;
  ControllerCallsOptions options_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace berth
