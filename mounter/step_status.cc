#include "mounter/step_status.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <variant>

#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kRpcsKept = 16;

std::string Seconds(WallTime since) {
  return fmt::format("{:.0f} s", std::chrono::duration<double>(WallClock::now() - since).count());
}

}  // namespace

void StepStatus::OnSending(std::string_view rpc) {
  waiting_for_.clear();
  running_ = rpc;
  running_since_ = WallClock::now();
}

void StepStatus::OnAnswered(const RpcTrace& trace) {
  rpcs_.push_back(trace);
  if (rpcs_.size() > kRpcsKept) rpcs_.pop_front();
}

void StepStatus::OnEnded() {
  running_.clear();
  running_since_.reset();
  waiting_for_.clear();
}

void StepStatus::Report(const Step& step, const StepReport& report, FollowUp follow_up) {
  if (step.kind == StepKind::kRenew) return;  // TokenRenewer reports it
  const bool done = report.outcome == CallOutcome::kDone || report.outcome == CallOutcome::kAbsent;
  if (done) {
    log_.Clear();
    failures_ = 0;
    ReportDone(step);
    return;
  }
  // What gave way to a request that came meanwhile has not failed.
  if (!absl::IsAborted(report.error)) ++failures_;
  const bool repeat = follow_up == FollowUp::kRepeat;
  const std::string kind = fmt::format("{} {} {} {}", static_cast<int>(step.kind), Describe(step.key), repeat,
                                       report.stuck ? report.stuck->on : CodeName(report.error.code()));
  if (!log_.ShouldReport(kind, Clock::now())) return;
  if (repeat) {
    SPDLOG_WARN("{}; trying again{}", report.error.ToString(), Times());
    return;
  }
  const std::string message(MessageOf(report.error));
  if (step.kind == StepKind::kForget && report.in_use) {
    reporter_.Emit("volume.still_in_use", "", fmt::format("not released: {}{}", message, Times()));
    return;
  }
  if (report.stuck) {
    reporter_.Emit(
        "volume.stuck", step.key.consumer,
        fmt::format("{} does not return{}{}; other volumes go on: {}", report.stuck->on,
                    report.stuck->pid == 0 ? "" : fmt::format(" (process {})", report.stuck->pid),
                    report.stuck->plugin_hangs ? ": the plugin itself hangs, and has to be restarted" : "",
                    message));
    return;
  }
  const bool later = follow_up == FollowUp::kPause || step.kind == StepKind::kExpand;
  if (later && report.outcome != CallOutcome::kFinal) {
    reporter_.Emit("volume.uncertain", step.key.consumer,
                   fmt::format("not finished, to be tried again: {}{}", message, Times()));
    return;
  }
  reporter_.Emit("volume.failed", step.key.consumer, message + Times());
}

std::string StepStatus::Times() const {
  return failures_ > 1 ? fmt::format(" (failed {} times)", failures_) : "";
}

std::string StepStatus::LastFailures() const {
  if (last_error_.ok()) return "";
  std::string text = fmt::format("{}: {}", CodeName(last_error_.code()), MessageOf(last_error_));
  if (failures_ > 1) text = fmt::format("failed {} times, last: {}", failures_, text);
  if (!next_retry_at_) return text;
  const double wait = std::chrono::duration<double>(*next_retry_at_ - WallClock::now()).count();
  return fmt::format("{}, next try in {:.0f} s", text, std::max(wait, 0.0));
}

void StepStatus::ReportDone(const Step& step) {
  switch (step.kind) {
    case StepKind::kStage:
      reporter_.Emit("volume.staged", step.key.consumer, "staged");
      return;
    case StepKind::kUnpublish:
      reporter_.Emit("volume.unpublished", step.key.consumer,
                     fmt::format("unpublished for {}", Describe(step.key)));
      return;
    case StepKind::kUnstage:
      if (machine_.record().stages) reporter_.Emit("volume.unstaged", "", "unstaged");
      return;
    case StepKind::kExpand:
      reporter_.Emit("volume.expanded", "", "the node's part of its expansion is done");
      return;
    case StepKind::kForget:
      // Who waits for that, to detach it for instance, is woken by this.
      reporter_.Emit("volume.free", "", "the kernel has released it");
      return;
    case StepKind::kPublish:    // reported once it is durable
    case StepKind::kMountPath:  // OnPathMounted reports it
    case StepKind::kRenew:
    case StepKind::kNone:
      return;
  }
}

std::string StepStatus::WhatRuns() const {
  std::string purpose;
  const auto& current = queue_.current();
  if (current != nullptr) {
    if (const auto* publish = std::get_if<PublishRequest>(&current->request)) {
      purpose = " to publish it for " + Describe({.consumer = publish->consumer, .name = publish->name});
    } else if (const auto* unpublish = std::get_if<UnpublishRequest>(&current->request)) {
      purpose =
          " to unpublish it for " + Describe({.consumer = unpublish->consumer, .name = unpublish->name});
    } else {
      purpose = " to expand it";
    }
  } else if (!trying_.key.consumer.empty()) {
    purpose = " for " + Describe(trying_.key);
  }
  if (!waiting_for_.empty()) return fmt::format("what comes before it{} waits: {}", purpose, waiting_for_);
  if (!running_.empty() && running_since_) {
    return fmt::format("{} has run for {}{}", running_, Seconds(*running_since_), purpose);
  }
  if (current == nullptr) {
    const std::string failed = LastFailures();
    return fmt::format("what was begun before it is finished or undone first{}{}{}", purpose,
                       failed.empty() ? "" : ": ", failed);
  }
  return fmt::format("other requests for this volume come before it{}",
                     purpose.empty() ? "" : ", the first" + purpose);
}

absl::Status StepStatus::Overdue(const VolumeOperation& operation, const std::string& forced) const {
  if (&operation != queue_.current().get()) {
    const std::string message = fmt::format("not begun: {}", WhatRuns());
    return waiting_for_.empty() ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
  }
  if (!waiting_for_.empty()) return absl::UnavailableError(waiting_for_);
  const std::string failed = LastFailures();
  const std::string last = failed.empty() ? "" : "; " + (failures_ > 1 ? failed : "last error: " + failed);
  const std::string before = forced.empty() ? "" : forced + "; ";
  const bool plugin_hangs = machine_.stuck() && machine_.stuck()->plugin_hangs;
  const std::string_view hangs = plugin_hangs ? "; the plugin itself hangs: restart it" : "";
  if (!running_.empty() && running_since_) {
    return absl::DeadlineExceededError(
        fmt::format("{}plugin {}: {} has run for {} and goes on{}; the same request joins it{}", before,
                    machine_.record().plugin_id, running_, Seconds(*running_since_), hangs, last));
  }
  return absl::DeadlineExceededError(
      fmt::format("{}not done yet{}; it goes on, and the same request joins it{}", before, hangs, last));
}

}  // namespace berth
