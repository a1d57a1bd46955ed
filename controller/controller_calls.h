// Runs a scheduler's csi.v1 requests on a controller of this node.
//
// A call is checked whole, waits for its turn (controller/volume_call_queue.h), goes to the controller that
// its plugin_id means, is tried again while the plugin answers ABORTED or UNAVAILABLE, and its answer is
// checked before it is believed. Once it has gone to one plugin it goes to no other.
//
// A caller's deadline or cancellation ends its wait, not the plugin's work. Calls about one volume run one at
// a time. An identical request joins a running one, unless a different request was queued after it.
//
// Owned by main; loop thread only. What it is given outlives it.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "controller/controller_access.h"
#include "mounter/mounter.h"

namespace berth {

struct ControllerCallsOptions {
  // Between two tries: the first pause, doubling up to the longest, with jitter.
  Duration first_pause = std::chrono::milliseconds(250);
  Duration longest_pause = std::chrono::seconds(15);
  // What a plugin gets to change something, where its caller gives it less.
  Duration change_within = std::chrono::minutes(10);
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

  ControllerCalls(asio::any_io_executor executor, ControllerAccess& access, Mounter& mounter,
                  ControllerCallsOptions options = {});

  // Ends by `deadline` with DEADLINE_EXCEEDED: OUTCOME_UNCERTAIN if a plugin is at work to change something,
  // else OUTCOME_RETRY. It is only tried again while a caller waits.
  //
  // OUTCOME_REFUSED: INVALID_ARGUMENT (every mistake, by field), NOT_FOUND (no such plugin),
  // FAILED_PRECONDITION (it lacks a capability; it drains; a volume to be deleted, detached from this node or
  // expanded offline is used here), RESOURCE_EXHAUSTED (too many calls wait for the volume). Other outcomes:
  // controller/controller_outcome.h for the plugin's code, or INTERNAL if the answer was wrong. An answer of
  // more than kAnswerBytes has FAILED, or is UNCERTAIN if something was changed: the message says what was
  // made.
  [[nodiscard]] Awaitable<Result> Call(v1::ControllerCall call, TimePoint deadline);

  // Ends what is under way; after the last caller, and before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown() { return tasks_.Join(); }

 private:
  class Work;
  struct Job;

  // How many jobs there may be, with those that have no waiter any more.
  static constexpr size_t kJobs = 2048;

  // What the same call is to join; null: nothing.
  [[nodiscard]] std::shared_ptr<Job> FindJob(const std::string& key, const v1::ControllerCall& call) const;
  // `key`: in `jobs_`.
  [[nodiscard]] Awaitable<void> Run(std::string key, std::shared_ptr<Job> job, v1::ControllerCall call);
  [[nodiscard]] Awaitable<Result> Perform(std::shared_ptr<Job> job, v1::ControllerCall call);

  // What is noted here of a volume that was deleted, or has grown. An error takes the place of `result`:
  // what was asked for is done, and must be asked for again.
  [[nodiscard]] Awaitable<Result> AfterDelete(v1::ControllerCall call, std::string plugin_id, Result result);
  [[nodiscard]] Awaitable<Result> AfterExpand(v1::ControllerCall call, std::string plugin_id, Result result);

  asio::any_io_executor executor_;
  ControllerAccess& access_;
  Mounter& mounter_;
  ControllerCallsOptions options_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;  // the newest of each, by a hash over the call
  TaskScope tasks_;
};

}  // namespace berth
