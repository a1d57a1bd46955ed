// What people see of a volume's steps: what runs or waits now, what failed, how often, and when it is tried
// again.
//
// Owned by the volume's actor; loop thread only. What is given to it outlives it.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "mounter/failure_log.h"
#include "mounter/step_report.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_queue.h"
#include "mounter/volume_reporter.h"

namespace berth {

class StepStatus {
 public:
  // `trying`: the step that is tried now.
  StepStatus(const VolumeMachine& machine, const VolumeReporter& reporter, const VolumeQueue& queue,
             const Step& trying)
      : machine_(machine), reporter_(reporter), queue_(queue), trying_(trying) {}

  // As a step goes on (StepProgress).
  void OnWaiting(std::string why) { waiting_for_ = std::move(why); }
  void OnSending(std::string_view rpc);
  void OnAnswered(const RpcTrace& trace);
  // Nothing runs or waits any more.
  void OnEnded();
  void SetNextRetry(std::optional<WallTime> at) { next_retry_at_ = at; }
  // The last try ended so.
  void SetLastError(absl::Status error) { last_error_ = std::move(error); }

  // Counts a try that has ended, and emits or logs what is new about it.
  void Report(const Step& step, const StepReport& report, FollowUp follow_up);

  // For what the step waits; empty: for nothing.
  [[nodiscard]] const std::string& waiting_for() const { return waiting_for_; }
  // The RPC that runs, and since when; empty: none.
  [[nodiscard]] const std::string& running() const { return running_; }
  [[nodiscard]] std::optional<WallTime> running_since() const { return running_since_; }
  [[nodiscard]] std::optional<WallTime> next_retry_at() const { return next_retry_at_; }
  [[nodiscard]] const absl::Status& last_error() const { return last_error_; }
  // In a row, of any step.
  [[nodiscard]] int failures() const { return failures_; }
  // The last calls of the plugin, the newest last.
  [[nodiscard]] std::vector<RpcTrace> rpcs() const { return {rpcs_.begin(), rpcs_.end()}; }

  // What a caller gets if its deadline has passed while `operation` goes on: what runs, since when, and for
  // which consumer. `forced`: what was done by force (ForcedOptions::WhatWasDone).
  [[nodiscard]] absl::Status Overdue(const VolumeOperation& operation, const std::string& forced) const;

 private:
  void ReportDone(const Step& step);
  // " (failed 12 times)"; empty: once.
  [[nodiscard]] std::string Times() const;
  // "failed 12 times, last: INTERNAL: ..., next try in 4 s". Empty: nothing has failed.
  [[nodiscard]] std::string LastFailures() const;
  // "NodeStageVolume has run for 12 s for consumer web": what others wait for.
  [[nodiscard]] std::string WhatRuns() const;

  const VolumeMachine& machine_;
  const VolumeReporter& reporter_;
  const VolumeQueue& queue_;
  const Step& trying_;

  std::string running_;
  std::optional<WallTime> running_since_;
  std::string waiting_for_;
  std::optional<WallTime> next_retry_at_;
  absl::Status last_error_;
  FailureLog log_;  // which failures are reported
  int failures_ = 0;
  std::deque<RpcTrace> rpcs_;
};

}  // namespace berth
